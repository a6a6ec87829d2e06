"""Handlers that return anything and raise anything: each work ends, and its neighbours succeed."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.effort import fuzzed
from tests.fuzz.values import Odd, odd_errors, odd_values

from piecework import (
    Delay,
    Retry,
    RetryAbort,
    WorkDelayError,
    WorkFailedError,
    create_work,
    define_batch_work,
    define_work,
    memory_backend,
)
from piecework.clock import sleep
from piecework.testing.virtual_clock import VirtualClock

ONCE = Retry(attempts=2, base=0)


async def outcome_of(act: Any, **options: Any) -> tuple[str, str]:
    """How a work ends whose handler does this, in a system whose other works go on."""
    ports = memory_backend()
    errors: list[str] = []

    @define_work("odd", retry=ONCE, executor="loop")
    def odd():
        return act()

    @define_work("typed", retry=ONCE, executor="loop")
    def typed() -> dict[str, int | list[str]] | None:
        return act()

    @define_work("good")
    async def good(n: int) -> int:
        return n

    async def many(items: list[int]) -> list[Any]:
        return [act() if n else n for n in items]

    batch = define_batch_work("batch", many, size=2, max_wait=0.01, retry=ONCE)
    hooks: dict[str, Any] = {
        "on_error": lambda error, phase: errors.append(phase),
        "on_event": lambda event: None,
        **options,
    }
    async with create_work(work=[odd, typed, good, batch], **ports, **hooks) as system:
        handle = await system.enqueue(odd())
        others = await system.enqueue_many([typed(), good(1), batch(1)])
        await sleep(3600)
        assert await others[1].result(timeout=1) == 1
        assert await system.run(good(2)) == 2
        states = [await one.state() for one in (handle, others[0], others[2])]
        assert all(state is not None and state.terminal for state in states)
        for one in (handle, *others):
            with contextlib.suppress(WorkFailedError):
                await one.result(timeout=1)
        assert all((state.error or "").encode() for state in states if state.status == "dead")
        letters = await system.dead_letters()
        assert len(letters) == sum(state.status == "dead" for state in states)
        assert all(letter.reason.encode() for letter in letters)
        assert await ports["queue"].size() == 0
        assert system.active() == []
    assert "queue" not in errors or options
    return states[0].status, states[0].error or ""


@fuzzed(25)
@given(odd_values())
def test_any_result_is_kept_or_kills_its_work_alone(odd):  # P7 S63
    VirtualClock().run(outcome_of(lambda: odd.value))


@fuzzed(25)
@given(odd_errors().map(Odd))
def test_any_error_kills_its_work_alone(odd):  # P7
    def fail() -> None:
        raise odd.value

    status, error = VirtualClock().run(outcome_of(fail))
    assert status == "dead"
    assert error


@fuzzed(20)
@given(odd_errors().map(Odd), odd_values(), st.sampled_from(["fate", "delay", "abort", "log"]))
def test_any_answer_of_a_hook_ends_the_work_all_the_same(odd, answer, kind):  # P7
    def fail() -> None:
        raise RetryAbort(odd.value) if kind == "abort" else odd.value

    hooks: dict[str, Any] = {
        "fate": {"on_failure": lambda error, info: answer.value},
        "delay": {"on_failure": lambda error, info: Delay(answer.value) if info.attempt < 2 else 0},
        "abort": {},
        "log": {"log_context": lambda arguments, work_type: answer.value},
    }[kind]
    if kind == "delay" and not isinstance(answer.value, str | dict | list):
        return  # a time that can be used puts the work off for ever
    VirtualClock().run(outcome_of(fail, **hooks))


@pytest.mark.parametrize("delay", [float("inf"), float("nan"), 1e300, -1, 10**30])
def test_any_delay_that_a_handler_asks_for_ends_or_waits(delay):  # P7
    asked = []

    def put_off() -> None:
        if not asked:
            asked.append(delay)
            raise WorkDelayError(delay)

    status, _ = VirtualClock().run(outcome_of(put_off))
    assert status in ("dead", "success")
