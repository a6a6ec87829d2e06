"""Fan-in: works that start once others have ended, whichever way those end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from typing_extensions import override

from piecework.context import WorkContext  # noqa: TC001 - the annotation is read
from piecework.define import define_work
from piecework.dependency import dependency
from piecework.gates import judge
from piecework.testing.simulation.workload import ENDED, Stage, Workload, world
from piecework.testing.simulation.workloads.families import last_words
from piecework.testing.simulation.workloads.lone import (
    PATIENT,
    deferring,
    flaky,
    hopeless,
    plain,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from random import Random

    from piecework.definitions import Work
    from piecework.testing.simulation.book import Book

_CONDITIONS: tuple[Any, ...] = (
    "all-done",
    "all-success",
    {"count": 1, "of": "success"},
    {"count": 2, "of": "success"},
    {"count": 1, "of": "done"},
    {"count": 0},
)


@define_work("sim report", retry=PATIENT)
async def report(ctx: WorkContext, name: str, members: int) -> int:
    """Runs after a gate, and looks at what it waited for."""
    world().started(name)
    if len(ctx.upstream) != members:
        world().wrong("wrong-upstream", f"{name} sees {len(ctx.upstream)}, not {members}")
    await ctx.states(ctx.upstream)
    return members


@define_work("sim gate opener", retry=PATIENT)
async def gate_opener(ctx: WorkContext, name: str, kinds: list[str], when: Any, fails: bool) -> str:
    """Opens a gate; perhaps fails then, and opens the same one again."""
    world().started(name)
    works = [_member(kind, f"{name}.{n}") for n, kind in enumerate(kinds)]
    await ctx.queue(works, then=[report(f"{name}.then", len(kinds))], when=when)
    if fails and ctx.attempt == 1:
        raise ValueError("after the gate was opened")
    return name


def _member(kind: str, name: str) -> Work[Any]:
    if kind == "hopeless":
        return hopeless(name)
    if kind == "flaky":
        return flaky(name, 1)
    if kind == "deferring":
        return deferring(name, 1, 2.0)
    if kind == "parent":
        return last_words(name)
    return plain(name, 0.2)


def _draw_members(draw: Random) -> list[str]:
    kinds = ("plain", "plain", "plain", "flaky", "deferring", "parent", "hopeless")
    return [draw.choice(kinds) for _ in range(draw.choice((0, 1, 2, 3, 5)))]


_TYPES = (report, gate_opener, plain, hopeless, flaky, deferring, last_words)


class Gates(Workload):
    """Gates over works that are enqueued in one call, with every condition."""

    types = _TYPES

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        kinds = stage.once("kinds", lambda: _draw_members(draw))
        when = stage.once("when", lambda: draw.choice(_CONDITIONS))
        works = stage.once(
            "works", lambda: [_member(kind, f"{stage.name}.{n}") for n, kind in enumerate(kinds)]
        )
        then = stage.once("then", lambda: [report(f"{stage.name}.then", len(kinds))])
        handles = await stage.enqueue_many(works, then=then, when=when)
        for kind, handle in zip(kinds, handles, strict=True):
            stage.expect(handle.id, {"dead"} if kind == "hopeless" else {"success"})
        stage.facts["members"] = [handle.id for handle in handles]
        stage.facts["dependent"] = handles.then[0].id
        if draw.random() < 0.6:
            stage.wait_for(handles.then[0], group=draw.random() < 0.5)

    @override
    def check(self, stage: Stage, book: Book) -> Iterable[str]:
        if "dependent" not in stage.facts:
            return
        statuses = [book.lives[id].status for id in stage.facts["members"]]
        ok = statuses.count("success")
        verdict = judge(
            stage.facts["when"],
            total=len(statuses),
            ok=ok,
            failed=len(statuses) - ok,
            drained=True,
        )
        wanted = "success" if verdict == "fire" else "dead"
        life = book.lives.get(stage.facts["dependent"])
        found = "absent" if life is None else life.status
        if found != wanted:
            yield f"wrong-gate: {stage.facts['when']} over {statuses}: dependent is {found}"


class GatesInHandlers(Workload):
    """Gates that a handler opens, also one that fails and opens it again."""

    types = _TYPES

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        kinds = stage.once("kinds", lambda: _draw_members(draw))
        when = stage.once("when", lambda: draw.choice(_CONDITIONS))
        fails = stage.once("fails", lambda: draw.random() < 0.4)
        work = stage.once("work", lambda: gate_opener(stage.name, kinds, when, fails))
        handle = await stage.enqueue(work, result=stage.name)
        if draw.random() < 0.6:
            stage.wait_for(handle, group=True)


class Dependencies(Workload):
    """``dependency(on=[...])`` over works that exist already."""

    types = _TYPES

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        kinds = stage.once("kinds", lambda: _draw_members(draw)[:3])
        works = stage.once(
            "works", lambda: [_member(kind, f"{stage.name}.{n}") for n, kind in enumerate(kinds)]
        )
        handles = await stage.enqueue_many(works)
        for handle in handles:
            stage.expect(handle.id, ENDED)
        after = stage.once("after", lambda: report(f"{stage.name}.then", len(kinds)))
        later = stage.once("later", lambda: dependency(works, after, when="all-done"))
        await stage.enqueue(later)
        stage.expect(after.id)
