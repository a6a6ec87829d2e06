"""Reconcile: works whose record waits for a message that is gone, found and pushed again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.engine.decide import TakeOver, stand
from piecework.envelope import NewerEnvelopeError, encode
from piecework.errors import InvalidWorkError
from piecework.gates import is_gate
from piecework.record import read_item

if TYPE_CHECKING:
    from piecework.engine.core import Core
    from piecework.engine.gates import GateKeeper
    from piecework.engine.submit import Submitter
    from piecework.envelope import Envelope
    from piecework.ports.store import Record


class Reconciler:
    """Sweeps over old records that are not terminal.

    A message can be lost where no worker sees it: the queue's retention ended, somebody purged it,
    or the producer of a work that skipped the queue died. Pushing a work whose message still
    exists does no harm: the record decides which delivery runs.

    Args:
        core: The shared parts.
        submitter: Makes messages.
        gates: Brings gates on, which have no message.
    """

    def __init__(self, core: Core, submitter: Submitter, gates: GateKeeper) -> None:
        self._core = core
        self._submitter = submitter
        self._gates = gates

    async def sweep(self, older_than: float) -> int:
        """Push works again that are ``older_than`` seconds late, or whose worker died.

        Returns:
            How many were pushed, or are gates that were decided.
        """
        pushed = 0
        for status in ("pending", "running"):
            cursor: str | None = None
            while True:
                page = await self._core.store.list(self._core.ledger.index(status), 100, cursor)
                pushed += await self._push_stale(list(page.items), older_than)
                cursor = page.cursor
                if cursor is None:
                    break
        return pushed

    async def _push_stale(self, keys: list[str], older_than: float) -> int:
        now = self._core.clock.now_ms()
        pushed = 0
        for record in await self._core.store.read(keys) if keys else []:
            try:
                pushed += await self._bring_on(record, older_than, now)
            except (InvalidWorkError, NewerEnvelopeError) as error:  # the others are brought on
                self._core.hooks.report(error, "queue", f"reconciling {record.key} failed")
        return pushed

    async def _bring_on(self, record: Record, older_than: float, now: int) -> bool:
        item = read_item(record)
        if item is None or item.terminal:
            return False
        env = item.envelope()
        if item.status == "running":
            stale = isinstance(stand(item, now_ms=now), TakeOver)
        else:
            stale = env.start_at + older_than * 1000 <= now
        if not stale:
            return False
        if is_gate(env):
            return await self._gates.sweep(env.id, record)
        await self._push(item.second_message())
        return True

    async def _push(self, again: Envelope) -> None:
        queue = self._core.registry.route(again.type).queue
        await queue.push([self._submitter.message(again, encode(again), queue)])
