"""Decisions as pure functions over frozen values: what a record means, what a failure leads to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, cast

from piecework.clock import seconds, to_ms
from piecework.definitions import Delay, Fate, RunAt
from piecework.engine.executors import HandlerError
from piecework.errors import ConfigError, shown
from piecework.failure import describe_error
from piecework.options import LONGEST_DELAY
from piecework.retry import backoff
from piecework.signals import RetryAbort, WorkDelayError

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from piecework.envelope import Envelope
    from piecework.record import Item

# ---- what a delivery finds -------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no record: the producer has not written it yet, or never will."""


@dataclass(frozen=True, slots=True)
class Finished:
    """The work is terminal: repeat what follows a settle, and ack."""

    item: Item


@dataclass(frozen=True, slots=True)
class Adopt:
    """The work is pending at another version than the message: take the record's word."""

    env: Envelope
    body: str


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Another worker has it under way: come back after ``delay`` seconds."""

    delay: float


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The worker that had it died: that was an attempt. The envelope is at the next one."""

    env: Envelope
    body: str


Standing: TypeAlias = Absent | Finished | Adopt | Duplicate | TakeOver


def stand(item: Item | None, *, now_ms: int) -> Standing:
    """What the record of a work means for a delivery whose write conflicted with it."""
    if item is None:
        return Absent()
    if item.terminal:
        return Finished(item)
    env = item.envelope()
    if item.status == "pending":
        return Adopt(env, item.payload)
    lease_until = int(item.header.get("l", 0))
    if lease_until > now_ms:
        return Duplicate((lease_until - now_ms) / 1000)
    return TakeOver(env._replace(attempt=env.attempt + 1), item.payload)


class LookAgainError(WorkDelayError):
    """A dependency puts itself off, with what it has seen so far as its input."""

    def __init__(self, delay: float, input: str) -> None:
        self.input = input
        super().__init__(delay)


# ---- what a failure leads to -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Again:
    """Another attempt after ``delay`` seconds."""

    delay: float
    error: str


@dataclass(frozen=True, slots=True)
class PutOff:
    """The same attempt again at a time.

    Attributes:
        start_at: When, in milliseconds.
        turn: Whether the work asked for it itself, which starts a new turn.
        input: What its input is from then on; ``None`` leaves it.
    """

    start_at: int
    turn: bool
    input: str | None = None


@dataclass(frozen=True, slots=True)
class Die:
    """Dead: no attempt is left, or none is wanted."""

    error: str
    error_type: str
    traceback: str


Verdict: TypeAlias = Again | PutOff | Die


def die(error: BaseException) -> Die:
    """Dead of this error; one from a worker process tells its own type and traceback."""
    name, text, trace = describe_error(error)
    if isinstance(error, HandlerError):
        name, trace = error.error_type, error.traceback or trace
        text = f"{name}: {error.text}" if error.text else name
    return Die(text, name, trace)


def decide_failure(
    error: BaseException,
    env: Envelope,
    *,
    classify: Callable[[BaseException], Fate] | None,
    now_ms: int,
    random: Callable[[], float],
) -> Verdict:
    """What follows when a handler raised. An explicit signal wins over the classifier."""
    if isinstance(error, WorkDelayError):
        new_input = error.input if isinstance(error, LookAgainError) else None
        try:
            start_at = _due(error.delay or 0.0, error.run_at, now_ms)
        except ConfigError as unusable:
            error = unusable  # a handler that asks for no time at all has failed
        else:
            return PutOff(start_at, turn=True, input=new_input)
    if isinstance(error, RetryAbort):
        return die(error.cause)
    fate = classify(error) if classify is not None else None
    if fate == "abort":
        return die(error)
    if isinstance(fate, (Delay, RunAt)):
        return PutOff(_fate_time(fate, now_ms), turn=False)
    if env.attempt >= env.retry.attempts:
        return die(error)
    delay = min(backoff(env.retry, env.attempt, random), LONGEST_DELAY)
    return Again(delay, die(error).error)


def check_fate(fate: object, now_ms: int) -> Fate:
    """Check what a classifier has returned, so that its mistake is found before it is acted on.

    Raises:
        ConfigError: It is none of the known answers, or a time that cannot be used.
    """
    if isinstance(fate, (Delay, RunAt)):
        _fate_time(fate, now_ms)
        return fate
    if fate is None or fate == "retry" or fate == "abort":
        return cast("Fate", fate)
    raise ConfigError(
        f"on_failure must return 'retry', 'abort', Delay(seconds), RunAt(datetime) or None, "
        f"not {shown(fate)}"
    )


def _fate_time(fate: Delay | RunAt, now_ms: int) -> int:
    if isinstance(fate, Delay):
        return _due(seconds(fate.seconds), None, now_ms)
    return _due(0.0, fate.at, now_ms)


def _due(delay: float, run_at: datetime | None, now_ms: int) -> int:
    """When a work is due that was put off; the past means now.

    Raises:
        ConfigError: The time has no zone, or the delay is longer than a century.
    """
    if run_at is not None:
        return max(now_ms, to_ms(run_at))
    if delay >= LONGEST_DELAY:
        raise ConfigError(f"a delay must be below {LONGEST_DELAY:.0f} seconds, not {delay:g}")
    return now_ms + round(max(0.0, delay) * 1000)
