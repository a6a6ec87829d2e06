"""The worker loop: how much is pulled, from where, and how fast a backlog is drained."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.support.faults import WatchedQueue

from piecework import (
    Capabilities,
    MemoryQueue,
    balanced_doer,
    create_work,
    define_batch_work,
    define_work,
    unlimited_doer,
)
from piecework.clock import sleep


@define_work("add")
async def add(a: int, b: int) -> int:
    return a + b


@define_work("nap")
async def nap(seconds: float) -> str:
    await sleep(seconds)
    return "slept"


def _asked(queue: Any) -> list[int]:
    return [args[0] for args in queue.plan.arguments("pop")]


async def test_a_pull_asks_for_what_the_doers_and_batchers_have_room_for(make, queue):  # S54
    @define_batch_work("batch", size=7)
    async def batch(items: list[int]) -> list[int]:
        return items

    own = define_work("own", nap.fn, doer=balanced_doer(max=3, buffer=2))
    await make(own, nap, batch, doer=balanced_doer(max=10, buffer=1)).start()
    await sleep(0.1)
    assert _asked(queue) == [5 + 11 + 7]


async def test_no_pull_asks_for_more_than_512(make, queue):  # S54
    await make(nap, doer=balanced_doer(max=5000)).start()
    await sleep(0.1)
    assert _asked(queue) == [512]


async def test_a_pull_never_brings_more_than_can_be_held(make, queue, virtual_clock):  # S54
    work = make(nap, doer=balanced_doer(max=2, buffer=1))
    handles = await work.enqueue_many([nap(1) for _ in range(10)])
    peak = 0
    for _ in range(60):
        await virtual_clock.advance(0.1)
        peak = max(peak, len(work.active()))
    await handles.results()
    assert peak == 3
    assert queue.plan.count("release") == 0


async def test_nothing_is_pulled_while_the_doer_is_full(make, queue, virtual_clock):  # S55
    work = make(nap, doer=balanced_doer(max=2, buffer=0))
    handles = await work.enqueue_many([nap(100) for _ in range(3)])
    await virtual_clock.advance(1)
    before = queue.plan.count("pop")
    await virtual_clock.advance(90)
    assert queue.plan.count("pop") == before
    assert len(work.active()) == 2
    await handles.results()


async def test_a_flood_on_one_queue_does_not_stop_another(make, queue, virtual_clock):  # S56
    calm = WatchedQueue(MemoryQueue())
    rare = define_work("rare", nap.fn, queue=calm)
    work = make(nap, rare, doer=balanced_doer(max=4, buffer=4))
    await work.enqueue_many([nap(1) for _ in range(400)])
    began = virtual_clock.now()
    for _ in range(5):
        assert await work.run(rare(0)) == "slept"
    assert (virtual_clock.now() - began).total_seconds() < 20
    assert work.stats()["nap"]["started"] < 100


async def test_queues_share_the_room(make, queue):  # S56
    other = WatchedQueue(MemoryQueue())
    own = define_work("own", nap.fn, queue=other)
    await make(nap, own, doer=balanced_doer(max=11, buffer=0)).start()
    await sleep(0.1)
    assert _asked(queue) == [6]
    assert _asked(other) == [6]


async def test_works_that_are_not_due_cause_no_busy_loop(make, queue, virtual_clock):  # S57
    elsewhere = WatchedQueue(MemoryQueue(capabilities=Capabilities(max_delay=10)))
    work = make(add, queue=elsewhere, auto_start=True)
    handles = await work.enqueue_many([add(n, n) for n in range(20)], delay=95)
    await virtual_clock.advance(94)
    assert elsewhere.plan.count("pop") < 150
    assert {s.status for s in await work.states([h.id for h in handles])} == {"pending"}
    assert await handles.results() == [2 * n for n in range(20)]


async def test_works_that_no_doer_takes_cause_no_busy_loop(make, queue, virtual_clock):  # S57 S64
    own = define_work("own", nap.fn, doer=balanced_doer(max=1, buffer=0))
    work = make(own, nap)
    handles = await work.enqueue_many([own(10) for _ in range(5)])
    await virtual_clock.advance(40)
    assert queue.plan.count("pop") < 200
    await handles.results()
    states = await work.states([h.id for h in handles])
    assert {s.attempt for s in states} == {1}
    assert work.stats()["own"]["started"] == 5


async def test_a_full_doer_of_one_type_does_not_hold_up_another(make, virtual_clock):  # S64
    own = define_work("own", nap.fn, doer=balanced_doer(max=1, buffer=0))
    work = make(own, add)
    blocked = await work.enqueue_many([own(30) for _ in range(20)])
    await virtual_clock.advance(1)
    began = virtual_clock.now()
    assert await work.run(add(1, 2)) == 3
    assert (virtual_clock.now() - began).total_seconds() < 2
    assert len(blocked) == 20


class SmallPops(MemoryQueue):
    """Brings at most ten messages a receive, each receive taking its time, as SQS does."""

    def __init__(self) -> None:
        super().__init__(capabilities=Capabilities(in_process=False))
        self.receiving = 0
        self.peak = 0

    async def pop(self, max: int, visibility: float, wait: float) -> list[Any]:
        self.receiving += 1
        self.peak = sorted((self.peak, self.receiving))[1]
        try:
            await sleep(0.02)
            return await super().pop(min(max, 10), visibility, wait)
        finally:
            self.receiving -= 1


async def test_a_backlog_is_drained_without_pauses_though_receives_are_small(
    make, virtual_clock
):  # S58 Q11
    work = make(add, queue=SmallPops(), auto_start=False)
    handles = await work.enqueue_many([add(n, n) for n in range(1000)])
    began = virtual_clock.now()
    await work.start()
    await handles.results()
    assert (virtual_clock.now() - began).total_seconds() < 1000 / 10 * 0.02 * 2


async def test_a_bad_pop_does_not_stop_the_worker_and_pauses_grow(
    make, queue, errors, virtual_clock
):  # S59
    work = make(add, on_error=errors)
    queue.plan.fail("pop", 1000)
    await work.start()
    await virtual_clock.advance(60)
    assert {phase for _, phase in errors} == {"queue"}
    assert 4 <= len(errors) <= 12
    queue.plan.heal()
    assert await work.run(add(1, 2)) == 3


async def test_a_failing_queue_does_not_stop_another(make, queue, errors):  # S59
    other = WatchedQueue(MemoryQueue())
    own = define_work("own", add.fn, queue=other)
    work = make(add, own, on_error=errors)
    other.plan.fail("pop", 1000)
    await work.start()
    assert await work.run(add(1, 2)) == 3


async def test_on_backlog_is_told_while_the_worker_stays_behind(make, virtual_clock):
    told = []
    work = make(
        nap,
        doer=balanced_doer(max=2, buffer=0),
        on_backlog=lambda held: told.append((virtual_clock.now(), held)),
        backlog_after=10,
        backlog_every=5,
    )
    began = virtual_clock.now()
    handles = await work.enqueue_many([nap(32) for _ in range(3)])
    await virtual_clock.advance(31)
    at = [(when - began).total_seconds() for when, _ in told]
    assert at == pytest.approx([10, 15, 20, 25, 30], abs=1)
    assert {held for _, held in told} == {2}
    await handles.results()
    told.clear()
    await virtual_clock.advance(60)
    assert told == []


async def test_on_backlog_is_not_told_of_a_short_rush(make, virtual_clock):
    told = []
    work = make(nap, doer=balanced_doer(max=2, buffer=0), on_backlog=told.append)
    handles = await work.enqueue_many([nap(1) for _ in range(10)])
    await handles.results()
    assert told == []


async def test_an_on_backlog_hook_that_raises_is_reported(make, errors, virtual_clock):
    def broken(held: int) -> None:
        raise RuntimeError("broken hook")

    work = make(
        nap,
        doer=balanced_doer(max=1, buffer=0),
        on_backlog=broken,
        backlog_after=1,
        on_error=errors,
    )
    handles = await work.enqueue_many([nap(3) for _ in range(2)])
    await handles.results()
    assert {(str(e), phase) for e, phase in errors} == {("broken hook", "queue")}


async def test_leases_from_elsewhere_are_run_to_their_end(make, queue, virtual_clock):
    work = make(add, nap, auto_start=False)
    handles = [await work.enqueue(add(1, 2)), await work.enqueue(nap(3))]
    await queue.inner.push([_message("junk")])
    leases = await queue.pop(10, 30, 0)
    assert len(leases) == 3
    began = virtual_clock.now()
    await work.process(leases)
    assert (virtual_clock.now() - began).total_seconds() == 3
    assert [(await h.state()).status for h in handles] == ["success", "success"]
    assert await queue.size() == 0
    assert work.active() == []


async def test_processing_works_beyond_the_doers_room(make, queue):
    @define_batch_work("batch", size=3, max_wait=100)
    async def batch(items: list[int]) -> list[int]:
        return [2 * n for n in items]

    work = make(nap, batch, auto_start=False, doer=balanced_doer(max=1, buffer=0))
    handles = await work.enqueue_many([nap(1) for _ in range(4)])
    batched = await work.enqueue_many([batch(n) for n in range(4)])
    await work.process(await queue.pop(10, 30, 0))
    assert {(await h.state()).status for h in [*handles, *batched]} == {"success"}


def _message(body: str) -> Any:
    from piecework import Message

    return Message(body)


def test_a_doer_serves_a_second_loop_after_the_first_has_closed():
    doer = balanced_doer(max=1)
    work = create_work(work=[add], doer=doer)

    async def main() -> int:
        answer = await work.run(add(1, 2))
        await work.stop()
        return answer

    assert [asyncio.run(main()) for _ in range(2)] == [3, 3]


async def test_systems_that_share_a_doer_stop_each_for_itself(make):
    doer = unlimited_doer()
    one, two = make(nap, doer=doer, queue=MemoryQueue()), make(nap, doer=doer, queue=MemoryQueue())
    first, second = await one.enqueue(nap(9)), await two.enqueue(nap(9))
    await sleep(1)
    await one.stop(drain=0)
    assert (await first.state()).status == "pending"
    assert await second.result() == "slept"
