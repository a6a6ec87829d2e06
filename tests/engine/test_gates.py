"""Gates by ``then=``: every condition, every end of a member, and every crash on the way."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.unreliable import (
    Journal,
    JournalQueue,
    JournalStore,
    Process,
    in_process,
    journal_backend,
)

from piecework import (
    DEPENDENCY_TYPE,
    Capabilities,
    ConflictError,
    InvalidWorkError,
    Retry,
    WorkContext,
    WorkDelayError,
    WorkFailedError,
    create_work,
    define_batch_work,
    define_work,
    memory_backend,
)
from piecework.clock import sleep

ONCE = Retry(attempts=1)
FIRED: list[tuple[float, list[str]]] = []


@define_work(retry=ONCE)
async def member(n: float, fail: bool = False) -> float:
    await sleep(n)
    if fail:
        raise ValueError(f"member {n}")
    return n


@define_work
async def report(ctx: WorkContext, name: str = "report") -> list:
    return [name, *(await ctx.results(ctx.upstream))]


@define_work
async def count(ctx: WorkContext) -> int:
    results = await ctx.results(ctx.upstream)
    assert len(results) == len(ctx.upstream)
    return sum(results)


TYPES = [member, report, count]


def kinds(events):
    return [event.kind for event in events]


def group_done(events, group_id):
    return [e for e in events if e.kind == "group-done" and e.group_id == group_id]


async def opened(store, group_id):
    return (await store.read([f"work:item:{group_id}"]))[0].count("open")


# ---- conditions ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "fails", "after"),
    [
        ("all-done", (), 3),
        ("all-done", (1, 2, 3), 3),
        ("all-success", (), 3),
        ("all-success", (3,), None),
        ("all-success", (1,), None),
        ({"count": 1}, (), 1),
        ({"count": 2}, (1,), 3),
        ({"count": 2}, (1, 2), None),
        ({"count": 2, "of": "success"}, (), 2),
        ({"count": 2, "of": "done"}, (1, 2), 2),
        ({"count": 0}, (), 0),
        ({"count": 4}, (), None),
        ({"count": 4, "of": "done"}, (), None),
    ],
)
async def test_dependents_start_exactly_when_the_condition_holds(
    virtual_clock, backend, when, fails, after
):
    # S101, S106: event driven, the moment the last needed member ends
    async with create_work(work=TYPES, **backend) as work:
        began = virtual_clock.now()
        handles = await work.enqueue_many(
            [member(n, n in fails) for n in (1, 2, 3)], then=[report()], when=when
        )
        [then] = handles.then
        if after is None:
            with pytest.raises(WorkFailedError, match="GateFailed"):
                await then.result(timeout=60)
            with pytest.raises(WorkFailedError, match="GateFailed"):
                await handles.gate.result()
        else:
            assert (await then.result(timeout=60))[0] == "report"
            started = (await then.state()).queue_at - began
            assert started == timedelta(seconds=after)
            await handles.gate.result()
        assert await handles[0].group(timeout=60) is None
        assert await opened(backend["store"], handles[0].group_id) == 0


async def test_the_end_of_a_broken_gate_names_who_did_not_succeed(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many(
            [member(1), member(2, fail=True)], then=report(), when="all-success"
        )
        with pytest.raises(WorkFailedError) as raised:
            await handles.then[0].result()
        assert handles[1].id in str(raised.value)
        assert handles[0].id not in str(raised.value)
        assert raised.value.error_type == "GateFailed"
        state = await handles.then[0].state()
        assert (state.status, state.type) == ("dead", "report")
        gate = await handles.gate.state()
        assert (gate.status, gate.type) == ("dead", DEPENDENCY_TYPE)


async def test_a_count_that_no_member_failed_says_that_there_are_too_few(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([member(0)], then=report(), when={"count": 2})
        with pytest.raises(WorkFailedError, match="there are 1 works in all"):
            await handles.then[0].result()


async def test_all_success_breaks_at_the_first_failure_and_the_group_waits_for_the_rest(
    virtual_clock, backend
):
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:
        began = virtual_clock.now()
        handles = await work.enqueue_many(
            [member(1, fail=True), member(50)], then=report(), when="all-success"
        )
        with pytest.raises(WorkFailedError):
            await handles.then[0].result()
        assert virtual_clock.now() - began < timedelta(seconds=2)
        await handles[0].group()
        assert virtual_clock.now() - began >= timedelta(seconds=50)
    assert len(group_done(events, handles[0].group_id)) == 1


async def test_a_group_of_an_early_gate_settles_after_the_stragglers_and_the_dependents(
    virtual_clock, backend
):
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:
        began = virtual_clock.now()
        handles = await work.enqueue_many(
            [member(1), member(30), member(40, fail=True)],
            then=[report(), member(5)],
            when={"count": 1},
        )
        assert await handles.then[0].result() == ["report", 1, None, None]
        assert virtual_clock.now() - began < timedelta(seconds=2)
        await handles.gate.result()
        await handles[0].group()
        assert virtual_clock.now() - began >= timedelta(seconds=40)
        assert await opened(backend["store"], handles[0].group_id) == 0
    assert len(group_done(events, handles[0].group_id)) == 1


@pytest.mark.parametrize("when", ["all-done", "all-success", {"count": 0}])
async def test_a_fan_in_over_nothing_fires_at_once(virtual_clock, backend, when):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([], then=[report("a"), report("b")], when=when)
        assert list(handles) == []
        assert await handles.then[0].result(timeout=5) == ["a"]
        assert await handles.then[1].result(timeout=5) == ["b"]
        assert await handles.gate.group(timeout=5) is None


async def test_a_gate_without_dependents_is_a_group_of_its_members(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([member(1), member(2)], then=[])
        began = virtual_clock.now()
        await handles[0].group()
        assert virtual_clock.now() - began >= timedelta(seconds=2)


@pytest.mark.parametrize(
    "when", ["any", {"count": -1}, {"count": "1"}, {"count": 1, "of": "dead"}, None, {}]
)
async def test_an_unknown_condition_is_refused_before_anything_is_queued(
    virtual_clock, backend, when
):
    async with create_work(work=TYPES, **backend) as work:
        with pytest.raises(InvalidWorkError, match="'when'.*all-done"):
            await work.enqueue_many([member(1)], then=[report()], when=when)
        assert await work.list() == []


# ---- the ends of members ---------------------------------------------------------------------


async def test_a_member_that_is_retried_counts_once_with_its_end(virtual_clock, backend):
    @define_work(retry=Retry(attempts=3, base=10, factor=1, max=10, jitter=0))
    async def flaky(ctx: WorkContext) -> int:
        if ctx.attempt < 3:
            raise ValueError("again")
        return ctx.attempt

    async with create_work(work=[*TYPES, flaky], **backend) as work:
        handles = await work.enqueue_many([flaky(), member(1)], then=report(), when="all-success")
        assert await handles.then[0].result() == ["report", 3, 1]


async def test_a_member_that_puts_itself_off_counts_once_with_its_end(virtual_clock, backend):
    @define_work
    async def patient(ctx: WorkContext) -> int:
        if await ctx.claim("first"):
            raise WorkDelayError(100)
        return 7

    async with create_work(work=[*TYPES, patient], **backend) as work:
        handles = await work.enqueue_many([patient(), member(1)], then=report())
        assert await handles.then[0].result() == ["report", 7, 1]


@pytest.mark.parametrize(
    ("when", "fires"), [("all-done", True), ("all-success", False), ({"count": 1}, True)]
)
async def test_a_cancelled_member_counts_as_ended_and_not_as_success(
    virtual_clock, backend, when, fires
):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many(
            [member(10), member(10).with_options(delay=3600)], then=report(), when=when
        )
        assert await handles[1].cancel()
        if fires:
            assert (await handles.then[0].result(timeout=30))[0] == "report"
        else:
            with pytest.raises(WorkFailedError, match=handles[1].id):
                await handles.then[0].result(timeout=30)
        await handles[0].group(timeout=30)


async def test_a_running_member_that_is_cancelled_decides_the_gate(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([member(500)], then=report())
        await virtual_clock.advance(5)
        assert await handles[0].cancel()
        assert await handles.then[0].result(timeout=60) == ["report", None]


async def test_an_expired_member_decides_the_gate(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many(
            [member(1), member(100).with_options(deadline=10)], then=report(), when="all-done"
        )
        assert await handles.then[0].result(timeout=30) == ["report", 1, None]
        assert (await handles[1].state()).status == "expired"


async def test_a_redriven_member_counts_in_its_gate_while_that_is_open(virtual_clock, backend):
    # S118, P2
    @define_work(retry=ONCE)
    async def broken_once(ctx: WorkContext) -> int:
        if await ctx.claim("first"):
            raise ValueError("first")
        return 7

    async with create_work(work=[*TYPES, broken_once], **backend) as work:
        handles = await work.enqueue_many(
            [broken_once(), member(100)], then=report(), when="all-done"
        )
        await virtual_clock.advance(5)
        assert (await handles[0].state()).status == "dead"
        assert await work.redrive([handles[0].id]) == 1
        assert await handles.then[0].result(timeout=300) == ["report", 7, 100]
        await handles[0].group(timeout=60)
        assert await opened(backend["store"], handles[0].group_id) == 0


async def test_a_member_that_is_redriven_after_its_gate_ended_counts_in_the_group(
    virtual_clock, backend
):
    # S118, P3
    ready = []

    @define_work(retry=ONCE)
    async def broken(ctx: WorkContext) -> int:
        if not ready:
            raise ValueError("first")
        await sleep(30)
        return 7

    events = []
    async with create_work(work=[*TYPES, broken], on_event=events.append, **backend) as work:
        handles = await work.enqueue_many([broken(), member(1)], then=report())
        assert await handles.then[0].result() == ["report", None, 1]
        await handles[0].group(timeout=60)
        ready.append(1)
        assert await work.redrive([handles[0].id]) == 1
        began = virtual_clock.now()
        await handles[0].group(timeout=60)
        assert virtual_clock.now() - began >= timedelta(seconds=30)
        assert await handles[0].result() == 7
        assert await opened(backend["store"], handles[0].group_id) == 0
    assert len(group_done(events, handles[0].group_id)) == 2  # it was opened again and ended


async def test_a_member_with_children_of_its_own_only_ends_itself(virtual_clock, backend):
    # a member's children count in the group; the gate waits for the member
    @define_work
    async def branching(ctx: WorkContext) -> str:
        ctx.queue(member(60))
        return "branched"

    async with create_work(work=[*TYPES, branching], **backend) as work:
        began = virtual_clock.now()
        handles = await work.enqueue_many([branching()], then=report())
        assert await handles.then[0].result() == ["report", "branched"]
        assert virtual_clock.now() - began < timedelta(seconds=2)
        await handles[0].group()
        assert virtual_clock.now() - began >= timedelta(seconds=60)


async def test_batch_items_are_members_like_any_other(virtual_clock, backend):
    @define_batch_work("double", size=3, max_wait=5, retry=ONCE)
    async def double(numbers: list[int]) -> list[int | Exception]:
        return [ValueError("odd") if n == 13 else 2 * n for n in numbers]

    async with create_work(work=[*TYPES, double], **backend) as work:
        handles = await work.enqueue_many([double(n) for n in (1, 2, 3, 4)], then=report())
        assert await handles.then[0].result() == ["report", 2, 4, 6, 8]
        broken = await work.enqueue_many([double(13), double(1)], then=report(), when="all-success")
        with pytest.raises(WorkFailedError, match=broken[0].id):
            await broken.then[0].result()
        await broken[0].group(timeout=60)


async def test_members_that_skip_the_queue_count(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many(
            [member(1), member(2)], then=report(), skip_queue=True, when="all-success"
        )
        assert await handles.then[0].result() == ["report", 1, 2]


async def test_a_member_of_a_type_that_keeps_less_is_tracked_all_the_same(virtual_clock, backend):
    @define_work(track="none")
    async def untracked() -> int:
        return 5

    async with create_work(work=[*TYPES, untracked], **backend) as work:
        handles = await work.enqueue_many([untracked()], then=report())
        assert await handles.then[0].result(timeout=30) == ["report", 5]


# ---- dependents ------------------------------------------------------------------------------


async def test_dependents_can_be_waited_for_long_before_they_start(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([member(50)], then=[report("a"), report("b")])
        waiting = [asyncio.create_task(handle.result()) for handle in handles.then]
        await virtual_clock.advance(20)
        assert not any(task.done() for task in waiting)
        assert await asyncio.gather(*waiting) == [["a", 50], ["b", 50]]


async def test_waiting_for_a_dependent_can_time_out(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([member(50)], then=report())
        with pytest.raises(TimeoutError):
            await handles.then[0].result(timeout=5)
        assert (await handles.then[0].result())[0] == "report"


async def test_options_of_dependents_hold_from_when_the_gate_fires(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many(
            [member(10)], then=report().with_options(delay=100, priority=7, group="g")
        )
        began = virtual_clock.now()
        await handles.then[0].result()
        assert virtual_clock.now() - began >= timedelta(seconds=110)
        state = await handles.then[0].state()
        assert (state.priority, state.group) == (7, "g")
        assert state.group_id == handles[0].group_id
        assert state.parent_id == handles.gate.id


@pytest.mark.parametrize("width", [1, 999, 1000, 1001, 2500])
async def test_dependents_see_all_members_at_any_width(virtual_clock, width):
    ports = memory_backend()

    @define_work
    async def one(n: int) -> int:
        return n

    async with create_work(work=[*TYPES, one], **ports) as work:
        handles = await work.enqueue_many([one(n) for n in range(width)], then=count())
        assert await handles.then[0].result(timeout=600) == width * (width - 1) // 2
        await handles[0].group(timeout=60)


async def test_upstream_keeps_the_order_of_the_members(virtual_clock, backend):
    seen = []

    @define_work
    async def look(ctx: WorkContext) -> None:
        seen.extend(ctx.upstream)

    async with create_work(work=[*TYPES, look], **backend) as work:
        handles = await work.enqueue_many([member(3), member(1), member(2)], then=look())
        await handles.then[0].result()
    assert seen == [handle.id for handle in handles]


async def test_dependents_may_open_gates_of_their_own(virtual_clock, backend):
    @define_work
    async def middle(ctx: WorkContext) -> None:
        await ctx.queue([member(1), member(2)], then=finish(), when="all-success")

    @define_work
    async def finish(ctx: WorkContext) -> None:
        await ctx.set_result(await ctx.results(ctx.upstream))

    async with create_work(work=[*TYPES, middle, finish], **backend) as work:
        handles = await work.enqueue_many([member(1)], then=middle())
        assert await handles[0].group(timeout=60) == [1, 2]
        assert await opened(backend["store"], handles[0].group_id) == 0


async def test_a_gate_costs_no_message_and_no_polling(virtual_clock):
    journal = Journal()
    async with create_work(work=TYPES, **journal_backend(journal)) as work:
        await work.enqueue_many([member(3600)], then=report())
        await virtual_clock.advance(5)
        mark = len(journal.entries)
        await virtual_clock.advance(3000)
        assert not [entry for entry in journal.since(mark) if entry.startswith("push")]


# ---- inside handlers -------------------------------------------------------------------------


def fan_out(*, attempts=3, then=True, when="all-success", fail_on=()):
    ids = []

    @define_work(retry=Retry(attempts=attempts, base=1, jitter=0))
    async def parent(ctx: WorkContext) -> None:
        children = [member(1), member(2)]
        ids.append(await ctx.queue(children, then=[last()] if then else [], when=when))
        if ctx.attempt in fail_on:
            raise ValueError("after queueing")

    @define_work
    async def last(ctx: WorkContext) -> None:
        FIRED.append((0.0, list(ctx.upstream)))
        await ctx.set_result(await ctx.results(ctx.upstream))

    return parent, last, ids


async def test_a_gate_inside_a_group_holds_the_group_open(virtual_clock, backend):
    FIRED.clear()
    parent, last, ids = fan_out()
    events = []
    async with create_work(work=[*TYPES, parent, last], on_event=events.append, **backend) as work:
        handle = await work.enqueue(parent())
        assert await handle == [1, 2]
    assert [(0.0, ids[0])] == FIRED
    assert len(group_done(events, handle.id)) == 1


async def test_a_parent_that_fails_after_queueing_finds_the_same_gate_again(virtual_clock, backend):
    FIRED.clear()
    parent, last, ids = fan_out(fail_on=(1, 2))
    events = []
    async with create_work(work=[*TYPES, parent, last], on_event=events.append, **backend) as work:
        handle = await work.enqueue(parent())
        assert await handle == [1, 2]
    assert ids[0] == ids[1] == ids[2]
    assert len(FIRED) == 1
    assert kinds(events).count("queued") == 4
    assert len(group_done(events, handle.id)) == 1


async def test_a_parent_that_dies_after_its_gate_was_released_leaves_it_alone(
    virtual_clock, backend
):
    FIRED.clear()
    parent, last, _ = fan_out(attempts=1, fail_on=(1,))
    async with create_work(work=[*TYPES, parent, last], **backend) as work:
        handle = await work.enqueue(parent())
        assert await handle == [1, 2]
    assert len(FIRED) == 1


def failing_members(error, times):
    """Fails the write that registers plain members of a gate."""
    left = [error] * times

    def fail(changes):
        registers = changes[-1].add.get("members", 0) > 0 and len(changes) > 1
        return left.pop() if registers and left else None

    return fail


async def test_a_parent_that_fails_while_opening_its_gate_completes_it_in_the_next_attempt(
    virtual_clock,
):
    FIRED.clear()
    ports = journal_backend()
    ports["store"].fail = failing_members(OSError("away"), 1)
    parent, last, _ = fan_out()
    async with create_work(work=[*TYPES, parent, last], **ports) as work:
        handle = await work.enqueue(parent())
        assert await handle.group(timeout=60) == [1, 2]
        assert await opened(ports["store"], handle.id) == 0
    assert len(FIRED) == 1


async def test_a_parent_that_dies_while_opening_its_gate_takes_the_gate_with_it(virtual_clock):
    ports = journal_backend()
    ports["store"].fail = failing_members(OSError("away"), 99)
    parent, last, _ = fan_out(attempts=2)
    events = []
    async with create_work(work=[*TYPES, parent, last], on_event=events.append, **ports) as work:
        handle = await work.enqueue(parent())
        assert await handle.group(timeout=60) is None  # it does not hang
        dead = await work.list("dead")
        assert {state.type for state in dead} == {"parent", "last", DEPENDENCY_TYPE}
        [dependent] = [state for state in dead if state.type == "last"]
        assert dependent.error.startswith("GateFailed: the work that queued its works ended first")
        assert await opened(ports["store"], handle.id) == 0
    assert len(group_done(events, handle.id)) == 1


async def test_a_gate_that_fired_while_it_was_opened_does_not_hang_when_its_parent_dies(
    virtual_clock,
):
    # P3: the hold of a decided gate is released, too
    ports = journal_backend()
    ports["store"].fail = failing_members(OSError("away"), 99)

    @define_work
    async def early(ctx: WorkContext) -> int:
        return 1

    @define_work(retry=Retry(attempts=1))
    async def parent(ctx: WorkContext) -> None:
        # the first is sent on its own, since it skips the queue; the others cannot be registered
        ctx.queue(
            [early().with_options(skip_queue=True), member(1), member(2)],
            then=report(),
            when={"count": 1},
        )

    def fail(changes):
        registers = changes[-1].add.get("members", 0) > 1 and len(changes) > 2
        return OSError("away") if registers else None

    ports["store"].fail = fail
    async with create_work(work=[*TYPES, parent, early], **ports) as work:
        handle = await work.enqueue(parent())
        with pytest.raises(WorkFailedError):
            await handle.result()
        assert await handle.group(timeout=60) is None
        assert await opened(ports["store"], handle.id) == 0


async def test_the_second_gate_of_a_dead_parent_is_closed_also_when_the_first_never_opened(
    virtual_clock,
):
    # P3
    ports = journal_backend()
    seen = []

    def fail(changes):
        hold = changes[0].add.get("hold")
        if hold == 1:
            seen.append(1)
            if len(seen) == 1:
                return OSError("first gate")
        if changes[-1].add.get("members", 0) > 0:
            return OSError("second gate's works")
        return None

    ports["store"].fail = fail

    @define_work(retry=ONCE)
    async def parent(ctx: WorkContext) -> None:
        ctx.queue([member(1)], then=report("a"))
        ctx.queue([member(2)], then=report("b"))

    async with create_work(work=[*TYPES, parent], **ports) as work:
        handle = await work.enqueue(parent())
        with pytest.raises(WorkFailedError):
            await handle.result()
        assert await handle.group(timeout=60) is None
        assert await opened(ports["store"], handle.id) == 0


async def test_several_gates_of_one_handler_are_different_gates(virtual_clock, backend):
    @define_work
    async def parent(ctx: WorkContext) -> None:
        for _ in range(3):
            ctx.queue([member(1)], then=report())

    async with create_work(work=[*TYPES, parent], **backend) as work:
        handle = await work.enqueue(parent())
        await handle
        done = await work.list("success", type="report")
        assert len(done) == 3
        assert len({state.parent_id for state in done}) == 3


async def test_each_turn_opens_gates_of_its_own(virtual_clock, backend):
    @define_work
    async def parent(ctx: WorkContext) -> None:
        await ctx.queue([member(1)], then=report())
        if await ctx.claim("turn"):
            raise WorkDelayError(10)

    async with create_work(work=[*TYPES, parent], **backend) as work:
        await (await work.enqueue(parent()))
        assert len(await work.list("success", type="report")) == 2


async def test_gates_work_from_threads(virtual_clock, backend):
    @define_work
    def parent(ctx: WorkContext) -> list[str]:
        return ctx.queue([member(0), member(0)], then=last()).wait()

    @define_work
    def last(ctx: WorkContext) -> None:
        ctx.set_result(ctx.results(ctx.upstream).wait()).wait()

    async with create_work(work=[*TYPES, parent, last], **backend) as work:
        handle = await work.enqueue(parent())
        assert await handle == [0, 0]


# ---- crashes ---------------------------------------------------------------------------------


async def test_doing_a_failed_enqueue_many_again_completes_the_same_gate(virtual_clock):
    # the docstring says that doing it again is safe
    ports = journal_backend()
    ports["store"].fail = failing_members(OSError("away"), 1)
    works, then = [member(5), member(6)], report()
    events = []
    async with create_work(work=TYPES, on_event=events.append, **ports) as work:
        with pytest.raises(OSError, match="away"):
            await work.enqueue_many(works, then=then)
        handles = await work.enqueue_many(works, then=then)
        again = await work.enqueue_many(works, then=then)
        assert again.gate.id == handles.gate.id
        assert await handles.then[0].result(timeout=60) == ["report", 5, 6]
        await handles[0].group(timeout=60)
        assert len(await work.list("success", type=DEPENDENCY_TYPE)) == 1
    assert len(group_done(events, handles[0].group_id)) == 1
    assert [e.type for e in events if e.kind == "succeeded"].count("report") == 1


async def test_doing_an_enqueue_many_again_whose_push_failed_waits_for_its_members(virtual_clock):
    ports = journal_backend()
    failures = [OSError("queue away")]
    ports["queue"].fail = lambda op: failures.pop() if op == "push" and failures else None
    works, then = [member(5), member(6)], report()
    async with create_work(work=TYPES, **ports) as work:
        with pytest.raises(OSError, match="queue away"):
            await work.enqueue_many(works, then=then)
        handles = await work.enqueue_many(works, then=then)
        assert await handles.then[0].result(timeout=60) == ["report", 5, 6]
        assert await handles.gate.group(timeout=60) is None


CALLS = [
    "write success members-1,ok+1",  # before the member is settled
    "write pending open+1,opened+1",  # before the dependent is registered
    "push",  # before the dependent is pushed
    "write success",  # before the gate is settled
    "ack",
]


@pytest.mark.parametrize("call", CALLS)
async def test_dependents_start_once_also_when_the_worker_that_should_start_them_dies(
    virtual_clock, call
):
    # P4, Q2
    shared = memory_backend()
    events = []
    starts = []

    def dependent(name):
        async def last(ctx: WorkContext) -> str:
            starts.append((name, ctx.id))
            return name

        return define_work("last", last)

    doomed = Process()

    def quick_for(process):
        async def quick() -> int:
            if process is not None:
                process.dies_at = lambda step: step == call
            return 1

        return define_work("quick", quick, retry=ONCE)

    first = create_work(
        work=[quick_for(doomed), dependent("first")],
        on_error=lambda *_: None,
        **in_process(shared, doomed),
    )
    producer = create_work(auto_start=False, **shared)
    handles = await producer.enqueue_many([quick_for(None)()], then=dependent("producer")())
    await first.start()
    await virtual_clock.advance(1)
    assert doomed.dead
    async with create_work(
        work=[quick_for(None), dependent("second")], on_event=events.append, **shared
    ):
        assert await handles.then[0].result(timeout=300) == "second"
        await handles[0].group(timeout=300)
        await virtual_clock.advance(300)
    assert [name for name, _ in starts] == ["second"]
    assert await shared["queue"].size() == 0
    assert await opened(shared["store"], handles[0].group_id) == 0
    await first.stop(drain=0)
    await producer.stop()


async def test_a_producer_that_dies_between_members_leaves_nothing_that_fires(virtual_clock):
    # the gate's hold was never released: its dependents cannot start early
    shared = memory_backend()
    doomed = Process(dies_at=lambda step: step == "push")
    producer = create_work(auto_start=False, **in_process(shared, doomed))
    with pytest.raises(Exception):  # noqa: B017 - its process is dead
        await producer.enqueue_many([member(1), member(2)], then=report())
    async with create_work(work=TYPES, **shared) as work:
        await virtual_clock.advance(3600)
        assert await work.list("success") == []
        assert (await work.list(type="report")) == []


async def test_a_store_that_takes_few_changes_at_once_decides_gates_all_the_same(virtual_clock):
    store = JournalStore(capabilities=Capabilities(in_process=True, max_changes=3))
    async with create_work(work=TYPES, store=store, queue=JournalQueue()) as work:
        handles = await work.enqueue_many(
            [member(n) for n in range(7)], then=[report(), report("b"), report("c")]
        )
        assert await handles.then[2].result(timeout=60) == ["c", 0, 1, 2, 3, 4, 5, 6]
        await handles[0].group(timeout=60)


async def test_conflicts_on_a_gate_never_double_its_dependents(virtual_clock):
    # two members that end at the same moment on two workers
    shared = memory_backend()
    starts = []

    @define_work
    async def last(ctx: WorkContext) -> None:
        starts.append(ctx.id)

    class Slow(JournalStore):
        async def write(self, changes):
            await sleep(0)
            try:
                return await super().write(changes)
            except ConflictError:
                await sleep(0)
                raise

    shared = {**shared, "store": Slow()}
    systems = [create_work(work=[*TYPES, last], **shared) for _ in range(3)]
    for system in systems:
        await system.start()
    for _ in range(10):
        handles = await systems[0].enqueue_many([member(1) for _ in range(6)], then=last())
        await handles[0].group(timeout=60)
    assert len(starts) == len(set(starts)) == 10
    for system in systems:
        await system.stop()


async def test_a_gate_is_not_cancelled_while_its_works_go_on(virtual_clock):
    async with create_work(work=TYPES) as work:
        handles = await work.enqueue_many([member(2), member(3)], then=count())
        await virtual_clock.advance(1)
        assert handles.gate is not None
        assert not await handles.gate.cancel()
        assert await handles.then[0].result() == 5
        assert virtual_clock.now_ms() % 60_000 >= 3000
        await handles[0].group()
