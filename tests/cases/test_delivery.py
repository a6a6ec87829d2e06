"""Delays, leases, acks and put-backs: the cases B01 to B10."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from typing import Any

import pytest
from tests.cases.conftest import Fleet

from piecework import (
    BackendError,
    Retry,
    WorkContext,
    balanced_doer,
    create_work,
    define_batch_work,
    define_work,
    memory_backend,
)
from piecework.clock import sleep
from piecework.ports import Capabilities
from piecework.testing.virtual_clock import VirtualClock


async def test_a_delay_longer_than_the_lease_runs_once_and_never_early(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B01
    runs: list[int] = []

    @define_work("late")
    async def late() -> None:
        runs.append(virtual_clock.now_ms())

    fleet.shared(Capabilities(max_delay=1e9))
    first, *_ = await fleet.started(3, late, visibility=30)
    began = virtual_clock.now_ms()
    await first.enqueue(late(), delay=7200)
    await virtual_clock.advance(7199)
    assert runs == []
    assert first.active() == []  # no lease is held while it waits
    await virtual_clock.advance(60)
    assert len(runs) == 1
    assert runs[0] - began >= 7_199_000
    await virtual_clock.advance(7200)
    assert len(runs) == 1


async def test_a_delay_longer_than_the_queue_takes_hops_without_spending_an_attempt(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B01
    runs: list[tuple[float, int]] = []
    began = virtual_clock.now_ms()

    @define_work("late", retry=Retry(attempts=2, base=2000, max=2000, jitter=0))
    async def late(ctx: WorkContext) -> None:
        runs.append(((virtual_clock.now_ms() - began) / 1000, ctx.attempt))
        if len(runs) == 1:
            raise ValueError("once more")

    fleet.shared(Capabilities(max_delay=900))
    first, *_ = await fleet.started(3, late)
    handle = await first.enqueue(late(), delay=7200)
    await virtual_clock.advance(20_000)
    assert [attempt for _, attempt in runs] == [1, 2]
    assert 7199 <= runs[0][0] <= 7210
    assert 9199 <= runs[1][0] <= 9215
    assert (await handle.state()).status == "success"
    assert await fleet.wire.queue.size() == 0


async def test_what_waits_for_a_doer_keeps_its_lease(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B02
    runs: Counter[int] = Counter()

    @define_work("slow")
    async def slow(n: int) -> None:
        runs[n] += 1
        await sleep(20)

    systems = [
        fleet.system(slow, doer=balanced_doer(max=1, buffer=5), visibility=10) for _ in range(2)
    ]
    for system in systems:
        await system.start()
    handles = await systems[0].enqueue_many([slow(n) for n in range(5)])
    await virtual_clock.advance(200)
    assert runs == dict.fromkeys(range(5), 1)
    assert [(await handle.state()).attempt for handle in handles] == [1] * 5


async def test_what_waits_for_its_batch_keeps_its_lease(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B02
    runs: Counter[int] = Counter()

    @define_batch_work("batch", size=10, max_wait=30)
    async def batch(inputs: list[int]) -> None:
        runs.update(inputs)
        await sleep(20)

    systems = await fleet.started(2, batch, visibility=10)
    await systems[0].enqueue_many([batch(n) for n in range(5)])
    await virtual_clock.advance(120)
    assert runs == dict.fromkeys(range(5), 1)


def test_a_handler_that_blocks_its_loop_keeps_its_lease_and_is_named(
    caplog: pytest.LogCaptureFixture,
) -> None:  # B04
    visibility = 0.3
    runs: list[str] = []
    backend = memory_backend()
    over = threading.Event()

    @define_work("blocking")
    async def blocking() -> str:
        runs.append(threading.current_thread().name)
        time.sleep(3 * visibility)  # noqa: ASYNC251 - it blocks the loop on purpose
        return "done"

    async def live(*, produces: bool) -> Any:
        system = create_work(work=[blocking], **backend, visibility=visibility, start_after=0)
        async with system:
            if produces:
                handle = await system.enqueue(blocking())
                result = await handle.result(timeout=10)
                await sleep(visibility)
                over.set()
                return result, (await handle.state()).attempt
            while not over.is_set():
                await sleep(0.02)
        return None

    other = threading.Thread(target=lambda: asyncio.run(live(produces=False)))
    other.start()
    try:
        with caplog.at_level(logging.WARNING, logger="piecework"):
            assert asyncio.run(live(produces=True)) == ("done", 1)
    finally:
        over.set()
        other.join()
    assert len(runs) == 1
    assert any(
        "'blocking'" in r.getMessage() and "blocked" in r.getMessage() for r in caplog.records
    )


async def test_a_failed_renewal_means_unknown_and_is_tried_again(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B05
    runs = 0
    failures = 0

    @define_work("long")
    async def long() -> None:
        nonlocal runs
        runs += 1
        await sleep(60)

    def fail(operation: str) -> None:
        nonlocal failures
        if operation == "extend" and failures < 2:
            failures += 1
            raise BackendError("queue", "extend", "no network")

    systems = await fleet.started(2, long, visibility=9)
    for switch in fleet.switches:
        switch.fail = fail
    handle = await systems[0].enqueue(long())
    await virtual_clock.advance(100)
    assert (runs, failures) == (1, 2)
    state = await handle.state()
    assert (state.status, state.attempt) == ("success", 1)


async def test_a_renewal_that_never_answers_ends_with_the_lease(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B05, B45
    runs: list[str] = []

    @define_work("long", retry=Retry(attempts=3))
    async def long() -> None:
        runs.append("started")
        try:
            await sleep(60)
        except asyncio.CancelledError:
            runs.append("cancelled")
            raise
        runs.append("ended")

    (system,) = await fleet.started(1, long, visibility=9)
    fleet.switches[0].hang_at = {"extend"}
    await system.enqueue(long())
    await virtual_clock.advance(12)
    assert runs[:2] == ["started", "cancelled"]


async def test_a_worker_that_was_frozen_past_its_lease_changes_nothing(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B05
    log: list[str] = []
    names = iter("AB")

    @define_work("long", retry=Retry(attempts=3))
    async def long() -> str:
        name = next(names)
        log.append(f"{name} started")
        try:
            await sleep(12)
        except asyncio.CancelledError:
            log.append(f"{name} cancelled")
            raise
        log.append(f"{name} ended")
        return name

    a, b = fleet.system(long, visibility=10), fleet.system(long, visibility=10)
    await a.start()
    handle = await a.enqueue(long())
    await virtual_clock.advance(1.5)
    fleet.switches[0].freeze()  # as a stopped process, or one without a network
    await b.start()
    await virtual_clock.advance(11)
    fleet.switches[0].thaw()
    await virtual_clock.advance(60)
    assert log == ["A started", "A cancelled", "B started", "B ended"]
    assert await handle.result(timeout=5) == "B"
    book = fleet.wire.store.book
    assert book.settles[handle.id] == 1
    assert book.emptied[handle.id] == 1
    assert not book.broken
    assert (await handle.state()).attempt == 2


async def test_an_ack_that_failed_is_made_again_at_the_next_delivery(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B07
    runs = 0
    failed = 0

    @define_work("quick")
    async def quick() -> None:
        nonlocal runs
        runs += 1

    def fail(operation: str) -> None:
        nonlocal failed
        if operation == "ack" and not failed:
            failed += 1
            raise BackendError("queue", "ack", "no network")

    (system,) = await fleet.started(1, quick, visibility=10)
    fleet.switches[0].fail = fail
    handle = await system.enqueue(quick())
    await virtual_clock.advance(5)
    assert (await handle.state()).status == "success"
    assert await fleet.wire.queue.size() == 1
    await virtual_clock.advance(30)
    assert await fleet.wire.queue.size() == 0
    assert runs == 1
    assert [kind for kind, _ in fleet.events].count("group-done") == 1


async def test_an_enqueue_that_could_not_push_says_so_and_may_be_made_again(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B08
    runs: Counter[int] = Counter()

    @define_work("one")
    async def one(n: int) -> None:
        runs[n] += 1

    failures = 1

    def fail(operation: str) -> None:
        nonlocal failures
        if operation == "push" and failures:
            failures -= 1
            raise BackendError("queue", "push", "1 of 10 messages was refused")

    (system,) = await fleet.started(1, one)
    works = [one(n) for n in range(10)]
    fleet.switches[0].fail = fail
    with pytest.raises(BackendError):
        await system.enqueue_many(works)
    handles = await system.enqueue_many(works)
    await virtual_clock.advance(30)
    assert runs == dict.fromkeys(range(10), 1)
    assert [(await handle.state()).status for handle in handles] == ["success"] * 10


async def test_exhausted_work_reaches_the_dead_letters_once_with_its_reason(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B09
    runs = 0

    @define_work("failing", retry=Retry(attempts=3, base=1, jitter=0))
    async def failing() -> None:
        nonlocal runs
        runs += 1
        raise ValueError("no such card")

    (system,) = await fleet.started(1, failing)
    await system.enqueue(failing())
    await virtual_clock.advance(60)
    letters = await system.dead_letters()
    assert runs == 3
    assert [(one.attempt, one.reason) for one in letters] == [(3, "ValueError: no such card")]
    assert await fleet.wire.queue.size() == 0


@pytest.mark.parametrize("how", ["stop", "accept", "full"])
async def test_a_work_that_is_put_back_spends_no_attempt(
    fleet: Fleet, virtual_clock: VirtualClock, how: str
) -> None:  # B10
    attempts: list[int] = []

    @define_work("one", retry=Retry(attempts=1))
    async def one(ctx: WorkContext) -> None:
        attempts.append(ctx.attempt)
        await sleep(5)

    options: dict[str, Any] = {}
    if how == "accept":
        options["accept"] = lambda info: virtual_clock.now_ms() > began + 60_000
    if how == "full":
        options["doer"] = balanced_doer(max=1, buffer=0)
    began = virtual_clock.now_ms()
    (system,) = await fleet.started(1, one, **options)
    handles = await system.enqueue_many([one(), one()])
    for _ in range(5):
        await virtual_clock.advance(2)
        if how == "stop":
            await system.stop(0)
            await system.start()
    await virtual_clock.advance(120)
    assert set(attempts) == {1}
    assert [(await handle.state()).status for handle in handles] == ["success", "success"]
    if how != "stop":
        assert len(attempts) == 2


async def test_a_work_that_the_queue_moved_away_itself_is_brought_back(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B10
    runs = 0

    @define_work("one")
    async def one() -> str:
        nonlocal runs
        runs += 1
        return "ran"

    system = fleet.system(one, auto_start=False)
    handle = await system.enqueue(one())
    (lease,) = await fleet.wire.queue.pop(1, 30, 0)
    await fleet.wire.queue.dead_letter(lease, "maxReceiveCount")
    await system.start()
    waiting = asyncio.ensure_future(handle.result())
    await virtual_clock.advance(60)
    assert runs == 0
    assert await system.redrive() == 1
    assert await waiting == "ran"
    assert runs == 1
    assert await fleet.wire.queue.dead.size() == 0
