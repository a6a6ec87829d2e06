"""How often a failure is tried again, and how long is waited before."""

from __future__ import annotations

import contextlib
import inspect
import math
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from functools import lru_cache
from random import SystemRandom
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Literal,
    Never,
    TypeAlias,
    TypeVar,
    TypeVarTuple,
    cast,
)

from piecework.clock import Seconds, seconds, sleep
from piecework.errors import ConfigError, shown
from piecework.failure import cause_of
from piecework.signals import RetryAbort, WorkSignal

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

T = TypeVar("T")
if TYPE_CHECKING:
    from typing_extensions import TypeVar as DefaultTypeVar

    E = DefaultTypeVar("E", default=Never)
else:  # a default is for type checkers, and Python 3.11 has none
    E = TypeVar("E")
Ts = TypeVarTuple("Ts")

Given: TypeAlias = tuple[int | None, float | None, float | None, float | None, float | None]
RetryTuple: TypeAlias = tuple[int, float, float, float, float]

_CORE: Final[RetryTuple] = (3, 1.0, 2.0, 30.0, 0.5)

#: Attempts of this many or more are a mistake: no JSON parser needs to take the number.
_ENDLESS: Final = 2**63


@dataclass(frozen=True, slots=True, init=False, repr=False, eq=False)
class Retry:
    """How often a work is tried and how long is waited between two attempts.

    It remembers which fields were given: laid over another, only those count, so that
    ``Retry(attempts=5)`` at enqueue keeps the ``base`` of the type. A field that was not given (or
    is ``None``) reads as the default. Two are equal when the same
    fields were given the same values.

    Args:
        attempts: How often it runs at most, the first run included; from 1. Default 3.
        base: Seconds (or a ``timedelta``) before the second attempt; from 0. Default 1.
        factor: Each delay is this times the one before; from 1. Default 2.
        max: The longest delay in seconds (or a ``timedelta``); from 0. Default 30.
        jitter: The share of a delay that is random, 0 to 1. Default 0.5: half to all of it.

    Raises:
        ConfigError: A value is out of its range; the text says which and the range.

    Example:
        >>> Retry(attempts=5, base=0.5)
        Retry(attempts=5, base=0.5)
        >>> Retry(attempts=5).factor
        2.0
    """

    attempts: int
    base: float
    factor: float
    max: float
    jitter: float
    given: Given = field(init=False)

    def __init__(
        self,
        attempts: int | None = None,
        base: Seconds | None = None,
        factor: float | None = None,
        max: Seconds | None = None,
        jitter: float | None = None,
    ) -> None:
        given: Given = (
            _attempts(attempts),
            _number("base", base, 0, math.inf, " seconds"),
            _number("factor", factor, 1, math.inf),
            _number("max", max, 0, math.inf, " seconds"),
            _number("jitter", jitter, 0, 1),
        )
        put = object.__setattr__
        for name, value, default in zip(_FIELDS, given, _CORE, strict=True):
            put(self, name, default if value is None else value)
        put(self, "given", given)

    def as_tuple(self) -> RetryTuple:
        """All five values, to be sent along with a work; ``from_tuple`` is the way back."""
        return (self.attempts, self.base, self.factor, self.max, self.jitter)

    @staticmethod
    def from_tuple(values: Sequence[float]) -> Retry:
        """The ``Retry`` that ``as_tuple`` came from, with all five fields given.

        Raises:
            ConfigError: These are not five values in their ranges.
        """
        try:
            return _restored(tuple(values))
        except ConfigError:
            raise
        except Exception:  # noqa: BLE001 - whatever comes of values that are none
            raise ConfigError(f"retry: five numbers are needed, not {shown(values)}") from None

    def __eq__(self, other: object) -> bool:
        return self.given == other.given if isinstance(other, Retry) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.given)

    def __repr__(self) -> str:
        named = zip(_FIELDS, self.given, strict=True)
        return (
            f"Retry({', '.join(f'{name}={value!r}' for name, value in named if value is not None)})"
        )


_FIELDS: Final = ("attempts", "base", "factor", "max", "jitter")


def _attempts(value: int | None) -> int | None:
    if value is None:
        return None
    if type(value) is not int or not 1 <= value < _ENDLESS:
        raise ConfigError(f"retry: attempts must be a whole number from 1, not {shown(value)}")
    return value


def _number(
    name: str, value: Seconds | None, low: float, high: float, unit: str = ""
) -> float | None:
    if value is None:
        return None
    of_numbers = isinstance(value, (int, float)) and not isinstance(value, bool)
    if of_numbers or (unit and isinstance(value, timedelta)):
        with contextlib.suppress(ConfigError):  # said below, with the name
            number = seconds(value)
            if low <= number <= high and number != math.inf:
                return number
    limits = f"from {low}" if high == math.inf else f"from {low} to {high}"
    raise ConfigError(f"retry: {name} must be a finite number {limits}{unit}, not {shown(value)}")


@lru_cache(maxsize=1024)
def _restored(values: tuple[Any, ...]) -> Retry:
    if len(values) != len(_FIELDS) or None in values:
        raise TypeError
    return Retry(*values)


DEFAULT_RETRY: Final = Retry(*_CORE)
"""The core defaults, under every other level; all five fields are given."""


