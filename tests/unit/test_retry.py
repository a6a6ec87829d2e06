"""How often a failure is tried again, and how long is waited before."""

from __future__ import annotations

import asyncio
import copy
import json
from dataclasses import FrozenInstanceError, replace
from datetime import timedelta

import pytest

from piecework.errors import ConfigError
from piecework.retry import (
    DEFAULT_RETRY,
    Retry,
    backoff,
    get_default_retry,
    merge,
    resolve,
    retry,
    set_default_retry,
)
from piecework.signals import RetryAbort, WorkDelayError


@pytest.fixture
def _default():
    yield
    set_default_retry(Retry())


class Flaky:
    """Fails so many times, then returns."""

    def __init__(self, failures: int, error: BaseException | None = None) -> None:
        self.failures = failures
        self.calls = 0
        self.error = error or ValueError("not yet")

    async def __call__(self, answer: str = "done") -> str:
        self.calls += 1
        if self.calls <= self.failures:
            raise self.error
        return answer


class Sleeper:
    def __init__(self) -> None:
        self.delays: list[float] = []

    async def __call__(self, delay: float) -> None:
        self.delays.append(delay)


def test_the_core_defaults():
    # S17
    assert DEFAULT_RETRY.as_tuple() == (3, 1.0, 2.0, 30.0, 0.5)
    assert Retry().as_tuple() == DEFAULT_RETRY.as_tuple()


def test_later_levels_win_field_by_field():
    # S34
    system, kind = Retry(attempts=2, max=9.0), Retry(attempts=4, base=5.0)
    computed, queued = Retry(factor=3.0), Retry(attempts=5)
    merged = resolve(system, None, kind, computed, queued)
    assert merged.as_tuple() == (5, 5.0, 3.0, 9.0, 0.5)
    assert merge(kind, queued) == Retry(attempts=5, base=5.0)


def test_a_field_given_its_default_still_wins():
    # S34
    assert merge(Retry(attempts=9), Retry(attempts=3)).attempts == 3
    assert merge(Retry(attempts=9), Retry()).attempts == 9


def test_merging_takes_no_new_object_where_none_is_needed():
    only = Retry(attempts=2)
    assert merge(None, only, None) is only
    assert merge(only, DEFAULT_RETRY) is DEFAULT_RETRY
    assert merge(only, Retry(base=2)) is merge(Retry(attempts=2), Retry(base=2.0))
    assert merge() == merge(None) == Retry()
    assert resolve() is get_default_retry()


@pytest.mark.usefixtures("_default")
def test_the_process_wide_default_lies_between_the_core_and_the_system():
    # S148
    set_default_retry(Retry(attempts=7, base=2.0))
    assert get_default_retry().as_tuple() == (7, 2.0, 2.0, 30.0, 0.5)
    assert resolve(Retry(base=4.0)).as_tuple() == (7, 4.0, 2.0, 30.0, 0.5)
    set_default_retry(Retry())
    assert get_default_retry() == DEFAULT_RETRY


def test_equal_when_the_same_fields_were_given():
    assert Retry(base=1) == Retry(base=timedelta(seconds=1))
    assert hash(Retry(base=1)) == hash(Retry(base=1.0))
    assert Retry(attempts=3) != Retry()
    assert Retry() != (3, 1.0, 2.0, 30.0, 0.5)


def test_repr_shows_what_was_given():
    assert repr(Retry(attempts=5, max=timedelta(minutes=1))) == "Retry(attempts=5, max=60.0)"
    assert repr(Retry()) == "Retry()"


def test_it_cannot_be_changed_and_can_be_copied():
    options = Retry(attempts=5)
    with pytest.raises(FrozenInstanceError):
        options.attempts = 6
    for twin in (copy.copy(options), copy.deepcopy(options)):
        assert twin == options
        assert twin.base == 1.0
    assert replace(options, base=2.0).as_tuple() == (5, 2.0, 2.0, 30.0, 0.5)


def test_the_wire_form_restores_all_fields():
    options = Retry(attempts=5, base=0.25)
    sent = json.loads(json.dumps(options.as_tuple()))
    restored = Retry.from_tuple(sent)
    assert restored.as_tuple() == options.as_tuple()
    assert merge(DEFAULT_RETRY, restored) is restored
    assert Retry.from_tuple(sent) is restored


