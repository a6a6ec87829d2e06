"""Heartbeats: the leases of all works that this process holds, renewed together.

A renewal that fails means that nothing is known: it is tried again until the lease's own end,
counted from when the last good one was sent. A lease that is really lost cancels its handler.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from piecework.clock import sleep
from piecework.counters import CANCEL
from piecework.ledger import WriteConflictError

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.ports import EngineQueue
    from piecework.ports.store import Record


class Heart:
    """Renews leases, writes long works down as running, and notices what was lost or cancelled.

    Works that are due soon are renewed with those that are due now, so that a thousand works make
    one call per queue. With nothing held there is no timer.

    Args:
        core: The shared parts.
        lost: Called for a work whose lease is lost.
    """

    def __init__(self, core: Core, lost: Callable[[Active], None]) -> None:
        self._core = core
        self._lost = lost
        # Works in the order in which they are due: all wait equally long, so the oldest is first.
        self._fresh: dict[Active, float] = {}
        self._beating: dict[Active, float] = {}
        #: Works with a renewal under way, and the future that tells when it has been answered.
        self._waiting: dict[Active, asyncio.Future[None]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def held(self) -> Iterable[Active]:
        """The works whose leases are renewed."""
        return self._beating

    def enter(self, active: Active) -> None:
        """Renew the lease of a work from now on."""
        now = asyncio.get_running_loop().time()
        settings = self._core.settings
        if active.lease is not None:
            active.good_until = now + settings.visibility
        self._beating[active] = now + settings.heartbeat
        if self._timer is None:
            self._set_timer()

    def watch_start(self, active: Active) -> None:
        """Write the work down as running if its handler takes longer than ``start_after``."""
        if active.env.track != "full" or active.traced:
            return
        self._fresh[active] = asyncio.get_running_loop().time() + self._core.settings.start_after
        due = self._fresh[active]
        if self._timer is None or due < self._timer.when():
            self._set_timer()

    def end_writes(self, active: Active) -> asyncio.Future[None] | None:
        """Write nothing more to the record of a work; give what is under way, to wait for."""
        self._fresh.pop(active, None)
        active.settling = True
        return active.writing

    async def leave(self, active: Active) -> None:
        """End the beats of a work; none is under way when this returns."""
        beat = self.end_beats(active)
        if beat is not None:
            await asyncio.wait([beat])

    def end_beats(self, active: Active) -> asyncio.Future[None] | None:
        """Start no more beats of a work; give the one that is under way, to wait for."""
        self._fresh.pop(active, None)
        self._beating.pop(active, None)
        return self._waiting.get(active) if self._waiting else None

    async def close(self) -> None:
        """End all beats."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._fresh.clear()
        self._beating.clear()
        for task in list(self._tasks):
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # ---- timing --------------------------------------------------------------------------------

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        due = [next(iter(line.values())) for line in (self._fresh, self._beating) if line]
        if due:
            self._timer = asyncio.get_running_loop().call_at(min(due), self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        now = loop.time()
        settings = self._core.settings
        starting = self._due(self._fresh, now + min(0.25 * settings.start_after, 0.1))
        renewing = self._due(self._beating, now + 0.25 * settings.heartbeat)
        for active in starting:
            self._spawn(self._trace(active))
        by_queue: dict[EngineQueue, list[Active]] = {}
        for active in renewing:
            self._beating[active] = now + settings.heartbeat
            by_queue.setdefault(active.queue, []).append(active)
        for queue, actives in by_queue.items():
            self._spawn(self._beat(queue, actives))
        self._set_timer()

    @staticmethod
    def _due(line: dict[Active, float], until: float) -> list[Active]:
        due: list[Active] = []
        for active, when in line.items():
            if when > until:
                break
            due.append(active)
        for active in due:
            del line[active]
        return due

    def _spawn(self, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._spawned)

    def _spawned(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._core.hooks.report(error, "queue", "a heartbeat failed")

    # ---- beats ---------------------------------------------------------------------------------

    async def _beat(self, queue: EngineQueue, actives: list[Active]) -> None:
        leased = [a for a in actives if a.lease is not None and a in self._beating]
        if leased and not await self._extend(queue, leased):
            return
        for active in actives:
            if active.traced and not active.settling and active in self._beating:
                await self._trace(active)

    async def _extend(self, queue: EngineQueue, actives: list[Active]) -> bool:
        loop = asyncio.get_running_loop()
        visibility = self._core.settings.visibility
        pause = min(1.0, visibility / 10)
        while actives:
            sent = loop.time()
            # A call that never answers must not outlive the lease; one try is made in any case.
            limit = max(min(a.good_until for a in actives), sent + pause)
            try:
                async with asyncio.timeout_at(limit):
                    lost = await self._renew(queue, actives)
            except Exception as error:  # noqa: BLE001 - nothing is known: try until the lease ends
                self._core.hooks.report(error, "queue", "renewing leases failed")
                soonest = min(a.good_until for a in actives) - loop.time()
                await sleep(max(0.0, min(pause, soonest)))
                now = loop.time()
                for active in [a for a in actives if a.good_until <= now]:
                    self._lose(active)
                actives = [a for a in actives if a.good_until > now and a in self._beating]
                continue
            for active in actives:
                if id(active.lease) in lost:
                    self._lose(active)
                else:
                    active.good_until = sent + visibility
            return True
        return False

    async def _renew(self, queue: EngineQueue, actives: list[Active]) -> set[int]:
        """One renewal; gives the identities of the leases that are lost."""
        answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        for active in actives:
            self._waiting[active] = answered
        try:
            leases = [a.lease for a in actives if a.lease is not None]
            return set(map(id, await queue.extend(leases, self._core.settings.visibility)))
        finally:
            answered.set_result(None)
            for active in actives:
                self._waiting.pop(active, None)

    async def _trace(self, active: Active) -> None:
        """Write the work down as running, or renew what is written; see a request to cancel."""
        if active.settling or active.run_at is None or active.writing is not None:
            return  # one write at a time: a second one would meet the first as somebody else's
        active.writing = asyncio.get_running_loop().create_future()
        try:
            record = await self.write_running(active)
        except WriteConflictError:
            self._lose(active)
        except Exception as error:  # noqa: BLE001 - the next beat writes it
            self._core.hooks.report(error, "commit", f"noting that {active.env.id} runs failed")
        else:
            if record.count(CANCEL) > 0:
                active.interrupt("cancel", self._core.settings.cancel_grace)
        finally:
            active.writing.set_result(None)
            active.writing = None

    async def note(self, active: Active) -> None:
        """Renew what is written of a running work now, with its progress."""
        if active.traced and active.writing is None:
            await self._trace(active)

    async def write_running(self, active: Active) -> Record:
        """Write the work down as running until its lease ends.

        Raises:
            WriteConflictError: Somebody else has changed the record.
        """
        core = self._core
        now = core.clock.now_ms()
        record = await core.ledger.start(
            active.env,
            active.body,
            writer=active.writer,
            run_at=active.run_at if active.run_at is not None else now,
            lease_until=now + round(core.settings.visibility * 1000),
            progress=active.progress,
        )
        active.env = active.env._replace(version=record.version)
        active.traced = True
        return record

    def _lose(self, active: Active) -> None:
        if active not in self._beating:
            return
        self._beating.pop(active, None)
        self._fresh.pop(active, None)
        self._lost(active)
