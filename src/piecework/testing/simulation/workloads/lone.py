"""Works that stand alone: plain, delayed, slow, failing, without a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from piecework.clock import sleep
from piecework.context import WorkContext  # noqa: TC001 - the annotation is read
from piecework.define import define_work
from piecework.handle import WorkHandles
from piecework.retry import Retry
from piecework.signals import RetryAbort, WorkDelayError
from piecework.testing.simulation.workload import ENDED, Stage, Workload, world

if TYPE_CHECKING:
    from collections.abc import Iterable

    from piecework.testing.simulation.book import Book

#: Enough attempts for every crash that a history can hold, since a crash is one.
PATIENT = Retry(attempts=80, base=0.5, factor=1.5, max=5.0, jitter=0.3)


@define_work("sim plain", retry=PATIENT)
async def plain(name: str, pause: float = 0.0) -> str:
    """Returns its name."""
    world().started(name)
    if pause:
        await sleep(pause)
    world().finished[name] += 1
    return name


@define_work("sim flaky", retry=PATIENT)
async def flaky(ctx: WorkContext, name: str, failures: int) -> str:
    """Fails in its first attempts."""
    world().started(name)
    if ctx.attempt <= failures:
        world().plan.by_workload("failure")
        raise ValueError("not yet")
    return name


@define_work("sim hopeless", retry=Retry(attempts=2, base=1.0, jitter=0.0))
async def hopeless(name: str) -> None:
    """Fails always."""
    world().started(name)
    world().plan.by_workload("failure")
    raise ValueError("never")


@define_work("sim giving up", retry=PATIENT)
async def giving_up(name: str) -> None:
    """Says itself that another attempt makes no sense."""
    world().started(name)
    raise RetryAbort("no use")


@define_work("sim deferring", retry=Retry(attempts=80))
async def deferring(name: str, times: int, delay: float) -> str:
    """Puts itself off."""
    if world().started(name) <= times:
        raise WorkDelayError(delay=delay)
    return name


@define_work("sim result only", retry=PATIENT, track="result")
async def result_only(name: str) -> str:
    """Writes nothing but its result."""
    world().started(name)
    return name


@define_work("sim untracked", retry=PATIENT, track="none")
async def untracked(name: str) -> None:
    """Leaves no record."""
    world().started(name)


class Lone(Workload):
    """Plain works, one by one and many at once, whose results somebody waits for."""

    types = (plain,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        count = stage.once("count", lambda: draw.choice((1, 2, 5, 12)))
        together = stage.once("together", lambda: draw.random() < 0.5)
        here = stage.once("here", lambda: draw.random() < 0.15)
        names = [f"{stage.name}-{n}" for n in range(count)]
        works = stage.once("works", lambda: [plain(name) for name in names])
        if together:
            handles = await stage.enqueue_many(works)
            for name, handle in zip(names, handles, strict=True):
                stage.expect(handle.id, result=name)
        else:
            handles = WorkHandles[str]()
            for name, work in zip(names, works, strict=True):
                # One that skips the queue is run here; if this process dies, the sweep finds it.
                handle = await stage.enqueue(work, result=name, skip_queue=here)
                handles.append(handle)
                await sleep(draw.choice((0.0, 0.1, 3.0)))
        for handle in handles:
            if draw.random() < 0.4:
                stage.wait_for(handle, group=draw.random() < 0.3)


class Delayed(Workload):
    """Works for later: over one hop of the queue or several, with a deadline far away."""

    types = (plain, deferring)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        for n in range(stage.once("count", lambda: draw.choice((1, 3)))):
            name = f"{stage.name}-{n}"
            delay = stage.once(f"delay{n}", lambda: draw.choice((0.5, 10.0, 100.0)))
            if stage.once(f"defers{n}", lambda: draw.random() < 0.5):
                times = draw.choice((1, 3))
                work = stage.once(name, deferring, name, times, delay / 2)
                await stage.enqueue(work, result=name)
            else:
                work = stage.once(name, plain, name)
                await stage.enqueue(work, result=name, delay=delay)


class Slow(Workload):
    """Handlers that take longer than a lease, and must be kept by renewals."""

    types = (plain,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        for n in range(stage.once("count", lambda: draw.choice((1, 3)))):
            name = f"{stage.name}-{n}"
            pause = stage.once(f"pause{n}", lambda: draw.choice((2.0, 12.0, 45.0)))
            if pause > 8:
                stage.world.plan.by_workload("slow-handler")
            work = stage.once(name, plain, name, pause)
            handle = await stage.enqueue(work, result=name)
            if draw.random() < 0.5:
                stage.wait_for(handle)


class Retried(Workload):
    """Works that fail: now and then, always, or until they give up."""

    types = (flaky, hopeless, giving_up)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        for n in range(stage.once("count", lambda: draw.choice((1, 2, 4)))):
            name = f"{stage.name}-{n}"
            kind = stage.once(f"kind{n}", lambda: draw.choice(("flaky", "hopeless", "giving up")))
            failures = stage.once(f"failures{n}", lambda: draw.choice((1, 2, 4)))
            if kind == "flaky":
                work = stage.once(name, flaky, name, failures)
                handle = await stage.enqueue(work, result=name)
            else:
                make = hopeless if kind == "hopeless" else giving_up
                handle = await stage.enqueue(stage.once(name, make, name), statuses={"dead"})
            if draw.random() < 0.4:
                stage.wait_for(handle)


class Untracked(Workload):
    """Works that leave a result only, or nothing: they run at least once."""

    types = (result_only, untracked)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        for n in range(stage.once("count", lambda: draw.choice((1, 4)))):
            name = f"{stage.name}-{n}"
            if n % 2:
                work = stage.once(name, untracked, name)
                await stage.enqueue(work, statuses=())
            else:
                work = stage.once(name, result_only, name)
                await stage.enqueue(work, statuses=ENDED, result=name)

    @override
    def check(self, stage: Stage, book: Book) -> Iterable[str]:
        for n in range(stage.facts.get("count", 0)):
            name = f"{stage.name}-{n}"
            if stage.facts.get("produced") and not stage.world.runs[name]:
                yield f"never-ran: {name}"
