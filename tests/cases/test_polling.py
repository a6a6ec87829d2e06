"""The poller: the cases B45 and B48."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from tests.cases.conftest import Fleet

from piecework import BackendError, define_work
from piecework.testing.virtual_clock import VirtualClock


@define_work("quick")
async def quick() -> str:
    return "ran"


@pytest.mark.parametrize("fault", ["connection", "unexpected", "cancelled"])
async def test_the_poller_survives_errors_of_the_receive(
    fleet: Fleet, virtual_clock: VirtualClock, fault: str
) -> None:  # B45
    left = 5
    raised = {
        "connection": BackendError("queue", "receive", "connection reset"),
        "unexpected": ZeroDivisionError("in the adapter"),
        "cancelled": asyncio.CancelledError("in the adapter"),
    }

    def fail(operation: str) -> None:
        nonlocal left
        if operation == "pop" and left:
            left -= 1
            raise raised[fault]

    system = fleet.system(quick)
    fleet.switches[0].fail = fail
    await system.start()
    await virtual_clock.advance(0.2)
    assert left == 4  # it does not spin
    await virtual_clock.advance(60)
    assert left == 0
    handle = await system.enqueue(quick())
    assert await handle.result(timeout=30) == "ran"
    assert [phase for _, phase in fleet.errors] == ["queue"] * 5


async def test_a_receive_that_never_answers_is_given_up_and_made_again(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B45
    system = fleet.system(quick)
    fleet.switches[0].hang_at = {"pop"}
    await system.start()
    handle = await system.enqueue(quick())
    await virtual_clock.advance(60)
    assert [type(error) for error, _ in fleet.errors] == [TimeoutError]
    fleet.switches[0].hang_at = set()
    await virtual_clock.advance(60)
    assert await handle.result(timeout=1) == "ran"


async def test_an_idle_worker_makes_one_long_receive_at_a_time_and_nothing_else(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B48
    await fleet.started(1, quick)
    began = len(fleet.switches[0].calls)
    await virtual_clock.advance(600)
    calls = Counter(fleet.switches[0].calls[began:])
    assert set(calls) <= {"pop"}
    assert calls["pop"] <= 31
