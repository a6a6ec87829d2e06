"""Batches: works that are queued one by one and done together."""

from __future__ import annotations

from typing_extensions import override

from piecework.clock import sleep
from piecework.define import define_batch_work
from piecework.testing.simulation.workload import Stage, Workload, world
from piecework.testing.simulation.workloads.lone import PATIENT


@define_batch_work("sim batch", size=4, max_wait=0.5, retry=PATIENT)
async def batch(names: list[str]) -> list[str | Exception]:
    """Does several; those that are marked fail the first time, alone."""
    done: list[str | Exception] = []
    for name in names:
        first = world().started(name) == 1
        done.append(ValueError("not yet") if first and name.endswith("!") else name)
    if len(names) == 3 and world().started("a whole batch") == 1:
        raise ValueError("all of them")
    await sleep(0.3)
    return done


class Batches(Workload):
    """Works of a batch type, with outputs that fail alone and a batch that fails whole."""

    types = (batch,)

    @override
    async def produce(self, stage: Stage) -> None:
        draw = stage.random
        count = stage.once("count", lambda: draw.choice((1, 3, 4, 9)))
        names = [f"{stage.name}-{n}{'!' if n % 3 == 1 else ''}" for n in range(count)]
        works = stage.once("works", lambda: [batch(name) for name in names])
        handles = await stage.enqueue_many(works)
        for name, handle in zip(names, handles, strict=True):
            stage.expect(handle.id, result=name)
            if draw.random() < 0.3:
                stage.wait_for(handle)
