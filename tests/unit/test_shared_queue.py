"""Types that share a queue: a full one neither stalls nor starves."""

from __future__ import annotations

import asyncio

from piecework import balanced_doer, create_work, define_batch_work, define_work
from piecework.clock import sleep
from piecework.testing.virtual_clock import VirtualClock

STEP = 0.1


async def test_a_full_type_beside_an_unlimited_one_works_on_without_pauses(
    virtual_clock: VirtualClock,
):
    @define_work("narrow", doer=balanced_doer(max=2))
    async def narrow(n: int) -> int:
        await sleep(STEP)
        return n

    @define_work("wide")
    async def wide() -> None: ...

    async with create_work(work=[narrow, wide]) as work:
        begin = asyncio.get_running_loop().time()
        handles = await work.enqueue_many([narrow(n) for n in range(40)])
        assert await handles.results() == list(range(40))
        took = asyncio.get_running_loop().time() - begin
    assert took < 40 / 2 * STEP + 0.2


async def test_a_batch_type_does_not_make_the_poller_take_what_others_have_no_room_for(
    virtual_clock: VirtualClock,
):
    @define_work("narrow")
    async def narrow(n: int) -> int:
        await sleep(STEP)
        return n

    @define_batch_work("save", size=200)
    async def save(items: list[int]) -> list[int]:
        return items

    async with create_work(work=[narrow, save], doer=balanced_doer(max=2)) as work:
        begin = asyncio.get_running_loop().time()
        handles = await work.enqueue_many([narrow(n) for n in range(40)])
        await handles.results()
        took = asyncio.get_running_loop().time() - begin
    assert took < 40 / 2 * STEP + 0.2


async def test_works_behind_a_full_type_are_reached(virtual_clock: VirtualClock):
    @define_work("slow", doer=balanced_doer(max=1))
    async def slow() -> None:
        await sleep(3600)

    @define_work("quick")
    async def quick(n: int) -> int:
        return n

    async with create_work(work=[slow, quick]) as work:
        await work.enqueue_many([slow() for _ in range(600)])
        await sleep(1)
        begin = asyncio.get_running_loop().time()
        handles = await work.enqueue_many([quick(n) for n in range(1000)])
        assert await handles.results() == list(range(1000))
        took = asyncio.get_running_loop().time() - begin
        await work.stop(drain=0)
    assert took < 10


async def test_few_messages_go_back_and_forth_while_a_type_is_full(virtual_clock: VirtualClock):
    released = 0

    @define_work("narrow", doer=balanced_doer(max=2))
    async def narrow(n: int) -> None:
        await sleep(STEP)

    @define_work("wide")
    async def wide() -> None: ...

    work = create_work(work=[narrow, wide])
    release = work.queue.release

    async def counted(leases, delay=0.0):
        nonlocal released
        released += len(leases)
        await release(leases, delay)

    work.queue.release = counted
    async with work:
        handles = await work.enqueue_many([narrow(n) for n in range(400)])
        await handles.results()
    assert released <= 512
