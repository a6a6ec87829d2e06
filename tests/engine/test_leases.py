"""Leases: renewed while works are held, lost ones noticed, and one winner."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.support.faults import WatchedQueue

from piecework import (
    Capabilities,
    MemoryQueue,
    Retry,
    WorkCancelledError,
    WorkContext,
    WorkFailedError,
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


async def test_leases_are_renewed_on_the_queue_that_they_came_from(make, queue):  # S66
    own_queue = WatchedQueue(MemoryQueue())
    own = define_work("own", nap.fn, queue=own_queue)
    work = make(own, nap, visibility=3)
    assert await asyncio.gather(work.run(own(10)), work.run(nap(10))) == ["slept", "slept"]
    assert work.stats()["own"]["started"] == work.stats()["nap"]["started"] == 1
    assert own_queue.plan.count("extend") >= 9
    assert queue.plan.count("extend") >= 9
    for where in (own_queue, queue):
        assert all(len(args[0]) == 1 for args in where.plan.arguments("extend"))


async def test_a_thousand_leases_are_renewed_in_one_call(make, queue):  # S66
    work = make(nap, doer=balanced_doer(max=1000), visibility=30)
    handles = await work.enqueue_many([nap(25) for _ in range(1000)])
    await handles.results()
    sizes = [len(args[0]) for args in queue.plan.arguments("extend")]
    assert sum(sizes) == 2000
    assert len(sizes) <= 12


async def test_a_work_that_waits_for_a_place_keeps_its_lease(make, queue, virtual_clock):  # S66
    work = make(nap, doer=balanced_doer(max=1, buffer=5), visibility=3)
    handles = await work.enqueue_many([nap(10) for _ in range(4)])
    other = make(nap)
    await virtual_clock.advance(1)
    await other.start()
    await handles.results()
    assert work.stats()["nap"]["started"] == 4


async def test_a_collected_work_keeps_its_lease(make, virtual_clock):
    @define_batch_work("double", size=10, max_wait=20)
    async def double(numbers: list[int]) -> list[int]:
        return [2 * n for n in numbers]

    one, two = make(double, visibility=3), make(double)
    handle = await one.enqueue(double(4))
    await virtual_clock.advance(1)
    await two.start()
    assert await handle.result() == 8
    assert one.stats()["double"]["succeeded"] == 1


@pytest.mark.parametrize(
    "outcome", ["success", "retry", "dead", "deferred", "cancelled", "expired", "lost", "stop"]
)
async def test_nothing_is_held_after_any_outcome(make, virtual_clock, outcome):  # S65
    from piecework import WorkDelayError

    @define_work("any", retry=Retry(attempts=1 if outcome == "dead" else 2, base=500, jitter=0))
    async def any_(ctx: WorkContext) -> None:
        if outcome in ("retry", "dead"):
            raise ValueError("no")
        if outcome == "deferred":
            raise WorkDelayError(500)
        if outcome != "success":
            await sleep(50)

    work = make(any_, visibility=3)
    handle = await work.enqueue(any_(), deadline=2 if outcome == "expired" else None)
    await virtual_clock.advance(0.5)
    if outcome == "cancelled":
        assert await handle.cancel()
    if outcome == "lost":
        await _steal(work)
    await virtual_clock.advance(3)
    if outcome == "stop":
        await work.stop(drain=0)
    assert [s for s in work.active() if s.attempt == 1 and outcome != "lost"] == []
    if outcome == "lost":
        await work.stop(drain=0)
    assert work.active() == []
    stats = work.stats()["any"]
    assert (stats["active"], stats["running"], stats["pending"]) == (0, 0, 0)
    assert list(work._engine.heart.held) == []


async def test_nothing_is_held_after_the_doer_raised_at_hand_off(
    make, errors, virtual_clock
):  # S65
    from piecework.doers.unlimited import UnlimitedDoer

    class Broken(UnlimitedDoer):
        broken = 1

        def do(self, task: Any) -> None:
            if self.broken:
                self.broken -= 1
                raise RuntimeError("broken doer")
            super().do(task)

    work = make(add, doer=Broken(), on_error=errors, visibility=6)
    handle = await work.enqueue(add(1, 2))
    await virtual_clock.advance(0.1)
    assert [(str(e), phase) for e, phase in errors] == [("broken doer", "queue")]
    assert work.active() == []
    assert await handle.result() == 3
    assert (await handle.state()).attempt == 1
    assert work.active() == []


async def _steal(work: Any) -> Any:
    """Let another worker get the message of the one held work, as if its lease had lapsed."""
    active = work._engine.intake.actives[0]
    inner = active.queue.inner.inner
    with_delay = await inner.release([active.lease], 0)
    (lease,) = await inner.pop(1, 100, 0)
    assert with_delay is None
    return lease


async def test_a_handler_whose_lease_is_lost_is_cancelled_and_spends_no_attempt(
    make, queue, virtual_clock
):  # Q8
    ended = []

    @define_work("long")
    async def long(ctx: WorkContext) -> str:
        try:
            await sleep(30)
        except asyncio.CancelledError:
            ended.append((ctx.attempt, ctx.cancelled))
            raise
        return "done"

    work = make(long, visibility=6)
    handle = await work.enqueue(long())
    await virtual_clock.advance(0.5)
    lease = await _steal(work)
    await virtual_clock.advance(2.5)
    assert ended == [(1, True)]
    assert work.active() == []
    await queue.release([lease], 0)
    assert await handle.result() == "done"
    assert (await handle.state()).attempt == 1


async def test_a_lost_lease_is_noticed_when_renewing_fails_until_its_end(
    make, queue, virtual_clock, errors
):  # Q8
    ended = []

    @define_work("long")
    async def long() -> None:
        try:
            await sleep(60)
        finally:
            ended.append(virtual_clock.now())

    work = make(long, visibility=6, on_error=errors)
    began = virtual_clock.now()
    await work.enqueue(long())
    await virtual_clock.advance(0.5)
    queue.plan.fail("extend", 10_000)
    await virtual_clock.advance(4)
    assert ended == []  # not known to be lost yet
    await virtual_clock.advance(4)
    assert [(at - began) <= timedelta(seconds=8) for at in ended] == [True]
    assert {phase for _, phase in errors} == {"queue"}


async def test_a_renewal_that_fails_for_a_moment_is_tried_again(make, queue, errors):  # Q7 Q8
    work = make(nap, visibility=6, on_error=errors)
    queue.plan.fail("extend", 3)
    assert await work.run(nap(30)) == "slept"
    assert work.stats()["nap"]["started"] == 1
    assert [phase for _, phase in errors] == ["queue"] * 3


async def test_a_stale_worker_cannot_overwrite_the_winner(make, queue, virtual_clock):  # Q8 Q10
    release = asyncio.Event()

    @define_work("twice")
    async def twice(ctx: WorkContext, log: list[int] = []) -> str:  # noqa: B006
        log.append(1)
        if len(log) == 1:
            try:
                await release.wait()
            except asyncio.CancelledError:
                return "loser"  # swallows that its lease was lost
        return "winner"

    one = make(twice, visibility=6, start_after=0)
    handle = await one.enqueue(twice())
    await virtual_clock.advance(0.5)
    queue.plan.fail("extend", 10_000)
    two = make(twice)
    await virtual_clock.advance(8)
    await one.stop(drain=0)
    queue.plan.heal()
    await two.start()
    assert await handle.result() in ("winner", "loser")
    first = (await handle.state()).result
    await virtual_clock.advance(60)
    assert (await handle.state()).result == first
    settled = [s.stats().get("twice", {}).get("succeeded", 0) for s in (one, two)]
    assert sum(settled) == 1
    (record,) = await one.store.inner.read([f"work:item:{handle.id}"])
    assert record.count("open") == 0


async def test_a_payload_that_kills_its_workers_dies_after_its_attempts(
    make, queue, virtual_clock
):  # Q3
    """A worker that dies leaves its message leased, and a record that says running."""
    started = []

    @define_work("poison", retry=Retry(attempts=3))
    async def poison(ctx: WorkContext) -> None:
        started.append(ctx.attempt)
        await sleep(10_000)

    handle = None
    for _ in range(8):
        work = make(poison, visibility=30)
        handle = handle or await work.enqueue(poison())
        await work.start()
        await virtual_clock.advance(40)
        if (await handle.state()).status == "dead":
            break
        _kill(work)
        await virtual_clock.advance(31)
    with pytest.raises(WorkFailedError, match="worker died"):
        await handle.result()
    assert started == [1, 2, 3]
    letters = await make(poison).dead_letters()
    assert [letter.id for letter in letters] == [handle.id]


def _kill(work: Any) -> None:
    """Let a system vanish as a killed process does: nothing of it goes on."""
    engine = work._engine
    engine.started = False
    engine.scheduler._tasks = getattr(engine.scheduler, "_tasks", None)
    for poller in engine._pollers.values():
        poller._task.cancel()
    engine._pollers = {}
    engine.heart._beating.clear()
    engine.heart._fresh.clear()
    for active in engine.intake.actives:
        active.abandoned = True
        active.task.cancel()
    engine.watchdog.close()


async def test_an_untracked_payload_that_kills_its_workers_dies_too(
    make, queue, virtual_clock
):  # Q3
    @define_work("poison", track="none")
    async def poison() -> None:
        raise AssertionError("must not run again")

    work = make(poison, auto_start=False)
    await work.enqueue(poison())
    for _ in range(20):
        assert await queue.inner.pop(1, 1, 0)
        await virtual_clock.advance(1.5)
    await work.start()
    await virtual_clock.advance(1)
    assert [letter.reason for letter in await work.dead_letters()] == [
        "WorkerLostError: worker died"
    ]


# ---- cancel, timeout -----------------------------------------------------------------------------


async def test_a_waiting_work_is_cancelled_at_once_and_never_runs(
    make, queue, events, virtual_clock
):  # Q10
    work = make(nap, on_event=events)
    handle = await work.enqueue(nap(1), delay=60)
    assert await handle.cancel() is True
    assert (await handle.state()).status == "cancelled"
    with pytest.raises(WorkCancelledError, match=handle.id):
        await handle.result()
    assert await handle is None
    assert await handle.cancel() is False
    await virtual_clock.advance(120)
    assert await queue.size() == 0
    assert "started" not in events.kinds
    assert events.kinds.count("cancelled") == 1


async def test_a_work_that_waits_for_a_place_is_cancelled_and_never_runs(
    make, virtual_clock
):  # Q10
    ran = []

    @define_work("note")
    async def note(n: int) -> None:
        ran.append(n)
        await sleep(5)

    work = make(note, doer=balanced_doer(max=1, buffer=5))
    first, second = await work.enqueue(note(1)), await work.enqueue(note(2))
    await virtual_clock.advance(1)
    assert await second.cancel() is True
    await first.result()
    await virtual_clock.advance(20)
    assert ran == [1]
    assert (await second.state()).status == "cancelled"


@pytest.mark.parametrize("in_process", [True, False])
async def test_a_queued_work_cancelled_before_a_worker_starts_never_runs(
    make, virtual_clock, in_process
):  # Q10
    ran = []

    @define_work("note")
    async def note() -> None:
        ran.append(1)

    elsewhere = MemoryQueue(capabilities=Capabilities(in_process=in_process))
    producer = make(note, queue=elsewhere, auto_start=False)
    handle = await producer.enqueue(note())
    await virtual_clock.advance(10)
    assert await producer.handle(handle.id).cancel()
    worker = make(note, queue=elsewhere)
    await worker.start()
    await virtual_clock.advance(10)
    assert ran == []
    assert await elsewhere.size() == 0
    assert (await handle.state()).status == "cancelled"


async def test_a_queued_work_cancelled_behind_a_backlog_never_runs(make, virtual_clock):  # Q10
    ran = []

    @define_work("note")
    async def note(n: int) -> None:
        ran.append(n)
        await sleep(1)

    producer = make(note, auto_start=False)
    worker = make(note, doer=balanced_doer(max=1, buffer=0))
    await worker.start()
    handles = await producer.enqueue_many([note(n) for n in range(3)])
    await virtual_clock.advance(0.5)
    assert await handles[1].cancel()
    await handles[2].result()
    assert ran == [0, 2]


async def test_a_work_cancelled_between_two_attempts_runs_no_more(make, virtual_clock):  # Q10
    ran = []

    @define_work("fails", retry=Retry(base=10, jitter=0))
    async def fails(ctx: WorkContext) -> None:
        ran.append(ctx.attempt)
        raise ValueError("no")

    work = make(fails)
    handle = await work.enqueue(fails())
    await virtual_clock.advance(5)
    assert await handle.cancel()
    await virtual_clock.advance(60)
    assert ran == [1]
    assert (await handle.state()).status == "cancelled"


@pytest.mark.parametrize("from_elsewhere", [False, True])
async def test_a_running_work_is_cancelled_by_its_handler(
    make, virtual_clock, from_elsewhere
):  # Q10
    ended = []

    @define_work("long")
    async def long(ctx: WorkContext) -> None:
        try:
            await sleep(100)
        except asyncio.CancelledError:
            ended.append((virtual_clock.now(), ctx.cancelled))
            raise

    one = make(long)
    two = make(long, auto_start=False)
    handle = await one.enqueue(long())
    await virtual_clock.advance(3)
    began = virtual_clock.now()
    asked = two.handle(handle.id) if from_elsewhere else handle
    assert await asked.cancel() is True
    with pytest.raises(WorkCancelledError):
        await handle.result()
    assert [(at - began, asked) for at, asked in ended] == [(timedelta(0), True)]
    assert (await handle.state()).status == "cancelled"


async def test_a_cancel_whose_notice_is_lost_comes_with_the_next_heartbeat(
    make, pubsub, virtual_clock
):  # Q10
    one, two = make(nap), make(nap, auto_start=False)
    handle = await one.enqueue(nap(100))
    await virtual_clock.advance(3)
    pubsub.drops = True
    assert await two.handle(handle.id).cancel() is True
    began = virtual_clock.now()
    with pytest.raises(WorkCancelledError):
        await handle.result()
    assert (virtual_clock.now() - began).total_seconds() <= 13


async def test_a_work_that_has_ended_or_is_unknown_is_not_cancelled(make):  # Q10
    work = make(add)
    handle = await work.enqueue(add(1, 2))
    assert await handle.result() == 3
    assert await handle.cancel() is False
    assert await work.cancel("unknown") is False
    assert (await handle.state()).result == 3


async def test_a_handler_that_is_cancelled_and_swallows_it_is_given_up(make, virtual_clock):  # Q10
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
    began = virtual_clock.now()
    assert await handle.cancel()
    with pytest.raises(WorkCancelledError):
        await handle.result()
    assert (virtual_clock.now() - began).total_seconds() == pytest.approx(1, abs=0.1)
    assert work.active() == []
    release.set()
    await virtual_clock.advance(1)
    assert (await handle.state()).status == "cancelled"
    assert work.stats()["stubborn"].get("succeeded", 0) == 0


@pytest.mark.parametrize("swallows", ["no", "returns", "raises", "goes on"])
async def test_a_timeout_stops_a_handler_and_spends_an_attempt(
    make, virtual_clock, swallows
):  # Q10
    attempts = []
    release = asyncio.Event()

    @define_work("slow", timeout=2, retry=Retry(attempts=2, base=0))
    async def slow(ctx: WorkContext) -> str:
        attempts.append(ctx.attempt)
        assert ctx.remaining() == 2
        try:
            await sleep(1000)
        except asyncio.CancelledError:
            if swallows == "returns":
                return "late"
            if swallows == "raises":
                raise RuntimeError("while ending") from None
            if swallows == "goes on":
                await release.wait()
            else:
                raise
        return "done"

    work = make(slow)
    handle = await work.enqueue(slow())
    began = virtual_clock.now()
    with pytest.raises(WorkFailedError, match=r"^TimeoutError: timed out after 2 s$"):
        await handle.result()
    assert attempts == [1, 2]
    took = (virtual_clock.now() - began).total_seconds()
    assert took == pytest.approx(6 if swallows == "goes on" else 4, abs=0.1)
    assert work.active() == []
    release.set()
    await virtual_clock.advance(1)


async def test_a_timeout_stops_a_thread(make, virtual_clock):  # Q10
    @define_work("busy", timeout=0.05, retry=Retry(attempts=1))
    def busy() -> None:
        while True:
            pass

    work = make(busy)
    with (
        virtual_clock.real_pace(),
        pytest.raises(WorkFailedError, match=r"timed out after 0\.05 s"),
    ):
        await work.run(busy())


async def test_a_timeout_stops_a_batch(make):  # Q10
    @define_batch_work("slow", size=2, max_wait=0.1, timeout=2, retry=Retry(attempts=1))
    async def slow(numbers: list[int]) -> list[int]:
        await sleep(100)
        return numbers

    work = make(slow)
    handles = await work.enqueue_many([slow(1), slow(2)])
    for handle in handles:
        with pytest.raises(WorkFailedError, match="timed out after 2 s"):
            await handle.result()


async def test_nothing_grows_with_the_number_of_works(make, virtual_clock):  # Q6
    work = make(add, nap, result_ttl=10)
    sizes = []
    for _ in range(3):
        handles = await work.enqueue_many([add(n, n) for n in range(200)])
        await handles.results()
        waiting = [await work.enqueue(nap(1), delay=1) for _ in range(20)]
        await asyncio.gather(*(h.cancel() for h in waiting))
        await virtual_clock.advance(30)
        sizes.append(_reachable(work))
    assert sizes[2] <= sizes[1] + 20
    assert await work.list() == []


def _reachable(work: Any) -> int:
    """How many entries the engine's own collections have."""
    import gc

    from piecework.engine.active import Active
    from piecework.envelope import Envelope

    gc.collect()
    engine = work._engine
    own = sum(isinstance(o, Active) for o in gc.get_objects())
    held = sum(len(v) for part in vars(engine).values() for v in _collections(part))
    return own + held + sum(isinstance(o, Envelope) for o in gc.get_objects())


def _collections(part: Any) -> list[Any]:
    names = getattr(part, "__dict__", {})
    return [v for v in names.values() if isinstance(v, (dict, set, list))]
