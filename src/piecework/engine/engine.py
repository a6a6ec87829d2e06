"""The engine: its parts put together for one event loop, started and stopped as one."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from piecework.engine.cancel import Canceller, CancelNote
from piecework.engine.follow import FollowUps
from piecework.engine.gates import GateKeeper
from piecework.engine.heart import Heart
from piecework.engine.intake import Intake
from piecework.engine.invoke import Invoker
from piecework.engine.listing import Listing
from piecework.engine.poller import Poller
from piecework.engine.reconcile import Reconciler
from piecework.engine.redriver import Redriver
from piecework.engine.results import Results
from piecework.engine.runner import Runner
from piecework.engine.scheduler import Scheduler
from piecework.engine.submit import Submitter
from piecework.engine.waiters import Waiters
from piecework.engine.watchdog import Watchdog
from piecework.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.doers import Doer
    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.notices import Notice
    from piecework.engine.ports import EngineQueue
    from piecework.engine.schedule_run import ScheduleEntry
    from piecework.engine.submit import Prepared
    from piecework.state import WorkState

#: Seconds: what a stop may take beyond its drain.
_STOP_GRACE = 0.8


class Engine:
    """All parts of one system on one event loop.

    Args:
        core: The shared parts.
        fire: Enqueues an occurrence of a schedule under its id.
    """

    def __init__(self, core: Core, fire: Callable[[ScheduleEntry, int, str], Any]) -> None:
        self.core = core
        self.loop = asyncio.get_running_loop()
        self.waiters = Waiters(core, self._hear)
        self.heart = Heart(core, self._lost)
        self.results = Results(core, self.waiters, self.heart, self._local_state)
        self.submitter = Submitter(core, self._run_here)
        self.gates = GateKeeper(core, self.submitter, self._publish_done)
        self.follow = FollowUps(core, self.gates, self.results)
        self.gates.group_ended = self.follow.group_may_end
        self.invoker = Invoker(core, self.submitter, self.gates, self.results, self.heart)
        cancels = CancelNote(core)
        self.runner = Runner(core, self.heart, self.invoker, self.follow, self.submitter, cancels)
        self.watchdog = Watchdog(core, self.heart, time.perf_counter)
        self.intake = Intake(core, self.heart, self.runner, self.submitter, self.watchdog)
        self.redriver = Redriver(core, self.submitter)
        self.reconciler = Reconciler(core, self.submitter, self.gates)
        self.canceller = Canceller(core, self.follow, cancels, self.cancel_here)
        self.listing = Listing(core, self.results)
        self.scheduler = Scheduler(
            store=core.store,
            clock=core.clock,
            prefix=core.settings.prefix,
            fire=fire,
            report=lambda error, phase: core.hooks.report(error, phase, "a schedule failed"),
            worker_id=core.worker_id,
            claim_ttl=core.settings.claim_ttl,
        )
        self._pollers: dict[EngineQueue, Poller] = {}
        self._unsubscribe: list[Callable[[], None]] = []
        self._opening: asyncio.Lock = asyncio.Lock()
        self._life: asyncio.Lock = asyncio.Lock()
        self._opened: set[object] = set()
        self._opened_at = -1
        self.started = False
        self.stopped = False

    def _run_here(self, prepared: Prepared) -> None:
        self.intake.run_here(prepared)

    # ---- ports ---------------------------------------------------------------------------------

    async def open(self) -> None:
        """Open the ports, once.

        Raises:
            BackendError: One cannot be used; the text names it and the fix.
        """
        known = self.core.registry.changes
        if self._opened_at == known:
            return
        async with self._opening:
            for port in (self.core.store, self.core.pubsub, *self._queues()):
                if port not in self._opened:
                    await port.open()
                    self._opened.add(port)
            self._opened_at = known

    def _queues(self) -> list[EngineQueue]:
        queues = {self.core.queue: None}
        queues |= dict.fromkeys(entry.queue for entry in self.core.registry)
        if self.core.dead_letters is not None:
            queues[self.core.dead_letters] = None
        return list(queues)

    # ---- start, stop ---------------------------------------------------------------------------

    async def start(self) -> None:
        """Pull, run, and fire schedules from now on. Doing it again does nothing."""
        if self.started:
            return
        async with self._life:  # a stop that is under way ends first
            if self.started:
                return
            await self.open()
            self.waiters.resume()
            if self.core.queue.capabilities.in_process:
                await self.waiters.subscribe()
                self.runner.listening_since = self.core.clock.now_ms()
            self.started = True
            self.stopped = self.intake.stopping = False
            self.refresh()
            self.scheduler.start()

    def refresh(self) -> None:
        """Poll the queues and watch the doers of all registered types."""
        if not self.started:
            return
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        doers = dict.fromkeys(entry.doer for entry in self.core.registry)
        self._unsubscribe = [doer.subscribe(self._room_appeared) for doer in doers]
        for queue in dict.fromkeys(entry.queue for entry in self.core.registry):
            if queue not in self._pollers:
                poller = self._pollers[queue] = Poller(
                    self.core,
                    queue,
                    room=lambda queue=queue: self._room(queue),
                    active=lambda: self.intake.count,
                    hand=self.intake.hand,
                    idle=self.redriver.idle,
                )
                poller.start()
        self._room_appeared()

    async def stop(self, drain: float) -> None:
        """Start nothing, let what runs finish within ``drain`` seconds, give back the rest."""
        async with self._life:
            await self._stop(drain)

    async def _stop(self, drain: float) -> None:
        loop = self.loop
        until = loop.time() + drain
        self.started = False
        self.stopped = self.intake.stopping = True
        await self.scheduler.stop()
        pollers, self._pollers = list(self._pollers.values()), {}
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        self._unsubscribe = []
        stopping = [loop.create_task(poller.stop(drain)) for poller in pollers]
        await self.intake.give_back_unstarted()
        try:
            async with asyncio.timeout_at(until):
                await self.intake.idle()
        except TimeoutError:
            await self.intake.interrupt(_STOP_GRACE / 2)
            try:
                async with asyncio.timeout(_STOP_GRACE):
                    await self.intake.idle()
            except TimeoutError:
                self.core.hooks.report(
                    TimeoutError(f"{self.intake.count} works did not end"), "queue", "stopping"
                )
        if stopping:
            await asyncio.wait(stopping)
        await self._close_parts()

    async def _close_parts(self) -> None:
        await self.intake.close()
        await self.heart.close()
        await self.follow.close()
        await self.invoker.close()
        self.watchdog.close()
        await self.waiters.retire()
        opened, self._opened = self._opened, set()
        self._opened_at = -1
        for port in (self.core.store, self.core.pubsub):
            if port in opened:
                await port.close()
        for queue in list(self.core.queues.values()):
            if queue.is_open:
                await queue.close()

    # ---- capacity ------------------------------------------------------------------------------

    def _room(self, queue: EngineQueue) -> int:
        """How many messages of a queue can be taken: its types' free places, shared fairly."""
        doers: dict[Doer, None] = {}
        room = 0
        for entry in self.core.registry:
            if entry.queue is not queue:
                continue
            if entry.work_type.batch is not None:
                room += self.intake.batcher(entry).available
            else:
                doers[entry.doer] = None
        room += sum(doer.available for doer in doers)
        shares = max(1, len(self._pollers))
        return -(-room // shares)

    def _room_appeared(self) -> None:
        for poller in self._pollers.values():
            poller.room_appeared()

    # ---- notices -------------------------------------------------------------------------------

    def _hear(self, notice: Notice) -> None:
        if notice.kind == "cancel":
            self.cancel_here(notice.id)

    def cancel_here(self, id: str) -> bool:
        """Interrupt a work's handler, if it runs in this process."""
        active = self.intake.held(id)
        if active is None:
            self.intake.doubt(id)
            return False
        if active.task is None:
            active.repeated = True  # it waits for a place, and must look before it starts
            return False
        active.interrupt("cancel", self.core.settings.cancel_grace)
        return True

    def _lost(self, active: Active) -> None:
        active.interrupt("lost", self.core.settings.cancel_grace)

    def _local_state(self, id: str) -> WorkState | None:
        active = self.intake.held(id)
        return None if active is None else active.state()

    async def _publish_done(self, id: str) -> None:
        await self.follow.publish("done", id)

    def letters(self, queue: EngineQueue | None = None) -> EngineQueue:
        """The dead letters of a queue.

        Raises:
            ConfigError: There are none that can be read.
        """
        found = self.core.dead_letters if queue is None else None
        found = found or self.core.dead_letters_of(queue or self.core.queue)
        if found is None:
            raise ConfigError(
                "this system has no dead letters that can be read; "
                "pass dlq= to create_work or to the queue"
            )
        return found
