"""What must hold when all is over."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from piecework.counters import HOLD, MEMBERS, OPEN, OPENED
from piecework.testing.simulation.book import Violation
from piecework.testing.simulation.loop import host_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from piecework.testing.simulation.book import Life
    from piecework.testing.simulation.host import Host
    from piecework.testing.simulation.run import Simulation


def check_end(simulation: Simulation) -> list[Violation]:
    """Check a history that is over: every promise that only its end can show."""
    return [
        *_nothing_left(simulation),
        *_accepted(simulation),
        *_counts(simulation),
        *_workloads(simulation),
    ]


def _nothing_left(simulation: Simulation) -> Iterator[Violation]:
    for task in simulation.producing.values():
        host = host_of(task)
        if host is not None and not host.up:
            continue
        if not task.done():
            yield Violation("producer-hangs", repr(task))
        elif (error := task.exception()) is not None:
            yield Violation("producer-failed", f"{type(error).__name__}: {error}")
    book = simulation.store.book
    for id in book.open:
        life = book.lives[id]
        yield Violation("not-terminal", f"{id} ({life.type}) is {life.status}")
    if simulation.messages():
        yield Violation("messages-left", f"{simulation.messages()} in the queue")
    if not simulation.is_over() and not book.open and not simulation.messages():
        yield Violation("waiter-hangs", "somebody waits for a result that is there")
    for key in simulation.store.left_over():
        yield Violation("record-for-ever", key)


def _accepted(simulation: Simulation) -> Iterator[Violation]:
    lives = simulation.store.book.lives
    for stage in simulation.stages:
        for id, expected in stage.accepted.items():
            life = lives.get(id)
            if life is None:
                if expected.statuses:
                    yield Violation("lost", f"{id} was accepted by {stage.name} and has no record")
            elif expected.statuses and life.status not in expected.statuses:
                wanted = ", ".join(sorted(expected.statuses))
                yield Violation("wrong-status", f"{id} ({life.type}) {life.status}, not {wanted}")


def _counts(simulation: Simulation) -> Iterator[Violation]:
    store = simulation.store
    for life in store.book.lives.values():
        for name in (OPEN, MEMBERS, HOLD):
            count = store.count_of(life.id, name)
            if count:
                yield Violation("count-not-zero", f"{name} of {life.id} ({life.type}) is {count}")
        if life.registered == 0:
            continue
        if life.settles != 1 + life.reopened and not life.recorded_late:
            yield Violation("settled-twice", f"{life.id} settled {life.settles} times")
        yield from _group(simulation, life)


def _group(simulation: Simulation, life: Life) -> Iterator[Violation]:
    if life.group_id != life.id or life.recorded_late:
        return
    if life.emptied != 1 + max(0, life.refilled - 1):
        yield Violation(
            "group-count", f"{life.id} was emptied {life.emptied}, filled {life.refilled} times"
        )
    if simulation.store.count_of(life.id, OPENED) and life.ends < 1:
        yield Violation("group-not-ended", f"nobody has ended the group {life.id}")
    if life.ends > life.emptied:
        yield Violation("group-ended-twice", f"{life.id}: {life.ends} for {life.emptied}")


def _workloads(simulation: Simulation) -> Iterator[Violation]:
    for workload, stage in zip(simulation.workloads, simulation.stages, strict=True):
        for text in workload.check(stage, simulation.store.book):
            kind, _, rest = text.partition(": ")
            yield Violation(kind, f"{stage.name}: {rest}")


def check_idle(host: Host) -> list[Violation]:
    """Check that the engine of an idle process keeps nothing of the works that went by."""
    assert host.system is not None
    system: Any = host.system
    engine = system._engine  # noqa: SLF001 - what it keeps is nobody's interface
    if engine is None:
        return []
    found: list[Violation] = []
    if engine.intake.count:
        found.append(Violation("leak", f"{host} still holds {engine.intake.count} works"))
    for part, name in (
        (engine.heart, "_fresh"),
        (engine.heart, "_beating"),
        (engine.heart, "_tasks"),
        (engine.heart, "_waiting"),
        (engine.intake, "_by_id"),
        (engine.follow, "_graces"),
    ):
        kept = getattr(part, name)
        if kept:
            found.append(Violation("leak", f"{host}: {type(part).__name__}.{name}: {len(kept)}"))
    return found


def check_stopped(simulation: Simulation) -> list[Violation]:
    """Check that processes that have stopped left no task behind."""
    left = [(host_of(task), task) for task in asyncio.all_tasks(simulation.loop)]
    return [
        Violation("task-left", f"{host}: {task.get_coro()!r}")
        for host, task in left
        if host is not None and host.stopped and not host.dead and not task.done()
    ]
