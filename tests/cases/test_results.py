"""Results and the store: the cases B29, B30 and B31, as far as the engine goes."""

from __future__ import annotations

import asyncio

import pytest
from tests.cases.conftest import Fleet
from tests.support.crash import FaultPubSub

from piecework import BackendError, Retry, WorkContext, define_work
from piecework.clock import sleep
from piecework.errors import ResultGoneError
from piecework.ports import Capabilities
from piecework.testing.virtual_clock import VirtualClock


@define_work("nap")
async def nap(seconds: float) -> str:
    await sleep(seconds)
    return "rested"


def deaf(fleet: Fleet) -> None:
    """Lose all notices from now on."""
    for system in fleet.systems:
        assert isinstance(system.pubsub, FaultPubSub)
        system.pubsub.drop = True


async def test_a_lost_notice_costs_one_pause_of_the_fallback(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B29
    (system,) = await fleet.started(1, nap)
    deaf(fleet)
    handle = await system.enqueue(nap(1.5))
    loop = asyncio.get_running_loop()
    began = loop.time()
    assert await handle.result(timeout=30) == "rested"
    assert loop.time() - began <= 2.1


async def test_a_result_that_is_there_already_is_read_at_once(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B29
    (system,) = await fleet.started(1, nap)
    deaf(fleet)
    handle = await system.enqueue(nap(0))
    await virtual_clock.advance(1)
    began = asyncio.get_running_loop().time()
    assert await handle.result(timeout=30) == "rested"
    assert asyncio.get_running_loop().time() == began


async def test_waiters_that_go_away_leave_nothing_behind(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B29
    (system,) = await fleet.started(1, nap)
    handle = await system.enqueue(nap(5))
    waiting = [asyncio.ensure_future(handle.result()) for _ in range(1000)]
    await virtual_clock.advance(0.5)
    for task in waiting[1:]:
        task.cancel()
    await asyncio.wait(waiting[1:])
    assert system._engine.waiters.count == 1
    assert await waiting[0] == "rested"
    assert system._engine.waiters.count == 0


async def test_an_outcome_is_kept_while_the_store_is_away(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B30
    runs = 0

    @define_work("one")
    async def one() -> str:
        nonlocal runs
        runs += 1
        return "right"

    (system,) = await fleet.started(1, one, visibility=10)
    failures = 5
    handle = await system.enqueue(one(), delay=1)

    def fail(operation: str) -> None:
        nonlocal failures
        if operation == "write" and failures:
            failures -= 1
            raise BackendError("store", "write", "away")

    fleet.switches[0].fail = fail
    await virtual_clock.advance(60)
    assert failures == 0
    assert runs == 1
    assert await handle.result(timeout=1) == "right"
    assert "commit" in [phase for _, phase in fleet.errors]
    assert fleet.wire.store.book.settles[handle.id] == 1


async def test_an_outcome_that_dies_with_its_process_comes_from_another_run(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B30
    runs = 0

    @define_work("one", retry=Retry(attempts=1))
    async def one() -> str:
        nonlocal runs
        runs += 1
        return "right"

    producer = fleet.system(one, auto_start=False)
    handle = await producer.enqueue(one())
    (first,) = await fleet.started(1, one, visibility=10)

    def fail(operation: str) -> None:
        if operation == "write":
            raise BackendError("store", "write", "away")

    fleet.switches[1].fail = fail
    await virtual_clock.advance(40)
    assert runs == 1  # its lease was renewed all the time
    fleet.kill(first)
    await fleet.started(1, one, visibility=10)
    await virtual_clock.advance(40)
    assert runs == 2
    assert await handle.result(timeout=1) == "right"
    assert fleet.wire.store.book.settles[handle.id] == 1
    assert fleet.wire.store.book.emptied[handle.id] == 1


async def test_a_result_past_its_life_is_gone(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B31
    (system,) = await fleet.started(1, nap, result_ttl=3600)
    handle = await system.enqueue(nap(0))
    await virtual_clock.advance(3500)
    assert await handle.result(timeout=1) == "rested"
    await virtual_clock.advance(3700)
    assert await handle.state() is None
    with pytest.raises(ResultGoneError):
        await handle.result(timeout=1)
    assert await system.list() == []


async def test_a_group_outlives_its_root_s_result_while_a_child_waits(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B31
    @define_work("parent")
    async def parent(ctx: WorkContext) -> None:
        await ctx.set_result("all of it")
        await ctx.queue(nap(0), delay=7200)
        await ctx.queue(nap(0), delay=10 * 86400)

    fleet.shared(Capabilities(max_delay=1e9))
    day = {"poll_interval": 86400, "result_ttl": 3600}
    (system,) = await fleet.started(1, parent, nap, **day)
    handle = await system.enqueue(parent())
    await virtual_clock.advance(9 * 86400)
    with pytest.raises(TimeoutError):
        await handle.group(timeout=1)
    await virtual_clock.advance(86400)
    assert await handle.group(timeout=1) == "all of it"
    assert [kind for kind, _ in fleet.events].count("group-done") == 1
    assert not fleet.wire.store.book.broken
