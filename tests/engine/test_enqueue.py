"""Enqueue: acceptance, delays, ids, unique works, children, and what ctx offers."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from piecework import (
    BackendError,
    Capabilities,
    InvalidWorkError,
    MemoryQueue,
    MemoryStore,
    PayloadTooLargeError,
    Retry,
    WorkContext,
    WorkDelayError,
    WorkFailedError,
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


async def _nothing() -> None: ...


# ---- ids and groups ------------------------------------------------------------------------------


async def test_each_enqueued_work_is_the_root_of_its_own_group(make):  # S31
    work = make(add)
    first = await work.enqueue(add(1, 2))
    second = await work.enqueue(add(1, 2))
    assert (first.group_id, second.group_id) == (first.id, second.id)
    assert first.group_id != second.group_id


async def test_by_name_gives_the_same_as_an_instance(make):  # S32
    work = make(add)
    named = await work.enqueue("add", {"a": 1, "b": 2}, priority=4)
    built = await work.enqueue(add(1, 2), priority=4)
    assert named.id
    assert named.group_id == named.id
    assert await named.result() == await built.result() == 3
    one, other = await named.state(), await built.state()
    assert (one.type, one.priority, one.result) == (other.type, other.priority, other.result)


async def test_input_by_name_is_validated(make):  # S32
    work = make(add)
    with pytest.raises(InvalidWorkError, match=r"work type 'add': field 'a'"):
        await work.enqueue("add", {"a": "x", "b": 2})
    with pytest.raises(InvalidWorkError, match="'c'"):
        await work.enqueue("add", {"a": 1, "b": 2, "c": 3})


async def test_an_instance_with_an_input_beside_it_is_refused(make):
    work = make(add)
    with pytest.raises(InvalidWorkError, match="has its input already"):
        await work.enqueue(add(1, 2), {"a": 1})


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"delya": 1}, "delya"),
        ({"delay": -1}, "delay"),
        ({"delay": "soon"}, "delay"),
        ({"run_at": datetime(2030, 1, 1)}, "run_at"),
        ({"priority": 1.5}, "priority"),
        ({"priority": True}, "priority"),
        ({"group": ""}, "group"),
        ({"retry": 3}, "retry"),
        ({"skip_queue": 1}, "skip_queue"),
        ({"timeout": 0}, "timeout"),
        ({"id": 7}, "id"),
        ({"unique": ""}, "unique"),
        ({"deadline": "now"}, "deadline"),
    ],
)
async def test_an_option_that_cannot_be_used_is_named(make, options, named):
    work = make(add)
    with pytest.raises(InvalidWorkError, match=rf"work type 'add': field '{named}'"):
        await work.enqueue(add(1, 2), **options)


async def test_the_same_work_enqueued_twice_runs_once(make, queue):
    work = make(nap)
    built = nap(1)
    first = await work.enqueue(built)
    second = await work.enqueue(built)
    assert first.id == second.id
    assert await first.result() == await second.result() == "slept"
    assert await first == await second
    await work.stop()
    assert work.stats()["nap"]["succeeded"] == 1
    assert work.stats()["nap"]["started"] == 1


async def test_the_same_id_enqueued_again_after_its_end_runs_nothing(make, queue):
    work = make(add)
    assert await work.run(add(1, 2), id="one") == 3
    assert await work.run(add(5, 5), id="one") == 3
    assert await queue.size() == 0
    assert work.stats()["add"]["started"] == 1


async def test_the_same_id_enqueued_while_it_runs_starts_no_second_run(make, queue, virtual_clock):
    work = make(nap)
    first = await work.enqueue(nap(5), id="one")
    await virtual_clock.advance(2)
    second = await work.enqueue(nap(5), id="one")
    assert await first.result() == await second.result() == "slept"
    assert work.stats()["nap"]["started"] == 1
    assert queue.plan.count("push") == 1


# ---- delay, run_at -------------------------------------------------------------------------------


@pytest.mark.parametrize("delay", [30, timedelta(seconds=30)])
async def test_a_delayed_work_does_not_start_before_its_time(make, virtual_clock, delay):  # S35
    work = make(add)
    began = virtual_clock.now()
    handle = await work.enqueue(add(1, 2), delay=delay)
    state = await handle.state()
    assert (state.queue_at, state.start_at) == (began, began + timedelta(seconds=30))
    await virtual_clock.advance(28.9)
    assert (await handle.state()).status == "pending"
    assert await handle.result() == 3
    assert (virtual_clock.now() - began).total_seconds() == pytest.approx(30, abs=1)


async def test_run_at_wins_over_delay(make, virtual_clock):  # S36
    work = make(add)
    at = virtual_clock.now() + timedelta(minutes=2)
    handle = await work.enqueue(add(1, 2), delay=5, run_at=at)
    assert (await handle.state()).start_at == at
    await virtual_clock.advance(118)
    assert (await handle.state()).status == "pending"
    await handle.result()
    assert virtual_clock.now() >= at - timedelta(seconds=1)


async def test_run_at_in_the_past_runs_at_once(make, queue, virtual_clock):  # S36
    work = make(add)
    began = virtual_clock.now()
    handle = await work.enqueue(add(1, 2), run_at=began - timedelta(days=400))
    assert await handle.result() == 3
    assert virtual_clock.now() == began
    assert (await handle.state()).start_at == began
    ((messages,),) = queue.plan.arguments("push")
    assert messages[0].delay == 0


async def test_a_work_for_next_year_still_has_its_record_then(make, virtual_clock):
    work = make(add, auto_start=False)
    handle = await work.enqueue(add(1, 2), delay=timedelta(days=400))
    await virtual_clock.advance(400 * 86400 - 10)
    assert (await handle.state()).status == "pending"
    await work.start()
    assert await handle.result() == 3


# ---- acceptance ----------------------------------------------------------------------------------


async def test_a_work_is_recorded_before_it_can_run_and_told_after_its_push(
    make, backend, events
):  # S38
    order: list[str] = []
    backend["store"].plan.calls = Order(order)
    backend["queue"].plan.calls = Order(order)
    work = make(add, auto_start=False, on_event=lambda event: order.append(event.kind))
    await work.enqueue(add(1, 2))
    assert [step for step in order if step != "open"] == ["write", "push", "queued"]
    assert work.stats()["add"]["queued"] == 1


class Order(list[Any]):
    """A list of calls that tells their names to another list."""

    def __init__(self, names: list[str]) -> None:
        self.names = names

    def append(self, call: Any) -> None:
        self.names.append(call[0])
        super().append(call)


@pytest.mark.parametrize("in_process", [True, False])
async def test_a_failed_push_surfaces_in_enqueue_and_nobody_hears_of_the_work(
    make, store, pubsub, events, in_process
):  # S38
    from tests.support.faults import WatchedQueue

    queue = WatchedQueue(MemoryQueue(capabilities=Capabilities(in_process=in_process)))
    work = make(add, queue=queue, on_event=events, auto_start=True)
    await work.start()
    queue.plan.fail("push")
    built = add(1, 2)
    with pytest.raises(BackendError, match="push"):
        await work.enqueue(built)
    assert events.kinds == []
    handle = await work.enqueue(built)  # safe to repeat: the id is fixed
    assert await handle.result() == 3
    assert await handle is None
    assert work.stats()["add"]["succeeded"] == 1


@pytest.mark.parametrize("in_process", [True, False])
@pytest.mark.parametrize("after", [False, True])
async def test_a_failed_register_surfaces_and_the_same_work_can_be_enqueued_again(
    make, store, in_process, after
):  # S38
    queue = MemoryQueue(capabilities=Capabilities(in_process=in_process))
    work = make(add, queue=queue, auto_start=True)
    await work.start()
    store.plan.fail("write", after=after)
    built = add(1, 2)
    with pytest.raises(BackendError):
        await work.enqueue(built)
    handle = await work.enqueue(built)
    assert await handle.result() == 3
    await handle
    assert (await store.inner.read([f"work:item:{built.id}"]))[0].count("open") == 0


async def test_a_message_without_a_record_registers_itself_and_runs(make, store):
    """The producer died between its push and its register: what was pushed runs."""
    queue = MemoryQueue(capabilities=Capabilities(in_process=False))
    work = make(add, queue=queue, auto_start=False)
    store.plan.fail("write")
    store.plan.hold("write")
    built = add(1, 2)
    producer = asyncio.create_task(work.enqueue(built))
    while await queue.size() == 0:
        await sleep(0.01)
    producer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await producer
    store.plan.held.clear()
    store.plan.heal()
    await work.start()
    while (state := await work.state(built.id)) is None or not state.terminal:
        await sleep(0.5)
    assert state.result == 3


async def test_a_message_over_the_queues_limit_is_refused_with_its_size(make):
    @define_work("keep")
    async def keep(text: str) -> None: ...

    queue = MemoryQueue(capabilities=Capabilities(in_process=True, max_body_bytes=1000))
    work = make(keep, queue=queue)
    with pytest.raises(PayloadTooLargeError, match=r"work type 'keep' has 1,\d+ bytes"):
        await work.enqueue(keep("x" * 1000))


async def test_enqueue_many_pushes_once_and_gives_handles_in_order(make, queue):
    work = make(add)
    handles = await work.enqueue_many([add(n, n) for n in range(50)])
    assert await handles.results() == [2 * n for n in range(50)]
    assert queue.plan.count("push") == 1
    assert len({handle.group_id for handle in handles}) == 50


async def test_enqueue_many_refuses_a_work_that_is_given_twice(make):
    work = make(add)
    built = add(1, 2)
    with pytest.raises(InvalidWorkError, match="given twice"):
        await work.enqueue_many([built, built])


async def test_enqueue_many_of_nothing_is_nothing(make):
    assert await make(add).enqueue_many([]) == []


# ---- unique --------------------------------------------------------------------------------------


async def test_a_unique_key_returns_the_first_work_until_it_has_ended(make, virtual_clock):  # Q10
    work = make(nap)
    first = await work.enqueue(nap(10), unique="key")
    again = await work.enqueue(nap(10), unique="key")
    assert again.id == first.id
    await virtual_clock.advance(5)
    assert (await work.enqueue(nap(10), unique="key")).id == first.id
    assert (await work.enqueue(nap(10), unique="other")).id != first.id
    assert await again.result() == "slept"
    after = await work.enqueue(nap(10), unique="key")
    assert after.id != first.id
    assert await after.result() == "slept"


async def test_of_many_that_claim_a_key_at_once_one_runs(make, backend, virtual_clock):  # Q10
    systems = [make(nap) for _ in range(5)]
    handles = await asyncio.gather(
        *(systems[n % 5].enqueue(nap(1), unique="key") for n in range(50))
    )
    assert len({handle.id for handle in handles}) == 1
    assert await asyncio.gather(*(handle.result() for handle in handles)) == ["slept"] * 50
    started = sum(system.stats().get("nap", {}).get("started", 0) for system in systems)
    assert started == 1


async def test_a_unique_key_is_of_its_type_alone(make):
    work = make(add, nap, auto_start=False)
    one = await work.enqueue(add(1, 2), unique="key")
    other = await work.enqueue(nap(1), unique="key")
    assert one.id != other.id


async def test_unique_for_keeps_the_key_for_its_time_whatever_becomes_of_the_work(
    make, virtual_clock
):  # Q10
    work = make(add)
    first = await work.enqueue(add(1, 2), unique="key", unique_for=60)
    assert await first.result() == 3
    await virtual_clock.advance(58)
    assert (await work.enqueue(add(5, 5), unique="key", unique_for=60)).id == first.id
    await virtual_clock.advance(3)
    later = await work.enqueue(add(5, 5), unique="key", unique_for=60)
    assert later.id != first.id
    assert await later.result() == 10


async def test_a_dead_and_a_cancelled_work_let_go_of_their_key(make):
    async def fails() -> None:
        raise ValueError("no")

    kind = define_work("fails", fails, retry=Retry(attempts=1))
    work = make(kind, nap)
    first = await work.enqueue(kind(), unique="key")
    with pytest.raises(WorkFailedError):
        await first.result()
    assert (await work.enqueue(kind(), unique="key")).id != first.id
    waiting = await work.enqueue(nap(1), unique="key", delay=100)
    assert await waiting.cancel()
    assert (await work.enqueue(nap(1), unique="key")).id != waiting.id


async def test_a_key_whose_work_lost_its_message_does_not_swallow_later_enqueues(
    make, queue, virtual_clock
):  # Q10
    """The producer died after the register and before the push: the next one mends it."""
    work = make(add)
    queue.plan.fail("push")
    built = add(1, 2)
    with pytest.raises(BackendError):
        await work.enqueue(built, unique="key")
    await virtual_clock.advance(120)
    handle = await work.enqueue(add(1, 2), unique="key")
    assert handle.id == built.id
    assert await handle.result(timeout=60) == 3


# ---- children ------------------------------------------------------------------------------------


async def test_children_join_the_group_which_ends_after_them(make, virtual_clock):  # S39
    ids: list[Any] = []

    @define_work("parent")
    async def parent(ctx: WorkContext) -> None:
        ids.append(await ctx.queue(nap(10)))
        ids.append(await ctx.queue([nap(20), nap(5)]))

    work = make(parent, nap)
    handle = await work.enqueue(parent())
    began = virtual_clock.now()
    await handle.result()
    assert virtual_clock.now() == began
    await handle
    assert (virtual_clock.now() - began).total_seconds() == pytest.approx(20, abs=0.1)
    assert isinstance(ids[0], str)
    assert len(ids[1]) == 2
    states = await work.states([ids[0], *ids[1]])
    assert {(s.group_id, s.parent_id, s.status) for s in states} == {
        (handle.group_id, handle.id, "success")
    }


async def test_children_that_nobody_awaited_are_queued_before_the_parent_settles(make):  # S40
    counts = []

    @define_work("parent")
    async def parent(ctx: WorkContext) -> None:
        for n in range(20):
            ctx.queue(add(n, n))
        ctx.set_result("set")

    work = make(parent, add)
    store = work.store
    handle = await work.enqueue(parent())
    root = f"work:item:{handle.id}"

    async def watch() -> None:
        while True:
            (record,) = await store.inner.read([root])
            counts.append((record.value.partition("\n")[0].split()[0], record.count("open")))
            await sleep(0)

    watching = asyncio.create_task(watch())
    assert await handle == "set"
    watching.cancel()
    with pytest.raises(asyncio.CancelledError):
        await watching
    assert ("success", 21) not in counts
    done = [index for index, (_, count) in enumerate(counts) if count == 0]
    assert all(counts[index] == ("success", 0) for index in done)
    assert len(await work.list("success", type="add")) == 20


async def test_a_child_that_cannot_be_queued_fails_the_parent(make, store, queue):  # S40
    @define_work("parent", retry=Retry(attempts=2, base=0))
    async def parent(ctx: WorkContext) -> str:
        ctx.queue(add(1, 2))
        return "done"

    work = make(parent, add)
    handle = await work.enqueue(parent())
    queue.plan.fail("push", 1)
    assert await handle.result() == "done"
    assert (await handle.state()).attempt == 2
    await handle
    assert work.stats()["add"]["succeeded"] == 1


async def test_a_thread_handler_queues_children_too(make):  # S39 S40
    @define_work("parent")
    def parent(ctx: WorkContext) -> str:
        child = ctx.queue(add(1, 2))
        child.wait()
        ctx.queue([add(3, 4), add(5, 6)])
        ctx.set_result("from a thread")
        return child

    work = make(parent, add)
    handle = await work.enqueue(parent())
    child = await handle.result()
    assert await handle == "from a thread"
    assert (await work.state(child)).result == 3
    assert work.stats()["add"]["succeeded"] == 3


async def test_ctx_tells_what_runs(make):  # S41
    seen = []

    @define_work("child")
    async def child(ctx: WorkContext) -> None:
        seen.append((ctx.id, ctx.type, ctx.group_id, ctx.attempt, ctx.parent_id, ctx.upstream))

    @define_work("parent", retry=Retry(attempts=2, base=0))
    async def parent(ctx: WorkContext) -> None:
        seen.append((ctx.id, ctx.type, ctx.group_id, ctx.attempt, ctx.parent_id, ctx.upstream))
        assert ctx.remaining() is None
        assert not ctx.cancelled
        if ctx.attempt == 1:
            raise ValueError("again")
        ctx.queue(child())

    work = make(parent, child)
    handle = await work.enqueue(parent())
    await handle
    own = (handle.id, "parent", handle.group_id)
    assert seen[:2] == [(*own, 1, None, []), (*own, 2, None, [])] or seen[:2] == [
        (*own, 1, None, ()),
        (*own, 2, None, ()),
    ]
    assert seen[2][1:5] == ("child", handle.group_id, 1, handle.id)


async def test_set_result_gives_the_groups_result_and_the_last_wins(make):  # S42
    @define_work("child")
    async def child(ctx: WorkContext) -> None:
        await ctx.set_result("child's")

    @define_work("parent")
    async def parent(ctx: WorkContext) -> str:
        ctx.set_result("first")
        ctx.queue(child())
        return "own"

    work = make(parent, child)
    handle = await work.enqueue(parent())
    assert await handle.result() == "own"
    assert await handle == "child's"


async def test_states_come_in_the_order_of_the_ids(make, store):  # S43
    answers: list[Any] = []

    @define_work("look")
    async def look(ctx: WorkContext, ids: list[str]) -> None:
        answers.extend(await ctx.states([*ids, ctx.id]))
        answers.extend(await ctx.results(ids))

    work = make(add, look, nap)
    done = await work.enqueue(add(1, 2))
    await done.result()
    later = await work.enqueue(nap(1), delay=50)
    await store.inner.set("work:item:corrupt", "what\nis this")
    await work.run(look([later.id, "unknown", done.id, "corrupt"]))
    assert [None if s is None else s.status for s in answers[:5]] == [
        "pending",
        None,
        "success",
        None,
        "running",
    ]
    assert answers[5:] == [None, None, 3, None]


async def test_a_claim_is_given_once_in_the_fleet_for_a_day(make, virtual_clock):  # S44
    @define_work("claim")
    async def claim(ctx: WorkContext) -> bool:
        return await ctx.claim("key")

    one, two = make(claim), make(claim)
    results = await asyncio.gather(*(system.run(claim()) for system in (one, two) * 5))
    assert sorted(results) == [False] * 9 + [True]
    await virtual_clock.advance(86_400)
    assert await one.run(claim()) is True


# ---- skip_queue ----------------------------------------------------------------------------------


async def test_a_work_that_skips_the_queue_is_recorded_and_never_queued(make, queue):
    work = make(add, auto_start=False)
    handle = await work.enqueue(add(1, 2), skip_queue=True)
    assert await handle.result() == 3
    assert (await handle.state()).status == "success"
    assert queue.plan.calls == [("open", ())]


async def test_its_failure_goes_through_the_queue_and_another_system_may_run_it(make, queue):
    runs = []

    @define_work("moody", retry=Retry(attempts=3, base=0))
    async def moody(ctx: WorkContext) -> int:
        runs.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("no")
        return ctx.attempt

    one, two = make(moody, auto_start=False), make(moody)
    await two.start()
    handle = await one.enqueue(moody(), skip_queue=True)
    assert await handle.result() == 2
    assert (one.stats()["moody"]["started"], two.stats()["moody"]["started"]) == (1, 1)
    assert runs == [1, 2]


async def test_skip_queue_with_a_delay_goes_through_the_queue(make, queue, virtual_clock):
    work = make(add)
    handle = await work.enqueue(add(1, 2), skip_queue=True, delay=5)
    assert queue.plan.count("push") == 1
    await virtual_clock.advance(3)
    assert (await handle.state()).status == "pending"
    assert await handle.result() == 3


async def test_a_stop_pushes_what_skipped_the_queue_and_did_not_end(make, queue, virtual_clock):
    one = make(nap, auto_start=False)
    handle = await one.enqueue(nap(30), skip_queue=True)
    await virtual_clock.advance(0.1)
    await one.stop(drain=0)
    assert await queue.size() == 1
    two = make(nap)
    await two.start()
    assert await handle.result() == "slept"
    state = await handle.state()
    assert state.attempt == 1


async def test_a_stop_pushes_what_skipped_the_queue_and_did_not_start(make, queue, virtual_clock):
    from piecework import balanced_doer

    one = make(nap, auto_start=False, doer=balanced_doer(max=1))
    first = await one.enqueue(nap(2), skip_queue=True)
    second = await one.enqueue(nap(2), skip_queue=True)
    await virtual_clock.advance(0.1)
    await one.stop(drain=5)
    assert (await first.state()).status == "success"
    assert (await second.state()).status == "pending"
    assert await queue.size() == 1
    two = make(nap)
    await two.start()
    assert await second.result() == "slept"
    assert (await second.state()).attempt == 1


async def test_a_work_that_skips_the_queue_may_defer_itself(make, queue):
    @define_work("later")
    async def later(ctx: WorkContext, seen: list[int] = []) -> int:  # noqa: B006
        seen.append(ctx.attempt)
        if len(seen) == 1:
            raise WorkDelayError(3)
        return len(seen)

    work = make(later)
    assert await work.run(later(), skip_queue=True) in (1, 2)


# ---- deadline, tracking --------------------------------------------------------------------------


async def test_a_work_past_its_deadline_expires_without_running(make, virtual_clock, events):
    from piecework import WorkExpiredError

    work = make(add, auto_start=False, on_event=events)
    handle = await work.enqueue(add(1, 2), deadline=10)
    fine = await work.enqueue(add(1, 2), deadline=virtual_clock.now() + timedelta(hours=1))
    await virtual_clock.advance(11)
    await work.start()
    with pytest.raises(WorkExpiredError, match=handle.id):
        await handle.result()
    assert (await handle.state()).status == "expired"
    assert await handle is None
    assert await fine.result() == 3
    assert [e.id for e in events if e.kind == "started"] == [fine.id]
    assert [e.id for e in events if e.kind == "expired"] == [handle.id]


async def test_a_handler_is_stopped_at_the_deadline(make, virtual_clock):
    from piecework import WorkExpiredError

    stopped = []

    @define_work("slow")
    async def slow() -> None:
        try:
            await sleep(60)
        finally:
            stopped.append(virtual_clock.now())

    work = make(slow)
    began = virtual_clock.now()
    handle = await work.enqueue(slow(), deadline=7)
    with pytest.raises(WorkExpiredError):
        await handle.result()
    assert [(at - began).total_seconds() for at in stopped] == [7]


async def test_track_result_can_be_awaited_and_has_no_state_before_its_end(make, store):
    @define_work("quiet", track="result")
    async def quiet(a: int) -> int:
        await sleep(1)
        return a + 1

    work = make(quiet)
    handle = await work.enqueue(quiet(1))
    assert store.plan.count("write") == 0
    assert await handle.state() is None or (await handle.state()).status in ("pending", "running")
    assert await handle.result() == 2
    assert (await handle.state()).status == "success"
    assert await handle is None


async def test_awaiting_the_group_of_a_track_result_work_waits_for_its_end(make, virtual_clock):
    @define_work("quiet", track="result")
    async def quiet(ctx: WorkContext) -> None:
        await sleep(3)
        ctx.set_result("group's")

    work = make(quiet)
    began = virtual_clock.now()
    assert await (await work.enqueue(quiet())) == "group's"
    assert (virtual_clock.now() - began).total_seconds() == pytest.approx(3, abs=0.1)


async def test_track_result_keeps_the_error_of_a_dead_work(make):
    @define_work("quiet", track="result", retry=Retry(attempts=2, base=0))
    async def quiet() -> None:
        raise ValueError("no")

    work = make(quiet)
    with pytest.raises(WorkFailedError, match="ValueError: no"):
        await work.run(quiet())
    assert work.stats()["quiet"]["started"] == 2


async def test_track_none_writes_nothing_and_cannot_be_awaited(make, store, queue, virtual_clock):
    from piecework import ConfigError

    ran = []

    @define_work("quiet", track="none", retry=Retry(attempts=2, base=0))
    async def quiet(ctx: WorkContext) -> None:
        ran.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("no")

    work = make(quiet)
    handle = await work.enqueue(quiet())
    with pytest.raises(ConfigError, match="track"):
        await handle.result()
    with pytest.raises(ConfigError, match="track"):
        await handle
    await virtual_clock.advance(1)
    assert ran == [1, 2]
    assert store.plan.count("write") == 0
    assert await queue.size() == 0


async def test_a_dead_untracked_work_is_a_dead_letter(make, queue):
    @define_work("quiet", track="none", retry=Retry(attempts=1))
    async def quiet() -> None:
        raise ValueError("no")

    work = make(quiet)
    await work.enqueue(quiet())
    while not (letters := await work.dead_letters()):
        await sleep(0.1)
    assert [(letter.type, letter.reason) for letter in letters] == [("quiet", "ValueError: no")]


# ---- several loops, several systems --------------------------------------------------------------


def test_a_system_is_used_again_under_a_second_asyncio_run():
    from piecework import create_work

    work = create_work(work=[add])

    async def main(a: int) -> int:
        answer = await work.run(add(a, 1))
        await work.stop()
        return answer

    assert asyncio.run(main(1)) == 2
    assert asyncio.run(main(2)) == 3


def test_a_system_goes_on_in_a_second_run_where_the_first_was_cut_off():
    from piecework import create_work

    work = create_work(work=[add, nap], visibility=0.02, store=MemoryStore())

    async def first() -> str:
        return (await work.enqueue(nap(0.01))).id

    async def second(id: str) -> Any:
        await work.start()
        answer = await work.handle(id).result(timeout=5)
        await work.stop()
        return answer

    id = asyncio.run(first())
    assert asyncio.run(second(id)) == "slept"


async def test_two_systems_over_one_backend_share_the_works(make, virtual_clock):
    from piecework import balanced_doer

    one = make(nap, doer=balanced_doer(max=2, buffer=0))
    two = make(nap, doer=balanced_doer(max=2, buffer=0))
    await one.start()
    await two.start()
    handles = await one.enqueue_many([nap(1) for _ in range(8)])
    await handles.results()
    started = [system.stats()["nap"]["started"] for system in (one, two)]
    assert sum(started) == 8
    assert min(started) >= 2


async def test_a_system_refuses_a_second_loop_while_its_own_is_open(make):
    from piecework import ConfigError

    work = make(add)
    await work.start()

    def other_loop() -> None:
        with pytest.raises(ConfigError, match="another event loop"):
            asyncio.run(work.enqueue(add(1, 2)))

    await asyncio.to_thread(other_loop)


async def test_datetimes_of_a_state_are_aware(make, virtual_clock):
    work = make(add)
    handle = await work.enqueue(add(1, 2))
    await handle.result()
    state = await handle.state()
    assert state.end_at.tzinfo is UTC
    assert state.queue_at <= state.end_at
