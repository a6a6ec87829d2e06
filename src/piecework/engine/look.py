"""Before a handler runs: whether its work is still there to be run, and by whom."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, assert_never

from piecework.counters import CANCEL
from piecework.engine.decide import (
    Absent,
    Adopt,
    Duplicate,
    Finished,
    Standing,
    TakeOver,
    die,
    stand,
)
from piecework.errors import InvalidWorkError
from piecework.ledger import WriteConflictError
from piecework.record import Outcome, read_item

if TYPE_CHECKING:
    from piecework.engine.active import Active
    from piecework.engine.cancel import CancelNote
    from piecework.engine.core import Core
    from piecework.engine.follow import FollowUps
    from piecework.engine.heart import Heart
    from piecework.engine.messages import Messages
    from piecework.engine.settler import Settler
    from piecework.envelope import Envelope

#: Milliseconds that a work waits on a queue outside this process before a look is worth its cost.
_LOOK_AFTER_MS = 5_000


class WorkerLostError(Exception):
    """The worker that ran the work died, as often as it may."""


class Look:
    """Looks at the record of a work where somebody may have been there before.

    A plain work on its first delivery needs no look, which saves it a write.

    Args:
        core: The shared parts.
        heart: Writes works down as running.
        follow: Repeats what follows a settle.
        settler: Settles works that are not to run.
        messages: Lets go of messages.
        cancels: Tells whether works that waited may have been cancelled.
    """

    def __init__(
        self,
        core: Core,
        heart: Heart,
        follow: FollowUps,
        settler: Settler,
        messages: Messages,
        cancels: CancelNote,
    ) -> None:
        self._core = core
        self._heart = heart
        self._follow = follow
        self._settler = settler
        self._messages = messages
        self._cancels = cancels
        #: Since when this process hears of cancelled works, in milliseconds.
        self.listening_since = math.inf

    def is_needed(self, active: Active) -> bool:
        """Whether anything but a first delivery of a plain work is before us."""
        return (
            active.repeated
            or active.env.deadline is not None
            or active.env.track != "full"
            or self._core.settings.start_after <= 0
            or self._may_be_cancelled(active)
        )

    def _may_be_cancelled(self, active: Active) -> bool:
        """Whether it has waited for long enough to have been cancelled meanwhile.

        In one process a notice is not lost, once this worker listens.
        """
        env = active.env
        if env.start_at != env.queue_at:
            return True
        if active.queue.capabilities.in_process:
            return env.queue_at < self.listening_since and active.lease is not None
        return self._core.clock.now_ms() - env.queue_at > _LOOK_AFTER_MS

    async def ready(self, active: Active) -> bool:
        """Whether the handler may run; else the work was dealt with."""
        env = active.env
        core = self._core
        if env.deadline is not None and env.deadline <= core.clock.now_ms():
            return await self._expired(active)
        if env.track != "full":
            return await self._ready_untracked(active)
        if active.repeated or core.settings.start_after <= 0:
            return await self.start(active)
        if self._may_be_cancelled(active) and await self._cancels.covers(env.queue_at):
            item = read_item((await core.ledger.read([env.id]))[0])
            if item is not None and item.terminal:
                return await self._stand(active, Finished(item))
        return True

    async def _expired(self, active: Active) -> bool:
        """Settle a work that is past its deadline, from wherever its record says that it is."""
        if active.env.track == "full":
            item = read_item((await self._core.ledger.read([active.env.id]))[0])
            if item is not None:
                standing = stand(item, now_ms=self._core.clock.now_ms())
                match standing:
                    case Adopt(env, body) | TakeOver(env, body) if env.deadline is not None:
                        active.env, active.body = env, body  # its worker died: nobody else ends it
                    case Adopt() | TakeOver():
                        return await self.start(active)  # brought back, for a life without one
                    case _:
                        return await self._stand(active, standing)
        await self._settler.settle(active, Outcome("expired", error="passed its deadline"))
        return False

    async def _ready_untracked(self, active: Active) -> bool:
        lease = active.lease
        if lease is None or lease.deliveries <= self._core.settings.untracked_deliveries:
            return True
        await self._settler.die(active, die(WorkerLostError("worker died")))
        return False

    async def start(self, active: Active) -> bool:
        """Write the work down as running before it runs, and look at what is there."""
        for _ in range(8):
            try:
                record = await self._heart.write_running(active)
            except WriteConflictError as conflict:
                standing = stand(conflict.item, now_ms=self._core.clock.now_ms())
                if not await self._stand(active, standing):
                    return False
                continue
            except InvalidWorkError as error:
                await self._settler.bury_unreadable(active, error)
                return False
            if record.count(CANCEL) > 0:
                await self._settler.settle(active, Outcome("cancelled", error="cancelled"))
                return False
            return True
        await self._messages.give_back(active, self._core.settings.put_back)
        return False

    async def _stand(self, active: Active, standing: Standing) -> bool:
        """Act on what the record says; tell whether to try again with the envelope it gave."""
        match standing:
            case Absent():
                await self._settler.register(active)
                return True
            case Finished(item):
                await self._follow.repeat(active.env, item)
                await self._messages.finish(
                    active, item.header.get("err"), dead=item.status == "dead"
                )
                return False
            case Adopt(env, body):
                return await self._adopt(active, env, body)
            case TakeOver(env, body):
                active.env, active.body = env, body
                if env.attempt > env.retry.attempts:
                    active.env = env._replace(attempt=env.attempt - 1)
                    await self._settler.die(active, die(WorkerLostError("worker died")))
                    return False
                return True
            case Duplicate(delay):
                await self._messages.give_back(active, delay)
                return False
            case _:
                assert_never(standing)

    async def _adopt(self, active: Active, env: Envelope, body: str) -> bool:
        """Go by the record: run it now, or push it for its time."""
        late = env.start_at - self._core.clock.now_ms()
        if late > self._core.settings.early * 1000:
            await self._messages.push(active, env._replace(recheck=True))
            await self._messages.ack(active)
            return False
        active.env, active.body = env, body
        return True
