"""Schedules: each occurrence is fired once over the fleet, whoever dies in between."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from piecework.clock import sleep
from piecework.testing.simulation.workload import Stage, Workload
from piecework.testing.simulation.workloads.lone import plain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from piecework.system import WorkSystem
    from piecework.testing.simulation.book import Book

_EVERY = 20.0


class Scheduled(Workload):
    """A schedule that every worker of the fleet makes; no occurrence may be left out."""

    types = (plain,)
    patience = 900.0

    @override
    def prepare(self, system: WorkSystem, stage: Stage) -> None:
        """Make the schedule, as each process of the fleet does."""
        if stage.facts.get("ended"):
            return
        handle = system.schedule(
            stage.name, lambda: plain(f"{stage.name} tick"), every=_EVERY, catch_up="all"
        )
        stage.facts.setdefault("handles", []).append(handle)

    @override
    async def produce(self, stage: Stage) -> None:
        while not stage.world.plan.calm:
            await sleep(5.0)
        await sleep(2 * _EVERY + 120.0)  # a claim of a dead process lasts 90 s

    @override
    def calm(self, system: WorkSystem, stage: Stage) -> None:
        """Fire nothing any more."""
        stage.facts["ended"] = True
        for handle in stage.facts.get("handles", []):
            handle.cancel()

    @override
    def check(self, stage: Stage, book: Book) -> Iterable[str]:
        ticks = stage.world.finished[f"{stage.name} tick"]
        if stage.facts.get("produced") and ticks < 3:
            yield f"occurrences-lost: only {ticks} ran"
