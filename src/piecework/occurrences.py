"""When a schedule is due: the occurrences of a recurrence, as pure functions of time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from piecework.clock import Seconds, from_ms, seconds, to_ms
from piecework.cron import CronExpression, load_zone, next_in_zone, parse_cron
from piecework.errors import ConfigError, shown

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

CatchUp: TypeAlias = Literal["skip", "one", "all"]
"""What becomes of missed occurrences: none of them, the latest one, or every one."""

NextFunction: TypeAlias = Callable[[datetime], datetime | timedelta | float | None]
"""From an aware time to the next occurrence: when, or in how many seconds; ``None`` ends it."""

#: Milliseconds that an occurrence may be late and still not count as missed for ``"skip"``.
GRACE_MS = 60_000
#: The shortest distance of two occurrences in milliseconds: a schedule is no loop.
SHORTEST_MS = 1_000
#: A number from ``next`` over this many seconds (30 years) is a date by mistake.
_LONGEST_NUMBER = 30 * 365 * 86_400
_MINUTE_MS = 60_000


class Due(NamedTuple):
    """What to fire now, and when to look again.

    Attributes:
        occurrences_ms: The occurrences to fire now, in order, in milliseconds since 1970.
        upcoming_ms: The next occurrence, up to now if more are due; ``None`` after the last.
    """

    occurrences_ms: list[int]
    upcoming_ms: int | None


@dataclass(frozen=True, slots=True)
class Recurrence:
    """A checked recurrence; ``recurrence`` makes it. One of the first three is set.

    Attributes:
        cron: The cron expression, in ``zone``.
        every_ms: The distance of two occurrences in milliseconds; they are multiples of it since
            1970 (UTC), so that all processes agree on them.
        next: The user's function; it gets the occurrence before, in ``zone``.
        zone: The time zone.
        catch_up: What becomes of missed occurrences.
    """

    cron: CronExpression | None
    every_ms: int | None
    next: NextFunction | None
    zone: ZoneInfo
    catch_up: CatchUp

    def __str__(self) -> str:
        if self.cron is not None:
            return f"cron {self.cron} ({self.zone.key})"
        if self.every_ms is not None:
            return f"every {self.every_ms / 1000:g} s"
        return "next"

    def following(self, after_ms: int) -> int | None:
        """The first occurrence strictly after a time (milliseconds since 1970), or ``None``.

        Raises:
            ConfigError: ``next`` returned what is not a later time.
        """
        if self.every_ms is not None:
            return (after_ms // self.every_ms + 1) * self.every_ms
        if self.cron is not None:
            found = next_in_zone(self.cron, from_ms(after_ms), self.zone)
            return None if found is None else to_ms(found)
        assert self.next is not None
        return _result_ms(self.next(from_ms(after_ms).astimezone(self.zone)), after_ms)

    def due(
        self,
        after_ms: int,
        now_ms: int,
        limit: int = 100,
        *,
        watched_from_ms: int | None = None,
    ) -> Due:
        """Which occurrences after one time and up to another to fire, and when the next one is.

        An occurrence counts as missed if nobody watched at its time. Those that were watched are
        all fired. Of the missed ones ``"all"`` fires every one; ``"one"`` the latest, if no later
        one is fired anyway; ``"skip"`` likewise, but only if it is at most a minute late. With
        ``next`` the chain cannot be known without living through it: ``"one"`` fires the first
        missed one in place of the latest and goes on from now; a call fires at most one.

        Args:
            after_ms: Up to here all is dealt with, in milliseconds since 1970.
            now_ms: The present, in milliseconds since 1970.
            limit: The most occurrences of one call, 1 or more; the others are due in the next call.
            watched_from_ms: Later occurrences than this one were watched; ``None`` for none.

        Raises:
            ConfigError: ``next`` returned what is not a later time.
        """
        watched = now_ms if watched_from_ms is None else watched_from_ms
        if self.next is not None:
            return self._due_by_next(after_ms, now_ms, watched)
        if self.catch_up == "all":
            return self._up_to(now_ms, after_ms, limit)
        live = self._up_to(now_ms, max(after_ms, min(watched, now_ms)), limit)
        if live.occurrences_ms:
            return live
        latest = self._latest(after_ms, now_ms)
        if latest is None or self.drops(latest, now_ms, watched):
            return live
        return Due([latest], live.upcoming_ms)

    def drops(self, first_ms: int, now_ms: int, watched_from_ms: int) -> bool:
        """The policy drops this occurrence, the latest or the only one that is due."""
        missed = first_ms <= watched_from_ms
        return self.catch_up == "skip" and missed and now_ms - first_ms > GRACE_MS

    def onward(self, first_ms: int, now_ms: int, watched_from_ms: int) -> int | None:
        """With ``next``: the occurrence to go on with after one that was due.

        Raises:
            ConfigError: ``next`` returned what is not a later time.
        """
        upcoming = self.following(first_ms)
        if self.catch_up == "all" or first_ms > watched_from_ms:
            return upcoming
        if upcoming is not None and upcoming <= now_ms:
            return self.following(now_ms)
        return upcoming

    def _due_by_next(self, after_ms: int, now_ms: int, watched_ms: int) -> Due:
        first = self.following(after_ms)
        if first is None or first > now_ms:
            return Due([], first)
        fired = [] if self.drops(first, now_ms, watched_ms) else [first]
        return Due(fired, self.onward(first, now_ms, watched_ms))

    def _up_to(self, now_ms: int, after_ms: int, limit: int) -> Due:
        found: list[int] = []
        upcoming = self.following(after_ms)
        while upcoming is not None and upcoming <= now_ms and len(found) < limit:
            found.append(upcoming)
            upcoming = self.following(upcoming)
        return Due(found, upcoming)

    def _latest(self, after_ms: int, now_ms: int) -> int | None:
        """The last occurrence of a span; it halves the span, for a year of minutes is long."""
        latest = self.following(after_ms)
        if latest is None or latest > now_ms:
            return None
        if self.every_ms is not None:
            return now_ms // self.every_ms * self.every_ms
        end = now_ms
        while end - latest >= _MINUTE_MS:
            middle = (latest + end) // 2
            found = self.following(middle)
            if found is None or found > now_ms:
                end = middle
            else:
                latest = found
        return latest


def recurrence(
    *,
    cron: str | None = None,
    every: Seconds | None = None,
    next: NextFunction | None = None,
    tz: str = "UTC",
    catch_up: CatchUp = "one",
) -> Recurrence:
    """Check the options of a schedule: exactly one of ``cron``, ``every`` and ``next``.

    Args:
        cron: A cron expression of five fields; see ``parse_cron``.
        every: The distance of two occurrences, a whole number of milliseconds from 1 second on.
            They are aligned to 1970 (UTC): ``every=3600`` is on the hour.
        next: A plain function that gets the occurrence before (or the time of the start) and
            returns the next one: an aware ``datetime``, a ``timedelta`` or seconds, at least one
            second later; ``None`` ends the schedule.
        tz: The IANA name of the zone that ``cron`` is meant in and that ``next`` gets its time in.
        catch_up: What becomes of the occurrences that were missed while nothing ran.

    Raises:
        ConfigError: An option cannot be used; the text says the fix.

    Example:
        >>> recurrence(cron="0 8 * * mon", tz="Europe/Amsterdam").catch_up
        'one'
    """
    given = [
        name for name, v in (("cron", cron), ("every", every), ("next", next)) if v is not None
    ]
    if len(given) != 1:
        raise ConfigError(
            f"a schedule takes exactly one of cron=, every= and next=, not "
            f"{' and '.join(given) or 'none of them'}"
        )
    if not isinstance(catch_up, str) or catch_up not in get_args(CatchUp):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise ConfigError(f"catch_up must be 'skip', 'one' or 'all', not {shown(catch_up)}")
    expression = None if cron is None else parse_cron(cron)
    if expression is not None and not expression.possible:
        raise ConfigError(f"cron {cron!r} is never due: its months have no such day")
    if next is not None and (not callable(next) or iscoroutinefunction(next)):
        raise ConfigError(f"next must be a plain function of a datetime, not {shown(next)}")
    every_ms = None if every is None else _every_ms(every)
    return Recurrence(expression, every_ms, next, load_zone(tz), catch_up)


def _every_ms(every: Seconds) -> int:
    try:
        value = seconds(every)
    except ConfigError:
        value = math.nan
    if not SHORTEST_MS <= value * 1000 < math.inf:  # NaN is refused too
        raise ConfigError(
            f"every must be 1 second or more, in seconds or a timedelta, not {shown(every)}"
        )
    return round(value * 1000)


def _result_ms(result: object, after_ms: int) -> int | None:
    """What a ``next`` function returned, as milliseconds since 1970."""
    if result is None:
        return None
    if isinstance(result, datetime):
        found = to_ms(result)
    elif isinstance(result, timedelta):
        found = after_ms + round(result.total_seconds() * 1000)
    elif isinstance(result, int | float) and not isinstance(result, bool):
        if not abs(result) < _LONGEST_NUMBER:
            raise ConfigError(
                f"next returned {result!r}: a number means seconds from the time it was given; "
                f"return an aware datetime for a date"
            )
        found = after_ms + round(result * 1000)
    else:
        raise ConfigError(
            f"next must return a datetime, a timedelta, seconds or None, not {shown(result)}"
        )
    if found - after_ms < SHORTEST_MS:
        raise ConfigError(
            f"next returned {result!r} for {from_ms(after_ms).isoformat()}; it must be at least "
            f"1 second later. Return None to end the schedule"
        )
    return found
