"""Start and stop, at any moment."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from tests.support.faults import WatchedQueue

from piecework import (
    BackendError,
    Capabilities,
    MemoryQueue,
    balanced_doer,
    define_batch_work,
    define_work,
)
from piecework.clock import sleep


@define_work("add")
async def add(a: int, b: int) -> int:
    return a + b


@define_work("nap")
async def nap(seconds: float) -> str:
    await sleep(seconds)
    return "slept"


async def _took(clock: Any, what: Any) -> float:
    began = clock.now()
    await what
    return (clock.now() - began).total_seconds()


async def test_starting_twice_makes_one_loop(make, queue, virtual_clock):  # S68
    work = make(add)
    await work.start()
    await asyncio.gather(work.start(), work.start())
    await virtual_clock.advance(0.1)
    assert queue.plan.count("pop") == 1
    assert queue.plan.count("open") == 1


async def test_a_start_that_fails_can_be_tried_again(make, queue):  # S68
    work = make(add)
    queue.plan.fail("open")
    with pytest.raises(BackendError, match="open"):
        await work.start()
    await work.start()
    assert await work.run(add(1, 2)) == 3


async def test_stopping_before_the_start_and_twice_does_nothing(make, queue):  # S69
    work = make(add)
    await work.stop()
    await work.start()
    await work.stop()
    await work.stop()
    await asyncio.gather(work.stop(), work.stop())
    assert queue.plan.count("close") <= 2


async def test_an_idle_system_stops_at_once(make, virtual_clock):  # S69
    work = make(add)
    await work.start()
    await virtual_clock.advance(3)
    assert await _took(virtual_clock, work.stop()) == 0


async def test_what_runs_may_finish_within_the_drain(make, queue, virtual_clock):  # S69
    work = make(nap)
    handle = await work.enqueue(nap(3))
    await virtual_clock.advance(1)
    assert await _took(virtual_clock, work.stop(drain=5)) == pytest.approx(2, abs=0.01)
    assert (await handle.state()).status == "success"
    assert await queue.size() == 0
    assert work.active() == []


@pytest.mark.parametrize("drain", [0, 0.5, 5])
@pytest.mark.parametrize("start_after", [0, 1])
async def test_what_does_not_finish_is_given_back_without_spending_an_attempt(
    make, queue, virtual_clock, drain, start_after
):  # S69
    one = make(nap, start_after=start_after)
    handle = await one.enqueue(nap(60))
    await virtual_clock.advance(3)
    assert drain <= await _took(virtual_clock, one.stop(drain=drain)) <= drain + 1
    assert one.active() == []
    two = make(nap)
    await two.start()
    await virtual_clock.advance(1)
    assert two.stats()["nap"]["started"] == 1  # at once, with no wait for a lease
    assert await handle.result() == "slept"
    assert (await handle.state()).attempt == 1


async def test_leases_are_renewed_during_the_drain(make, queue, virtual_clock):  # S69 Q10
    one = make(nap, visibility=3)
    two = make(nap)
    handle = await one.enqueue(nap(20))
    await virtual_clock.advance(1)
    stopping = asyncio.create_task(one.stop(drain=30))
    await two.start()
    await stopping
    assert (await handle.state()).status == "success"
    assert two.stats().get("nap", {}).get("started", 0) == 0


async def test_nothing_beats_after_a_stop(make, queue, virtual_clock):  # Q10
    work = make(nap, visibility=3)
    await work.enqueue(nap(60))
    await virtual_clock.advance(2)
    await work.stop(drain=1)
    before = len(queue.plan.calls)
    await virtual_clock.advance(60)
    assert len(queue.plan.calls) == before


async def test_unstarted_works_are_given_back_at_once(make, queue, virtual_clock):  # S69
    one = make(nap, doer=balanced_doer(max=1, buffer=9))
    handles = await one.enqueue_many([nap(4) for _ in range(6)])
    await virtual_clock.advance(0.5)
    assert len(one.active()) == 6
    stopping = asyncio.create_task(one.stop(drain=10))
    await virtual_clock.advance(0.1)
    two = make(nap)
    await two.start()
    await virtual_clock.advance(0.1)
    assert len(two.active()) == 5
    await stopping
    assert [await handle.result() for handle in handles] == ["slept"] * 6
    assert {(await handle.state()).attempt for handle in handles} == {1}
    assert one.stats()["nap"]["started"] == 1


async def test_collected_batches_run_before_the_stop_ends(make, queue):  # S69
    calls = []

    @define_batch_work("double", size=10, max_wait=600)
    async def double(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return [2 * n for n in numbers]

    work = make(double)
    handles = await work.enqueue_many([double(1), double(2)])
    await sleep(1)
    assert calls == []
    await work.stop()
    assert calls == [[1, 2]]
    assert [(await h.state()).result for h in handles] == [2, 4]


async def test_a_batch_that_does_not_finish_is_given_back(make, virtual_clock):  # S69
    slow = [True]

    @define_batch_work("double", size=2, max_wait=1)
    async def double(numbers: list[int]) -> list[int]:
        if slow:
            await sleep(600)
        return [2 * n for n in numbers]

    one = make(double)
    handles = await one.enqueue_many([double(1), double(2)])
    await sleep(2)
    assert await _took(virtual_clock, one.stop(drain=1)) <= 2
    slow.clear()
    two = make(double)
    await two.start()
    assert await handles.results() == [2, 4]
    assert {(await h.state()).attempt for h in handles} == {1}


@pytest.mark.parametrize("drain", [0.2, 3])
async def test_a_handler_that_swallows_its_cancellation_is_given_up(
    make, virtual_clock, drain
):  # S69
    release = asyncio.Event()

    @define_work("stubborn")
    async def stubborn() -> str:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                continue
        return "late"

    work = make(stubborn)
    handle = await work.enqueue(stubborn())
    await virtual_clock.advance(2)
    assert await _took(virtual_clock, work.stop(drain=drain)) <= drain + 1
    assert (await handle.state()).status == "pending"
    assert work.active() == []
    release.set()
    await virtual_clock.advance(1)
    await work.start()
    assert await handle.result() == "late"
    assert (await handle.state()).attempt == 1


async def test_a_thread_handler_is_interrupted_by_the_stop(make, virtual_clock):  # S69
    going = threading.Event()
    ended = threading.Event()

    @define_work("busy")
    def busy() -> None:
        going.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    work = make(busy)
    handle = await work.enqueue(busy())
    with virtual_clock.real_pace():
        while not going.is_set():
            await sleep(0.005)
        await work.stop(drain=0.05)
        while not ended.is_set():
            await sleep(0.005)
    state = await handle.state()
    assert (state.status, state.attempt) == ("pending", 1)


async def test_an_open_long_poll_is_awaited_and_gives_back_what_it_brings(
    make, virtual_clock
):  # S69
    inner = MemoryQueue(capabilities=Capabilities(in_process=False))
    elsewhere = WatchedQueue(inner)
    work = make(add, queue=elsewhere, auto_start=True)
    await work.start()
    await virtual_clock.advance(1)
    stopping = asyncio.create_task(work.stop(drain=5))
    await virtual_clock.advance(1)
    handle = await make(add, queue=elsewhere, auto_start=False).enqueue(add(1, 2))
    await virtual_clock.advance(0.1)
    assert stopping.done()
    assert [args[1] for args in elsewhere.plan.arguments("release")] == [0.0]
    assert (await handle.state()).status == "pending"
    assert await inner.size() == 1


async def test_a_long_poll_that_brings_nothing_is_cut_off_after_the_drain(
    make, virtual_clock
):  # S69
    elsewhere = WatchedQueue(MemoryQueue(capabilities=Capabilities(in_process=False)))
    work = make(add, queue=elsewhere, auto_start=True)
    await work.start()
    await virtual_clock.advance(1)
    assert 3 <= await _took(virtual_clock, work.stop(drain=3)) <= 4


async def test_a_stop_while_messages_are_being_sorted_starts_none_of_them(
    make, queue, virtual_clock
):  # S69
    async def accept(info: Any) -> bool:
        await sleep(1)
        return True

    one = make(add, accept=accept)
    handles = await one.enqueue_many([add(n, n) for n in range(10)])
    await virtual_clock.advance(2.5)
    assert await _took(virtual_clock, one.stop(drain=5)) <= 6
    started = one.stats()["add"]["started"]
    assert started == 2
    assert await queue.size() == 8
    two = make(add)
    await two.start()
    began = virtual_clock.now()
    assert await handles.results() == [2 * n for n in range(10)]
    assert (virtual_clock.now() - began).total_seconds() < 1


async def test_a_stop_does_not_wait_for_a_hook_that_hangs(make, queue, virtual_clock):  # S69
    hang = asyncio.Event()

    async def accept(info: Any) -> bool:
        await hang.wait()
        return True

    one = make(add, accept=accept)
    handles = await one.enqueue_many([add(n, n) for n in range(5)])
    await virtual_clock.advance(1)
    assert await _took(virtual_clock, one.stop(drain=2)) <= 3
    assert one.active() == []
    two = make(add)
    await two.start()
    began = virtual_clock.now()
    assert await handles.results() == [0, 2, 4, 6, 8]
    assert (virtual_clock.now() - began).total_seconds() < 1


async def test_a_message_that_arrives_with_the_stop_is_not_started_and_not_lost(make, queue):  # S69
    for turns in range(12):
        one = make(add)
        await one.start()
        await sleep(1)
        handle = await one.enqueue(add(1, 2))
        for _ in range(turns):
            await sleep(0)
        await one.stop(drain=1)
        state = await handle.state()
        assert (state.status == "success") != (await queue.size() == 1)
        two = make(add)
        await two.start()
        assert await handle.result() == 3
        await two.stop()


async def test_a_stop_while_the_queue_hangs_ends_in_time(make, queue, virtual_clock):  # S69
    elsewhere = WatchedQueue(MemoryQueue(capabilities=Capabilities(in_process=False)))
    held = elsewhere.plan.hold("pop")
    work = make(add, queue=elsewhere, auto_start=True)
    await work.start()
    await virtual_clock.advance(1)
    assert await _took(virtual_clock, work.stop(drain=2)) <= 3
    held.set()


async def test_a_stop_while_the_store_is_away_ends_in_time(
    make, store, virtual_clock, errors
):  # S69
    work = make(nap, on_error=errors)
    handle = await work.enqueue(nap(1))
    await virtual_clock.advance(0.5)
    store.plan.fail("write", 10_000)
    await virtual_clock.advance(3)
    assert await _took(virtual_clock, work.stop(drain=2)) <= 3
    store.plan.heal()
    assert work.active() == []
    await work.start()
    assert await handle.result() == "slept"


async def test_a_stop_while_the_queue_refuses_everything_ends_in_time(
    make, queue, virtual_clock, errors
):  # S69
    work = make(nap, on_error=errors, visibility=9)
    handle = await work.enqueue(nap(60))
    await virtual_clock.advance(0.5)
    for operation in ("pop", "extend", "release", "ack", "push"):
        queue.plan.fail(operation, 10_000)
    await virtual_clock.advance(4)
    assert await _took(virtual_clock, work.stop(drain=2)) <= 3
    queue.plan.heal()
    two = make(nap)
    await two.start()
    assert await handle.result() == "slept"
    assert (await handle.state()).attempt == 1


async def test_a_start_during_a_stop_waits_for_its_end(make, virtual_clock):  # S68 S69
    work = make(nap)
    await work.enqueue(nap(3))
    await virtual_clock.advance(1)
    stopping = asyncio.create_task(work.stop())
    await sleep(0)
    await work.start()
    assert stopping.done()
    assert await work.run(nap(1)) == "slept"


async def test_start_and_stop_can_be_repeated(make, queue):  # S68 S69
    work = make(add)
    for n in range(20):
        async with work:
            assert await work.run(add(n, 1)) == n + 1
    assert queue.plan.count("open") == queue.plan.count("close") == 20


async def test_an_enqueue_during_the_drain_is_kept_for_later(make, queue, virtual_clock):  # S69
    work = make(nap)
    await work.enqueue(nap(3))
    await virtual_clock.advance(1)
    stopping = asyncio.create_task(work.stop())
    await virtual_clock.advance(0.5)
    handle = await work.enqueue(nap(1))
    await stopping
    assert (await handle.state()).status == "pending"
    assert await queue.size() == 1
    await work.start()
    assert await handle.result() == "slept"


async def test_children_of_a_draining_work_are_queued(make, queue, virtual_clock):  # S69
    from piecework import WorkContext

    @define_work("parent")
    async def parent(ctx: WorkContext) -> None:
        await sleep(2)
        await ctx.queue(add(1, 2))

    one = make(parent, add)
    handle = await one.enqueue(parent())
    await virtual_clock.advance(1)
    await one.stop()
    assert (await handle.state()).status == "success"
    assert await queue.size() == 1
    two = make(parent, add)
    await two.start()
    assert await handle is None


async def test_schedules_fire_no_more_after_a_stop(make, virtual_clock):  # S69
    fired = []

    @define_work("tick")
    async def tick() -> None:
        fired.append(1)

    work = make(tick)
    work.schedule("each", tick(), every=10)
    await work.start()
    await virtual_clock.advance(25)
    await work.stop()
    seen = len(fired)
    assert seen >= 2
    await virtual_clock.advance(60)
    assert len(fired) == seen


async def test_a_handler_may_stop_its_own_system(make, virtual_clock):
    @define_work("last")
    async def last() -> None:
        await work.stop(drain=1)

    work = make(last)
    handle = await work.enqueue(last())
    await virtual_clock.advance(5)
    await work.stop()
    assert work.active() == []
    assert (await handle.state()).status in ("pending", "success")


async def test_a_cancelled_stop_can_be_repeated(make, queue, virtual_clock):
    work = make(nap)
    handle = await work.enqueue(nap(60))
    await virtual_clock.advance(1)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await work.stop(drain=100)
    assert await _took(virtual_clock, work.stop(drain=0)) <= 1
    assert work.active() == []
    assert (await handle.state()).status == "pending"
    assert await queue.size() == 1
