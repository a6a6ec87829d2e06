"""What can be seen of works: events, states, lists, counters, gauges, summaries, logs."""

from __future__ import annotations

import asyncio
import logging
from datetime import timedelta

import pytest

from piecework import (
    DEFAULT_BUCKETS,
    Delay,
    MemoryQueue,
    Retry,
    WorkContext,
    WorkDelayError,
    WorkFailedError,
    WorkLogFilter,
    create_metrics,
    create_work,
    define_work,
    format_prometheus,
)
from piecework.clock import sleep
from piecework.ports import Capabilities

ONCE = Retry(attempts=1)
PLAIN = Retry(attempts=3, base=10, factor=1, max=10, jitter=0)


@define_work
async def fine(n: int = 1) -> int:
    await sleep(n)
    return n


@define_work(retry=PLAIN)
async def failing() -> None:
    await sleep(2)
    raise ValueError("no")


@define_work(retry=PLAIN)
async def flaky(ctx: WorkContext) -> int:
    if ctx.attempt < 3:
        raise ValueError("again")
    return ctx.attempt


@define_work
async def deferring(ctx: WorkContext) -> None:
    if await ctx.claim("first"):
        raise WorkDelayError(30)


TYPES = [fine, failing, flaky, deferring]


def kinds(events):
    return [event.kind for event in events]


def value(work, name, type, **labels):
    [found] = [
        snapshot
        for snapshot in work.metrics.list()
        if snapshot.name == name and snapshot.labels == {"type": type, **labels}
    ]
    return found


def assert_idle(work):
    for type, series in work.stats().items():
        for name in ("active", "pending", "running"):
            assert series[name] == 0, (type, name)


# ---- events ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("built", "options", "sequence"),
    [
        (fine, {}, "queued started succeeded group-done"),
        (fine, {"skip_queue": True}, "queued started succeeded group-done"),
        (flaky, {}, "queued started failed started failed started succeeded group-done"),
        (failing, {}, "queued started failed started failed started failed group-done"),
        (deferring, {}, "queued started deferred started succeeded group-done"),
        (fine, {"deadline": 0.5}, "queued started expired group-done"),
    ],
)
async def test_each_path_has_its_sequence_of_events(
    virtual_clock, backend, built, options, sequence
):
    # S122: all with a time that does not go back
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:
        handle = await work.enqueue(built(), **options)
        await handle
        assert_idle(work)
    assert kinds(events) == sequence.split()
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert {event.id for event in events} == {handle.id}
    assert {event.group_id for event in events} == {handle.id}
    assert {event.type for event in events} == {built.type}


async def test_a_cancelled_work_tells_so(virtual_clock, backend):
    # S122
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:
        waiting = await work.enqueue(fine(), delay=100)
        assert await waiting.cancel()
        assert kinds(events) == ["queued", "cancelled", "group-done"]
        events.clear()
        running = await work.enqueue(fine(500))
        await virtual_clock.advance(1)
        assert await running.cancel()
        await running.group(timeout=5)
        assert kinds(events) == ["queued", "started", "cancelled", "group-done"]
        await virtual_clock.advance(200)
        assert_idle(work)
    assert kinds(events) == ["queued", "started", "cancelled", "group-done"]


async def test_events_carry_attempt_result_and_error(virtual_clock, backend):
    # S122
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:
        await work.run(flaky())
    failed = [event for event in events if event.kind == "failed"]
    assert [(event.attempt, event.error, event.will_retry) for event in failed] == [
        (1, "ValueError: again", True),
        (2, "ValueError: again", True),
    ]
    [done] = [event for event in events if event.kind == "succeeded"]
    assert (done.attempt, done.result) == (3, 3)


# ---- states ----------------------------------------------------------------------------------


async def test_list_shows_the_works_of_the_whole_fleet_latest_first(virtual_clock, backend):
    # S123
    async with create_work(work=TYPES, **backend) as work:
        first = await work.enqueue(fine(1))
        await first.result()
        second = await work.enqueue(fine(1))
        await second.result()
        third = await work.enqueue(failing())
        await third.group()
        fourth = await work.enqueue(fine(1), delay=1000)
        observer = create_work(auto_start=False, **backend)
        assert [s.id for s in await observer.list()] == [fourth.id, third.id, second.id, first.id]
        assert [s.id for s in await observer.list("dead")] == [third.id]
        assert [s.id for s in await observer.list("pending")] == [fourth.id]
        assert [s.id for s in await observer.list(type="fine")] == [
            fourth.id,
            second.id,
            first.id,
        ]
        assert [s.id for s in await observer.list("success", limit=1)] == [second.id]
        assert await observer.list("cancelled") == []
        await observer.stop()


async def test_list_pages_through_many(virtual_clock, backend):
    # S123, Q6: nothing is kept here; the store's index has it
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([fine(0) for _ in range(350)])
        await handles.results()
        assert len(await work.list("success", limit=1000)) == 350
        assert len(await work.list("success", limit=120)) == 120