@pytest.mark.parametrize(
    "values", [[], [3, 1, 2, 30], [3, 1, 2, 30, None], [3, [], 2, 3, 0], None, [0, 1, 2, 3, 0]]
)
def test_a_broken_wire_form_is_refused(values):
    with pytest.raises(ConfigError, match="retry"):
        Retry.from_tuple(values)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("attempts", 0), ("attempts", 1.5), ("attempts", True),
        ("base", -1), ("base", float("nan")), ("base", float("inf")), ("base", "1"),
        ("base", timedelta(seconds=-1)),
        ("factor", 0.5), ("factor", timedelta(seconds=2)),
        ("max", -0.1), ("max", True),
        ("jitter", -0.1), ("jitter", 1.1),
    ],
)  # fmt: skip
def test_a_value_out_of_range_is_refused_by_name(field, value):
    with pytest.raises(ConfigError, match=field):
        Retry(**{field: value})


def test_the_backoff_is_exact_with_a_fixed_random():
    # S74
    options = Retry(base=1.0, factor=3.0, max=20.0, jitter=0.5)
    delays = [backoff(options, attempt, lambda: 0.5) for attempt in (1, 2, 3, 4)]
    assert delays == [0.75, 2.25, 6.75, 15.0]
    assert backoff(Retry(base=0.1, jitter=0.3), 1, lambda: 0.123) == 0.096
    assert backoff(options, 0, lambda: 0.0) == 1.0


def test_the_backoff_never_overflows():
    # S74
    assert backoff(Retry(jitter=0), 10**6, lambda: 1.0) == 30.0
    assert backoff(Retry(factor=1e300, base=1e300, jitter=0), 2, lambda: 1.0) == 30.0
    assert backoff(Retry(base=0), 10**6, lambda: 0.0) == 0.0
    assert backoff(Retry(factor=1, jitter=1), 10**6, lambda: 1.0) == 0.0


async def test_retry_calls_until_it_works():
    # S147, S17
    fn, sleeper = Flaky(2), Sleeper()
    assert await retry(fn, "answer", sleep=sleeper, random=lambda: 0.0) == "answer"
    assert sleeper.delays == [1.0, 2.0]


async def test_retry_raises_the_last_error_when_attempts_are_used_up():
    # S17
    fn = Flaky(99)
    with pytest.raises(ValueError, match="not yet") as caught:
        await retry(fn, sleep=Sleeper())
    assert caught.value is fn.error
    assert fn.calls == 3


async def test_retry_takes_plain_functions_and_partial_options():
    calls: list[int] = []

    def plain(number: int) -> int:
        calls.append(number)
        if len(calls) < 5:
            raise OSError
        return number

    assert await retry(plain, 4, options=Retry(attempts=5), sleep=Sleeper()) == 4


async def test_retry_waits_by_the_loop_and_draws_its_own_jitter():
    assert await retry(Flaky(1), options=Retry(base=0.001)) == "done"


async def test_retry_tells_its_hooks_of_every_attempt():
    # S147
    seen: list[object] = []
    fn = Flaky(1)
    await retry(
        fn,
        before=seen.append,
        after=lambda attempt, error: seen.append((attempt, error)),
        sleep=Sleeper(),
    )
    assert seen == [1, (1, fn.error), 2, (2, None)]


async def test_retry_returns_the_error_result_in_place_of_raising():
    # S147
    assert await retry(Flaky(99), error_result=None, sleep=Sleeper()) is None

    async def abort() -> str:
        raise RetryAbort("no")

    assert await retry(abort, error_result="nothing") == "nothing"


async def test_on_can_give_up():
    # S147
    fn = Flaky(99)
    with pytest.raises(ValueError, match="not yet"):
        await retry(fn, on=lambda error: not isinstance(error, ValueError), sleep=Sleeper())
    assert fn.calls == 1


@pytest.mark.parametrize(("verdict", "delays"), [(5.0, [5.0]), (0.2, [1.0]), (True, [1.0]),
                                                 (None, [1.0]), (0, [1.0])])  # fmt: skip
async def test_a_number_from_on_is_the_shortest_delay(verdict, delays):
    # S147
    sleeper = Sleeper()
    await retry(Flaky(1), on=lambda _: verdict, sleep=sleeper, random=lambda: 0.0)
    assert sleeper.delays == delays


async def test_an_abort_unwraps_its_cause():
    # S147
    cause = KeyError("card")
    fn = Flaky(99, RetryAbort(cause))
    with pytest.raises(KeyError) as caught:
        await retry(fn, after=lambda *_: None)
    assert caught.value is cause
    assert fn.calls == 1


@pytest.mark.parametrize("signal", [WorkDelayError(5), asyncio.CancelledError(), SystemExit()])
async def test_other_signals_and_cancellation_pass(signal):
    fn = Flaky(99, signal)
    with pytest.raises(type(signal)):
        await retry(fn, error_result=None)
    assert fn.calls == 1
