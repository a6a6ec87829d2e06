"""Redrive: dead works brought back, with all their attempts, counted in their group again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.clock import from_ms
from piecework.counters import CANCEL
from piecework.envelope import Envelope, NewerEnvelopeError, decode, encode
from piecework.errors import InvalidWorkError
from piecework.ledger import WriteConflictError
from piecework.ports.store import Change
from piecework.record import read_item
from piecework.state import DeadLetter

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.engine.core import Core
    from piecework.engine.ports import EngineQueue
    from piecework.engine.submit import Submitter
    from piecework.ports.queue import Lease
    from piecework.record import Item

#: Seconds: how long a letter that is not brought back is left alone, so that none is looked at in a
#: loop.
_LEFT_ALONE = 3600.0
#: Seconds of a lease on dead letters: long enough to bring one back.
_LOOK = 30.0


class Redriver:
    """Brings dead letters back.

    Args:
        core: The shared parts.
        submitter: Makes messages.
    """

    def __init__(self, core: Core, submitter: Submitter) -> None:
        self._core = core
        self._submitter = submitter
        self._count = 0

    async def idle(self, queue: EngineQueue) -> bool:
        """Bring a few back because there is nothing else to do; whether there were any."""
        letters = self._core.dead_letters
        count = self._core.settings.redrive_count
        if letters is None or count <= 0:
            return False
        return await self.move(letters, count, limit=self._core.settings.max_redrives) > 0

    async def move(self, letters: EngineQueue, count: int, *, limit: int | None = None) -> int:
        """Bring up to ``count`` letters back; return how many came.

        Args:
            letters: The queue of dead letters.
            count: How many to look at.
            limit: How often a work may have come back before; ``None`` for no limit.
        """
        moved = 0
        for lease in await letters.pop(count, _LOOK, 0.0):
            try:
                moved += await self._bring_back(letters, lease, limit)
            except Exception as error:  # noqa: BLE001 - it stays where it is, leased for a while
                self._core.hooks.report(error, "queue", "redriving a dead letter failed")
        return moved

    async def _bring_back(self, letters: EngineQueue, lease: Lease, limit: int | None) -> bool:
        try:
            env = decode(lease.body)
        except (InvalidWorkError, NewerEnvelopeError):
            await letters.release([lease], _LEFT_ALONE)  # kept for somebody to look at
            return False
        if limit is not None and await self._redrives(env) >= limit:
            await letters.release([lease], _LEFT_ALONE)
            return False
        brought = await self._reopen(env)
        await letters.ack([lease])
        return brought

    async def _redrives(self, env: Envelope) -> int:
        """How often a work came back: its record knows more than the letter of an earlier life."""
        item = read_item((await self._core.ledger.read([env.id]))[0])
        return max(env.redrives, _known_redrives(item))

    async def by_ids(self, ids: Sequence[str]) -> int:
        """Bring dead works back by their ids, from their records; return how many came."""
        brought = 0
        for id, record in zip(ids, await self._core.ledger.read(ids), strict=True):
            item = read_item(record)
            if item is not None and item.status == "dead" and item.payload:
                brought += await self._reopen(decode(item.payload)._replace(id=id))
        return brought

    async def _reopen(self, env: Envelope) -> bool:
        """Dead to pending, then push; whoever was faster has decided."""
        while True:
            try:
                return await self._try_to_reopen(env)
            except WriteConflictError:
                continue

    async def _try_to_reopen(self, env: Envelope) -> bool:
        """Dead to pending, then push.

        A work that is pending or running has a letter too, if the queue moved its message away, or
        if whoever brought it back died before the push. It is pushed; its record decides.
        """
        core = self._core
        record = (await core.ledger.read([env.id]))[0]
        item = read_item(record)
        if env.track != "none" and (item is None or item.status != "dead"):
            if item is None:
                return await self._push_fresh(env)
            if not item.terminal:
                await self._push(item.second_message())
            return not item.terminal
        now = core.clock.now_ms()
        new = env._replace(
            attempt=1,
            queue_at=now,
            start_at=now,
            version=record.version + 1 if env.track == "full" else 0,
            redrives=max(env.redrives, _known_redrives(item)) + 1,
            deadline=None,
            recheck=False,
        )
        if env.track == "full":
            assert item is not None
            new = await self._reopen_counted(env, new)
        elif env.track == "result" and item is not None:
            await core.store.write([Change(record.key, delete=True, expect=item.version)])
        await self._push(new)
        return True

    async def _reopen_counted(self, old: Envelope, new: Envelope) -> Envelope:
        """Count the work again: in its gate while that is open, else in its group."""
        core = self._core
        self._count += 1
        writer = f"{core.worker_id}:redrive:{self._count}"
        while True:
            record = (await core.ledger.read([old.id]))[0]
            item = read_item(record)
            if item is None or item.status != "dead":
                raise WriteConflictError(record)
            try:
                return await core.ledger.reopen(
                    item, new, encode(new), writer=writer, cancels=record.count(CANCEL)
                )
            except WriteConflictError:
                if new.gate is None:
                    raise
                new = new._replace(gate=None)  # its gate has closed

    async def _push_fresh(self, env: Envelope) -> bool:
        """A dead letter whose record is gone: it starts anew as a root of its own."""
        now = self._core.clock.now_ms()
        new = env._replace(
            attempt=1,
            queue_at=now,
            start_at=now,
            version=1 if env.track == "full" else 0,
            group_id=env.id,
            gate=None,
            redrives=env.redrives + 1,
            deadline=None,
        )
        await self._core.ledger.register(new, encode(new))
        await self._push(new)
        return True

    async def _push(self, env: Envelope) -> None:
        core = self._core
        entry = core.registry.route(env.type)
        await entry.queue.push([self._submitter.message(env, encode(env), entry.queue)])
        entry.metrics.redriven()
        entry.metrics.queued(env.queue_at)
        core.emit("queued", env, entry, start_at=env.start_at)

    async def letters(self, letters: EngineQueue, count: int) -> list[DeadLetter]:
        """Look at up to ``count`` dead letters and leave them where they are."""
        leases = await letters.pop(count, _LOOK, 0.0)
        found = [_letter(lease) for lease in leases]
        if leases:
            await letters.release(leases, 0.0)
        return found


def _known_redrives(item: Item | None) -> int:
    if item is None or item.status == "success" or not item.payload:
        return 0
    return item.envelope().redrives


def _letter(lease: Lease) -> DeadLetter:
    try:
        env = decode(lease.body)
    except (InvalidWorkError, NewerEnvelopeError):
        return DeadLetter("", "", lease.reason or "", 0, None, lease.body)
    return DeadLetter(
        env.id,
        env.type,
        lease.reason or "",
        env.attempt,
        from_ms(env.queue_at),
        lease.body,
    )
