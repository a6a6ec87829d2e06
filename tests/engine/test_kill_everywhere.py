"""A process is killed at each of its calls, before and after the effect: all works settle, once.

Every workload runs once whole, to count the calls that its first process makes to queue, store and
pub/sub. Then it runs again for each of these calls, with the process killed there, and a second,
healthy one left to finish. The promises P1 to P4 must hold in every one of these histories.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.support.crash import Switch, Wire, status_of

from piecework import (
    Retry,
    WorkContext,
    WorkDelayError,
    WorkSystem,
    create_metrics,
    create_work,
    define_batch_work,
    define_work,
    dependency,
)
from piecework.clock import sleep
from piecework.record import read_item
from piecework.testing.virtual_clock import VirtualClock

VISIBILITY = 10.0
#: Virtual seconds within which all must be over after the death.
BOUND = 900.0
RETRY = Retry(attempts=6, base=1.0, factor=1.0, jitter=0.0)

#: Which effect comes first where two calls overlap depends on how long each takes.
LAGS: dict[str, dict[str, float]] = {
    "level": {},
    "slow store": {"write": 0.02, "read": 0.01},
    "slow queue": {"push": 0.02, "ack": 0.02, "dead_letter": 0.02},
}

#: One registry for all, since making the series of a type takes longer than running its works.
METRICS = create_metrics()


@dataclass
class World:
    """What the handlers of one history share."""

    runs: Counter[str] = field(default_factory=Counter)
    ended: list[str] = field(default_factory=list)
    flags: dict[str, Any] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)


WORLD = World()


def new_world() -> None:
    for part in (WORLD.runs, WORLD.ended, WORLD.flags, WORLD.events):
        part.clear()


def ran(name: str) -> int:
    WORLD.runs[name] += 1
    return WORLD.runs[name]


@define_work("plain", retry=RETRY)
async def plain(name: str) -> str:
    ran(name)
    WORLD.ended.append(name)
    return name


@define_work("slow", retry=RETRY)
async def slow(name: str) -> str:
    ran(name)
    await sleep(4)
    return name


@define_work("failing twice", retry=RETRY)
async def failing_twice(name: str, ctx: WorkContext) -> str:
    ran(name)
    if ctx.attempt < 3:
        raise ValueError("not yet")
    return name


@define_work("failing for good", retry=Retry(attempts=2, base=1.0, jitter=0.0))
async def failing(name: str) -> None:
    ran(name)
    raise ValueError("never")


@define_work("deferring", retry=RETRY)
async def deferring(name: str) -> str:
    if ran(name) == 1:
        raise WorkDelayError(delay=3)
    return name


@define_work("parent", retry=RETRY)
async def parent(ctx: WorkContext) -> str:
    ran("parent")
    await ctx.queue([plain(name) for name in "abc"])
    await ctx.set_result("family")
    return "parent"


@define_work("nested", retry=RETRY)
async def nested(depth: int, ctx: WorkContext) -> int:
    ran(f"nested {depth}")
    if depth:
        ctx.queue([nested(depth - 1), nested(depth - 1)])
    return depth


@define_work("report", retry=RETRY)
async def report(expected: list[str], ctx: WorkContext) -> list[Any]:
    ran("report")
    missing = [name for name in expected if name not in WORLD.ended]
    assert not missing, f"the gate opened before {missing}"
    assert len(ctx.upstream) == 3
    return [state.status if state else None for state in await ctx.states(ctx.upstream)]


@define_work("gate in a handler", retry=RETRY)
async def with_gate(ctx: WorkContext) -> None:
    ran("with gate")
    await ctx.queue([plain(name) for name in "abc"], then=report(["a", "b", "c"]))


@define_work("failing gate in a handler", retry=RETRY)
async def with_failing_gate(ctx: WorkContext) -> None:
    ran("with gate")
    works = [plain("a"), failing("b"), plain("c")]
    ctx.queue(works, then=report([]), when="all-success")


@define_work("abandoning", retry=Retry(attempts=2, base=1.0, jitter=0.0))
async def abandoning(ctx: WorkContext) -> None:
    """Opens a gate in its first attempt only, and dies."""
    if ran("abandoning") == 1:
        await ctx.queue([plain("a")], then=plain("after"))
    raise ValueError("never")


@define_batch_work("batch", size=3, max_wait=0.05, retry=RETRY)
async def batch(names: list[str]) -> list[str]:
    for name in names:
        ran(name)
    return names


@define_work("revivable", retry=Retry(attempts=1))
async def revivable(name: str) -> str:
    ran(name)
    if not WORLD.flags.get("mended"):
        raise ValueError("broken")
    return name


TYPES = [
    plain,
    slow,
    failing_twice,
    failing,
    deferring,
    parent,
    nested,
    report,
    with_gate,
    with_failing_gate,
    abandoning,
    batch,
    revivable,
]


@dataclass
class History:
    """One run of a workload: the shared ports, its processes, and what was accepted."""

    wire: Wire
    lag: dict[str, float]
    systems: list[WorkSystem] = field(default_factory=list)
    switches: list[Switch] = field(default_factory=list)
    accepted: list[str] = field(default_factory=list)
    may_die: bool = False

    def process(self, name: str, *, kill_at: int | None = None, before: bool = True) -> WorkSystem:
        switch = Switch(name, kill_at=kill_at, before=before, lag=self.lag)
        system = create_work(
            work=TYPES,
            **self.wire.ports(switch),
            visibility=VISIBILITY,
            poll_interval=20,
            random=lambda: 0.5,
            auto_start=False,
            metrics=METRICS,
            on_event=lambda event: WORLD.events.append((event.kind, event.id)),
        )
        self.systems.append(system)
        self.switches.append(switch)
        return system

    def bury(self) -> None:
        for system, switch in zip(self.systems, self.switches, strict=True):
            switch.bury()
            if system._engine is not None:
                system._engine.watchdog.close()


Produce = Callable[[WorkSystem, History], Awaitable[None]]
Check = Callable[[History], None]


@dataclass
class Workload:
    """Works for a fleet, and what must have come of them."""

    produce: Produce
    check: Check
    schedule: bool = False
    #: A child whose parent died between its registration and its push, and which no replay queues
    #: again, is found by the sweep.
    sweep: bool = False


def statuses(history: History) -> Counter[str]:
    return Counter(status_of(r) for r in history.wire.store.works().values())


def all_succeed(*names: str) -> Check:
    def check(history: History) -> None:
        assert set(statuses(history)) == {"success"}, statuses(history)
        assert set(names) <= set(WORLD.runs), WORLD.runs

    return check


# ---- the workloads -------------------------------------------------------------------------------

WORKS: dict[str, Any] = {}


def built(key: str, make: Callable[[], Any]) -> Any:
    """A work of this history: a producer that tries again enqueues the same one."""
    if key not in WORLD.flags:
        WORLD.flags[key] = make()
    return WORLD.flags[key]


def enqueueing(make: Callable[[], Any], **options: Any) -> Produce:
    async def produce(system: WorkSystem, history: History) -> None:
        handle = await system.enqueue(built("work", make), **options)
        history.accepted.append(handle.id)

    return produce


async def produce_many(system: WorkSystem, history: History) -> None:
    works = built("works", lambda: [plain(name) for name in "abc"])
    history.accepted += [h.id for h in await system.enqueue_many(works)]


async def produce_gate(system: WorkSystem, history: History) -> None:
    works = built("works", lambda: [plain(name) for name in "abc"])
    after = built("after", lambda: [report(["a", "b", "c"])])
    handles = await system.enqueue_many(works, then=after)
    history.accepted += [h.id for h in [*handles, *handles.then]]


async def produce_unique(system: WorkSystem, history: History) -> None:
    first = await system.enqueue(built("1", lambda: slow("one")), unique="key")
    history.accepted.append(first.id)
    second = await system.enqueue(built("2", lambda: slow("one")), unique="key")
    history.accepted.append(second.id)


async def produce_batch(system: WorkSystem, history: History) -> None:
    works = built("works", lambda: [batch(name) for name in "abc"])
    history.accepted += [h.id for h in await system.enqueue_many(works)]


async def produce_dependency(system: WorkSystem, history: History) -> None:
    works = built("works", lambda: [plain(name) for name in "abc"])
    history.accepted += [h.id for h in await system.enqueue_many(works)]
    later = built("later", lambda: dependency(works, report(["a", "b", "c"])))
    history.accepted.append((await system.enqueue(later)).id)


async def produce_cancel_waiting(system: WorkSystem, history: History) -> None:
    handle = await system.enqueue(built("work", lambda: plain("a")), delay=60)
    history.accepted.append(handle.id)
    if await system.cancel(handle.id):
        WORLD.flags["cancelled"] = True


async def produce_cancel_running(system: WorkSystem, history: History) -> None:
    handle = await system.enqueue(built("work", lambda: slow("a")))
    history.accepted.append(handle.id)
    await sleep(2)
    await system.cancel(handle.id)


async def produce_redrive(system: WorkSystem, history: History) -> None:
    handle = await system.enqueue(built("work", lambda: revivable("a")))
    history.accepted.append(handle.id)
    while await history.wire.queue.dead.size() == 0 and not WORLD.flags.get("mended"):
        await sleep(1)
    WORLD.flags["mended"] = True
    while await history.wire.queue.dead.size():
        await system.redrive()
        await sleep(VISIBILITY)


def check_cancelled(history: History) -> None:
    if WORLD.flags.get("cancelled"):
        assert statuses(history) == {"cancelled": 1}


def check_failing_gate(history: History) -> None:
    assert "report" not in WORLD.runs
    assert statuses(history) == {"success": 3, "dead": 3}


def check_abandoned(history: History) -> None:
    found = statuses(history)
    assert found["dead"] >= 1, found  # the parent


def check_failed(history: History) -> None:
    assert statuses(history) == {"dead": 1}


def check_scheduled(history: History) -> None:
    works = history.wire.store.works()  # those at 60, 120, ... 300 s; the claim lasts 90 s
    assert statuses(history) == {"success": 5}, {id: r.value for id, r in works.items()}


WORKLOADS: dict[str, Workload] = {
    "lone": Workload(enqueueing(lambda: plain("a")), all_succeed("a")),
    "slow": Workload(enqueueing(lambda: slow("a")), all_succeed("a")),
    "delayed": Workload(enqueueing(lambda: plain("a"), delay=100), all_succeed("a")),
    "many": Workload(produce_many, all_succeed("a", "b", "c")),
    "retry": Workload(enqueueing(lambda: failing_twice("a")), all_succeed("a")),
    "failing": Workload(enqueueing(lambda: failing("a")), check_failed),
    "deferral": Workload(enqueueing(lambda: deferring("a")), all_succeed("a")),
    "children": Workload(enqueueing(parent), all_succeed("parent", "a", "b", "c")),
    "nested": Workload(enqueueing(lambda: nested(2)), all_succeed("nested 0")),
    "gate in a handler": Workload(enqueueing(with_gate), all_succeed("report")),
    "failing gate": Workload(enqueueing(with_failing_gate), check_failing_gate),
    "abandoned gate": Workload(enqueueing(abandoning), check_abandoned, sweep=True),
    "gate": Workload(produce_gate, all_succeed("report")),
    "dependency": Workload(produce_dependency, all_succeed("report")),
    "unique": Workload(produce_unique, all_succeed("one")),
    "batch": Workload(produce_batch, all_succeed("a", "b", "c")),
    "cancel waiting": Workload(produce_cancel_waiting, check_cancelled),
    "cancel running": Workload(produce_cancel_running, lambda _: None),
    "redrive": Workload(produce_redrive, all_succeed("a")),
    "schedule": Workload(lambda *_: sleep(0), check_scheduled, schedule=True),
}


# ---- one history ---------------------------------------------------------------------------------


async def quiet(history: History) -> bool:
    return not history.wire.open_works() and await history.wire.queue.size() == 0


async def until_quiet(history: History, bound: float) -> None:
    for _ in range(int(bound / 5)):
        if await quiet(history):
            return
        await sleep(5)


async def until_over(history: History, workload: Workload) -> None:
    if workload.sweep:
        await until_quiet(history, 120)
        await history.systems[-1].reconcile(older_than=60)
    await until_quiet(history, BOUND)


async def killed_worker(
    workload: Workload, lag: dict[str, float], at: int | None, before: bool
) -> set[int]:
    """A worker is killed at a call; the producer lives, and another worker comes."""
    history = History(Wire(), lag)
    try:
        producer = history.process("producer")
        worker = history.process("worker", kill_at=at, before=before)
        healthy = history.process("healthy")
        if workload.schedule:
            worker.schedule("tick", plain("tick"), every=60)
            healthy.schedule("tick", plain("tick"), every=60)
        await_death = asyncio.ensure_future(history.switches[1].died.wait())
        await worker_start(worker, history.switches[1])
        producing = asyncio.ensure_future(workload.produce(producer, history))
        done = asyncio.ensure_future(settled(history, producing, workload))
        if workload.schedule:
            await healthy.start()  # it watches the occurrences from the start
        await asyncio.wait([await_death, done], return_when=asyncio.FIRST_COMPLETED)
        if history.switches[1].dead:
            await healthy.start()
        await done
        await_death.cancel()
        await check(history, workload, producing)
        return history.switches[1].telling
    finally:
        history.bury()


async def worker_start(worker: WorkSystem, switch: Switch) -> None:
    """A process may die while it starts."""
    starting = asyncio.ensure_future(worker.start())
    dying = asyncio.ensure_future(switch.died.wait())
    await asyncio.wait([starting, dying], return_when=asyncio.FIRST_COMPLETED)
    dying.cancel()


async def settled(history: History, producing: asyncio.Future[None], workload: Workload) -> None:
    if workload.schedule:
        worker = history.switches[1]
        await sleep(190)
        worker.keep_alive()
        await sleep(160)  # the claim of a dead one lasts 90 s
        return
    async with asyncio.timeout(2 * BOUND):
        await producing
        await until_over(history, workload)


async def killed_producer(
    workload: Workload, lag: dict[str, float], at: int | None, before: bool, *, again: bool
) -> set[int]:
    """A producer is killed at a call; with ``again`` another one then does the same."""
    history = History(Wire(), lag)
    try:
        producer = history.process("producer", kill_at=at, before=before)
        worker = history.process("worker")
        await worker.start()
        switch = history.switches[0]
        await_death = asyncio.ensure_future(switch.died.wait())
        producing = asyncio.ensure_future(workload.produce(producer, history))
        await asyncio.wait(
            [await_death, producing], return_when=asyncio.FIRST_COMPLETED, timeout=BOUND
        )
        await_death.cancel()
        if switch.dead and again:
            producing = asyncio.ensure_future(
                workload.produce(history.process("second producer"), history)
            )
            await asyncio.wait([producing], timeout=BOUND)
        await until_quiet(history, BOUND * 2)
        if switch.dead and not again:
            # What nobody was told to be accepted may wait for the sweep.
            waiting = set(history.wire.open_works())
            # (So may what is dead and was being brought back: its letter is there still.)
            lost = waiting & set(history.accepted) - set(history.wire.store.book.reopened)
            assert not lost, f"accepted and lost: {lost}"
            await worker.reconcile(older_than=60)
            await until_quiet(history, BOUND)
            await check(history, None, None)
        else:
            await check(history, workload, producing)
        return switch.telling
    finally:
        history.bury()


async def check(
    history: History, workload: Workload | None, producing: asyncio.Future[None] | None
) -> None:
    if producing is not None:
        assert producing.done(), "the producer waits"
        producing.result()
    store, queue = history.wire.store, history.wire.queue
    book = store.book
    works = store.works()
    assert not book.broken, book.broken
    open_works = history.wire.open_works()
    assert not open_works, f"not terminal: {open_works}"
    assert await queue.size() == 0, "messages are left"
    for id in history.accepted:
        assert id in works, f"{id} was accepted and is gone"
    for id, record in works.items():
        assert book.settles[id] == 1 + book.reopened[id], f"{id} settled {book.settles[id]} times"
        for name in ("open", "members", "hold"):
            assert record.count(name) == 0, f"{name} of {id} is {record.count(name)}"
        if record.count("opened"):
            assert book.group_ends[id] >= 1, f"nobody ended the group {id}"
        item = read_item(record)
        assert item is not None
        if item.header.get("gid", id) == id:
            assert book.emptied[id] == 1 + book.reopened[id], f"{id} was emptied {book.emptied[id]}"
    if workload is not None:
        workload.check(history)


def run(story: Callable[[], Any]) -> set[int]:
    new_world()
    return VirtualClock().run(story())


def every_call(story: Callable[[int | None, bool], Any], *, thorough: bool) -> list[str]:
    """Run a story whole, then killed after (``thorough``: also before) each call it made.

    Returns:
        What went wrong.
    """
    calls = run(lambda: story(None, True))
    wrong: list[str] = []
    for at in sorted(calls):
        for before in (True, False) if thorough else (False,):
            try:
                run(lambda at=at, before=before: story(at, before))
            except (AssertionError, TimeoutError) as error:
                when = "before" if before else "after"
                wrong.append(f"killed {when} call {at}: {type(error).__name__} {error}")
    return wrong


@pytest.fixture(autouse=True)
def no_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, logger="piecework")


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("name", WORKLOADS)
def test_a_worker_may_die_at_any_call(name: str, lag: str) -> None:  # B38
    workload = WORKLOADS[name]
    wrong = every_call(
        lambda at, before: killed_worker(workload, LAGS[lag], at, before),
        thorough=lag != "slow queue",
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("name", [name for name, w in WORKLOADS.items() if not w.schedule])
def test_a_producer_may_die_at_any_call(name: str, lag: str) -> None:
    workload = WORKLOADS[name]
    wrong = every_call(
        lambda at, before: killed_producer(workload, LAGS[lag], at, before, again=False),
        thorough=lag != "slow queue",
    )
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("lag", LAGS)
@pytest.mark.parametrize("name", [name for name, w in WORKLOADS.items() if not w.schedule])
def test_a_producer_that_died_may_be_repeated(name: str, lag: str) -> None:
    workload = WORKLOADS[name]
    wrong = every_call(
        lambda at, before: killed_producer(workload, LAGS[lag], at, before, again=True),
        thorough=lag != "slow queue",
    )
    assert not wrong, "\n".join(wrong)
