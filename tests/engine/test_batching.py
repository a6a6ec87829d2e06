"""Batches: collected by size and time, run as one task, settled one by one."""

from __future__ import annotations

from datetime import timedelta

import pytest

from piecework import (
    Retry,
    RetryAbort,
    WorkDelayError,
    WorkFailedError,
    balanced_doer,
    create_work,
    define_batch_work,
    unlimited_doer,
)
from piecework.clock import sleep
from piecework.doers import Doer

PLAIN = Retry(attempts=3, base=1, jitter=0)


class Doubler:
    """A batch handler that notes its calls."""

    def __init__(self, clock=None, take=0.0):
        self.clock = clock
        self.take = take
        self.batches = []
        self.times = []
        self.running = 0
        self.most = 0

    async def __call__(self, numbers: list[int]) -> list[int]:
        self.batches.append(list(numbers))
        if self.clock is not None:
            self.times.append(self.clock.now())
        self.running += 1
        self.most = max(self.most, self.running)
        await sleep(self.take)
        self.running -= 1
        return [2 * n for n in numbers]


def double(fn, *, size=3, max_wait=10, **options):
    return define_batch_work("double", size=size, max_wait=max_wait, **options)(fn)


async def test_a_full_batch_runs_at_once(virtual_clock, backend):
    # S93
    handler = Doubler(virtual_clock)
    batch = double(handler)
    async with create_work(work=[batch], **backend) as work:
        began = virtual_clock.now()
        handles = await work.enqueue_many([batch(n) for n in (1, 2, 3)])
        assert await handles.results() == [2, 4, 6]
    assert handler.batches == [[1, 2, 3]]
    assert handler.times == [began]


async def test_an_unfull_batch_runs_max_wait_after_its_first_item(virtual_clock, backend):
    # S93
    handler = Doubler(virtual_clock)
    batch = double(handler)
    async with create_work(work=[batch], **backend) as work:
        began = virtual_clock.now()
        first = await work.enqueue(batch(1))
        await virtual_clock.advance(7)
        second = await work.enqueue(batch(2))
        assert [await first.result(), await second.result()] == [2, 4]
    assert handler.batches == [[1, 2]]
    assert handler.times == [began + timedelta(seconds=10)]


async def test_a_batch_is_one_task_of_its_doer(virtual_clock, backend):
    # S94: max=2 means two batches at once
    handler = Doubler(take=5)
    batch = double(handler, doer=balanced_doer(max=2))
    async with create_work(work=[batch], **backend) as work:
        handles = await work.enqueue_many([batch(n) for n in range(12)])
        assert await handles.results() == [2 * n for n in range(12)]
    assert handler.most == 2
    assert sorted(n for one in handler.batches for n in one) == list(range(12))


async def test_output_i_belongs_to_item_i(virtual_clock, backend):
    # S95
    batch = double(Doubler(), size=7, max_wait=1)
    async with create_work(work=[batch], **backend) as work:
        handles = await work.enqueue_many([batch(n) for n in range(50)])
        assert await handles.results() == [2 * n for n in range(50)]


@pytest.mark.parametrize(
    ("answer", "text"),
    [
        (lambda items: items[:-1], r'batch "double" returned 2 outputs for 3 inputs'),
        (lambda items: [*items, 1], r'batch "double" returned 4 outputs for 3 inputs'),
        (lambda items: 5, r'batch "double" returned no list of outputs for 3 inputs'),
        (lambda items: "abc", r'batch "double" returned no list of outputs for 3 inputs'),
    ],
)
async def test_outputs_that_do_not_match_fail_each_item_on_its_own(
    virtual_clock, backend, answer, text
):
    # S96
    async def handler(items: list[int]):
        return answer(items)

    batch = double(handler, retry=Retry(attempts=1))
    async with create_work(work=[batch], **backend) as work:
        handles = await work.enqueue_many([batch(n) for n in (1, 2, 3)])
        for handle in handles:
            with pytest.raises(WorkFailedError, match=text):
                await handle.result()


async def test_items_of_a_failed_batch_are_retried_one_by_one(virtual_clock, backend):
    # S96
    calls = []

    async def handler(items: list[int]) -> list[int]:
        calls.append(list(items))
        return items[:-1] if len(calls) == 1 else items

    batch = double(handler, retry=PLAIN, max_wait=0.1)
    async with create_work(work=[batch], **backend) as work:
        handles = await work.enqueue_many([batch(n) for n in (1, 2, 3)])
        assert await handles.results() == [1, 2, 3]
        assert [state.attempt for state in await work.states([h.id for h in handles])] == [2] * 3
    assert calls[0] == [1, 2, 3]


