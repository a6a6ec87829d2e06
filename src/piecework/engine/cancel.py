"""Cancel: a waiting work is settled at once, a running one is asked to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.gates import is_gate
from piecework.ledger import WriteConflictError
from piecework.record import Outcome, read_item

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.engine.core import Core
    from piecework.engine.follow import FollowUps


#: Milliseconds for which a worker trusts what it read of the last cancellation.
_TRUST_MS = 5_000
#: Milliseconds that one note of a cancellation covers ahead, so that many cost one write.
_AHEAD_MS = 1_000
#: Seconds that the note is kept: as long as a work may wait that was cancelled.
_NOTE_TTL = 400 * 86400.0


#: Digits of the latest time that a note may name; a longer one is not ours.
_LONGEST_NOTE = 15


class CancelNote:
    """When a waiting work was last cancelled, known to the whole fleet.

    A worker does not look at the record of a work before its first run, which would cost a read for
    each. It looks where a work was queued before the last cancellation; the note of that costs one
    read in a while.

    Args:
        core: The shared parts.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        self._key = f"{core.settings.prefix}cancelled"
        self._until_ms = 0
        self._read_ms = 0

    async def write(self) -> None:
        """Note that a work is about to be cancelled."""
        now = self._core.clock.now_ms()
        if now < self._until_ms:
            return
        until = now + _AHEAD_MS
        await self._core.store.set(self._key, str(until), _NOTE_TTL)
        self._until_ms, self._read_ms = until, now

    async def covers(self, queue_at: int) -> bool:
        """Whether a work that was queued then may have been cancelled since."""
        now = self._core.clock.now_ms()
        if now - self._read_ms >= _TRUST_MS:
            text = await self._core.store.get(self._key)
            self._read_ms = now
            if text is not None and text.isdecimal() and len(text) <= _LONGEST_NOTE:
                self._until_ms = max(self._until_ms, int(text))
        return queue_at <= self._until_ms


class Canceller:
    """Cancels works of the whole fleet.

    Args:
        core: The shared parts.
        follow: What follows a settle.
        note: Tells workers to look before they run what waited.
        cancel_here: Interrupts a handler in this process.
    """

    def __init__(
        self,
        core: Core,
        follow: FollowUps,
        note: CancelNote,
        cancel_here: Callable[[str], bool],
    ) -> None:
        self._core = core
        self._follow = follow
        self._note = note
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
            if is_gate(env):
                return False  # its works go on, and its group with them; they can be cancelled
            await self._note.write()
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
