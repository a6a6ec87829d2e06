"""Stopping: the cases B19 and B20."""

from __future__ import annotations

import asyncio

from tests.cases.conftest import Fleet

from piecework import define_work
from piecework.clock import sleep
from piecework.testing.virtual_clock import VirtualClock


@define_work("quick")
async def quick() -> str:
    return "ran"


async def test_a_stop_awaits_the_open_receive_no_longer_than_its_drain(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B19
    (system,) = await fleet.started(1, quick)
    await virtual_clock.advance(1)
    began = asyncio.get_running_loop().time()
    await system.stop(drain=5)
    assert asyncio.get_running_loop().time() - began <= 6


async def test_what_an_open_receive_brings_during_a_stop_is_visible_again_at_once(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B19
    (system,) = await fleet.started(1, quick)
    await virtual_clock.advance(1)
    stopping = asyncio.ensure_future(system.stop(drain=5))
    await virtual_clock.advance(1)
    handle = await system.enqueue(quick())
    await stopping
    receives = fleet.switches[0].calls.count("pop")
    (lease,) = await fleet.wire.queue.pop(1, 30, 0)
    await fleet.wire.queue.release([lease])
    await virtual_clock.advance(60)
    assert fleet.switches[0].calls.count("pop") == receives
    assert (await handle.state()).status == "pending"
    await fleet.started(1, quick)
    await virtual_clock.advance(1)
    assert await handle.result(timeout=1) == "ran"


async def test_heartbeats_go_on_through_the_drain(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B20
    runs = 0

    @define_work("long")
    async def long() -> str:
        nonlocal runs
        runs += 1
        await sleep(6)
        return "done"

    systems = await fleet.started(2, long, visibility=2)
    handle = await systems[0].enqueue(long())
    await virtual_clock.advance(1)
    (holder,) = [system for system in systems if system.active()]
    await holder.stop(drain=10)
    await virtual_clock.advance(30)
    assert runs == 1
    (other,) = [system for system in systems if system is not holder]
    assert (await other.state(handle.id)).result == "done"
    assert await fleet.wire.queue.size() == 0


async def test_starting_and_stopping_again_leaves_nothing_behind(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B20
    before = asyncio.all_tasks()
    system = fleet.system(quick)
    for _ in range(2):
        await system.start()
        await system.start()
        await system.stop(0)
        await system.stop(0)
    await virtual_clock.advance(60)
    assert asyncio.all_tasks() == before
    await system.start()
    await virtual_clock.advance(50)
    # One poller: three waits of 20 s, and those that the stops cut short.
    assert fleet.switches[0].calls.count("pop") <= 5
