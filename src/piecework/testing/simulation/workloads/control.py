"""What operators do at random moments: cancel, redrive; and works with a deadline."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from piecework.clock import sleep
from piecework.context import WorkContext  # noqa: TC001 - the annotation is read
from piecework.define import define_work
from piecework.retry import Retry
from piecework.testing.simulation.workload import ENDED, Stage, Workload, world
from piecework.testing.simulation.workloads.families import tree
from piecework.testing.simulation.workloads.gates import report
from piecework.testing.simulation.workloads.lone import PATIENT, plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from piecework.testing.simulation.book import Book

_CANCELLED_OR_DONE = frozenset({"cancelled", "success"})


#: Letters that one call looks at: others may die as fast as they are brought back.
_LETTERS = 10


@define_work("sim revivable", retry=Retry(attempts=1))
async def revivable(name: str) -> str:
    """Fails until its cause is mended."""
    world().started(name)
    if name.split(".", maxsplit=1)[0] not in world().facts:
        world().plan.by_workload("failure")
        raise ValueError("broken")
    return name


@define_work("sim revivable family", retry=PATIENT)
async def revivable_family(ctx: WorkContext, name: str, gated: bool) -> str:
    """Has a child that dies and is brought back, counted by a gate or by the group."""
    world().started(name)
    works = [revivable(f"{name}.a"), plain(f"{name}.b", 1.0)]
    if gated:
        await ctx.queue(works, then=[report(f"{name}.then", 2)])
    else:
        await ctx.queue(works)
    return name


class Cancelled(Workload):
    """Works that are cancelled while they wait, while they run, or when it is too late."""

    types = (plain,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        for n in range(stage.once("count", lambda: draw.choice((1, 3)))):
            name = f"{stage.name}-{n}"
            delay = stage.once(f"delay{n}", lambda: draw.choice((0.0, 0.0, 20.0)))
            pause = stage.once(f"pause{n}", lambda: draw.choice((0.0, 5.0, 30.0)))
            work = stage.once(name, plain, name, pause)
            handle = await stage.enqueue(
                work, statuses=_CANCELLED_OR_DONE, result=name, delay=delay
            )
            if draw.random() < 0.5:
                stage.wait_for(handle)
            await sleep(draw.choice((0.0, 1.0, 6.0)) * draw.random())
            stage.world.plan.by_workload("cancel")
            await stage.insist(handle.cancel)


class CancelledGroup(Workload):
    """A tree, any of whose works may be cancelled: the group ends all the same."""

    types = (tree,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        work = stage.once("work", lambda: tree(stage.name, 2, 2))
        handle = await stage.enqueue(work, statuses=_CANCELLED_OR_DONE)
        if draw.random() < 0.5:
            stage.wait_for(handle, group=True)
        for _ in range(3):
            await sleep(draw.choice((0.1, 1.0, 4.0)) * draw.random())
            states = await stage.insist(lambda: stage.system.list("pending", limit=20))
            ids = [state.id for state in states if state.group_id == handle.id]
            for id in [*ids[:1], handle.id][: draw.choice((1, 2))]:
                stage.world.plan.by_workload("cancel")
                await stage.insist(stage.system.handle(id).cancel)


class Deadlines(Workload):
    """Works that must not run after a time."""

    types = (plain,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        for n in range(stage.once("count", lambda: draw.choice((1, 3)))):
            name = f"{stage.name}-{n}"
            delay = draw.choice((0.0, 3.0))
            work = stage.once(name, plain, name, 1.0)
            handle = await stage.enqueue(
                work,
                statuses={"success", "expired"},
                result=name,
                delay=delay,
                deadline=draw.choice((1.0, 10.0, 500.0)),
            )
            if draw.random() < 0.5:
                stage.wait_for(handle)


async def _redrive_until(stage: Stage, ids: list[str]) -> None:
    """Mend the cause, and bring back what is dead until nothing of it is."""
    stage.world.facts[stage.name] = "mended"
    for _ in range(40):
        stage.world.plan.by_workload("redrive")
        if stage.random.random() < 0.5:
            await stage.insist(lambda: stage.system.redrive(ids))
        else:
            await stage.insist(lambda: stage.system.redrive(limit=_LETTERS))
        await sleep(10.0 * stage.random.random())
        states = await stage.insist(lambda: stage.system.states(ids))
        if all(state is not None and state.status == "success" for state in states):
            return


class Redriven(Workload):
    """Dead works that are brought back, perhaps while they are still dying."""

    types = (revivable,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        count = stage.once("count", lambda: draw.choice((1, 2, 4)))
        names = [f"{stage.name}.{n}" for n in range(count)]
        works = stage.once("works", lambda: [revivable(name) for name in names])
        handles = await stage.enqueue_many(works)
        await sleep(draw.choice((0.5, 5.0, 40.0)) * draw.random())
        await _redrive_until(stage, [handle.id for handle in handles])
        for handle in handles:
            stage.expect(handle.id, ENDED)


class RedrivenMember(Workload):
    """A dead child is brought back: its group, or its gate while that is open, counts it again."""

    types = (revivable_family, revivable, plain, report)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        gated = stage.once("gated", lambda: draw.random() < 0.5)
        work = stage.once("work", lambda: revivable_family(stage.name, gated))
        handle = await stage.enqueue(work, result=stage.name)
        if draw.random() < 0.5:
            stage.wait_for(handle, group=True)
        await sleep(draw.choice((0.5, 5.0, 40.0)) * draw.random())
        stage.world.facts[stage.name] = "mended"
        for _ in range(6):
            stage.world.plan.by_workload("redrive")
            await stage.insist(lambda: stage.system.redrive(limit=_LETTERS))
            await sleep(5.0 * draw.random())

    @override
    def check(self, stage: Stage, book: Book) -> Iterable[str]:
        for life in book.lives.values():
            if life.upstream is not None and life.status not in ("success", "dead"):
                yield f"not-terminal: {life.id} is {life.status}"