def merge(*levels: Retry | None) -> Retry:
    """Lay levels over one another, field by field; what a later one gives wins.

    Example:
        >>> merge(Retry(attempts=2, base=5.0), None, Retry(attempts=7))
        Retry(attempts=7, base=5.0)
    """
    given = tuple(level for level in levels if level is not None)
    if not given:
        return _EMPTY
    last = given[-1]
    if len(given) == 1 or None not in last.given:
        return last
    return _merged(given)


_EMPTY: Final = Retry()


@lru_cache(maxsize=1024)
def _merged(levels: tuple[Retry, ...]) -> Retry:
    values = list(_EMPTY.given)
    for level in levels:
        values = [
            under if over is None else over for under, over in zip(values, level.given, strict=True)
        ]
    return Retry(*cast("Given", values))


# The one variable of the whole process, on purpose: libraries that build systems of their own are
# to follow what the program set once at its start.
_process_default = DEFAULT_RETRY


def set_default_retry(retry: Retry) -> None:
    """Set the process-wide default, which lies over the core defaults and under every system.

    It takes the place of what was set before; ``Retry()`` brings back the core defaults. Works
    that are enqueued already keep what they carry.

    Example:
        >>> set_default_retry(Retry(attempts=5))
        >>> get_default_retry().attempts, get_default_retry().base
        (5, 1.0)
    """
    global _process_default  # noqa: PLW0603 - see the variable
    _process_default = merge(DEFAULT_RETRY, retry)


def get_default_retry() -> Retry:
    """The process-wide default, laid over the core defaults: all five fields are given.

    Example:
        >>> get_default_retry().attempts
        3
    """
    return _process_default


def resolve(*levels: Retry | None) -> Retry:
    """Levels laid over the process-wide default: all five fields are given."""
    return merge(_process_default, *levels)


def backoff(retry: Retry, attempt: int, random: Callable[[], float]) -> float:
    """Seconds to wait after an attempt that failed, to the millisecond.

    ``min(base * factor ** (attempt - 1), max) * (1 - jitter * random())``.

    Args:
        retry: The options.
        attempt: Which attempt failed, from 1; any size is fine.
        random: Gives a number from 0 to 1.

    Example:
        >>> backoff(Retry(base=1.0, jitter=0.5), 3, lambda: 0.5)
        3.0
    """
    try:
        delay = min(retry.base * retry.factor ** max(attempt - 1, 0), retry.max)
    except OverflowError:
        delay = retry.max if retry.base else 0.0
    return round(delay * (1 - retry.jitter * random()), 3)


class _Mark(Enum):
    RAISE = "raise"


_RAISE: Final = _Mark.RAISE
_RANDOM: Final = SystemRandom().random  # has no state, so that forked processes do not share one


async def retry(
    fn: Callable[[*Ts], Awaitable[T]] | Callable[[*Ts], T],
    *args: *Ts,
    options: Retry | None = None,
    on: Callable[[Exception], bool | float | None] | None = None,
    error_result: E | Literal[_Mark.RAISE] = _RAISE,
    before: Callable[[int], None] | None = None,
    after: Callable[[int, BaseException | None], None] | None = None,
    sleep: Callable[[float], Awaitable[object]] = sleep,
    random: Callable[[], float] = _RANDOM,
) -> T | E:
    """Call a function until it returns, with a backoff between the calls.

    ``RetryAbort`` ends it at once with the cause in its place. ``CancelledError`` and the other
    signals (``WorkDelayError``) pass untouched. A plain function runs in the event loop.

    Args:
        fn: The function, plain or async. Use ``functools.partial`` for keyword arguments.
        *args: Its arguments.
        options: Laid over ``get_default_retry()``.
        on: Is asked after each failure but the last. ``False`` gives up; a number is the
            shortest delay in seconds before the next call; ``True`` or ``None`` changes nothing.
        error_result: Is returned in place of raising the last error.
        before: Is called with the number of the attempt, from 1, before each.
        after: Is called with it and the error, or ``None``, after each.
        sleep: How to wait for seconds.
        random: Gives a number from 0 to 1, for the jitter.

    Returns:
        What the function returned, or ``error_result``.

    Raises:
        Exception: The last error of the function, unchanged, or the cause of its ``RetryAbort``.

    Example:
        >>> await retry(fetch, url, options=Retry(attempts=5), on=lambda error: error.retry_after)
    """
    plan = resolve(options)
    attempt = 1
    while True:
        if before is not None:
            before(attempt)
        try:
            result = fn(*args)
            value = cast("T", await result if inspect.isawaitable(result) else result)
        except RetryAbort as abort:
            failure, verdict = cause_of(abort), False
        except WorkSignal:
            raise
        except Exception as error:  # noqa: BLE001 - whatever fails is tried again
            failure = error
            verdict = attempt < plan.attempts and (on is None or on(error))
        else:
            if after is not None:
                after(attempt, None)
            return value
        try:
            if after is not None:
                after(attempt, failure)
            if verdict is False:
                if error_result is _RAISE:
                    raise failure
                return error_result
        finally:
            del failure  # it holds this frame: let go, or both wait for the garbage collector
        floor = 0.0 if verdict is None or verdict is True else verdict
        await sleep(max(backoff(plan, attempt, random), floor))
        attempt += 1
