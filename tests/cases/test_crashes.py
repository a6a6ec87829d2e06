"""Crashes, redrives and lost messages: the cases B15 to B18."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from tests.cases.conftest import Fleet

from piecework import (
    MemoryQueue,
    Retry,
    WorkContext,
    WorkFailedError,
    create_work,
    define_work,
)
from piecework.clock import sleep
from piecework.ports import Capabilities
from piecework.testing.virtual_clock import VirtualClock

SUPPORT = Path(__file__).parents[1] / "support"


async def test_a_retry_on_an_ordered_queue_keeps_its_place(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B15
    order: list[str] = []

    @define_work("step", retry=Retry(attempts=3, base=5, jitter=0))
    async def step(name: str) -> None:
        order.append(name)
        if order.count("A") == 1 and name == "A":
            raise ValueError("once")

    fleet.shared(Capabilities(ordered=True, max_delay=900))
    systems = await fleet.started(2, step)
    for name in "AB":
        await systems[0].enqueue(step(name), group="g")
    await systems[0].enqueue(step("C"), group="other")
    await virtual_clock.advance(120)
    assert [name for name in order if name != "C"] == ["A", "A", "B"]
    assert order.index("C") <= 1  # another group is not held up
    assert await fleet.wire.queue.size() == 0


async def test_a_work_that_kills_its_workers_is_dead_after_its_attempts(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B16
    starts: list[int] = []

    @define_work("deadly", retry=Retry(attempts=3))
    async def deadly(ctx: WorkContext) -> None:
        starts.append(ctx.attempt)
        fleet.kill(fleet.systems[len(starts)])
        await sleep(3600)

    producer = fleet.system(deadly, auto_start=False)
    handle = await producer.enqueue(deadly())
    for _ in range(5):
        await fleet.started(1, deadly, start_after=0, visibility=10)
        await virtual_clock.advance(60)
    assert starts == [1, 2, 3]
    state = await handle.state()
    assert state.status == "dead"
    assert "worker died" in state.error
    (letter,) = await producer.dead_letters()
    assert "worker died" in letter.reason
    assert fleet.wire.store.book.emptied[handle.id] == 1


async def test_graceful_stops_spend_no_attempt(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B16
    attempts: list[int] = []

    @define_work("long", retry=Retry(attempts=2))
    async def long(ctx: WorkContext) -> None:
        attempts.append(ctx.attempt)
        await sleep(10)

    (system,) = await fleet.started(1, long, visibility=10)
    handle = await system.enqueue(long())
    for _ in range(5):
        await virtual_clock.advance(3)
        await system.stop(0.5)
        await system.start()
    await virtual_clock.advance(30)
    assert attempts == [1] * 6
    state = await handle.state()
    assert (state.status, state.attempt) == ("success", 1)


async def test_a_handler_that_ends_its_worker_process_is_dead_after_its_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # B16
    monkeypatch.syspath_prepend(str(SUPPORT))
    import process_handlers

    starts: list[int] = []
    deadly = define_work(
        "deadly",
        process_handlers.leave,
        executor="process",
        retry=Retry(attempts=3, base=0.001, max=0.001, jitter=0),
    )
    system = create_work(
        work=[deadly],
        on_event=lambda event: starts.append(event.attempt) if event.kind == "started" else None,
    )
    async with system:
        handle = await system.enqueue(deadly(9))
        with pytest.raises(WorkFailedError, match="9"):
            await handle.result(timeout=60)
    assert starts == [1, 2, 3]


async def test_redriven_works_of_a_shared_dlq_return_to_their_own_queues(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B17
    shared = MemoryQueue()
    one, two = MemoryQueue(dead=shared), MemoryQueue(dead=shared)
    attempts: list[tuple[str, int]] = []
    mended = False

    async def handler(name: str, ctx: WorkContext) -> str:
        attempts.append((name, ctx.attempt))
        if not mended:
            raise ValueError("broken")
        return name

    policy = Retry(attempts=2, base=1, jitter=0)
    first = define_work("first", handler, queue=one, retry=policy)
    second = define_work("second", handler, queue=two, retry=policy)
    (system,) = await fleet.started(1, first, second, dlq=shared, redrive_count=0)
    handles = [await system.enqueue(first("1")), await system.enqueue(second("2"))]
    await virtual_clock.advance(30)
    assert [(await h.state()).status for h in handles] == ["dead", "dead"]
    assert await shared.size() == 2
    await system.stop()
    mended = True
    attempts.clear()
    await system.start()
    assert await system.redrive() == 2
    await virtual_clock.advance(30)
    assert sorted(attempts) == [("1", 1), ("2", 1)]
    assert [await h.result(timeout=1) for h in handles] == ["1", "2"]
    states = [await h.state() for h in handles]
    assert [(s.status, s.error, s.attempt) for s in states] == [("success", None, 1)] * 2
    assert [await q.size() for q in (one, two, shared)] == [0, 0, 0]
    book = fleet.wire.store.book
    assert all(book.emptied[h.id] == 2 for h in handles)


async def test_an_idle_worker_brings_a_work_back_only_so_often(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B17
    runs: Counter[str] = Counter()

    @define_work("failing", retry=Retry(attempts=1))
    async def failing() -> None:
        runs["failing"] += 1
        raise ValueError("never")

    letters = MemoryQueue()
    (system,) = await fleet.started(1, failing, dlq=letters, max_redrives=3)
    fleet.wire.queue._dead = letters
    await system.enqueue(failing())
    await virtual_clock.advance(3 * 3600)
    assert runs["failing"] == 4
    assert await letters.size() == 1


@pytest.mark.parametrize("delay", [0.0, 30.0])
async def test_a_work_whose_message_was_lost_is_found_by_the_sweep(
    fleet: Fleet, virtual_clock: VirtualClock, delay: float
) -> None:  # B18
    runs = 0

    @define_work("one")
    async def one() -> str:
        nonlocal runs
        runs += 1
        return "ran"

    system = fleet.system(one, auto_start=False)
    handle = await system.enqueue(one(), delay=delay)
    await virtual_clock.advance(delay)
    queue = fleet.wire.queue
    await queue.ack(await queue.pop(10, 30, 0))
    assert await queue.size() == 0
    await system.start()
    await virtual_clock.advance(3600)
    await system.reconcile(older_than=3000)
    await system.reconcile(older_than=3000)
    await virtual_clock.advance(60)
    assert runs == 1
    assert (await handle.state()).result == "ran"
    assert await queue.size() == 0


async def test_the_sweep_counts_the_crash_of_a_work_whose_message_is_gone(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B16, B18
    attempts: list[int] = []

    @define_work("long", retry=Retry(attempts=3))
    async def long(ctx: WorkContext) -> None:
        attempts.append(ctx.attempt)
        await sleep(5)

    (first,) = await fleet.started(1, long, visibility=10, start_after=0)
    handle = await first.enqueue(long())
    await virtual_clock.advance(1)
    fleet.kill(first)
    await virtual_clock.advance(20)
    queue = fleet.wire.queue
    await queue.ack(await queue.pop(10, 30, 0))
    (second,) = await fleet.started(1, long, visibility=10)
    assert await second.reconcile() == 1
    await virtual_clock.advance(30)
    assert attempts == [1, 2]
    assert (await second.state(handle.id)).status == "success"


async def test_the_sweep_leaves_the_works_of_live_workers_alone(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B18
    runs = 0

    @define_work("long")
    async def long() -> None:
        nonlocal runs
        runs += 1
        await sleep(600)

    systems = await fleet.started(2, long, visibility=10)
    handle = await systems[0].enqueue(long())
    for _ in range(20):
        await virtual_clock.advance(20)
        assert await systems[1].reconcile(older_than=1) == 0
    await virtual_clock.advance(600)
    assert runs == 1
    assert (await handle.state()).attempt == 1
