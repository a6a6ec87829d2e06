"""Cancel: a waiting work is settled at once, a running one is asked to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.ledger import WriteConflictError
from piecework.record import Outcome, read_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.engine.core import Core
    from piecework.engine.follow import FollowUps


class Canceller:
    """Cancels works of the whole fleet.

    Args:
        core: The shared parts.
        follow: What follows a settle.
        cancel_here: Interrupts a handler in this process.
    """

    def __init__(self, core: Core, follow: FollowUps, cancel_here: Callable[[str], bool]) -> None:
        self._core = core
        self._follow = follow
        self._cancel_here = cancel_here
        self._count = 0

    async def cancel(self, id: str) -> bool:
        """Cancel a work; see ``WorkSystem.cancel``."""
        core = self._core
        while True:
            if self._cancel_here(id):
                return True
            record = (await core.ledger.read([id]))[0]
            item = read_item(record)
            if item is None or item.terminal:
                return False
            if item.status == "running":
                await core.ledger.ask_to_stop(id)
                await self._follow.publish("cancel", id)
                return True
            env = item.envelope()
            self._count += 1
            outcome = Outcome("cancelled", error="cancelled")
            try:
                settled = await core.ledger.settle(
                    env,
                    outcome,
                    writer=f"{core.worker_id}:cancel:{self._count}",
                    run_at=None,
                )
            except WriteConflictError:
                continue
            entry = core.registry.route(env.type)
            entry.metrics.cancelled(core.clock.now_ms(), env.queue_at)
            core.emit("cancelled", env, entry)
            await self._follow.publish("cancel", id)  # a short run may be under way elsewhere
            await self._follow.settled(env, settled, outcome, again=True)
            return True
