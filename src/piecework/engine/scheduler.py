"""Starts, stops and lists the schedules of one system."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Self

from piecework.engine.schedule_run import Fire, Fleet, Report, ScheduleEntry, ScheduleRun

if TYPE_CHECKING:
    from piecework.clock import Clock
    from piecework.occurrences import Recurrence
    from piecework.ports.store import Store

__all__ = ["Fire", "Report", "ScheduleEntry", "Scheduler"]


class Scheduler:
    """Runs the schedules of one system.

    Each occurrence has a work id made of the schedule's name and its time, so firing it twice is
    harmless. A claim in the store makes that rare: the instance that has it fires, then advances
    the schedule's record. A claim is renewed while its holder fires and ends when the holder is
    gone; then another instance fires. A schedule that the store has never seen starts from now.

    Args:
        store: Where the fleet agrees.
        clock: Gives the present; the clocks of a fleet may differ by seconds.
        prefix: Put before all keys; part of the work ids.
        fire: Enqueues the work of an occurrence. It may be called again with the same work id.
        report: Told each error of the store, of ``fire`` or of a ``next`` function; the schedule
            tries again after 1 s, 2 s, 4 s and so on up to 30 s, the others are not held up.
        worker_id: Tells this instance from the others of the fleet.
        claim_ttl: Seconds after which the claim of an instance that is gone ends.
    """

    def __init__(
        self,
        *,
        store: Store,
        clock: Clock,
        prefix: str,
        fire: Fire,
        report: Report,
        worker_id: str,
        claim_ttl: float = 90.0,
    ) -> None:
        self._fleet = Fleet(store, clock, prefix, fire, report, claim_ttl)
        self._worker_id = worker_id
        self._serial = itertools.count(1)
        self._runs: dict[str, ScheduleRun] = {}
        self._tasks: dict[ScheduleRun, asyncio.Task[None]] = {}
        self._started = False

    def add(self, name: str, recurrence: Recurrence, make: object) -> ScheduleEntry:
        """Add a schedule; one of the same name is replaced and goes on from where it was."""
        self.remove(name)
        entry = ScheduleEntry(name, recurrence, make)
        run = self._runs[name] = ScheduleRun(
            self._fleet, entry, f"{self._worker_id}:{next(self._serial)}"
        )
        if self._started:
            self._spawn(run)
        return entry

    def remove(self, schedule: str | ScheduleEntry) -> bool:
        """Stop a schedule of this system; tell whether there was one.

        An occurrence that is being fired is fired to the end. With an entry, a newer schedule of
        the same name stays. The other instances of the fleet and the store's record stay, too.
        """
        name = schedule if isinstance(schedule, str) else schedule.name
        run = self._runs.get(name)
        if run is None or (isinstance(schedule, ScheduleEntry) and run.entry is not schedule):
            return False
        del self._runs[name]
        run.removed = True
        if run in self._tasks and not run.firing:
            self._tasks[run].cancel()
        return True

    def entries(self) -> list[ScheduleEntry]:
        """The schedules of this system, in the order in which they were added."""
        return [run.entry for run in self._runs.values()]

    def start(self) -> None:
        """Begin to fire, in the running event loop. Calling it again does nothing."""
        if self._started:
            return
        self._started = True
        for run in self._runs.values():
            self._spawn(run)

    async def stop(self) -> None:
        """Stop firing; ``start`` may follow. Calling it again, or before ``start``, does nothing.

        An occurrence that is being fired is interrupted and its claim given back: another instance,
        or this one after its next start, fires it.
        """
        self._started = False
        tasks = [task for task in self._tasks.values() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def _spawn(self, run: ScheduleRun) -> None:
        task = asyncio.create_task(run.forever(), name=f"schedule {run.entry.name}")
        self._tasks[run] = task
        task.add_done_callback(lambda _: self._forget(run, task))

    def _forget(self, run: ScheduleRun, task: asyncio.Task[None]) -> None:
        if self._tasks.get(run) is task:
            del self._tasks[run]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fleet.report(error, "queue")