async def test_each_item_meets_its_own_fate_when_the_batch_raises(virtual_clock, backend):
    # S97: mixed attempts give mixed fates
    async def handler(items: list[int]) -> list[int]:
        raise ValueError("boom")

    batch = double(handler, retry=PLAIN, max_wait=0.1)
    events = []
    async with create_work(work=[batch], on_event=events.append, **backend) as work:
        once = Retry(attempts=1)
        handles = await work.enqueue_many([batch(1).with_options(retry=once), batch(2), batch(3)])
        for handle in handles:
            with pytest.raises(WorkFailedError, match="ValueError: boom"):
                await handle.result()
        states = await work.states([handle.id for handle in handles])
    assert [state.attempt for state in states] == [1, 3, 3]
    first = [event for event in events if event.kind == "failed"][:3]
    assert sorted(event.will_retry for event in first) == [False, True, True]


async def test_an_output_that_is_an_exception_fails_that_item_alone(virtual_clock, backend):
    # S97
    calls = []

    async def handler(items: list[int]) -> list[int | Exception]:
        calls.append(list(items))
        fates = {2: ValueError("two"), 3: RetryAbort("three"), 4: WorkDelayError(60)}
        if any(items == [4] for _ in calls) or len(calls) > 1:
            fates.pop(4)
        return [fates.get(n, n) for n in items]

    batch = double(handler, size=4, max_wait=0.1, retry=PLAIN)
    events = []
    async with create_work(work=[batch], on_event=events.append, **backend) as work:
        began = virtual_clock.now()
        handles = await work.enqueue_many([batch(n) for n in (1, 2, 3, 4)])
        assert await handles[0].result() == 1
        with pytest.raises(WorkFailedError, match="ValueError: two"):
            await handles[1].result()
        with pytest.raises(WorkFailedError, match="^three$"):
            await handles[2].result()
        assert await handles[3].result() == 4
        assert virtual_clock.now() - began >= timedelta(seconds=60)
        attempts = [s.attempt for s in await work.states([handle.id for handle in handles])]
    assert attempts == [1, 3, 1, 1]
    assert [event.kind for event in events].count("deferred") == 1


async def test_a_batch_that_puts_itself_off_puts_off_all_its_items(virtual_clock, backend):
    # S97
    calls = []

    async def handler(items: list[int]) -> list[int]:
        calls.append(list(items))
        if len(calls) == 1:
            raise WorkDelayError(30)
        return items

    batch = double(handler, retry=Retry(attempts=1))
    async with create_work(work=[batch], **backend) as work:
        began = virtual_clock.now()
        handles = await work.enqueue_many([batch(n) for n in (1, 2, 3)])
        assert await handles.results() == [1, 2, 3]
        assert virtual_clock.now() - began >= timedelta(seconds=30)


async def test_an_item_with_bad_input_is_dead_and_its_batch_runs_without_it(virtual_clock, backend):
    # S97, P7
    async def loose(numbers: list) -> list:
        return numbers

    producer_type = double(loose)
    handler = Doubler()
    batch = double(handler, max_wait=1)
    producer = create_work(work=[producer_type], auto_start=False, **backend)
    handles = await producer.enqueue_many([producer_type(n) for n in (1, "two", 3)])
    async with create_work(work=[batch], **backend) as work:
        views = [work.handle(handle.id) for handle in handles]
        assert [await views[0].result(), await views[2].result()] == [2, 6]
        with pytest.raises(WorkFailedError, match="bad input"):
            await views[1].result()
    assert handler.batches == [[1, 3]]
    await producer.stop()


async def test_no_more_is_taken_than_a_batch_has_room_for(virtual_clock, backend):
    # S98: what cannot be collected stays in the queue for other workers
    handler = Doubler(take=100)
    batch = double(handler, doer=balanced_doer(max=1, buffer=0))
    async with create_work(work=[batch], **backend) as work:
        await work.enqueue_many([batch(n) for n in range(30)])
        await virtual_clock.advance(50)
        assert len(handler.batches) == 1
        assert len(work.active()) <= 6
        handed_over = await backend["queue"].pop(100, 30, 0)
        assert len(handed_over) >= 24
        await backend["queue"].release(handed_over)
        await virtual_clock.advance(2000)
    assert sorted(n for one in handler.batches for n in one) == list(range(30))