async def test_states_keep_the_order_and_say_none_for_the_unknown(virtual_clock, backend):
    # S123
    async with create_work(work=TYPES, **backend) as work:
        handle = await work.enqueue(fine(3))
        await handle.result()
        states = await work.states(["nobody", handle.id, "nobody", handle.id])
        assert [state and state.result for state in states] == [None, 3, None, 3]
        assert await work.states([]) == []
        state = await work.state(handle.id)
        assert state.run_at <= state.end_at
        assert state.end_at - state.queue_at == timedelta(seconds=3)


async def test_active_shows_copies_of_what_is_held(virtual_clock, backend):
    # S124
    from piecework import balanced_doer

    async with create_work(work=TYPES, doer=balanced_doer(max=1, buffer=1), **backend) as work:
        assert work.active() == []
        handles = await work.enqueue_many([fine(10), fine(10), fine(10)])
        await virtual_clock.advance(1)
        held = work.active()
        assert sorted(state.status for state in held) == ["pending", "running"]
        assert {state.type for state in held} == {"fine"}
        await handles.results()
        assert work.active() == []
        assert sorted(state.status for state in held) == ["pending", "running"]  # copies


# ---- metrics ---------------------------------------------------------------------------------


async def test_series_are_kept_per_type(virtual_clock, backend):
    # S125
    async with create_work(work=TYPES, **backend) as work:
        await work.run(fine())
        await (await work.enqueue(failing()))
        stats = work.stats()
    assert stats["fine"]["succeeded"] == 1
    assert stats["fine"]["failed"] == 0
    assert stats["failing"]["failed"] == 3
    assert 'work_succeeded_total{type="fine"} 1' in format_prometheus(work.metrics)


@pytest.mark.parametrize(
    ("built", "options", "counters"),
    [
        (fine, {}, {"queued": 1, "started": 1, "succeeded": 1}),
        (flaky, {}, {"queued": 1, "started": 3, "succeeded": 1, "failed": 2, "retried": 2}),
        (failing, {}, {"queued": 1, "started": 3, "failed": 3, "retried": 2}),
        (deferring, {}, {"queued": 1, "started": 2, "succeeded": 1, "deferred": 1}),
        (fine, {"skip_queue": True}, {"queued": 1, "started": 1, "succeeded": 1}),
        (fine, {"deadline": 0.5}, {"queued": 1, "started": 1, "expired": 1}),
    ],
)
async def test_each_path_moves_its_counters(virtual_clock, backend, built, options, counters):
    # S126
    names = "queued started succeeded failed retried deferred rescheduled cancelled expired"
    async with create_work(work=TYPES, **backend) as work:
        await (await work.enqueue(built(), **options))
        stats = work.stats()[built.type]
    assert {name: stats[name] for name in names.split()} == {
        name: counters.get(name, 0) for name in names.split()
    }


async def test_a_message_that_came_early_counts_as_rescheduled(virtual_clock, backend):
    # S126, S128
    queue = MemoryQueue(capabilities=Capabilities(in_process=True, max_delay=900))
    async with create_work(work=TYPES, **{**backend, "queue": queue}) as work:
        handle = await work.enqueue(fine(), delay=2000)
        await handle.result()
        assert work.stats()["fine"]["rescheduled"] == 2
        early = value(work, "work.reschedule_time", "fine")
        assert (early.count, early.sum) == (2, pytest.approx(1100 + 200, abs=2))


async def test_metrics_of_a_result_are_there_when_the_result_is(virtual_clock, backend):
    # S126: whoever got the result sees it counted
    class SlowAck(MemoryQueue):
        async def ack(self, leases):
            await sleep(1)
            await super().ack(leases)

    async with create_work(work=TYPES, **{**backend, "queue": SlowAck()}) as work:
        await work.run(fine())
        assert work.stats()["fine"]["succeeded"] == 1


async def test_gauges_are_back_at_zero_after_every_path(virtual_clock, backend):
    # S127
    @define_work(timeout=1, retry=ONCE)
    async def slow() -> None:
        await sleep(60)

    @define_work(on_failure=lambda error, info: Delay(5), retry=ONCE)
    async def limited(ctx: WorkContext) -> None:
        if await ctx.claim("limited"):
            raise ValueError("limit")

    @define_work(retry=ONCE)
    async def unkept() -> object:
        return asyncio.Lock()

    async with create_work(work=[*TYPES, slow, limited, unkept], **backend) as work:
        began = virtual_clock.now().timestamp()
        works = [fine(), failing(), flaky(), deferring(), slow(), limited(), unkept()]
        handles = await work.enqueue_many([*works, fine(5), fine(50)])
        await virtual_clock.advance(0.5)
        stats = work.stats()["fine"]
        assert (stats["active"], stats["running"], stats["pending"]) == (3, 3, 0)
        assert await handles[-1].cancel()
        for handle in handles:
            await handle.group(timeout=300)
        await virtual_clock.advance(100)
        assert_idle(work)
        assert work.stats()["fine"]["peak_active"] == 3
        stats = work.stats()
        assert stats["fine"]["last_queued_at"] == began
        assert stats["fine"]["last_succeeded_at"] == began + 5
        assert stats["failing"]["last_failed_at"] == pytest.approx(began + 26, abs=0.1)
        assert stats["failing"]["last_started_at"] == pytest.approx(began + 24, abs=0.1)


