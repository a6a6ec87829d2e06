"""``dependency(on=...)``: works that start once works which exist already have ended."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.unreliable import Process, in_process

from piecework import (
    DEPENDENCY_TYPE,
    InvalidWorkError,
    Retry,
    WorkContext,
    WorkFailedError,
    balanced_doer,
    condition_met,
    create_work,
    define_work,
    dependency,
    memory_backend,
)
from piecework.clock import sleep
from piecework.state import WorkState

ONCE = Retry(attempts=1)


@define_work(retry=ONCE)
async def step(n: float, fail: bool = False) -> float:
    await sleep(n)
    if fail:
        raise ValueError("no")
    return n


@define_work
async def after(ctx: WorkContext) -> list:
    return await ctx.results(ctx.upstream)


TYPES = [step, after]


async def run(work, on, **options):
    dependent = after()
    handle = await work.enqueue(dependency(on, dependent, **options))
    return handle, work.handle(dependent.id)


# ---- what it waits for -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "fails", "after_about"),
    [
        ("all-success", (), 6),
        ("all-done", (3,), 6),
        ("all-success", (3,), None),
        ({"count": 1}, (), 3),
        ({"count": 1, "of": "done"}, (3,), 3),
        ({"count": 3}, (), None),
    ],
)
async def test_it_fires_when_its_condition_holds(virtual_clock, backend, when, fails, after_about):
    # S101, S106
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([step(3, 3 in fails), step(6, 6 in fails)])
        began = virtual_clock.now()
        handle, dependent = await run(work, handles and [h.id for h in handles], when=when)
        if after_about is None:
            with pytest.raises(WorkFailedError, match="dependency: .* cannot be met"):
                await handle.result()
            assert await dependent.state() is None
        else:
            await handle.result()
            waited = virtual_clock.now() - began
            assert timedelta(0) <= waited - timedelta(seconds=after_about) < timedelta(seconds=4)
            assert len(await dependent.result()) == 2
        await handle.group(timeout=60)


async def test_it_takes_works_as_well_as_ids(virtual_clock, backend):
    # S101
    async with create_work(work=TYPES, **backend) as work:
        first, second = step(1), step(2)
        await work.enqueue_many([first, second])
        handle, dependent = await run(work, [first, second.id])
        await handle.result()
        assert await dependent.result() == [1, 2]


async def test_it_survives_a_restart_of_everything_that_runs(virtual_clock, backend):
    # S101
    async with create_work(work=TYPES, **backend) as work:
        handles = await work.enqueue_many([step(1).with_options(delay=100)])
        handle, dependent = await run(work, [handles[0].id])
        await virtual_clock.advance(10)
    await virtual_clock.advance(3600)
    async with create_work(work=TYPES, **backend) as work:
        assert await work.handle(dependent.id, handle.id).group(timeout=300) is None
        assert await work.handle(dependent.id).result() == [1]


async def test_it_takes_no_place_while_it_waits(virtual_clock, backend):
    # S102
    doer = balanced_doer(max=1)
    async with create_work(work=TYPES, doer=doer, **backend) as work:
        target = await work.enqueue(step(1), delay=1000)
        handle, _ = await run(work, [target.id])
        await virtual_clock.advance(50)
        assert work.active() == []
        assert doer.running == 0
        assert await work.run(step(1)) == 1
        await handle.result()
        assert (await handle.state()).attempt == 1


async def test_it_looks_with_growing_pauses(virtual_clock, backend):
    # S102: 1 s to 60 s
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:
        target = await work.enqueue(step(0), delay=600)
        handle, _ = await run(work, [target.id])
        await handle.result()
    pauses = [
        (event.start_at - event.at).total_seconds() for event in events if event.kind == "deferred"
    ]
    assert pauses[:7] == [1, 2, 4, 8, 16, 32, 60]
    assert set(pauses[7:]) == {60}


async def test_poll_sets_the_first_pause(virtual_clock, backend):
    # S101
    events = []
    async with create_work(work=TYPES, on_event=events.append, **backend) as work:
        target = await work.enqueue(step(0), delay=20)
        await (await run(work, [target.id], poll=5))[0].result()
    first = next(event for event in events if event.kind == "deferred")
    assert first.start_at - first.at == timedelta(seconds=5)


@pytest.mark.parametrize("call", ["write pending open+1,opened+1", "push", "write success", "ack"])
async def test_dependents_are_queued_once_by_workers_that_die(virtual_clock, call):
    # S103, P4
    shared = memory_backend()
    starts = []

    @define_work
    async def last(ctx: WorkContext) -> None:
        starts.append(ctx.id)

    doomed = Process()
    producer = create_work(auto_start=False, **shared)
    async with create_work(work=TYPES, **shared) as helper:
        done = await helper.enqueue(step(0))
        await done.result()
    dependent = last()
    handle = await producer.enqueue(dependency([done.id], dependent))
    doomed.dies_at = lambda step: step == call
    first = create_work(work=[last], on_error=lambda *_: None, **in_process(shared, doomed))
    await first.start()
    await virtual_clock.advance(5)
    assert doomed.dead
    async with create_work(work=[last], **shared) as work:
        await work.handle(handle.id).group(timeout=300)
        await work.handle(dependent.id).result(timeout=300)
        await virtual_clock.advance(300)
    assert starts == [dependent.id]
    assert await shared["queue"].size() == 0
    await first.stop(drain=0)
    await producer.stop()


async def test_a_second_delivery_of_a_dependency_queues_nothing_twice(virtual_clock, backend):
    # S103
    async with create_work(work=TYPES, auto_start=False, **backend) as work:
        done = await work.enqueue(step(0))
        await done.result()
    events = []
    work = create_work(work=TYPES, auto_start=False, on_event=events.append, **backend)
    await run(work, [done.id])
    [lease] = await backend["queue"].pop(1, 30, 0)
    await work.process([lease])
    lease.deliveries = 2
    await work.process([lease])
    kinds = [(event.kind, event.type) for event in events]
    assert kinds.count(("queued", "after")) == 1
    await work.stop()


async def test_ends_that_it_has_seen_outlive_their_records(virtual_clock, backend):
    # S104: a state that is gone after a day is not missing
    async with create_work(work=TYPES, poll_interval=3600, **backend) as work:
        first = await work.enqueue(step(0))
        second = await work.enqueue(step(0), delay=timedelta(days=3))
        handle, dependent = await run(work, [first.id, second.id])
        await virtual_clock.advance(timedelta(days=2))
        assert await first.state() is None
        await virtual_clock.advance(timedelta(days=1, minutes=5))
        assert (await handle.state()).status == "success"
        assert await dependent.result() == [None, 0]


async def test_works_that_nobody_knows_are_not_done(virtual_clock, backend):
    # S106: missing is not done
    async with create_work(work=TYPES, **backend) as work:
        handle, _ = await run(work, ["no-such-work"], when="all-done")
        await virtual_clock.advance(3600)
        assert (await handle.state()).status == "pending"
        await handle.cancel()


async def test_it_is_dead_after_its_timeout(virtual_clock, backend):
    # S105: one attempt, and the dependents never run
    async with create_work(work=TYPES, **backend) as work:
        target = await work.enqueue(step(0), delay=3600)
        began = virtual_clock.now()
        handle, dependent = await run(work, [target.id], timeout=30)
        text = rf"dependency: timed out waiting for \[{target.id}\]"
        with pytest.raises(WorkFailedError, match=text) as raised:
            await handle.result()
        assert raised.value.error_type == "TimeoutError"
        assert timedelta(seconds=30) <= virtual_clock.now() - began < timedelta(seconds=32)
        assert (await handle.state()).attempt == 1
        await virtual_clock.advance(7200)
        assert await dependent.state() is None


async def test_dependents_keep_the_ids_and_options_that_they_were_built_with(
    virtual_clock, backend
):
    # S107
    dependents = [after().with_options(priority=3, delay=50), step(1)]
    async with create_work(work=TYPES, **backend) as work:
        done = await work.enqueue(step(0))
        handle = await work.enqueue(dependency([done.id], dependents))
        await handle.result()
        await handle.group()
        states = await work.states([one.id for one in dependents])
    assert [state.type for state in states] == ["after", "step"]
    assert states[0].priority == 3
    assert states[0].start_at - states[0].queue_at == timedelta(seconds=50)
    assert {state.parent_id for state in states} == {handle.id}
    assert {state.group_id for state in states} == {handle.id}


async def test_it_works_inside_a_handler_and_holds_the_group(virtual_clock, backend):
    # S101
    @define_work(retry=Retry(attempts=2, base=1, jitter=0))
    async def parent(ctx: WorkContext) -> None:
        ids = await ctx.queue([step(5), step(6)])
        await ctx.queue(dependency(ids, last()))
        if ctx.attempt == 1:
            raise ValueError("again")

    seen = []

    @define_work
    async def last(ctx: WorkContext) -> None:
        seen.append(list(await ctx.results(ctx.upstream)))
        await ctx.set_result("done")

    async with create_work(work=[*TYPES, parent, last], **backend) as work:
        assert await (await work.enqueue(parent())) == "done"
    assert seen == [[5, 6]]


async def test_a_dependency_over_nothing_fires_at_once(virtual_clock, backend):
    async with create_work(work=TYPES, **backend) as work:
        handle, dependent = await run(work, [])
        await handle.result(timeout=1)
        assert await dependent.result(timeout=1) == []


async def test_every_system_knows_the_type(virtual_clock, backend):
    # S101
    assert DEPENDENCY_TYPE == "@piecework/gate"
    async with create_work(**backend) as work:
        handle = await work.enqueue(dependency([], []))
        assert await handle.result() is None


@pytest.mark.parametrize(
    "options", [{"poll": 0}, {"poll": -1}, {"timeout": 0}, {"timeout": -5}, {"when": "some"}]
)
async def test_options_that_cannot_be_used_are_refused_when_it_is_built(options):
    with pytest.raises(InvalidWorkError):
        dependency(["a"], after(), **options)


# ---- conditions ------------------------------------------------------------------------------


def states(text):
    names = {"s": "success", "d": "dead", "c": "cancelled", "e": "expired", "r": "running"}
    names |= {"p": "pending"}
    return [None if c == "?" else WorkState(id=c, type="t", status=names[c]) for c in text]


@pytest.mark.parametrize(
    ("when", "text", "met"),
    [
        ("all-done", "", True),
        ("all-success", "", True),
        ("all-done", "sdce", True),
        ("all-done", "sr", False),
        ("all-done", "sp", False),
        ("all-done", "s?", False),
        ("all-success", "ss", True),
        ("all-success", "sd", False),
        ("all-success", "sc", False),
        ("all-success", "s?", False),
        ({"count": 2}, "ssp", True),
        ({"count": 2}, "sdp", False),
        ({"count": 2, "of": "success"}, "ss", True),
        ({"count": 2, "of": "done"}, "sdp", True),
        ({"count": 2, "of": "done"}, "s?p", False),
        ({"count": 0}, "", True),
        ({"count": 3}, "ss", False),
    ],
)
def test_the_truth_table_of_conditions(when, text, met):
    # S106
    assert condition_met(when, states(text)) is met
