"""Intake: what each received message is, and who takes it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from piecework.engine.active import Active
from piecework.engine.batch_run import BatchRunner
from piecework.engine.batcher import Batcher, WorkTask
from piecework.engine.failures import work_info
from piecework.engine.hooks import resolve
from piecework.engine.poller import Handed
from piecework.envelope import NewerEnvelopeError, decode, encode
from piecework.errors import InvalidWorkError
from piecework.ports.queue import Message

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from piecework.engine.core import Core
    from piecework.engine.heart import Heart
    from piecework.engine.poller import HasRoom
    from piecework.engine.ports import EngineQueue
    from piecework.engine.registry import Entry
    from piecework.engine.runner import Runner
    from piecework.engine.submit import Prepared, Submitter
    from piecework.engine.watchdog import Watchdog
    from piecework.envelope import Envelope
    from piecework.ports.queue import Lease
    from piecework.state import WorkState

#: Seconds: the longest delay of a message whose type this worker does not know.
_LONGEST_UNKNOWN = 300.0

#: How many works that were cancelled elsewhere are remembered until their messages come.
_DOUBTS = 10_000

#: How often a message of a newer release is given back before it goes to the dead letters.
_NEWER_BUDGET = 10


class Intake:
    """Sorts messages and hands works to doers and batchers.

    Args:
        core: The shared parts.
        heart: Keeps the leases of what was taken.
        runner: Runs works.
        submitter: Makes messages.
        watchdog: Watches the loop while something is held.
    """

    def __init__(
        self,
        core: Core,
        heart: Heart,
        runner: Runner,
        submitter: Submitter,
        watchdog: Watchdog,
    ) -> None:
        self._core = core
        self._heart = heart
        self._runner = runner
        self._batches = BatchRunner(core, heart, runner)
        self._submitter = submitter
        self._watchdog = watchdog
        self._actives: dict[Active, None] = {}
        self._by_id: dict[str, Active] = {}
        self._batchers: dict[str, Batcher] = {}
        self._runs = 0
        self._idle: asyncio.Event = asyncio.Event()
        self._idle.set()
        self._putting_back: set[asyncio.Task[None]] = set()
        self._doubted: dict[str, None] = {}
        self.stopping = False

    # ---- what is held --------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many works this process holds."""
        return len(self._actives)

    @property
    def actives(self) -> list[Active]:
        """The works that this process holds."""
        return list(self._actives)

    def held(self, id: str) -> Active | None:
        """The work of that id, if this process holds it."""
        return self._by_id.get(id)

    def doubt(self, id: str) -> None:
        """Look at the record of a work before it starts, should its message come here."""
        self._doubted[id] = None
        if len(self._doubted) > _DOUBTS:
            del self._doubted[next(iter(self._doubted))]

    def states(self) -> list[WorkState]:
        """Copies of the states of what this process holds."""
        return [active.state() for active in self._actives]

    async def idle(self) -> None:
        """Wait until this process holds nothing."""
        await self._idle.wait()

    # ---- taking --------------------------------------------------------------------------------

    def batcher(self, entry: Entry) -> Batcher:
        """The batcher of a batch type."""
        batcher = self._batchers.get(entry.name)
        if batcher is None or batcher.entry is not entry:
            batcher = self._batchers[entry.name] = Batcher(
                self._core,
                entry,
                self._runner,
                self._batches,
                owner=self,
                refused=self._refused,
            )
        return batcher

    def batchers(self) -> Iterable[Batcher]:
        """The batchers that exist."""
        return list(self._batchers.values())

    async def hand(self, queue: EngineQueue, leases: Sequence[Lease]) -> Handed:
        """Sort what was received; tell how many works were taken, and who had no room for one."""
        taken = 0
        full: set[HasRoom] = set()
        place = 0
        try:
            for place, lease in enumerate(leases):
                if self.stopping:
                    await queue.release(leases[place:], 0.0)
                    break
                active = self._plain_work(queue, lease) or await self._sort(queue, lease)
                if active is None:
                    continue
                if self.stopping:
                    await self.return_unstarted(active)
                    continue
                try:
                    refused = self._give(active)
                except Exception as error:  # noqa: BLE001 - its neighbours go on
                    self._core.hooks.report(error, "queue", f"the doer of {active.env.type} raised")
                    await self.return_unstarted(active, None)
                    continue
                if refused is None:
                    taken += 1
                else:
                    full.add(refused)
        except asyncio.CancelledError:
            await queue.release(leases[place + 1 :], 0.0)
            raise
        return Handed(taken, full)

    async def process(self, queue: EngineQueue, leases: Sequence[Lease]) -> None:
        """Run leases to the end: each is settled, put off or given back when this returns."""
        waiting: list[asyncio.Future[None]] = []
        loop = asyncio.get_running_loop()
        for lease in leases:
            active = await self._sort(queue, lease)
            if active is not None:
                active.ended = loop.create_future()
                waiting.append(active.ended)
                self._give(active, always=True)
        for batcher in self._batchers.values():
            batcher.flush()
        if waiting:
            await asyncio.wait(waiting)

    def run_here(self, prepared: Prepared) -> None:
        """Make the first attempt of a work that skipped the queue."""
        entry = prepared.entry
        active = self._take(prepared.env, prepared.body, entry, entry.queue, None)
        self._to_doer(active)

    def _take(
        self,
        env: Envelope,
        body: str,
        entry: Entry,
        queue: EngineQueue,
        lease: Lease | None,
    ) -> Active:
        self._runs += 1
        active = Active(env, body, entry, queue, lease, f"{self._core.worker_id}:{self._runs}")
        active.finished = self._left
        if self._doubted and env.id in self._doubted:
            active.repeated = True
        self._actives[active] = None
        self._by_id[env.id] = active
        if self._idle.is_set():
            self._idle.clear()
            self._watchdog.watch()
        entry.metrics.accepted(self._core.clock.now_ms())
        self._heart.enter(active)
        return active

    def _left(self, active: Active) -> None:
        self._actives.pop(active, None)
        if self._by_id.get(active.env.id) is active:
            del self._by_id[active.env.id]
        if active.ended is not None and not active.ended.done():
            active.ended.set_result(None)
        if not self._actives:
            self._idle.set()
            self._watchdog.rest()

    # ---- stopping ------------------------------------------------------------------------------

    async def give_back_unstarted(self) -> None:
        """Run what batches have collected, and give back what waits in the doers."""
        for batcher in self._batchers.values():
            batcher.flush()
        doers = {entry.doer for entry in self._core.registry}
        for doer in doers:
            for task in doer.take_back(self):
                for active in task.actives if isinstance(task, WorkTask) else ():
                    await self.return_unstarted(active)

    async def interrupt(self, grace: float) -> None:
        """Cancel what still runs, without spending an attempt, and wait for it to be given back."""
        for active in self.actives:
            if active.reason is None:
                active.interrupt("stop", grace)
                active.reason = "stop"
        for doer in {entry.doer for entry in self._core.registry}:
            for task in doer.tasks(self):
                if task.cancelling() == 0:
                    task.cancel()

    def _give(self, active: Active, *, always: bool = False) -> HasRoom | None:
        """Hand a work to its batcher or doer; put it back if that has no room, and return that."""
        entry = active.entry
        if entry.work_type.batch is not None:
            batcher = self.batcher(entry)
            if always or batcher.available > 0:
                batcher.add(active)
                return None
            full: HasRoom = batcher
        elif always or entry.doer.available > 0:
            self._to_doer(active)
            return None
        else:
            full = entry.doer
        self._put_back(active)
        return full

    def _to_doer(self, active: Active) -> None:
        env = active.env
        runner = self._runner
        task = WorkTask(
            lambda: runner.run(active),
            actives=[active],
            id=env.id,
            group=env.group,
            priority=env.priority,
            created_at=env.queue_at,
            owner=self,
        )
        try:
            active.entry.doer.do(task)
        except Exception as error:  # noqa: BLE001 - a user's doer
            self._refused([active], error)

    def _refused(self, actives: Sequence[Active], error: Exception) -> None:
        """Give back what a doer did not take, though it must; it may do so the next time."""
        self._core.hooks.report(error, "queue", "a doer raised")
        for active in actives:
            self._put_back(active, None)

    def _put_back(self, active: Active, delay: float | None = 0.0) -> None:
        # At once: another worker may have room, and here the poller waits until there is some.
        task = asyncio.get_running_loop().create_task(self.return_unstarted(active, delay))
        self._putting_back.add(task)
        task.add_done_callback(self._putting_back.discard)

    async def return_unstarted(self, active: Active, delay: float | None = 0.0) -> None:
        """Give back a work that has not started."""
        pause = self._core.settings.put_back if delay is None else delay
        await self._runner.return_unstarted(active, pause)

    async def close(self) -> None:
        """Wait for messages that are being put back, and for works settled without handlers."""
        if self._putting_back:
            await asyncio.wait(list(self._putting_back))
        await self._runner.close()

    # ---- sorting -------------------------------------------------------------------------------

    async def _sort(self, queue: EngineQueue, lease: Lease) -> Active | None:
        """The work of a message, if it is to run here and now; else the message was dealt with."""
        try:
            return await self._sorted(queue, lease)
        except Exception as error:  # noqa: BLE001 - its neighbours go on; its lease ends by itself
            self._core.hooks.report(error, "queue", "sorting a message failed")
            return None

    def _plain_work(self, queue: EngineQueue, lease: Lease) -> Active | None:
        """The short way, without waiting, for a work that is known, due and accepted."""
        if self._core.hooks.accept is not None:
            return None
        try:
            env = decode(lease.body)
            entry = self._core.registry.get(env.type)
        except Exception:  # noqa: BLE001 - the long way finds it again, and tells
            return None
        if entry is None:
            return None
        now = self._core.clock.now_ms()
        if env.start_at - now > self._core.settings.early * 1000:
            return None
        return self._take(env, lease.body, entry, queue, lease)

    async def _sorted(self, queue: EngineQueue, lease: Lease) -> Active | None:
        try:
            env = decode(lease.body)
        except InvalidWorkError as error:
            await self._dead_letter(queue, lease, str(error))
            return None
        except NewerEnvelopeError as error:
            await self._not_for_us(queue, lease, str(error), _NEWER_BUDGET)
            return None
        entry = self._core.registry.get(env.type)
        if entry is None:
            await self._unknown(queue, lease, env)
            return None
        late = env.start_at - self._core.clock.now_ms()
        if late > self._core.settings.early * 1000:
            await self._hop(queue, lease, env, entry, late / 1000)
            return None
        active = self._take(env, lease.body, entry, queue, lease)
        if self._core.hooks.accept is None:
            return active
        try:
            accepted = await self._accepted(active)
        except asyncio.CancelledError:  # the stop does not wait for the hook
            await self.return_unstarted(active)
            raise
        if accepted:
            return active
        await self.return_unstarted(active, None)
        return None

    async def _hop(
        self, queue: EngineQueue, lease: Lease, env: Envelope, entry: Entry, late: float
    ) -> None:
        """Send a message on that came before its time; the old one is acked only after that."""
        entry.metrics.rescheduled(late)
        if queue.capabilities.ordered:
            await queue.release([lease], late)
            return
        again = env._replace(recheck=env.recheck or lease.deliveries > 1)
        await queue.push([self._submitter.message(again, encode(again), queue)])
        await queue.ack([lease])

    async def _accepted(self, active: Active) -> bool:
        hook = self._core.hooks.accept
        assert hook is not None
        try:
            info = work_info(active)
        except InvalidWorkError:
            return True  # what would run it finds that too, and says so in the dead letter
        try:
            return bool(await resolve(hook(info)))
        except Exception as error:  # noqa: BLE001 - a hook must not lose a work
            self._core.hooks.report(error, "queue", "accept raised")
            return False

    async def _unknown(self, queue: EngineQueue, lease: Lease, env: Envelope) -> None:
        """Leave a work to a worker that knows its type; after its attempts it is dead."""
        if lease.deliveries <= env.retry.attempts:
            await self._not_for_us(queue, lease, f"unknown work type: {env.type}", None)
            return
        entry = self._core.registry.route(env.type)
        active = self._take(env, lease.body, entry, queue, lease)
        active.repeated = True
        await self._runner.give_up(active, f"unknown work type: {env.type}", "UnknownWorkError")

    async def _not_for_us(
        self, queue: EngineQueue, lease: Lease, reason: str, budget: int | None
    ) -> None:
        if budget is not None and lease.deliveries > budget:
            await self._dead_letter(queue, lease, reason)
            return
        delay = self._core.settings.unknown_delay * 2 ** min(lease.deliveries - 1, 10)
        await queue.release([lease], min(delay, _LONGEST_UNKNOWN))

    async def _dead_letter(self, queue: EngineQueue, lease: Lease, reason: str) -> None:
        """Keep a message that nobody can run where somebody can look at it."""
        letters = self._core.dead_letters
        if queue.dead_letter_queue is None and letters is not None:
            await letters.push([Message(lease.body, reason=reason)])
            await queue.ack([lease])
            return
        await queue.dead_letter(lease, reason)