async def test_gauges_are_back_at_zero_after_a_stop_that_cuts_works_short(virtual_clock, backend):
    # S127
    work = create_work(work=TYPES, **backend)
    await work.start()
    await work.enqueue_many([fine(100) for _ in range(5)])
    await virtual_clock.advance(2)
    await work.stop(drain=1)
    assert_idle(work)
    assert work.active() == []


async def test_summaries_measure_what_they_say(virtual_clock, backend):
    # S128
    async with create_work(work=TYPES, **backend) as work:
        await (await work.enqueue(failing()))
        await work.run(fine(7))
        await work.run(deferring())

        def of(name, type):
            series = value(work, name, type)
            return series.count, pytest.approx(series.sum, abs=0.05)

        assert of("work.error_time", "failing") == (3, 6)
        assert of("work.delay_time", "failing") == (2, 20)
        assert of("work.total_time", "failing") == (1, 26)
        assert of("work.attempts", "failing") == (1, 3)
        assert of("work.success_time", "fine") == (1, 7)
        assert of("work.total_time", "fine") == (1, 7)
        assert of("work.wait_time", "fine") == (1, 0)
        assert of("work.delay_time", "deferring") == (1, 30)
        assert of("work.attempts", "deferring") == (1, 1)


async def test_a_work_that_waited_shows_how_long(virtual_clock, backend):
    # S128: from when it was due
    async with create_work(work=TYPES, auto_start=False, **backend) as work:
        pass
    work = create_work(work=TYPES, auto_start=False, **backend)
    handle = await work.enqueue(fine(0), delay=10)
    await virtual_clock.advance(60)
    await work.start()
    await handle.result()
    waited = value(work, "work.wait_time", "fine")
    assert waited.sum == pytest.approx(50, abs=0.5)
    await work.stop()


async def test_the_metrics_object_may_be_given(virtual_clock, backend):
    # S129
    metrics = create_metrics(buckets=DEFAULT_BUCKETS)
    async with create_work(work=TYPES, metrics=metrics, **backend) as work:
        assert work.metrics is metrics
        await work.run(fine())
    assert metrics.get("work.succeeded", type="fine").value == 1


# ---- logs ------------------------------------------------------------------------------------


class Lines(logging.Handler):
    def __init__(self):
        super().__init__()
        self.records = []
        self.addFilter(WorkLogFilter())

    def emit(self, record):
        self.records.append(record)


@pytest.fixture
def lines():
    handler = Lines()
    logger = logging.getLogger("test.works")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    yield handler.records
    logger.removeHandler(handler)


@pytest.mark.parametrize("flavour", ["loop", "thread"])
async def test_log_records_of_a_handler_name_their_work(virtual_clock, backend, lines, flavour):
    logger = logging.getLogger("test.works")

    def plain(n: int) -> None:
        logger.info("inside %s", n)

    async def on_loop(n: int) -> None:
        plain(n)
        await asyncio.create_task(nested())

    async def nested():
        logger.info("nested")

    handler = on_loop if flavour == "loop" else plain
    noisy = define_work("noisy", handler, log_context=lambda given: {"n": given["n"], "who": "t"})
    async with create_work(
        work=[noisy], log_context=lambda given, name: {"who": "system", "kind": name}, **backend
    ) as work:
        logger.info("outside")
        handle = await work.enqueue(noisy(4))
        await handle.result()
    assert (lines[0].work_id, lines[0].work_type, lines[0].attempt) == ("", "", 0)
    for record in lines[1:]:
        assert (record.work_id, record.work_type, record.attempt) == (handle.id, "noisy", 1)
        assert record.group_id == handle.id
        assert (record.n, record.who, record.kind) == (4, "t", "noisy")
    assert len(lines) == (3 if flavour == "loop" else 2)


async def test_log_with_runs_around_the_handler_with_its_fields(virtual_clock, backend):
    seen = []

    async def log_with(fields, inner):
        seen.append(dict(fields))
        try:
            return await inner()
        finally:
            seen.append("after")

    @define_work(log_context=lambda given: {"n": given["n"]}, retry=ONCE)
    async def odd(n: int) -> int:
        if n == 13:
            raise ValueError("odd")
        return n

    async with create_work(work=[odd], log_with=log_with, **backend) as work:
        handle = await work.enqueue(odd(4))
        assert await handle.result() == 4
        with pytest.raises(WorkFailedError, match="odd"):
            await work.run(odd(13))
    first = {"work_id": handle.id, "work_type": "odd", "group_id": handle.id, "attempt": 1, "n": 4}
    assert seen[:2] == [first, "after"]
    assert seen[2]["n"] == 13


async def test_a_log_context_that_raises_costs_nothing_but_its_fields(virtual_clock, backend):
    def broken(given):
        raise RuntimeError("context")

    @define_work(log_context=broken)
    async def steady() -> int:
        return 1

    async with create_work(work=[steady], **backend) as work:
        assert await work.run(steady()) == 1
