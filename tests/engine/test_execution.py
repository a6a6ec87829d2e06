"""How a work runs: what is written when, in which order, and what skipping the queue means."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from tests.support.unreliable import Journal, journal_backend

from piecework import (
    InvalidWorkError,
    MemoryQueue,
    Retry,
    UnknownWorkError,
    WorkContext,
    WorkFailedError,
    create_work,
    define_work,
)
from piecework.clock import sleep


def kinds(events):
    return [event.kind for event in events]


async def test_a_long_work_is_pending_then_running_then_success(virtual_clock, backend):
    # S70: written down as running only once it runs longer than start_after
    @define_work
    async def long():
        await sleep(3)

    events = []
    observer = create_work(work=[long], auto_start=False, **backend)
    async with create_work(work=[long], on_event=events.append, **backend) as work:
        handle = await work.enqueue(long())
        assert (await observer.state(handle.id)).status == "pending"
        await virtual_clock.advance(0.5)
        assert kinds(events) == ["queued", "started"]  # the event is immediate
        assert (await observer.state(handle.id)).status == "pending"
        assert (await work.state(handle.id)).status == "running"  # its own process knows
        await virtual_clock.advance(1)
        state = await observer.state(handle.id)
        assert state.status == "running"
        assert state.run_at == state.queue_at
        await virtual_clock.advance(2)
        assert (await observer.state(handle.id)).status == "success"


async def test_start_after_zero_writes_running_before_the_handler(virtual_clock, backend):
    # S70
    @define_work
    async def look(ctx: WorkContext) -> str:
        return (await observer.state(ctx.id)).status

    observer = create_work(work=[look], auto_start=False, **backend)
    async with create_work(work=[look], start_after=0, **backend) as work:
        assert await work.run(look()) == "running"


async def test_a_redelivered_work_is_written_down_as_running_before_the_handler(
    virtual_clock, backend
):
    # S70: somebody may have died, so this run leaves a trace at once
    @define_work
    async def look(ctx: WorkContext) -> str:
        return (await observer.state(ctx.id)).status

    observer = create_work(work=[look], auto_start=False, **backend)
    handle = await observer.enqueue(look())
    await backend["queue"].pop(1, 5, 0)  # a worker that dies with it
    async with create_work(work=[look], **backend):
        assert await handle.result() == "running"


async def test_success_writes_the_result_then_notifies_then_acks(virtual_clock):
    # S71: exactly these effects, in this order
    journal = Journal()
    ports = journal_backend(journal)
    events = []

    @define_work
    async def seven():
        await sleep(0.5)
        return 7

    async with create_work(work=[seven], on_event=events.append, **ports) as work:
        handle = await work.enqueue(seven())
        waiting = asyncio.create_task(handle.result())
        await virtual_clock.advance(0)
        mark = len(journal.entries)
        assert await waiting == 7
        assert journal.since(mark) == ["write success", "publish", "ack"]
        assert kinds(events) == ["queued", "started", "succeeded", "group-done"]
    assert await ports["queue"].size() == 0


async def test_a_short_lone_work_costs_two_writes(virtual_clock):
    # S71
    journal = Journal()

    @define_work
    async def short():
        return 1

    async with create_work(work=[short], **journal_backend(journal)) as work:
        await work.enqueue(short())
        await virtual_clock.advance(1)
    assert journal.entries == ["write pending", "push", "write success", "ack"]


async def test_the_result_and_its_record_expire_after_result_ttl(virtual_clock, backend):
    # S71: the result is kept for 24 h
    @define_work
    async def seven():
        return 7

    async with create_work(work=[seven], **backend) as work:
        handle = await work.enqueue(seven())
        assert await handle.result() == 7
        await virtual_clock.advance(timedelta(hours=24) - timedelta(seconds=1))
        assert (await handle.state()).result == 7
        await virtual_clock.advance(2)
        assert await handle.state() is None


async def test_a_store_that_fails_after_a_success_never_runs_the_handler_again(virtual_clock):
    # S72
    ports = journal_backend()
    errors, calls = [], []
    failures = [OSError("away")] * 3

    def fail(changes):
        word = str(changes[0].value).split(" ", 1)[0]
        return failures.pop() if word == "success" and failures else None

    ports["store"].fail = fail

    @define_work
    async def once():
        calls.append(1)
        return 7

    async with create_work(
        work=[once], on_error=lambda error, phase: errors.append((type(error), phase)), **ports
    ) as work:
        assert await work.run(once()) == 7
        await virtual_clock.advance(60)
    assert calls == [1]
    assert errors == [(OSError, "commit")] * 3


async def test_a_settle_whose_answer_was_lost_counts_as_done(virtual_clock):
    # Q2, S72: our own earlier write is recognised by its token
    ports = journal_backend()
    failures = [OSError("connection reset")]

    def fail(changes):
        word = str(changes[0].value).split(" ", 1)[0]
        return failures.pop() if word == "success" and failures else None

    ports["store"].fail_after = fail
    events = []

    @define_work
    async def child():
        return 1

    @define_work
    async def parent(ctx: WorkContext):
        ctx.queue(child())
        await ctx.set_result("done")

    async with create_work(
        work=[parent, child], on_event=events.append, on_error=lambda *_: None, **ports
    ) as work:
        assert await (await work.enqueue(parent())) == "done"
        await virtual_clock.advance(60)
    assert kinds(events).count("succeeded") == 2
    assert kinds(events).count("group-done") == 1


@pytest.mark.parametrize("redelivered", [False, True])
async def test_two_deliveries_of_one_work_settle_it_once(virtual_clock, backend, redelivered):
    # Q2
    events = []
    calls = []

    @define_work
    async def child(n: int):
        calls.append(n)
        await sleep(0.2)
        return n

    @define_work
    async def parent(ctx: WorkContext):
        await ctx.queue([child(1), child(2)])

    producer = create_work(work=[parent, child], auto_start=False, **backend)
    handle = await producer.enqueue(parent())
    systems = [
        create_work(work=[parent, child], on_event=events.append, **backend) for _ in range(2)
    ]
    leases = await backend["queue"].pop(1, 30, 0)
    if redelivered:
        leases[0].deliveries = 2
    await asyncio.gather(*(system.process(leases) for system in systems))
    for lease in await backend["queue"].pop(10, 30, 0):
        await asyncio.gather(*(system.process([lease]) for system in systems))
    assert await handle.group(timeout=1) is None
    assert kinds(events).count("succeeded") == 3
    assert kinds(events).count("group-done") == 1
    for system in systems:
        await system.stop()
    await producer.stop()


async def test_a_duplicate_of_a_settled_work_is_acked_without_a_second_event(
    virtual_clock, backend
):
    # Q2
    events, calls = [], []

    @define_work
    async def once():
        calls.append(1)

    async with create_work(work=[once], on_event=events.append, **backend) as work:
        handle = await work.enqueue(once())
        [lease] = await backend["queue"].pop(1, 30, 0)
        lease.deliveries = 2
        await work.process([lease])
        await work.process([lease])
        await handle.result()
        await virtual_clock.advance(60)
    assert calls == [1]
    assert kinds(events) == ["queued", "started", "succeeded", "group-done"]


async def test_whatever_a_handler_raises_is_its_failure(virtual_clock, backend):
    # S83: also what is no Exception ends the work and not the worker
    class Strange(BaseException):
        pass

    @define_work(retry=Retry(attempts=1))
    async def strange():
        raise Strange("odd")

    @define_work
    async def fine():
        return 1

    async with create_work(work=[strange, fine], **backend) as work:
        with pytest.raises(WorkFailedError, match="Strange: odd"):
            await work.run(strange())
        assert await work.run(fine()) == 1


async def test_a_huge_error_text_is_cut_and_the_work_still_dies(virtual_clock, backend):
    @define_work(retry=Retry(attempts=1))
    async def loud():
        raise ValueError("x" * 5_000_000)

    async with create_work(work=[loud], **backend) as work:
        with pytest.raises(WorkFailedError) as raised:
            await work.run(loud())
        assert len(str(raised.value)) < 10_000
        assert raised.value.error_type == "ValueError"
        assert len(raised.value.traceback) < 20_000
        [letter] = await work.dead_letters()
        assert len(letter.reason) < 10_000


async def test_a_result_that_cannot_be_kept_kills_the_work_at_once_with_a_clear_error(
    virtual_clock, backend
):
    calls = []

    @define_work
    async def socket_like():
        calls.append(1)
        return asyncio.Lock()

    async with create_work(work=[socket_like], **backend) as work:
        with pytest.raises(WorkFailedError, match="bad result: .*Lock"):
            await work.run(socket_like())
    assert calls == [1]


async def test_a_result_of_the_wrong_type_kills_the_work_and_names_its_type(virtual_clock, backend):
    @define_work
    async def wrong() -> int:
        return "seven"  # type: ignore[return-value]

    async with create_work(work=[wrong], **backend) as work:
        with pytest.raises(WorkFailedError, match="bad result: work type 'wrong'"):
            await work.run(wrong())


# ---- skip_queue ------------------------------------------------------------------------------


async def test_skip_queue_runs_here_without_the_queue(virtual_clock):
    # S84
    class Deaf(MemoryQueue):
        async def push(self, messages):
            raise AssertionError("pushed")

        async def pop(self, max, visibility, wait):
            raise AssertionError("popped")

    @define_work(skip_queue=True)
    async def here(n: int) -> int:
        return n + 1

    events = []
    work = create_work(work=[here], queue=Deaf(), auto_start=False, on_event=events.append)
    handle = await work.enqueue(here(1))
    assert await handle.result() == 2
    assert (await handle.state()).status == "success"
    assert await handle.group(timeout=1) is None
    assert kinds(events) == ["queued", "started", "succeeded", "group-done"]
    assert work.active() == []
    await work.stop()


async def test_a_failed_first_attempt_here_goes_on_through_the_queue(virtual_clock, backend):
    # S85: another instance runs attempt 2
    attempts = []

    def handler(where):
        async def flaky(ctx: WorkContext) -> str:
            attempts.append((where, ctx.attempt))
            if ctx.attempt == 1:
                raise ValueError("first")
            return where

        return define_work("flaky", flaky, skip_queue=True)

    producer = create_work(work=[handler("here")], auto_start=False, **backend)
    handle = await producer.enqueue("flaky")
    await virtual_clock.advance(5)
    assert attempts == [("here", 1)]
    async with create_work(work=[handler("there")], **backend):
        assert await handle.result() == "there"
    assert attempts == [("here", 1), ("there", 2)]
    await producer.stop()


async def test_a_delayed_work_that_skips_the_queue_goes_through_it(virtual_clock, backend):
    # S86
    @define_work(skip_queue=True)
    async def later() -> int:
        return 1

    work = create_work(work=[later], auto_start=False, **backend)
    handle = await work.enqueue(later(), delay=10)
    assert await backend["queue"].size() == 1
    async with work:
        began = virtual_clock.now()
        await handle.result()
        assert virtual_clock.now() - began >= timedelta(seconds=10)


async def test_skip_queue_is_honoured_for_children(virtual_clock, backend):
    # S86
    pushed = []

    class Watched(MemoryQueue):
        async def push(self, messages):
            pushed.extend(messages)
            await super().push(messages)

    @define_work
    async def child() -> int:
        return 1

    @define_work(skip_queue=True)
    async def parent(ctx: WorkContext) -> None:
        await ctx.set_result(await ctx.queue(child(), skip_queue=True))

    ports = {**backend, "queue": Watched()}
    work = create_work(work=[parent, child], auto_start=False, **ports)
    child_id = await (await work.enqueue(parent()))
    assert (await work.state(child_id)).result == 1
    assert pushed == []
    await work.stop()


async def test_input_is_round_tripped_also_when_the_queue_is_skipped(virtual_clock, backend):
    # S86: the handler never gets the caller's own objects
    seen = []

    @define_work(skip_queue=True)
    async def mutate(names: list[str]) -> None:
        names.append("changed")
        seen.append(names)

    work = create_work(work=[mutate], auto_start=False, **backend)
    mine = ["a"]
    await work.run(mutate(mine))
    assert mine == ["a"]
    assert seen == [["a", "changed"]]
    await work.stop()


async def test_an_unknown_type_cannot_skip_the_queue_by_name(virtual_clock, backend):
    # S86: it is refused before anything is written
    async with create_work(**backend) as work:
        with pytest.raises(UnknownWorkError, match="ghost"):
            await work.enqueue("ghost", {}, skip_queue=True)
        assert await work.list() == []


async def test_bad_input_cannot_skip_the_queue_by_name(virtual_clock, backend):
    # S86
    @define_work
    async def typed(n: int) -> int:
        return n

    async with create_work(work=[typed], **backend) as work:
        with pytest.raises(InvalidWorkError, match="'n'"):
            await work.enqueue("typed", {"n": "no"}, skip_queue=True)


# ---- threads ---------------------------------------------------------------------------------


async def test_a_def_handler_queues_sets_claims_and_reads_with_wait(virtual_clock, backend):
    @define_work
    def child(n: int) -> int:
        return n * 2

    seen = {}

    @define_work
    def parent(ctx: WorkContext) -> list[str]:
        ids = ctx.queue([child(1), child(2)]).wait()
        one = ctx.queue(child(3)).wait()
        seen["claims"] = [ctx.claim("once").wait(), ctx.claim("once").wait()]
        seen["states"] = [state.type for state in ctx.states([*ids, one]).wait()]
        ctx.set_result("from a thread").wait()
        ctx.progress(1, 2, "half")
        return [*ids, one]

    async with create_work(work=[parent, child], **backend) as work:
        handle = await work.enqueue(parent())
        assert await handle == "from a thread"
        ids = await handle.result()
        assert [state.result for state in await work.states(ids)] == [2, 4, 6]
    assert seen == {"claims": [True, False], "states": ["child"] * 3}


async def test_a_def_handler_that_waits_for_nothing_still_queues_all_it_asked_for(
    virtual_clock, backend
):
    ran = []

    @define_work
    def child(n: int) -> None:
        ran.append(n)

    @define_work
    def parent(ctx: WorkContext) -> None:
        for n in range(20):
            ctx.queue(child(n))
        ctx.set_result(20)

    async with create_work(work=[parent, child], **backend) as work:
        assert await (await work.enqueue(parent())) == 20
    assert sorted(ran) == list(range(20))
