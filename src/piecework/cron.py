"""Cron expressions: what they accept, and when they are next due in a time zone.

The fields are read here, so that each error names its field and the fix. ``croniter`` steps over
the wall clock; the way from there to real time, where daylight saving lives, is ours.
"""

from __future__ import annotations

from calendar import monthrange
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from piecework.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import NoReturn

_SECOND = timedelta(seconds=1)
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_LEAP_YEAR = 2024


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    low: int
    high: int
    names: tuple[str, ...] = ()

    @property
    def values(self) -> tuple[int, ...]:
        return tuple(range(self.low, self.high + 1))


_FIELDS = (
    _Field("minute", 0, 59),
    _Field("hour", 0, 23),
    _Field("day of month", 1, 31),
    _Field("month", 1, 12, _MONTHS),
    _Field("day of week", 0, 6, _WEEKDAYS),
)
_MINUTE, _HOUR, _DAY, _MONTH, _WEEKDAY = _FIELDS


@dataclass(frozen=True, slots=True)
class CronExpression:
    """A checked cron expression; ``parse_cron`` makes it.

    Attributes:
        text: The expression as it was given, with single spaces.
        minutes: The minutes, 0 to 59, in order.
        hours: The hours, 0 to 23, in order.
        days: The days of the month, 1 to 31; all of them where any day will do.
        months: The months, 1 to 12, in order.
        weekdays: The days of the week, Sunday is 0; all of them where any day will do.
        either_day: Both day fields are set: a day that fits one of them is enough.
    """

    text: str
    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: tuple[int, ...]
    months: tuple[int, ...]
    weekdays: tuple[int, ...]
    either_day: bool

    def __str__(self) -> str:
        return self.text

    @property
    def every_hour(self) -> bool:
        """All 24 hours: it runs by real time, also where the clock jumps or repeats an hour."""
        return len(self.hours) == len(_HOUR.values)

    @property
    def possible(self) -> bool:
        """There is a date that fits (February 30 does not exist)."""
        longest = max(monthrange(_LEAP_YEAR, month)[1] for month in self.months)
        return self.either_day or self.days[0] <= longest

    def fits_date(self, wall: datetime) -> bool:
        """The date of a wall time is one of the expression's."""
        if wall.month not in self.months:
            return False
        day, weekday = wall.day in self.days, wall.isoweekday() % 7 in self.weekdays
        return (day or weekday) if self.either_day else (day and weekday)


