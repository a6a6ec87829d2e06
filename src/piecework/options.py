"""The options of one work, and how their levels are merged."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

from piecework.clock import Seconds, seconds, to_ms
from piecework.errors import ConfigError, InvalidWorkError, shown
from piecework.retry import Retry, merge

if TYPE_CHECKING:
    from collections.abc import Mapping

Track: TypeAlias = Literal["full", "result", "none"]
"""How much of a work is recorded: state and result, the result only, or nothing."""

ExecutorKind: TypeAlias = Literal["loop", "thread", "process"]
"""Where a handler runs: the event loop, a thread, or a worker process."""


class WorkOptions(TypedDict, total=False):
    """What can be given to one work: at enqueue, by ``with_options``, or from ``options=``.

    Attributes:
        delay: Seconds from now before it may start.
        run_at: An aware time before which it does not start; it wins over ``delay``.
        priority: Higher goes first among the works that a doer holds.
        group: The tenant, for fairness and for the order on ordered queues.
        retry: Fields given here win over the type's and the system's, field by field.
        skip_queue: Make the first attempt in this process, without the queue.
        deadline: Seconds from now, or an aware time, after which it must not run: ``expired``.
        timeout: Seconds that one attempt may take.
        id: The id, in place of a random one; enqueueing the same id again does nothing.
        unique: While a work of this type with this key is not terminal, enqueue returns that one.
        unique_for: Seconds that the key stays taken, in place of "until it is terminal".

    Example:
        >>> await work.enqueue(add(1, 2), delay=5, priority=3, unique="nightly")
    """

    delay: Seconds | None
    run_at: datetime | None
    priority: int | None
    group: str | None
    retry: Retry | None
    skip_queue: bool | None
    deadline: Seconds | datetime | None
    timeout: Seconds | None
    id: str | None
    unique: str | None
    unique_for: Seconds | None


@dataclass(frozen=True, slots=True)
class Options:
    """One level of options; ``None`` leaves the question to the level below."""

    delay: float | None = None
    run_at: int | None = None
    priority: int | None = None
    group: str | None = None
    retry: Retry | None = None
    skip_queue: bool | None = None
    deadline: Seconds | datetime | None = None
    timeout: float | None = None
    id: str | None = None
    unique: str | None = None
    unique_for: float | None = None

    def over(self, below: Options) -> Options:
        """This level on top of another: what is given here wins; retries merge field by field."""
        if below is NO_OPTIONS:
            return self
        if self is NO_OPTIONS:
            return below
        given = {name: value for name in _NAMES if (value := getattr(self, name)) is not None}
        if self.retry is not None and below.retry is not None:
            given["retry"] = merge(below.retry, self.retry)
        return replace(below, **given)

    def deadline_ms(self, now_ms: int) -> int | None:
        """The deadline as a time on the wire, counted from ``now_ms`` where it is a duration."""
        if self.deadline is None:
            return None
        if isinstance(self.deadline, datetime):
            return to_ms(self.deadline)
        return now_ms + round(seconds(self.deadline) * 1000)


_NAMES = tuple(f.name for f in fields(Options))
NO_OPTIONS = Options()

_DURATIONS = ("delay", "timeout", "unique_for")


def parse_options(given: Mapping[str, Any], work_type: str) -> Options:
    """Check the options of one level.

    Raises:
        InvalidWorkError: A name is unknown or a value cannot be used; it names the option.
    """
    if not given:
        return NO_OPTIONS
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name not in _NAMES:
            raise InvalidWorkError(
                "there is no such option",
                work_type=work_type,
                field=name,
                fix=f"The options of a work are: {', '.join(_NAMES)}.",
            )
        if value is not None:
            values[name] = _checked(name, value, work_type)
    return Options(**values)


def _checked(name: str, value: Any, work_type: str) -> Any:
    try:
        if name in _DURATIONS:
            return _duration(name, value)
        if name in ("run_at", "deadline"):
            return _time(name, value)
    except ConfigError as error:
        raise InvalidWorkError(str(error), work_type=work_type, field=name) from error
    kind, wanted = _KINDS[name]
    fits = isinstance(value, kind) and (kind is bool or not isinstance(value, bool))
    if not fits or (kind is str and not is_name(value)) or (kind is int and abs(value) >= _HUGE):
        raise InvalidWorkError(
            f"must be {wanted}, not {shown(value)}", work_type=work_type, field=name
        )
    return value


def is_name(value: Any) -> bool:
    """Whether a value can name something everywhere: a text of Unicode that is not empty."""
    if not isinstance(value, str) or value == "":
        return False
    try:
        return value.isascii() or bool(value.encode())
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


_KINDS: dict[str, tuple[type, str]] = {
    "priority": (int, "a whole number"),
    "group": (str, "a text that is not empty"),
    "id": (str, "a text that is not empty"),
    "unique": (str, "a text that is not empty"),
    "retry": (Retry, "a Retry"),
    "skip_queue": (bool, "True or False"),
}


def _is_duration(value: Any) -> bool:
    return isinstance(value, (int, float, timedelta)) and not isinstance(value, bool)


def _duration(name: str, value: Any) -> float:
    if not _is_duration(value):
        raise ConfigError(f"must be seconds or a timedelta, not {type(value).__name__}")
    amount = seconds(value)
    if not 0 <= amount < LONGEST_DELAY:
        raise ConfigError(f"must be from 0 to {LONGEST_DELAY:.0f} seconds, not {amount:g}")
    if name == "timeout" and amount == 0:
        raise ConfigError("must be above 0 seconds")
    return amount


def _time(name: str, value: Any) -> Any:
    if isinstance(value, datetime):
        moment = to_ms(value)
        return moment if name == "run_at" else value
    if name == "deadline" and _is_duration(value):
        amount = seconds(value)
        if not abs(amount) < LONGEST_DELAY:
            raise ConfigError(f"must be under {LONGEST_DELAY:.0f} seconds, not {amount:g}")
        return amount
    raise ConfigError(f"must be an aware datetime, such as datetime.now(UTC), not {shown(value)}")


#: Seconds: a century; what is longer is a mistake of units.
LONGEST_DELAY = 100 * 366 * 86400.0
#: Priorities of this many or more are no numbers for every store.
_HUGE = 2**63
