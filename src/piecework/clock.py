"""Time, injected: stamps come from a ``Clock``, timers from the running event loop.

Both are virtual in tests: ``piecework.testing`` replaces the loop's time and gives a clock that
follows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Protocol, TypeAlias, runtime_checkable

from piecework.errors import ConfigError, shown

Seconds: TypeAlias = float | timedelta
"""A duration at the API: seconds, or a ``timedelta``."""

#: What a ``datetime`` can hold, in milliseconds since 1970: from the year 1, and before 10000.
EARLIEST_MS = -62_135_596_800_000
END_MS = 253_402_300_800_000


def wall_ms() -> int:
    """The computer's own time in milliseconds since 1970 (UTC). Tests replace this function."""
    return time.time_ns() // 1_000_000


@runtime_checkable
class Clock(Protocol):
    """Where stamps come from.

    Example:
        >>> class Fixed:
        ...     def now_ms(self) -> int:
        ...         return 0
        >>> create_work(now=Fixed())
    """

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        ...


class SystemClock:
    """The computer's clock."""

    __slots__ = ()

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        return wall_ms()


class FunctionClock:
    """A clock from a function that returns an aware ``datetime`` or seconds since 1970."""

    __slots__ = ("_now",)

    def __init__(self, now: Callable[[], datetime | float]) -> None:
        self._now = now

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC."""
        value = self._now()
        return to_ms(value) if isinstance(value, datetime) else int(value * 1000)


Now: TypeAlias = Clock | Callable[[], datetime | float]
"""What the option ``now=`` takes: a ``Clock``, or a function."""


def as_clock(now: Now | None) -> Clock:
    """The clock that an option ``now=`` means; ``None`` is the computer's own."""
    if now is None:
        return SystemClock()
    if isinstance(now, Clock):
        return now
    return FunctionClock(now)


def to_ms(value: datetime) -> int:
    """An aware time as milliseconds since 1970.

    Raises:
        ConfigError: The time is naive: it could mean any zone.
    """
    if value.utcoffset() is None:
        raise ConfigError(
            f"the time {value.isoformat()} has no time zone; "
            f"pass an aware datetime, such as datetime.now(UTC)"
        )
    return round(value.timestamp() * 1000)


def from_ms(value: int) -> datetime:
    """Milliseconds since 1970 as an aware time in UTC."""
    return datetime.fromtimestamp(value / 1000, UTC)


def seconds(value: Seconds) -> float:
    """A duration at the API as seconds.

    Raises:
        ConfigError: It is no number, or too large for a float.
    """
    try:
        return value.total_seconds() if isinstance(value, timedelta) else float(value)
    except Exception as error:
        raise ConfigError(
            f"a duration must be seconds or a timedelta, not {shown(value)}"
        ) from error


async def sleep(delay: float) -> None:
    """Wait by the running loop's time, which a test or the simulator may own."""
    await asyncio.sleep(delay)  # noqa: TID251 - the one place that sleeps
