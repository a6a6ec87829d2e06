"""Works of which there is only one at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from piecework.clock import sleep
from piecework.context import WorkContext  # noqa: TC001 - the annotation is read
from piecework.define import define_work
from piecework.testing.simulation.workload import Stage, Workload, world
from piecework.testing.simulation.workloads.lone import PATIENT, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from piecework.testing.simulation.book import Book


@define_work("sim claiming", retry=PATIENT)
async def claiming(ctx: WorkContext, name: str, key: str) -> bool:
    """Claims a key: one work of all, and the same one however often it runs."""
    world().started(name)
    first = await ctx.claim(key)
    if first:
        world().facts.setdefault(key, []).append(ctx.id)
    return first


class Unique(Workload):
    """The same key, enqueued again and again: one work at a time has it."""

    types = (plain,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        key = f"{stage.name} key"
        for n in range(stage.once("count", lambda: draw.choice((2, 5)))):
            name = f"{stage.name}-{n}"
            pause = stage.once(f"pause{n}", lambda: draw.choice((0.0, 3.0, 12.0)))
            work = stage.once(name, plain, name, pause)
            handle = await stage.enqueue(work, unique=key)
            if draw.random() < 0.3:
                stage.wait_for(handle)
            await sleep(draw.choice((0.0, 0.5, 8.0)))


class UniqueFor(Workload):
    """A key that stays taken for a while: no longer, and no shorter."""

    types = (plain,)

    @override
    async def produce(self, stage: Stage) -> None:
        key = f"{stage.name} key"
        works = stage.once("works", lambda: [plain(f"{stage.name}-{n}") for n in range(2)])
        first = await stage.enqueue(works[0], unique=key, unique_for=5.0)
        stage.once("first", lambda: first.id)
        await sleep(30.0)  # more than five seconds by any clock
        second = await stage.enqueue(works[1], unique=key, unique_for=5.0)
        if second.id == first.id:
            stage.world.wrong("claim-for-ever", f"{key} is still taken by {first.id}")


class Claims(Workload):
    """``ctx.claim``: at most one of several works gets a key, at most once."""

    types = (claiming,)

    @override
    async def produce(self, stage: Stage) -> None:
        count = stage.once("count", lambda: stage.random.choice((2, 4)))
        names = [f"{stage.name}-{n}" for n in range(count)]
        key = f"{stage.name} claim"
        works = stage.once("works", lambda: [claiming(name, key) for name in names])
        for handle in await stage.enqueue_many(works):
            stage.expect(handle.id)

    @override
    def check(self, stage: Stage, book: Book) -> Iterable[str]:
        winners = stage.world.facts.get(f"{stage.name} claim", [])
        if len(winners) > 1:
            yield f"claimed-twice: {sorted(winners)}"
        if not stage.world.plan.rate and not winners:  # a claim may die with whoever made it
            yield "claimed-by-nobody: all of them were told that another one has it"
