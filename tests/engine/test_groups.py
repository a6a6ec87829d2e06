"""Groups: counted in the same write as the states, ended once, never stuck."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.unreliable import Journal, journal_backend

from piecework import (
    Retry,
    WorkContext,
    WorkFailedError,
    create_work,
    define_batch_work,
    define_work,
)
from piecework.clock import sleep

ONCE = Retry(attempts=1)


@define_work
async def leaf(n: float = 0) -> float:
    await sleep(n)
    return n


@define_work(retry=ONCE)
async def broken() -> None:
    raise ValueError("broken")


@define_work
async def root(ctx: WorkContext, n: int, value: str | None = None) -> None:
    await ctx.queue([leaf(i) for i in range(n)])
    if value is not None:
        await ctx.set_result(value)


TYPES = [leaf, broken, root]


def ends_of(events):
    return [event for event in events if event.kind == "group-done"]


async def counters(store, id):
    return (await store.read([f"work:item:{id}"]))[0].counters


async def test_the_counter_moves_in_the_write_of_the_state(virtual_clock):
    # S87, S88, S90: no moment at which one is written and the other is not, so nothing to roll back
    journal = Journal()
    async with create_work(work=TYPES, **journal_backend(journal)) as work:
        await (await work.enqueue(root(1)))
    writes = [entry for entry in journal.entries if entry.startswith("write")]
    assert [entry for entry in writes if entry != "write group_waiters+1"][:4] == [
        "write pending",
        "write pending open+1,opened+1",
        "write success",
        "write success open-1",
    ]


async def test_the_counter_is_one_per_open_work_and_zero_at_the_end(virtual_clock, backend):
    # S87
    async with create_work(work=TYPES, **backend) as work:
        handle = await work.enqueue(root(4))
        await virtual_clock.advance(0.5)
        assert (await counters(backend["store"], handle.id))["open"] == 3  # one of four ended
        await virtual_clock.advance(1)
        assert (await counters(backend["store"], handle.id))["open"] == 2
        await handle
        assert (await counters(backend["store"], handle.id))["open"] == 0


async def test_one_instance_tells_of_the_end_of_a_group(virtual_clock, backend):
    # S89: the one that settled the last work
    events = {"a": [], "b": []}
    systems = [create_work(work=TYPES, on_event=seen.append, **backend) for seen in events.values()]
    for system in systems:
        await system.start()
    handle = await systems[0].enqueue(root(20, "value"))
    assert await handle == "value"
    [end] = ends_of(events["a"]) + ends_of(events["b"])
    assert (end.id, end.group_id, end.type, end.result) == (handle.id, handle.id, "root", "value")
    [seen] = [seen for seen in events.values() if ends_of(seen)]
    last = [event for event in seen if event.kind == "succeeded"][-1]
    assert end.at == last.at
    for system in systems:
        await system.stop()


async def test_a_waiter_in_another_process_is_told_at_once(virtual_clock, backend):
    # S89
    async with create_work(work=TYPES, **backend):
        observer = create_work(work=TYPES, auto_start=False, **backend)
        handle = await observer.enqueue(root(4))
        began = virtual_clock.now()
        await handle
        assert virtual_clock.now() - began < timedelta(seconds=3.1)
        await observer.stop()


async def test_a_failed_submit_of_a_child_leaves_no_count_behind(virtual_clock):
    # S90: the group still settles
    ports = journal_backend()
    ports["store"].fail = lambda changes: (
        OSError("away") if len(changes) > 1 and "open" in changes[-1].needs else None
    )

    @define_work(retry=ONCE)
    async def parent(ctx: WorkContext) -> None:
        await ctx.queue([leaf(), leaf()])

    async with create_work(work=[*TYPES, parent], **ports) as work:
        handle = await work.enqueue(parent())
        with pytest.raises(WorkFailedError):
            await handle.result()
        assert await handle.group(timeout=1) is None
        assert (await counters(ports["store"], handle.id))["open"] == 0


async def test_a_child_whose_push_failed_runs_in_the_next_attempt(virtual_clock):
    # S90: registered and counted, and found again by its id
    ports = journal_backend()
    pushes = []

    def fail(operation):
        if operation == "push":
            pushes.append(1)
            if len(pushes) == 2:
                return OSError("queue away")
        return None

    ports["queue"].fail = fail
    async with create_work(work=TYPES, **ports) as work:
        handle = await work.enqueue(root(2, "done"))
        assert await handle.group(timeout=60) == "done"
        assert len(await work.list("success", type="leaf")) == 2
        assert (await counters(ports["store"], handle.id))["open"] == 0


# ---- the hook of unhandled groups ------------------------------------------------------------


async def test_the_hook_hears_once_of_a_group_that_nobody_waits_for(virtual_clock, backend):
    # S91
    told = []
    async with create_work(work=TYPES, unhandled_work_group=told.append, **backend) as work:
        handle = await work.enqueue(root(2, "last"))
        await virtual_clock.advance(1.05)
        assert told == []  # a moment is left for somebody to come
        await virtual_clock.advance(60)
    [info] = told
    assert (info.group_id, info.last_result) == (handle.id, "last")
    assert sorted(state.type for state in info.states) == ["leaf", "leaf", "root"]
    assert {state.status for state in info.states} == {"success"}


@pytest.mark.parametrize("wait", ["result", "group", "late"])
async def test_the_hook_never_hears_of_a_group_that_somebody_waits_for(
    virtual_clock, backend, wait
):
    # S91
    told = []
    async with create_work(work=TYPES, unhandled_work_group=told.append, **backend) as work:
        handle = await work.enqueue(root(2))
        if wait == "result":
            await handle.result()
        elif wait == "group":
            await handle
        else:
            await virtual_clock.advance(1.05)
            await handle
        await virtual_clock.advance(60)
    assert told == []


async def test_the_hook_may_be_async_and_may_raise(virtual_clock, backend):
    # S91
    told, errors = [], []

    async def hook(info):
        await sleep(0)
        told.append(info.states[0].error)
        raise RuntimeError("hook")

    async with create_work(
        work=TYPES,
        unhandled_work_group=hook,
        on_error=lambda error, phase: errors.append((str(error), phase)),
        **backend,
    ) as work:
        await work.enqueue(broken())
        await virtual_clock.advance(5)
    assert told == ["ValueError: broken"]
    assert errors == [("hook", "commit")]


async def test_the_hook_is_told_once_in_a_fleet(virtual_clock, backend):
    # S91
    told = []
    systems = [
        create_work(work=TYPES, unhandled_work_group=told.append, **backend) for _ in range(3)
    ]
    for system in systems:
        await system.start()
    for _ in range(10):
        await systems[0].enqueue(root(5))
    await virtual_clock.advance(60)
    assert len({info.group_id for info in told}) == len(told) == 10
    for system in systems:
        await system.stop()


# ---- lifetimes -------------------------------------------------------------------------------


async def test_results_states_and_claims_end_after_a_day(virtual_clock, backend):
    # S92
    @define_work
    async def claiming(ctx: WorkContext) -> bool:
        return await ctx.claim("key")

    async with create_work(work=[*TYPES, claiming], **backend) as work:
        first = await work.enqueue(claiming())
        assert await first.result() is True
        await virtual_clock.advance(timedelta(hours=23, minutes=59))
        assert await work.run(claiming()) is False
        assert await first.state() is not None
        await virtual_clock.advance(timedelta(minutes=2))
        assert await work.run(claiming()) is True
        assert await first.state() is None


async def test_a_group_that_takes_weeks_keeps_its_record(virtual_clock, backend):
    # S92: each of its works renews it
    @define_work
    async def slow_chain(ctx: WorkContext, n: int) -> None:
        if n:
            ctx.queue(slow_chain(n - 1), delay=timedelta(days=10))
        else:
            await ctx.set_result("done")

    async with create_work(work=[slow_chain], poll_interval=86400, **backend) as work:
        handle = await work.enqueue(slow_chain(6))
        await virtual_clock.advance(timedelta(days=60, hours=1))
        assert await handle.group(timeout=1) == "done"


@pytest.mark.parametrize("ends", ["success", "dead", "retried", "cancelled"])
async def test_a_root_that_has_ended_lives_on_for_children_that_start_much_later(
    virtual_clock, backend, ends
):
    # S92, P3: result_ttl counts from the end of the group
    @define_work(retry=Retry(attempts=2, base=1, jitter=0))
    async def planner(ctx: WorkContext) -> None:
        if ctx.attempt == 1:
            await ctx.queue(leaf(), delay=timedelta(days=40))
        if ends == "dead" or (ends in ("retried", "cancelled") and ctx.attempt == 1):
            raise ValueError("again")

    events = []
    async with create_work(
        work=[leaf, planner], on_event=events.append, poll_interval=86400, **backend
    ) as work:
        handle = await work.enqueue(planner())
        if ends == "cancelled":
            await virtual_clock.advance(0.5)
            assert await handle.cancel()
        await virtual_clock.advance(timedelta(days=39))
        assert ends_of(events) == []
        await virtual_clock.advance(timedelta(days=1, hours=1))
        assert [event.id for event in ends_of(events)] == [handle.id]
        await virtual_clock.advance(timedelta(days=1, hours=1))
        assert await handle.state() is None  # and no longer than that


async def test_a_gate_that_fired_early_lives_on_for_its_stragglers(virtual_clock, backend):
    # S92, P3
    events = []
    async with create_work(
        work=TYPES, on_event=events.append, poll_interval=86400, **backend
    ) as work:
        handles = await work.enqueue_many(
            [leaf(), leaf().with_options(delay=timedelta(days=40))],
            then=[leaf().with_options(delay=timedelta(days=60))],
            when={"count": 1},
        )
        await virtual_clock.advance(timedelta(days=59))
        assert ends_of(events) == []
        await virtual_clock.advance(timedelta(days=1, hours=1))
        assert [event.id for event in ends_of(events)] == [handles.gate.id]
        await virtual_clock.advance(timedelta(days=1, hours=1))
        assert await handles.gate.state() is None


# ---- shapes ----------------------------------------------------------------------------------


async def test_batch_works_are_children_like_any_other(virtual_clock, backend):
    seen = []

    @define_batch_work("collect", size=3, max_wait=2)
    async def collect(numbers: list[int]) -> list[int]:
        seen.append(list(numbers))
        return numbers

    @define_work
    async def parent(ctx: WorkContext) -> None:
        await ctx.queue([collect(n) for n in range(7)])
        await ctx.set_result("set")

    async with create_work(work=[parent, collect], **backend) as work:
        began = virtual_clock.now()
        assert await (await work.enqueue(parent())) == "set"
        assert virtual_clock.now() - began >= timedelta(seconds=2)  # the last waited for company
    assert sorted(n for batch in seen for n in batch) == list(range(7))


async def test_a_late_child_of_a_settled_group_is_a_group_of_its_own(virtual_clock, backend):
    # P3: a group that has settled is never opened again
    kept = []
    events = []

    @define_work
    async def leaky(ctx: WorkContext) -> None:
        kept.append(ctx)

    async with create_work(work=[*TYPES, leaky], on_event=events.append, **backend) as work:
        handle = await work.enqueue(leaky())
        await handle
        child = await kept[0].queue(leaf(5))
        assert (await work.state(child)).group_id == child
        await work.handle(child).group(timeout=30)
    assert [event.id for event in ends_of(events)] == [handle.id, child]


@pytest.mark.parametrize("how", ["dead", "cancelled", "expired"])
async def test_a_group_settles_whatever_the_ends_of_its_works(virtual_clock, backend, how):
    # S89, P3
    @define_work
    async def parent(ctx: WorkContext) -> str:
        options = {"expired": {"deadline": 5}, "cancelled": {"delay": 500}}.get(how, {})
        return str(await ctx.queue(broken() if how == "dead" else leaf(50), **options))

    events = []
    async with create_work(work=[*TYPES, parent], on_event=events.append, **backend) as work:
        handle = await work.enqueue(parent())
        child = await handle.result()
        if how == "cancelled":
            assert await work.cancel(child)
        assert await handle.group(timeout=30) is None
        assert (await work.state(child)).status == how
    assert len(ends_of(events)) == 1


async def test_the_last_result_of_a_group_wins(virtual_clock, backend):
    # S89
    @define_work
    async def setter(ctx: WorkContext, n: int) -> None:
        await ctx.set_result(n)
        if n < 3:
            ctx.queue(setter(n + 1))

    async with create_work(work=[setter], **backend) as work:
        assert await (await work.enqueue(setter(1))) == 3


async def test_a_thousand_children_settle_one_group(virtual_clock, backend):
    # P3
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:

        @define_work
        async def wide(ctx: WorkContext) -> None:
            ctx.queue([leaf() for _ in range(1000)])

        work.register(wide)
        await (await work.enqueue(wide()))
        assert len(await work.list("success", type="leaf", limit=2000)) == 1000
    assert len(ends_of(events)) == 1