def parse_cron(expr: str) -> CronExpression:
    """Check a cron expression of five fields: minute, hour, day of month, month, day of week.

    A field is ``*``, a value, a range ``a-b``, either with a step ``/n``, or a list of those with
    commas. A value with a step (``5/15``) counts from there to the end of the field: 5, 20, 35, 50.
    Months and days of the week also go by name (``jan``, ``mon``; any case), Sunday is 0 or 7.
    ``@yearly``, ``@annually``, ``@monthly``, ``@weekly``, ``@daily``, ``@midnight`` and ``@hourly``
    stand for the usual expressions. Where both day fields are other than ``*``, a day that fits one
    of them is enough (``*/2`` counts as set).

    Args:
        expr: The expression.

    Raises:
        ConfigError: It cannot be used; the text names the field and the fix. There are no seconds,
            no ``?``, ``L``, ``W`` or ``#``, no ``@reboot``, and no range that runs backwards.

    Example:
        >>> parse_cron("*/20 8-9 * * mon-fri").minutes
        (0, 20, 40)
    """
    if not isinstance(expr, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise ConfigError(f"cron must be a text such as '0 8 * * 1', not {shown(expr)}")
    text = " ".join(expr.split())
    parts = _alias(text).split()
    if len(parts) != len(_FIELDS):
        raise ConfigError(
            f"cron {text!r} has {len(parts)} fields; it needs 5: minute, hour, day of month, month "
            f"and day of week, such as '0 8 * * 1'; seconds are not supported, "
            f"for less than a minute use every="
        )
    values = [_parse_field(text, spec, part) for spec, part in zip(_FIELDS, parts, strict=True)]
    minutes, hours, days, months, weekdays = values
    either = parts[2] != "*" and parts[4] != "*"
    if either and (days == _DAY.values or weekdays == _WEEKDAY.values):
        days, weekdays, either = _DAY.values, _WEEKDAY.values, False
    return CronExpression(text, minutes, hours, days, months, weekdays, either)


def load_zone(tz: str) -> ZoneInfo:
    """The time zone of an IANA name.

    Raises:
        ConfigError: There is no zone of that name.
    """
    try:
        if not isinstance(tz, str):  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
            raise TypeError("a text is needed")
        return ZoneInfo(tz)
    except (ZoneInfoNotFoundError, ValueError, TypeError, AttributeError, OSError) as error:
        raise ConfigError(
            f"tz: there is no time zone {shown(tz)}; "
            f"use an IANA name such as 'UTC' or 'Europe/Paris'"
        ) from error


def next_after(expr: str | CronExpression, after: datetime, tz: str = "UTC") -> datetime | None:
    """The first time strictly after ``after``, in whole minutes of the zone's clock.

    The clock on the wall is kept: 20:00 stays 20:00 in summer and winter. Where the clock changes:

    - A fixed time that the clock leaves out runs once, at the first minute after the gap. Several
      that fall in one gap run once together.
    - A fixed time that the clock shows twice runs once, the first time.
    - An expression for every hour of the day (``*`` in the hour field, or what covers all 24) runs
      whenever the clock shows a fitting minute: nothing extra at a gap, both times in a repeated
      hour. So ``*/15 * * * *`` always runs every 15 minutes of real time.

    Args:
        expr: The expression, as text or checked already.
        after: An aware time, in any zone.
        tz: The IANA name of the zone that the expression is meant in.

    Returns:
        The time in that zone, or ``None`` where no date fits (February 30). Python compares two
        times of one zone by their wall clocks; for times within a repeated hour compare
        ``.timestamp()``.

    Raises:
        ConfigError: The expression or the zone cannot be used, or ``after`` has no time zone.

    Example:
        >>> str(next_after("0 8 * * mon", datetime(2017, 10, 24, tzinfo=UTC), "Europe/Amsterdam"))
        '2017-10-30 08:00:00+01:00'
    """
    cron = expr if isinstance(expr, CronExpression) else parse_cron(expr)
    zone = load_zone(tz)
    if not isinstance(after, datetime) or after.utcoffset() is None:  # pyright: ignore[reportUnnecessaryIsInstance] - users pass anything
        raise ConfigError(
            f"the time {shown(after)} has no time zone; "
            f"pass an aware datetime, such as datetime.now(UTC)"
        )
    try:
        return next_in_zone(cron, after, zone)
    except OverflowError:  # the year 10000
        return None


def next_in_zone(cron: CronExpression, after: datetime, zone: ZoneInfo) -> datetime | None:
    """``next_after`` with all arguments checked already."""
    if not cron.possible:
        return None
    find = _next_real if cron.every_hour else _next_fixed
    found = find(cron, after.astimezone(UTC), zone)
    return None if found is None else found.astimezone(zone)


def _alias(text: str) -> str:
    if not text.startswith("@"):
        return text
    try:
        return _ALIASES[text.lower()]
    except KeyError:
        names = ", ".join(_ALIASES)
        raise ConfigError(f"cron {text!r} is not known; use one of {names}, or 5 fields") from None


def _parse_field(text: str, spec: _Field, part: str) -> tuple[int, ...]:
    found: set[int] = set()
    for item in part.split(","):
        found.update(_parse_item(text, spec, item))
    if spec is _WEEKDAY:
        found = {value % 7 for value in found}
    return tuple(sorted(found))


def _parse_item(text: str, spec: _Field, item: str) -> range:
    """The values of one element of a list."""
    if not item:
        _refuse(text, spec, "an element of the list is empty; remove the comma")
    body, slash, step_text = item.partition("/")
    step = _parse_step(text, spec, step_text) if slash else 1
    if body == "*":
        return range(spec.low, spec.high + 1, step)
    first, dash, last = body.partition("-")
    low = _parse_value(text, spec, first)
    if not dash:
        # A start with a step counts on to the end of the field.
        return range(low, spec.high + 1, step) if slash else range(low, low + 1)
    high = _parse_value(text, spec, last)
    if spec is _WEEKDAY and high == 0 and low > 0:
        high = 7  # `fri-sun`: a range may end with Sunday
    if high < low:
        _refuse(
            text,
            spec,
            f"the range {body!r} runs backwards; "
            f"write '{first}-{spec.high},{spec.low}-{last}' to go over the end",
        )
    return range(low, high + 1, step)


def _parse_step(text: str, spec: _Field, step: str) -> int:
    count = spec.high - spec.low + 1
    if not (step.isascii() and step.isdigit() and 1 <= int(step) <= count):
        _refuse(
            text, spec, f"the step {step!r} is not usable; use a whole number from 1 to {count}"
        )
    return int(step)


def _parse_value(text: str, spec: _Field, value: str) -> int:
    if value.lower() in spec.names:
        return spec.names.index(value.lower()) + spec.low
    high = 7 if spec is _WEEKDAY else spec.high
    allowed = f"use {spec.low} to {high}"
    if spec.names:
        allowed += f" or {', '.join(spec.names)}"
    if not (value.isascii() and value.isdigit()):
        _refuse(text, spec, f"{value!r} is not a value of this field; {allowed}")
    if not spec.low <= int(value) <= high:
        _refuse(text, spec, f"{value} is out of range; {allowed}")
    return int(value)


def _refuse(text: str, spec: _Field, problem: str) -> NoReturn:
    raise ConfigError(f"cron {text!r}: {spec.name}: {problem}")


def _walls(cron: CronExpression, wall: datetime) -> Iterator[datetime]:
    """The fitting wall times after a wall time, naive and in order.

    croniter gets naive times and plain lists: its handling of zones and of rarer forms is not used.
    """
    from croniter import CroniterBadDateError, croniter

    columns = zip(
        _FIELDS, (cron.minutes, cron.hours, cron.days, cron.months, cron.weekdays), strict=True
    )
    plain = " ".join(
        "*" if values == spec.values else ",".join(map(str, values)) for spec, values in columns
    )
    steps = croniter(plain, wall.replace(second=0, microsecond=0), ret_type=datetime)
    try:
        while True:
            yield steps.get_next(datetime)
    except (CroniterBadDateError, OverflowError, ValueError):
        return  # the calendar ends with the year 9999


def _first_instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """When the zone's clock first shows a wall time; the end of the gap if it leaves it out."""
    late = wall.replace(tzinfo=zone).astimezone(UTC)
    if late.astimezone(zone).replace(tzinfo=None) == wall:
        return late
    # In a gap the two readings of the time lie on either side of the change (PEP 495).
    early = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    before = early.astimezone(zone).utcoffset()
    while late - early > _SECOND:
        middle = early + timedelta(seconds=(late - early) // _SECOND // 2)
        if middle.astimezone(zone).utcoffset() == before:
            early = middle
        else:
            late = middle
    return late


def _next_fixed(cron: CronExpression, after: datetime, zone: ZoneInfo) -> datetime | None:
    wall = after.astimezone(zone).replace(tzinfo=None)
    # Only wall times of a repeated hour lie behind `after` in real time; they ran before.
    instants = (_first_instant(w, zone) for w in _walls(cron, wall))
    return next((instant for instant in instants if instant > after), None)


def _next_real(cron: CronExpression, after: datetime, zone: ZoneInfo) -> datetime | None:
    """The next real minute whose wall time fits: a step per minute, a leap over other dates."""
    moment = after.replace(microsecond=0)
    while True:
        moment += timedelta(seconds=60 - moment.astimezone(zone).second)
        wall = moment.astimezone(zone)
        if cron.fits_date(wall):
            if wall.minute in cron.minutes and not wall.second:
                return moment
            continue
        leap = next(_walls(cron, wall.replace(tzinfo=None)), None)
        if leap is None:
            return None
        moment = max(moment, _first_instant(leap, zone) - _SECOND)
