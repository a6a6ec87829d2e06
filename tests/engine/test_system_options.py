"""The options of a system: what each does, and its default."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.support.faults import WatchedQueue, starting

from piecework import (
    BackendError,
    ConfigError,
    MemoryQueue,
    Retry,
    WorkContext,
    WorkFailedError,
    create_metrics,
    create_work,
    define_batch_work,
    define_work,
)
from piecework.clock import sleep


@define_work("add")
async def add(a: int, b: int) -> int:
    return a + b


async def _failing() -> None:
    raise ValueError("no")


fail = define_work("fail", _failing)


@define_work("nap")
async def nap(seconds: float) -> str:
    await sleep(seconds)
    return "slept"


# ---- timing --------------------------------------------------------------------------------------


async def test_an_idle_worker_waits_poll_interval_for_messages(make, queue, virtual_clock):  # S11
    await make(add, poll_interval=7).start()
    await virtual_clock.advance(6.9)
    assert [args[2] for args in queue.plan.arguments("pop")] == [7]
    await virtual_clock.advance(14)
    assert [args[2] for args in queue.plan.arguments("pop")] == [7, 7, 7]


async def test_a_waiting_worker_takes_a_message_at_once(make, virtual_clock):  # S11
    work = make(add)
    await work.start()
    await virtual_clock.advance(3)
    began = virtual_clock.now()
    assert await work.run(add(1, 2)) == 3
    assert virtual_clock.now() == began


async def test_visibility_is_asked_of_every_pop(make, queue):  # S12
    work = make(add, visibility=44)
    await work.run(add(1, 2))
    assert {args[1] for args in queue.plan.arguments("pop")} == {44}


async def test_the_lease_of_a_dead_worker_lapses_after_visibility(
    make, queue, virtual_clock
):  # S12
    work = make(add, auto_start=False)
    handle = await work.enqueue(add(1, 2))
    assert await queue.inner.pop(1, 44, 0)  # a worker that dies
    await work.start()
    await virtual_clock.advance(43)
    assert (await handle.state()).status == "pending"
    await virtual_clock.advance(2)
    assert (await handle.state()).status == "success"


async def test_a_handler_longer_than_visibility_is_not_delivered_again(make, queue):  # S13
    work = make(nap, visibility=3)
    assert await work.run(nap(30)) == "slept"
    assert work.stats()["nap"]["started"] == 1
    assert queue.plan.count("extend") == pytest.approx(30, abs=2)  # a beat each third


async def test_heartbeat_sets_the_pause_between_renewals(make, queue):  # S13
    work = make(nap, visibility=30, heartbeat=2)
    await work.run(nap(21))
    assert queue.plan.count("extend") == 10


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"visibility": 10, "heartbeat": 6}, "heartbeat"),
        ({"visibility": 0}, "visibility"),
        ({"poll_interval": -1}, "poll_interval"),
        ({"result_ttl": 0}, "result_ttl"),
        ({"redrive_count": -1}, "redrive_count"),
    ],
)
def test_numbers_that_cannot_work_are_refused_by_name(options, named):
    with pytest.raises(ConfigError, match=named):
        create_work(**options)


# ---- prefix, codec -------------------------------------------------------------------------------


async def test_every_key_starts_with_the_prefix(make, store, virtual_clock):  # S14
    async def parent(ctx: WorkContext) -> None:
        await ctx.queue(add(1, 2))
        await ctx.queue([add(3, 4)], then=[add(5, 6)])
        await ctx.claim("mine")
        ctx.set_result(1)

    work = make(define_work("parent", parent), add, fail, prefix="mine:", start_after=0)
    work.schedule("s", add(7, 8), every=60)
    await work.start()
    handle = await work.enqueue("parent", unique="one")
    await handle
    await virtual_clock.advance(90)
    await work.list()
    assert {key for key in store.keys if not key.startswith("mine:")} == set()
    listed = [args[0] for args in store.plan.arguments("list")]
    assert all(index.startswith("mine:") for index in listed)


async def test_the_default_prefix_is_work(make, store):  # S14
    work = make(add)
    await work.run(add(1, 2))
    assert {key.split(":")[0] for key in store.keys} == {"work"}


async def test_two_prefixes_share_a_store(make):  # S14
    one = make(add, prefix="one:", queue=MemoryQueue())
    two = make(add, prefix="two:", queue=MemoryQueue())
    assert await one.run(add(1, 2), id="same") == 3
    assert await two.run(add(3, 4), id="same") == 7
    assert (await one.state("same")).result == 3


class Counting:
    """A codec that counts."""

    def __init__(self) -> None:
        self.values: list[Any] = []

    def encode(self, value: Any) -> str:
        self.values.append(value)
        return f"<{value}>"

    def decode(self, text: str) -> Any:
        return text[1:-1]


async def test_the_groups_result_goes_through_the_systems_codec(make):  # S15
    codec = Counting()

    @define_work("parent")
    async def parent(ctx: WorkContext) -> int:
        ctx.set_result("value")
        return 1

    work = make(parent, codec=codec)
    handle = await work.enqueue(parent())
    assert await handle == "value"
    assert codec.values == ["value"]


# ---- retry ---------------------------------------------------------------------------------------


async def test_a_work_fails_three_times_by_default(make, virtual_clock):  # S17
    work = make(fail, random=lambda: 0.0)
    began = virtual_clock.now()
    handle = await work.enqueue(fail())
    with pytest.raises(WorkFailedError):
        await handle.result()
    assert (await handle.state()).attempt == 3
    assert work.stats()["fail"]["started"] == 3
    passed = (virtual_clock.now() - began).total_seconds()
    assert passed == pytest.approx(1 + 2, abs=0.01)  # base 1 s, factor 2


async def test_port_retry_hides_a_store_and_a_queue_that_fail_twice(
    make, store, queue, errors
):  # S18
    work = make(add, port_retry=Retry(attempts=3, base=0.01), on_error=errors)
    store.plan.fail("write", 2, where=starting("pending"))
    queue.plan.fail("push", 2)
    store.plan.fail("write", 2, where=starting("success"))
    queue.plan.fail("ack", 2)
    handle = await work.enqueue(add(1, 2))
    assert await handle.result() == 3
    await work.stop()
    assert errors == []
    assert await queue.size() == 0


async def test_without_port_retry_a_failed_write_surfaces_in_enqueue(make, store):  # S18
    work = make(add)
    store.plan.fail("write", 1)
    with pytest.raises(BackendError, match="asked to fail"):
        await work.enqueue(add(1, 2))


async def test_port_retry_does_not_repeat_a_conflict_or_a_read(make, store):  # S19
    work = make(add, port_retry=Retry(attempts=3, base=0.01))
    await work.run(add(1, 2), id="one")
    before = store.plan.count("write")
    await work.enqueue(add(1, 2), id="one")
    assert store.plan.count("write") == before + 1
    store.plan.fail("read", 1)
    with pytest.raises(BackendError):
        await work.state("one")


async def test_port_retry_does_not_repeat_pop_or_release(make, queue, errors, virtual_clock):  # S19
    answers = [False, True]
    work = make(
        add,
        port_retry=Retry(attempts=3, base=0.01),
        on_error=errors,
        accept=lambda info: answers.pop(0),
        visibility=12,
    )
    queue.plan.fail("pop", 1)
    queue.plan.fail("release", 1)
    handle = await work.enqueue(add(1, 2))
    assert await handle.result() == 3  # its lease lapsed, and it was delivered again
    assert queue.plan.count("release") == 1
    assert [phase for _, phase in errors] == ["queue", "queue"]


# ---- hooks ---------------------------------------------------------------------------------------


async def test_on_error_hears_of_a_failed_settle_as_commit(make, store, errors):  # S20 S72
    runs = []

    @define_work("once")
    async def once() -> int:
        runs.append(1)
        return 1

    work = make(once, on_error=errors)
    store.plan.fail("write", 3, where=starting("success"))
    assert await work.run(once()) == 1
    assert [phase for _, phase in errors] == ["commit"] * 3
    assert runs == [1]


async def test_on_error_hears_of_a_failed_pop_as_queue_and_work_goes_on(make, queue, errors):  # S20
    work = make(add, on_error=errors)
    queue.plan.fail("pop", 2)
    assert await work.run(add(1, 2)) == 3
    assert [(type(e).__name__, phase) for e, phase in errors] == [("BackendError", "queue")] * 2


async def test_an_on_error_hook_that_raises_is_ignored(make, queue, store):  # S20

    def raising(error: BaseException, phase: str) -> None:
        raise RuntimeError("broken hook")

    work = make(add, on_error=raising)
    queue.plan.fail("pop", 1)
    store.plan.fail("write", 1, where=starting("success"))
    assert await work.run(add(1, 2)) == 3


async def test_event_hooks_that_raise_change_no_outcome(make):  # S21
    def raising(event: Any) -> None:
        raise RuntimeError("broken hook")

    own = define_work("own", add.fn, on_event=raising)
    work = make(own, on_event=raising)
    assert await work.run(own(1, 2)) == 3


async def test_log_with_runs_the_handler_and_gets_the_merged_context(make):  # S22
    seen = []
    inside = []

    async def log_with(fields, call):
        seen.append(dict(fields))
        inside.append(True)
        try:
            return await call()
        finally:
            inside.pop()

    @define_work("own", log_context=lambda given: {"a": given["a"], "who": "type"})
    async def own(a: int) -> bool:
        return bool(inside)

    work = make(
        own, log_with=log_with, log_context=lambda given, kind: {"kind": kind, "who": "system"}
    )
    handle = await work.enqueue(own(5))
    assert await handle.result() is True
    assert seen == [
        {
            "work_id": handle.id,
            "work_type": "own",
            "group_id": handle.group_id,
            "attempt": 1,
            "kind": "own",
            "who": "type",
            "a": 5,
        }
    ]


async def test_log_with_is_not_used_for_batches(make):  # S22
    seen = []

    async def log_with(fields, call):
        seen.append(fields)
        return await call()

    @define_batch_work("double", size=2, max_wait=0)
    async def double(numbers: list[int]) -> list[int]:
        return [2 * number for number in numbers]

    work = make(double, log_with=log_with)
    assert await work.run(double(4)) == 8
    assert seen == []


async def test_a_log_context_that_raises_does_not_fail_the_work(make):  # S22
    def broken(given: Any, kind: str) -> Any:
        raise RuntimeError("broken hook")

    work = make(add, log_context=broken)
    assert await work.run(add(1, 2)) == 3


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_work_that_is_not_accepted_goes_to_another_worker(make, is_async, queue):  # S23
    asked = []

    def picky(info: Any) -> bool:
        asked.append(info)
        return False

    async def picky_later(info: Any) -> bool:
        await sleep(0.2)
        return picky(info)

    one = make(add, accept=picky_later if is_async else picky)
    await one.start()
    handle = await one.enqueue(add(1, 2), retry=Retry(attempts=2))
    while not asked:
        await sleep(0.1)
    two = make(add)
    await two.start()
    assert await handle.result() == 3
    info = asked[0]
    assert (info.id, info.type, info.group_id, info.attempt, info.attempts, info.input) == (
        handle.id,
        "add",
        handle.group_id,
        1,
        2,
        {"a": 1, "b": 2},
    )
    assert queue.plan.arguments("release")[0][1] == 1.0
    assert (await handle.state()).attempt == 1
    assert two.stats()["add"]["started"] == 1


async def test_an_accept_hook_that_raises_puts_the_work_back(make, errors):  # S23
    answers = [RuntimeError("broken hook"), True]

    def accept(info: Any) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    work = make(add, accept=accept, on_error=errors)
    handle = await work.enqueue(add(1, 2))
    assert await handle.result() == 3
    assert [(str(e), phase) for e, phase in errors] == [("broken hook", "queue")]
    assert (await handle.state()).attempt == 1


async def test_refusals_never_kill_a_work_however_it_is_tracked(make, virtual_clock):  # S23
    willing = []
    ran = []

    @define_work("quiet", track="none")
    async def quiet() -> None:
        ran.append("quiet")

    work = make(quiet, add, accept=lambda info: bool(willing))
    await work.enqueue(quiet())
    handle = await work.enqueue(add(1, 2))
    await virtual_clock.advance(120)
    willing.append(1)
    assert await handle.result() == 3
    assert ran == ["quiet"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_nothing_is_pulled_while_backpressure_says_so(
    make, queue, virtual_clock, is_async
):  # S24
    asked = []
    answers = [3, 2.5, None]

    def pressure(context: Any) -> float | None:
        asked.append((virtual_clock.now(), context))
        return answers.pop(0) if answers else 0

    async def pressure_later(context: Any) -> float | None:
        return pressure(context)

    work = make(add, backpressure=pressure_later if is_async else pressure)
    await work.start()
    began = virtual_clock.now()
    await virtual_clock.advance(5)
    assert queue.plan.count("pop") == 0
    await virtual_clock.advance(1)
    assert queue.plan.count("pop") == 1
    assert [(at - began).total_seconds() for at, _ in asked] == [0, 3, 5.5]
    context = asked[0][1]
    assert context.metrics is work.metrics
    assert context.active == 0


async def test_a_backpressure_hook_that_raises_is_reported_and_costs_a_pause(
    make, queue, errors, virtual_clock
):  # S24
    answers: list[Any] = [RuntimeError("broken hook")]

    def pressure(context: Any) -> float:
        if answers:
            raise answers.pop()
        return 0

    work = make(add, backpressure=pressure, on_error=errors)
    await work.start()
    await virtual_clock.advance(0.9)
    assert queue.plan.count("pop") == 0
    assert [(str(e), phase) for e, phase in errors] == [("broken hook", "queue")]
    assert await work.run(add(1, 2)) == 3


async def test_an_orphaned_group_is_told_to_the_hook_and_one_with_waiters_is_not(
    make, virtual_clock, events
):  # S25 S50
    told = []
    work = make(add, unhandled_work_group=told.append)
    orphan = await work.enqueue(add(1, 2))
    await virtual_clock.advance(1)
    assert [info.group_id for info in told] == [orphan.group_id]
    waited = await work.enqueue(add(3, 4))
    await waited
    await virtual_clock.advance(1)
    assert [info.group_id for info in told] == [orphan.group_id]


async def test_metrics_are_the_ones_that_were_given_or_fresh(make):  # S26
    metrics = create_metrics()
    assert make(add, metrics=metrics).metrics is metrics
    assert make(add).metrics is not make(add).metrics


async def test_the_idle_worker_redrives_from_the_dlq_that_it_was_given(make, virtual_clock):  # S27
    dlq = WatchedQueue(MemoryQueue())
    broken = [True]

    @define_work("mended", retry=Retry(attempts=1))
    async def mended() -> str:
        if broken:
            raise ValueError("no")
        return "ok"

    from piecework import Capabilities

    main = MemoryQueue(capabilities=Capabilities(in_process=True, native_dead_letters=False))
    work = make(mended, queue=main, dlq=dlq, poll_interval=2, max_redrives=10)
    handle = await work.enqueue(mended())
    with pytest.raises(WorkFailedError):
        await handle.result()
    broken.clear()
    await virtual_clock.advance(3)
    assert (await handle.state()).status == "success"
    assert dlq.plan.arguments("pop")[0][0] == 10  # redrive_count


async def test_redrive_count_zero_brings_nothing_back(make, virtual_clock):  # S27
    dlq = WatchedQueue(MemoryQueue())
    work = make(add, dlq=dlq, redrive_count=0, poll_interval=1)
    await work.start()
    await virtual_clock.advance(10)
    assert dlq.plan.count("pop") == 0


async def test_the_systems_failure_classifier_decides(make):  # S28
    infos = []

    def classify(error: BaseException, info: Any) -> str:
        infos.append((str(error), info.type, info.attempt, info.attempts))
        return "abort"

    work = make(fail, on_failure=classify)
    with pytest.raises(WorkFailedError):
        await work.run(fail())
    assert infos == [("no", "fail", 1, 3)]


# ---- auto_start ----------------------------------------------------------------------------------


async def test_auto_start_false_pops_nothing_until_start(make, queue, virtual_clock):  # S29
    work = make(add, auto_start=False)
    handle = await work.enqueue(add(1, 2))
    await virtual_clock.advance(60)
    assert queue.plan.count("pop") == 0
    await work.start()
    assert await handle.result() == 3


async def test_auto_start_none_starts_at_the_first_enqueue_of_a_queue_in_process(
    make, queue
):  # S29
    work = make(add, auto_start=None)
    assert queue.plan.calls == []
    assert await work.run(add(1, 2)) == 3


async def test_auto_start_none_never_starts_over_a_queue_elsewhere(make, virtual_clock):  # S29
    elsewhere = WatchedQueue(MemoryQueue(capabilities=_elsewhere()))
    work = make(add, queue=elsewhere)
    await work.enqueue(add(1, 2))
    await virtual_clock.advance(60)
    assert elsewhere.plan.count("pop") == 0


async def test_auto_start_true_starts_over_a_queue_elsewhere(make):  # S29
    elsewhere = WatchedQueue(MemoryQueue(capabilities=_elsewhere()))
    work = make(add, queue=elsewhere, auto_start=True)
    assert await work.run(add(1, 2)) == 3


def _elsewhere() -> Any:
    from piecework import Capabilities

    return Capabilities(in_process=False)


async def test_a_stopped_system_stays_stopped_until_it_is_started(
    make, queue, virtual_clock
):  # S29
    work = make(add)
    assert await work.run(add(1, 2)) == 3
    await work.stop()
    handle = await work.enqueue(add(3, 4))
    await virtual_clock.advance(60)
    assert (await handle.state()).status == "pending"
    await work.start()
    assert await handle.result() == 7


# ---- now, random ---------------------------------------------------------------------------------


class Hand:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.at = datetime(2030, 5, 1, 12, tzinfo=UTC)

    def __call__(self) -> datetime:
        return self.at


async def test_the_clock_that_was_given_stamps_works(make):  # S30
    hand = Hand()
    work = make(add, auto_start=False, now=hand)
    state = await (await work.enqueue(add(1, 2), delay=90)).state()
    assert state.queue_at == hand.at
    assert state.start_at == hand.at + timedelta(seconds=90)


async def test_the_clock_that_was_given_drives_leases_and_lifetimes(virtual_clock):  # S30
    hand = Hand()
    work = create_work(work=[add], now=hand, auto_start=False, result_ttl=100)
    handle = await work.enqueue(add(1, 2))
    assert await work.queue.pop(1, 30, 0)
    assert await work.queue.pop(1, 30, 0) == []
    hand.at += timedelta(seconds=31)
    await work.start()
    assert await handle.result() == 3
    hand.at += timedelta(seconds=101)
    assert await handle.state() is None
    await work.stop()


async def test_the_random_that_was_given_makes_backoff_exact(make, virtual_clock, events):  # S30
    work = make(fail, random=lambda: 0.5, on_event=events, retry=Retry(base=8, jitter=0.5))
    with pytest.raises(WorkFailedError):
        await work.run(fail())
    first, second = [e for e in events if e.kind == "failed" and e.will_retry]
    assert (first.start_at - first.at).total_seconds() == 6  # 8 * (1 - 0.5 * 0.5)
    assert (second.start_at - second.at).total_seconds() == 12


async def test_the_outcome_does_not_wait_for_a_hook_that_blocks_nobody(make):
    gate = asyncio.Event()

    async def accept(info: Any) -> bool:
        await gate.wait()
        return True

    work = make(add, accept=accept)
    handle = await work.enqueue(add(1, 2))
    with pytest.raises(TimeoutError):
        await handle.result(timeout=5)
    gate.set()
    assert await handle.result() == 3
