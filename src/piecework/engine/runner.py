"""One work from lease to settle: look, run, decide, settle, follow up, ack."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from piecework.engine.decide import Die
from piecework.engine.hooks import logger
from piecework.record import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.executors import ThreadExecutor
    from piecework.engine.failures import Failures
    from piecework.engine.heart import Heart
    from piecework.engine.invoke import Invoker
    from piecework.engine.look import Look
    from piecework.engine.messages import Messages
    from piecework.engine.settler import Settler


class Runner:
    """Runs one work at a time through its life; every outcome is written by the ledger.

    Args:
        core: The shared parts.
        heart: Keeps the leases.
        invoker: Calls handlers.
        look: Looks at records before handlers run.
        failures: Decides on failures.
        settler: Writes outcomes.
        messages: Lets go of messages.
    """

    def __init__(
        self,
        core: Core,
        heart: Heart,
        invoker: Invoker,
        look: Look,
        failures: Failures,
        settler: Settler,
        messages: Messages,
    ) -> None:
        self._core = core
        self._heart = heart
        self._invoker = invoker
        self.look = look
        self.failures = failures
        self._settler = settler
        self._messages = messages
        self._rescue: set[asyncio.Task[None]] = set()

    async def run(self, active: Active) -> None:
        """Run a work to its end in this process. Never raises, but for a loop that is closing."""
        active.task = asyncio.current_task()
        active.on_abandon = lambda: self._abandon(active)
        await self._guarded(active, self._attempt(active))

    async def _guarded(self, active: Active, life: Awaitable[None]) -> None:
        try:
            await life
        except asyncio.CancelledError:
            if active.reason is None or active.abandoned:
                self.end(active)
                raise  # the loop is closing; nothing more can be awaited
            await self.safely(active, self.interrupted(active))
        except Exception as error:  # noqa: BLE001 - the last line of defence
            await self.rescued(active, error)
        if not active.abandoned:
            self.end(active)

    async def _attempt(self, active: Active) -> None:
        if self.look.is_needed(active) and not await self.look.ready(active):
            return
        env = active.env
        core = self._core
        now = core.clock.now_ms()
        active.run_at = now
        active.entry.metrics.started(now, env.start_at)
        core.emit("started", env, active.entry)
        self._heart.watch_start(active)
        try:
            text, value = await self._invoker.call(active)
        except asyncio.CancelledError:
            if active.abandoned:
                return
            if active.reason is None and not _is_cancelling():
                await self.failures.failed(
                    active, RuntimeError("the handler raised CancelledError")
                )
                return
            raise
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            if active.abandoned:
                return
            if active.reason is not None:
                await self.interrupted(active, error)
            else:
                await self.failures.failed(active, error)
            return
        if active.abandoned:
            return
        if active.reason in ("timeout", "deadline", "cancel"):
            await self.interrupted(active)
        else:
            _clear_cancel()
            await self.succeed(active, text, value)

    async def succeed(self, active: Active, text: str, value: Any) -> None:
        """Settle a work whose handler returned."""
        await self._settler.settle(active, Outcome("success", result=text), value)

    async def interrupted(self, active: Active, error: BaseException | None = None) -> None:
        """The handler was stopped: by its timeout, its deadline, a request, a lost lease, stop."""
        _clear_cancel()
        reason = active.reason
        env = active.env
        if reason == "timeout":
            await self.failures.failed(active, TimeoutError(f"timed out after {env.timeout:g} s"))
        elif reason == "deadline":
            await self._settler.settle(active, Outcome("expired", error="passed its deadline"))
        elif reason == "cancel":
            await self._settler.settle(active, Outcome("cancelled", error="cancelled"))
        elif reason == "lost":
            active.entry.metrics.lease_lost()
            await self._settler.withdraw(active)
        else:
            await self._settler.interrupt(active)

    def _abandon(self, active: Active) -> None:
        """A handler swallowed its cancellation: settle the work without it."""
        logger.warning(
            "the handler of work type %r goes on %s s after it was cancelled (work %s); "
            "it was given up and still takes a place",
            active.env.type,
            self._core.settings.cancel_grace,
            active.env.id,
        )
        task = asyncio.get_running_loop().create_task(self._finish_abandoned(active))
        self._rescue.add(task)
        task.add_done_callback(self._rescue.discard)

    async def _finish_abandoned(self, active: Active) -> None:
        active.task = None
        await self.safely(active, self.interrupted(active))
        self.end(active)

    async def safely(self, active: Active, step: Awaitable[None]) -> None:
        """Do a step; if it fails, give the work back for another delivery."""
        try:
            await step
        except Exception as error:  # noqa: BLE001 - the last line of defence
            await self.rescued(active, error)

    async def rescued(self, active: Active, error: Exception) -> None:
        """Give a work back that could not be settled: another delivery will."""
        self._core.hooks.report(error, "commit", f"work {active.env.id} could not be settled")
        if active.lease is None:
            await self._messages.enter(active)
        else:
            await self._messages.give_back(active, self._core.settings.put_back)

    def end(self, active: Active) -> None:
        """Hold a work no more. Doing it again does nothing."""
        if active.settled:
            return
        active.settled = True
        active.entry.metrics.left(active.run_at is not None)
        if active.finished is not None:
            active.finished(active)

    @property
    def threads(self) -> ThreadExecutor:
        """The threads of ``def`` handlers."""
        return self._invoker.threads

    async def close(self) -> None:
        """Wait for works that are settled without their handlers."""
        if self._rescue:
            await asyncio.wait(list(self._rescue))

    async def return_unstarted(self, active: Active, delay: float) -> None:
        """Give back a work that has not started; one that skipped the queue enters it now."""
        if active.lease is None:
            try:
                await self._messages.push(active, active.env)
            except Exception as error:  # noqa: BLE001 - reconcile() finds it
                self._core.hooks.report(error, "queue", f"pushing work {active.env.id} failed")
        if self._messages.looks_deadly(active):
            await self._messages.push_back(active, delay)
        else:
            await self._messages.give_back(active, delay)
        self.end(active)

    async def give_up(self, active: Active, text: str, error_type: str) -> None:
        """Settle a work as dead that cannot run here."""
        if await self._start_unless_untracked(active):
            await self.safely(active, self._settler.die(active, Die(text, error_type, "")))
        self.end(active)

    async def _start_unless_untracked(self, active: Active) -> bool:
        if active.env.track != "full":
            return True
        try:
            return await self.look.start(active)
        except Exception as error:  # noqa: BLE001 - another delivery will
            await self.rescued(active, error)
            return False


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _clear_cancel() -> None:
    """Take back a cancellation that has done its work, so that what follows can be awaited."""
    task = asyncio.current_task()
    while task is not None and task.cancelling() > 0:
        task.uncancel()