async def test_leases_are_renewed_while_items_wait_for_their_batch(virtual_clock, backend):
    # S99: max_wait may be longer than the visibility
    handler = Doubler()
    batch = double(handler, max_wait=300)
    systems = [create_work(work=[batch], visibility=10, **backend) for _ in range(2)]
    await systems[0].start()
    handle = await systems[0].enqueue(batch(1))
    await virtual_clock.advance(1)
    await systems[1].start()
    assert await handle.result() == 2
    await virtual_clock.advance(60)
    assert handler.batches == [[1]]
    assert (await handle.state()).attempt == 1
    for system in systems:
        await system.stop()


async def test_a_stop_runs_what_was_collected(virtual_clock, backend):
    # S100
    handler = Doubler()
    batch = double(handler, max_wait=3600)
    work = create_work(work=[batch], **backend)
    await work.start()
    handle = await work.enqueue(batch(1))
    await virtual_clock.advance(1)
    await work.stop()
    assert handler.batches == [[1]]
    assert (await handle.state()).result == 2
    assert work.active() == []
    await work.stop()


async def test_a_doer_that_refuses_a_batch_leaks_none_of_its_works(virtual_clock, backend):
    # S100, S65
    class Refusing(Doer):
        def __init__(self):
            self.inner = unlimited_doer()
            self.refuse = 1

        available = property(lambda self: self.inner.available)
        running = property(lambda self: self.inner.running)
        waiting = property(lambda self: self.inner.waiting)

        def do(self, task):
            if self.refuse:
                self.refuse -= 1
                raise RuntimeError("no")
            self.inner.do(task)

        def take_back(self, owner=None):
            return self.inner.take_back(owner)

        def tasks(self, owner=None):
            return self.inner.tasks(owner)

        async def done(self, owner=None):
            await self.inner.done(owner)

        def subscribe(self, listener):
            return self.inner.subscribe(listener)

    errors = []
    handler = Doubler()
    batch = double(handler, max_wait=1, doer=Refusing())
    async with create_work(
        work=[batch], on_error=lambda error, phase: errors.append(str(error)), **backend
    ) as work:
        handles = await work.enqueue_many([batch(n) for n in (1, 2)])
        assert [await handle.result(timeout=300) for handle in handles] == [2, 4]
        await virtual_clock.advance(1)
        assert work.active() == []
        assert work.stats()["double"]["active"] == 0
    assert errors == ["no"]


async def test_a_def_batch_runs_in_a_thread(virtual_clock, backend):
    import threading

    names = []

    def handler(items: list[int]) -> list[int]:
        names.append(threading.current_thread() is threading.main_thread())
        return items

    batch = double(handler, max_wait=0.1)
    async with create_work(work=[batch], **backend) as work:
        assert await work.run(batch(5)) == 5
    assert names == [False]


async def test_a_batch_that_returns_nothing_gives_none_to_each(virtual_clock, backend):
    # S49 of the batches
    async def handler(items: list[int]) -> None:
        return None

    batch = double(handler)
    async with create_work(work=[batch], **backend) as work:
        handles = await work.enqueue_many([batch(n) for n in (1, 2, 3)])
        assert await handles.results() == [None] * 3


async def test_a_timeout_of_a_batch_fails_its_items(virtual_clock, backend):
    batch = double(Doubler(take=60), timeout=5, retry=Retry(attempts=1))
    async with create_work(work=[batch], **backend) as work:
        handles = await work.enqueue_many([batch(n) for n in (1, 2, 3)])
        for handle in handles:
            with pytest.raises(WorkFailedError, match="timed out after 5 s"):
                await handle.result()
        assert work.active() == []


async def test_a_cancelled_item_is_not_given_to_the_batch(virtual_clock, backend):
    handler = Doubler()
    batch = double(handler, max_wait=30)
    async with create_work(work=[batch], **backend) as work:
        handles = await work.enqueue_many([batch(n) for n in (1, 2)])
        await virtual_clock.advance(5)
        assert await handles[0].cancel()
        assert (await handles[0].state()).status == "cancelled"
        assert await handles[1].result() == 4
        await virtual_clock.advance(60)
        assert (await handles[0].state()).status == "cancelled"
        assert work.active() == []
        assert work.stats()["double"]["active"] == 0
    assert handler.batches == [[2]]
