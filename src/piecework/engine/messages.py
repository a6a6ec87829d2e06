"""The message of a work: pushed anew, acked, given back, or moved to the dead letters."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from piecework.clock import sleep
from piecework.envelope import encode
from piecework.ports.queue import Message

if TYPE_CHECKING:
    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.heart import Heart
    from piecework.engine.submit import Submitter
    from piecework.envelope import Envelope


#: How often a work without a message is tried to be queued; the pauses double from a second.
_TRIES = 6


class Messages:
    """Lets go of the messages of works. The beats of a work end before its message is touched.

    Args:
        core: The shared parts.
        heart: Keeps the leases.
        submitter: Makes messages.
    """

    def __init__(self, core: Core, heart: Heart, submitter: Submitter) -> None:
        self._core = core
        self._heart = heart
        self._submitter = submitter

    async def push(self, active: Active, env: Envelope) -> None:
        """Push a message of the work to its type's queue, for the time at which it may start."""
        queue = active.entry.queue
        await queue.push([self._submitter.message(env, encode(env), queue)])

    async def ack(self, active: Active) -> None:
        """Remove the message that this worker holds."""
        await self._heart.leave(active)
        if active.lease is not None:
            await active.queue.ack([active.lease])

    async def finish(self, active: Active, error: str | None, *, dead: bool) -> None:
        """Let go of the message of a terminal work: ack it, or move it to the dead letters.

        If that fails, the next delivery finds the work terminal and does it again.
        """
        if (beat := self._heart.end_beats(active)) is not None:
            await asyncio.wait([beat])
        try:
            if dead:
                await self._bury(active, error or "dead")
            elif active.lease is not None:
                await active.queue.ack([active.lease])
        except Exception as failed:  # noqa: BLE001 - the work is settled, whatever the queue says
            self._core.hooks.report(failed, "commit", f"acking work {active.env.id} failed")

    async def _bury(self, active: Active, reason: str) -> None:
        """Move the message of a dead work to the dead letters."""
        queue = active.queue
        letters = self._core.dead_letters
        if active.lease is not None and (queue.dead_letter_queue is not None or letters is None):
            await queue.dead_letter(active.lease, reason)
            return
        target = self._core.dead_letters_of(queue)
        if target is not None:
            await target.push([Message(active.body, reason=reason, group=active.env.group)])
        if active.lease is not None:
            await queue.ack([active.lease])

    async def give_back(self, active: Active, delay: float) -> None:
        """Put a message back, to be delivered again after ``delay`` seconds. Spends no attempt."""
        await self._heart.leave(active)
        if active.lease is None:
            return
        try:
            await active.queue.release([active.lease], delay)
        except Exception as error:  # noqa: BLE001 - its lease ends by itself
            self._core.hooks.report(error, "queue", f"putting work {active.env.id} back failed")

    async def enter(self, active: Active) -> None:
        """Queue a work that has skipped the queue and could not be settled here.

        Nobody else has a message of it, so this is tried for a while; then it is left to
        ``reconcile()``.
        """
        pause = self._core.settings.put_back
        for left in range(_TRIES, 0, -1):
            try:
                await self.push(active, active.env._replace(recheck=True))
            except Exception as error:  # noqa: BLE001 - nothing is lost as long as it is tried
                self._core.hooks.report(error, "queue", f"queueing work {active.env.id} failed")
                if left > 1:
                    await sleep(pause)
                    pause *= 2
            else:
                break
        await self._heart.leave(active)

    async def push_back(self, active: Active, delay: float) -> None:
        """Put a message back as a new one, whose deliveries count from 1."""
        pause = min(delay, active.queue.capabilities.max_delay)
        try:
            await active.queue.push([Message(active.body, pause, active.env.group)])
            await self.ack(active)
        except Exception as error:  # noqa: BLE001 - its lease ends by itself
            self._core.hooks.report(error, "queue", f"putting work {active.env.id} back failed")
            await self._heart.leave(active)

    @staticmethod
    def looks_deadly(active: Active) -> bool:
        """Whether its deliveries are all that tells of crashes: then put-backs must not add up."""
        lease = active.lease
        if lease is None or lease.deliveries <= 1 or active.queue.capabilities.ordered:
            return False
        return active.env.track != "full"
