"""Groups: works that queue works, to any depth, also in their last moment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from piecework.clock import sleep
from piecework.context import WorkContext  # noqa: TC001 - the annotation is read
from piecework.define import define_work
from piecework.signals import WorkDelayError
from piecework.testing.simulation.workload import Stage, Workload, world
from piecework.testing.simulation.workloads.lone import PATIENT, hopeless, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from piecework.testing.simulation.book import Book

#: Two siblings, their parent, and the two late children of one of them.
_FAMILY = 5


@define_work("sim tree", retry=PATIENT)
async def tree(ctx: WorkContext, name: str, depth: int, width: int) -> str:
    """Queues the next level, now and then before it fails or puts itself off."""
    runs = world().started(name)
    kind = (depth * 7 + width + len(name)) % 4
    if depth:
        children = [tree(f"{name}.{n}", depth - 1, width) for n in range(width)]
        if kind == 0:
            await ctx.queue(children)
        else:
            ctx.queue(children)
    if kind == 1 and ctx.attempt == 1:
        raise ValueError("after the children were queued")
    if kind == 2 and runs == 1:
        raise WorkDelayError(delay=1.0)
    if kind == 3:
        await sleep(1.5)
    if depth and name.count(".") == 0:
        await ctx.set_result(f"all of {name}")
    return name


@define_work("sim last words", retry=PATIENT)
async def last_words(ctx: WorkContext, name: str) -> str:
    """Queues a child in its last line, while its sibling settles."""
    world().started(name)
    await sleep(0.01)
    ctx.queue([plain(f"{name}.late"), hopeless(f"{name}.bad")])
    return name


@define_work("sim two siblings", retry=PATIENT)
async def two_siblings(ctx: WorkContext, name: str) -> str:
    """Queues two children, one of which has late children."""
    world().started(name)
    await ctx.queue([last_words(f"{name}.a"), plain(f"{name}.b", 0.01)])
    return name


class Families(Workload):
    """Trees of works, and somebody who waits for the whole group."""

    types = (tree,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        depth = stage.once("depth", lambda: draw.choice((1, 2, 3)))
        width = stage.once("width", lambda: draw.choice((1, 2, 3)) if depth < 3 else 2)
        work = stage.once("work", lambda: tree(stage.name, depth, width))
        group = f"all of {stage.name}"
        handle = await stage.enqueue(work, result=stage.name, group=group)
        if draw.random() < 0.7:
            stage.wait_for(handle, group=True)


class LateChildren(Workload):
    """Children that come when the group looks as if it were over; some of them die."""

    types = (last_words, two_siblings, plain, hopeless)

    @override
    async def produce(self, stage: Stage) -> None:
        work = stage.once("work", lambda: two_siblings(stage.name))
        handle = await stage.enqueue(work, result=stage.name)
        stage.facts["root"] = handle.id
        if stage.random.random() < 0.5:
            stage.wait_for(handle, group=True)

    @override
    def check(self, stage: Stage, book: Book) -> Iterable[str]:
        family = book.groups.get(stage.facts.get("root", ""), {})
        if family and len(family) != _FAMILY:
            yield f"other-children: {len(family)} works in the group, not {_FAMILY}"
