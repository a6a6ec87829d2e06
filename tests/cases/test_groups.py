"""Groups, gates and busy keys: the cases B34, B35, B38, B39 and B41."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
from tests.cases.conftest import Fleet
from tests.support.crash import Switch, Wire, status_of

from piecework import (
    MemoryQueue,
    Message,
    Retry,
    WorkContext,
    create_metrics,
    create_work,
    define_work,
)
from piecework.clock import sleep
from piecework.ports import Change, Record
from piecework.testing.virtual_clock import VirtualClock

METRICS = create_metrics()


@define_work("leaf")
async def leaf(n: int) -> int:
    return n


@define_work("report")
async def report(ctx: WorkContext) -> int:
    return len(ctx.upstream)


# ---- busy and growing records --------------------------------------------------------------------


async def test_works_that_have_nothing_in_common_share_no_key(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B34
    written: Counter[str] = Counter()
    write = fleet.wire.store.write

    async def noting(changes: Sequence[Change]) -> list[Record]:
        written.update(change.key for change in changes)
        return await write(changes)

    fleet.wire.store.write = noting  # type: ignore[method-assign]
    (system,) = await fleet.started(1, leaf)
    handles = await system.enqueue_many([leaf(n) for n in range(50)])
    await virtual_clock.advance(30)
    assert [await h.result(timeout=1) for h in handles] == list(range(50))
    ids = {handle.id for handle in handles}
    assert {key.removeprefix("work:item:") for key in written} == ids
    assert max(written.values()) <= 3  # register, settle, and the mark of who waits


@pytest.mark.parametrize("gate", [False, True])
async def test_a_record_does_not_grow_with_the_width_of_its_group(
    fleet: Fleet, virtual_clock: VirtualClock, gate: bool
) -> None:  # B35
    width = 10_000

    @define_work("wide")
    async def wide(ctx: WorkContext) -> None:
        works = [leaf(n) for n in range(width)]
        await ctx.queue(works, then=report() if gate else None)

    store = fleet.wire.store
    longest: Counter[str] = Counter()
    write = store.write

    async def measuring(changes: Sequence[Change]) -> list[Record]:
        records = await write(changes)
        for record in records:
            size = len(record.value or "") + len(str(dict(record.counters)))
            longest[record.key] = max(longest[record.key], size)
        return records

    store.write = measuring  # type: ignore[method-assign]
    (system,) = await fleet.started(
        1, wide, leaf, report, start_after=10_000, queue=fleet.wire.queue, store=store
    )
    handle = await system.enqueue(wide())
    await virtual_clock.advance(120)
    assert not fleet.wire.open_works()
    assert len(store.works()) == 1 + width + (2 if gate else 0)
    items = {key: size for key, size in longest.items() if key.startswith("work:item:")}
    assert items[f"work:item:{handle.id}"] < 10_000
    assert max(items.values()) < 10_000
    assert max(longest.values()) < 100_000  # pages of ids
    root = store.works()[handle.id]
    assert (root.count("open"), fleet.wire.store.book.emptied[handle.id]) == (0, 1)
    if gate:
        done = [s async for s in _states(system, "report")]
        assert done == [width]


async def _states(system: Any, name: str) -> Any:
    for state in await system.list("success", type=name, limit=100):
        yield state.result


# ---- duplicates ----------------------------------------------------------------------------------


class DoublingQueue(MemoryQueue):
    """Delivers each message twice."""

    async def push(self, messages: Sequence[Message]) -> None:
        await super().push([m for message in messages for m in (message, message)])


async def test_a_gate_opens_once_though_every_message_comes_twice(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B38
    ended: list[int] = []
    reports: list[int] = []

    @define_work("child", retry=Retry(attempts=3, base=1, jitter=0))
    async def child(n: int, ctx: WorkContext) -> None:
        await sleep(n)
        if ctx.attempt == 1 and n == 2:
            raise ValueError("once")
        ended.append(n)

    @define_work("after")
    async def after() -> None:
        reports.append(len(set(ended)))

    @define_work("parent")
    async def parent(ctx: WorkContext) -> None:
        await ctx.queue([child(n) for n in range(4)], then=after())

    wire = fleet.wire
    wire.queue.__class__ = DoublingQueue
    systems = await fleet.started(2, child, after, parent)
    handle = await systems[0].enqueue(parent())
    await virtual_clock.advance(600)
    assert not wire.open_works()
    assert reports
    assert set(reports) == {4}  # never before the last child
    book = wire.store.book
    assert not book.broken
    assert set(book.settles.values()) == {1}
    assert book.emptied[handle.id] == 1
    assert fleet.events.count(("group-done", handle.id)) == 1
    assert await wire.queue.size() == 0


# ---- how a member of a gate can end --------------------------------------------------------------

ENDS = ["dead", "expired", "cancelled", "worker died", "unknown type", "bad input", "redriven"]
WHENS: list[Any] = ["all-done", "all-success", {"count": 2, "of": "success"}]


@define_work("fine")
async def fine() -> str:
    await sleep(5)
    return "fine"


QUICK: dict[str, Any] = {"visibility": 10, "start_after": 0}


class Gate:
    """Three works and their gate; the second one ends in a chosen way.

    Args:
        fleet: Where they run.
        clock: The time.
        end: How the second one ends.
    """

    def __init__(self, fleet: Fleet, clock: VirtualClock, end: str) -> None:
        self.fleet, self.clock, self.end = fleet, clock, end
        self.mended = False
        self.types = [fine, report, self._member()]
        self.producer = fleet.system(*self.types, auto_start=False, **QUICK)

    def _member(self) -> Any:
        @define_work("unlucky", retry=Retry(attempts=1))
        async def member(how: str) -> str:
            if how == "worker died":
                self.fleet.kill(self.fleet.systems[-1])
                await sleep(1000)
            if how in ("dead", "redriven") and not self.mended:
                raise ValueError("broken")
            return how

        return member

    def second(self) -> Any:
        """The work that does not succeed (at first)."""
        if self.end == "unknown type":
            return stranger()
        if self.end == "bad input":
            return old_member([1, 2])
        work = self.types[-1](self.end)
        if self.end == "expired":
            return work.with_options(delay=3, deadline=2)
        return work.with_options(delay=60) if self.end == "cancelled" else work

    async def live(self, second: Any) -> None:
        """Let them run, and bring about what has to come from outside."""
        if self.end == "cancelled":
            assert await self.producer.cancel(second.id)
        for _ in range(2 if self.end == "worker died" else 1):
            await self.fleet.started(1, *self.types, **QUICK)
            await self.clock.advance(1.5)
            if self.end == "redriven":
                assert (await self.producer.state(second.id)).status == "dead"
                self.mended = True
                assert await self.producer.redrive([second.id]) == 1
            await self.clock.advance(60)
        await self.clock.advance(300)


@define_work("stranger", retry=Retry(attempts=2))
async def stranger() -> None: ...


@define_work("unlucky", retry=Retry(attempts=1))
async def old_member(how: list[int]) -> str: ...


@pytest.mark.parametrize("when", WHENS, ids=["all-done", "all-success", "two"])
@pytest.mark.parametrize("end", ENDS)
async def test_every_way_to_end_reports_to_the_gate(
    fleet: Fleet, virtual_clock: VirtualClock, end: str, when: Any
) -> None:  # B39
    story = Gate(fleet, virtual_clock, end)
    second = story.second()
    works = [fine(), second, fine()]
    handles = await story.producer.enqueue_many(works, then=report(), when=when)
    await story.live(second)

    gate = await handles.gate.state()
    dependent = await handles.then[0].state()
    expected = {"redriven": "success", "expired": "expired", "cancelled": "cancelled"}
    assert (await handles[1].state()).status == expected.get(end, "dead")
    if when == "all-success":
        assert (gate.status, dependent.status) == ("dead", "dead")
        assert second.id in gate.error  # of whom it died
    else:
        assert (gate.status, dependent.status, dependent.result) == ("success", "success", 3)
    await handles[0].group(timeout=5)
    assert not fleet.wire.store.book.broken
    assert not fleet.wire.open_works()
    root = fleet.wire.store.works()[handles.gate.id]
    assert [root.count(name) for name in ("open", "members", "hold")] == [0, 0, 0]


# ---- late children -------------------------------------------------------------------------------


def test_a_grandchild_in_the_last_line_is_always_counted() -> None:  # B41
    for seed in range(1000):
        VirtualClock().run(_interleaving(random.Random(seed)))


async def _interleaving(chance: random.Random) -> None:
    events: list[tuple[str, str, str]] = []

    async def jump() -> None:
        for _ in range(chance.randrange(4)):
            await sleep(0)
        if chance.random() < 0.5:
            await sleep(chance.random() * 0.01)

    @define_work("tree", retry=Retry(attempts=1))
    async def tree(depth: int, n: int, ctx: WorkContext) -> None:
        await jump()
        if depth:
            last = ctx.queue([tree(depth - 1, n) for n in range(2 if depth == 2 else 1)])
            if chance.random() < 0.5:
                await last
        await jump()

    wire = Wire()
    lag = {op: chance.random() * 0.01 for op in ("write", "push", "ack")}
    systems = [
        create_work(
            work=[tree],
            **wire.ports(Switch(lag=lag if chance.random() < 0.7 else None)),
            auto_start=False,
            metrics=METRICS,
            on_event=lambda e: events.append((e.kind, e.id, e.type)),
        )
        for _ in range(2)
    ]
    for system in systems:
        await system.start()
    handle = await systems[0].enqueue(tree(2, 0))
    await sleep(3)
    for system in systems:
        await system.stop(0)
    works = wire.store.works()
    assert Counter(map(status_of, works.values())) == {"success": 5}
    assert not wire.store.book.broken
    assert [id for kind, id, _ in events if kind == "group-done"] == [handle.id]
    assert events[-1][0] == "group-done"
