"""The state machine of a work, written once over the store's atoms. Nothing else writes states.

One record per work holds its state and its result. Its version is the fencing token: every write of
a work expects the version that its writer knows, so that of two workers that run the same work only
one can settle, retry or reschedule it. Counts move in the same atomic write as the state.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from piecework.counters import CANCEL, FAILED, HOLD, MEMBERS, OK, OPEN, OPENED, WAITERS
from piecework.envelope import Envelope, NewerEnvelopeError, encode
from piecework.errors import ConflictError
from piecework.ports.store import Change, Record
from piecework.record import (
    Item,
    Outcome,
    pending_value,
    read_item,
    running_value,
    terminal_value,
    with_header,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.clock import Clock
    from piecework.ports.store import Store

#: Seconds that a record outlives the time its work may start, until it settles: an SQS message
#: lives 14 days at most, and a day is left for the clocks.
PENDING_TTL = 15 * 86400.0

#: Seconds that a root's record is kept while its group is open, where it is not known how long its
#: works are put off: longer than a year. When the group ends, the record is as any other.
LONGEST_GROUP_TTL = 400 * 86400.0

_ROOT_OPENS = {OPEN: 1}
_ROOT_CLOSES = {OPEN: -1}


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settle has shown.

    Attributes:
        record: The work's own record after the write.
        counter: The record that counts the work, after the write; its own for a root.
    """

    record: Record
    counter: Record | None


@dataclass(frozen=True, slots=True)
class Registered:
    """A work that is in the ledger.

    Attributes:
        env: Its envelope; its group may have changed, where its group had settled before it came.
        new: Whether this call put it there.
    """

    env: Envelope
    new: bool


class WriteConflictError(Exception):
    """The record is not as the writer knew it; ``item`` is what it is now.

    Raises:
        InvalidWorkError: It was not written by us, so that there is nothing to go by.
    """

    def __init__(self, record: Record) -> None:
        self.record = record
        self.item = read_item(record)
        if self.item is not None and not self.item.terminal:
            with contextlib.suppress(NewerEnvelopeError):
                self.item.envelope()
        super().__init__(record.key)


class Ledger:
    """Registers, starts and settles works.

    Args:
        store: Where the records are.
        clock: Where stamps come from.
        prefix: Stands before every key, so that systems can share a store.
        result_ttl: Seconds that a terminal record is kept.
    """

    def __init__(self, store: Store, clock: Clock, *, prefix: str, result_ttl: float) -> None:
        self.store = store
        self._clock = clock
        self._prefix = prefix
        self._item = prefix + "item:"
        self._result_ttl = result_ttl
        self._index = {
            name: prefix + name
            for name in ("pending", "running", "success", "dead", "cancelled", "expired")
        }

    def key(self, id: str) -> str:
        """The key of a work's record."""
        return self._item + id

    def index(self, status: str) -> str:
        """The name of the index that lists the works of a status."""
        return self._index[status]

    def id_of(self, key: str) -> str:
        """The id of the work whose record has this key."""
        return key[len(self._item) :]

    def _life(self, env: Envelope) -> float:
        return max(0, env.start_at - self._clock.now_ms()) / 1000 + PENDING_TTL

    # ---- register ------------------------------------------------------------------------------

    async def register(self, env: Envelope, body: str, root: Envelope | None = None) -> Registered:
        """Put one new work into the ledger; one that is there already stays as it is."""
        if env.track != "full":
            return Registered(env, new=True)
        if env.counter != env.id:
            return (await self.register_children([(env, body)], root))[0]
        try:
            await self.store.write(self._root_changes(env, body))
        except ConflictError:
            return Registered(env, new=False)
        return Registered(env, new=True)

    def _root_changes(self, env: Envelope, body: str) -> list[Change]:
        return [
            Change(
                self._item + env.id,
                value="pending\n" + body,
                expect=0,
                add=_ROOT_OPENS,
                ttl=self._life(env),
                index=self._index["pending"],
            )
        ]

    def register_changes(self, env: Envelope, body: str) -> list[Change]:
        """The changes that register a work and count it; its own record comes first."""
        if env.counter == env.id:
            return self._root_changes(env, body)
        return self._child_changes([(env, body)])

    def now_ms(self) -> int:
        """The time of the ledger's clock."""
        return self._clock.now_ms()

    async def register_children(
        self, children: Sequence[tuple[Envelope, str]], root: Envelope | None = None
    ) -> list[Registered]:
        """Put works that one counter counts into the ledger, counted in the same write.

        A group that has settled is never opened again by a late child, which becomes a root of its
        own. Up to the store's transaction size go in one write.

        Args:
            children: The works with their bodies.
            root: The work that queues them, if it is the root of their group. Its message may have
                come before its record did; then it is registered first.
        """
        size = max(1, self.store.capabilities.max_changes - 1)
        done: list[Registered] = []
        for at in range(0, len(children), size):
            done += await self._register_chunk(children[at : at + size], root)
        return done

    async def _register_chunk(
        self, chunk: Sequence[tuple[Envelope, str]], root: Envelope | None
    ) -> list[Registered]:
        new: list[tuple[Envelope, str]] = list(chunk)
        known: set[str] = set()
        while new:
            try:
                await self.store.write(self._child_changes(new))
                break
            except ConflictError as conflict:
                there = {r.key for r in conflict.records[:-1] if r.version > 0}
                if not there:
                    if root is not None and conflict.records[-1].version == 0:
                        await self.register(root, encode(root))
                        root = None
                        continue
                    return await self._register_as_roots(chunk, known)
                known |= {env.id for env, _ in new if self.key(env.id) in there}
                new = [(env, body) for env, body in new if env.id not in known]
        return [Registered(env, new=env.id not in known) for env, _ in chunk]

    def _child_changes(self, new: Sequence[tuple[Envelope, str]]) -> list[Change]:
        first = new[0][0]
        changes = [
            Change(
                self._item + env.id,
                value=pending_value(body),
                expect=0,
                ttl=self._life(env),
                index=self._index["pending"],
            )
            for env, body in new
        ]
        counter = self.key(first.gate or first.group_id)
        life = max(self._life(env) for env, _ in new)
        if first.gate:
            changes.append(Change(counter, add={MEMBERS: len(new)}, needs=(HOLD,), ttl=life))
        else:
            add = {OPEN: len(new), OPENED: len(new)}
            changes.append(Change(counter, add=add, needs=(OPEN,), ttl=life))
        return changes

    async def _register_as_roots(
        self, chunk: Sequence[tuple[Envelope, str]], known: set[str]
    ) -> list[Registered]:
        done: list[Registered] = []
        for env, _ in chunk:
            if env.id in known:
                done.append(Registered(env, new=False))
                continue
            root = env._replace(group_id=env.id, gate=None)
            done.append(await self.register(root, encode(root)))
        return done

    # ---- run -----------------------------------------------------------------------------------

    async def start(
        self,
        env: Envelope,
        body: str,
        *,
        writer: str,
        run_at: int,
        lease_until: int,
        progress: object = None,
    ) -> Record:
        """Say that a worker has the work under way, or still has; return the new record.

        Raises:
            WriteConflictError: The record is not at the envelope's version.
        """
        value = running_value(
            body,
            attempt=env.attempt,
            writer=writer,
            run_at=run_at,
            lease_until=lease_until,
            progress=progress,
        )
        change = Change(
            self._item + env.id,
            value=value,
            expect=env.version,
            ttl=self._life(env),
            index=self._index["running"],
            fetch=True,
        )
        return (await self._write_item([change], writer, "running"))[0]

    async def settle(
        self,
        env: Envelope,
        outcome: Outcome,
        *,
        writer: str,
        run_at: int | None,
        body: str = "",
        counted: bool = True,
        parent: bool = False,
    ) -> Settled:
        """Write the terminal state, the result and the counts, once.

        Args:
            env: The work, at the version that its worker knows.
            outcome: How it ended.
            writer: The token of the run.
            run_at: When its handler started, in milliseconds.
            body: The envelope as text, kept for a dead work.
            counted: ``False`` where the record that counted it is gone.
            parent: Whether it has queued children: a root's record then lives as long as they may,
                until the group ends.

        Raises:
            WriteConflictError: The record is not at the envelope's version; nothing was written.
        """
        counter = env.counter if counted else None
        own = counter == env.id
        change = Change(
            self._item + env.id,
            value=terminal_value(
                env, outcome, writer=writer, run_at=run_at, end_at=self._clock.now_ms(), body=body
            ),
            expect=env.version if env.track == "full" else 0,
            add=_ROOT_CLOSES if own else {},
            ttl=LONGEST_GROUP_TTL if own and parent else self._result_ttl,
            index=self._index[outcome.status],
            fetch=True,
        )
        if own or counter is None:
            record = (await self._write_item([change], writer, outcome.status))[0]
            return Settled(record, record if own else None)
        changes = [change, self._close(env, counter, ok=outcome.status == "success")]
        records = await self._write_item(changes, writer, outcome.status)
        return Settled(records[0], records[1])

    def _close(self, env: Envelope, counter: str, *, ok: bool) -> Change:
        if env.gate:
            add = {MEMBERS: -1, (OK if ok else FAILED): 1}
            return Change(self.key(counter), add=add, needs=(MEMBERS,), fetch=True)
        return Change(self.key(counter), add=_ROOT_CLOSES, needs=(OPEN,), fetch=True)

    async def put_off(self, old: Envelope, new: Envelope, body: str, *, writer: str) -> Envelope:
        """Write the work as pending again, for a retry or a deferral; return it at its version.

        Raises:
            WriteConflictError: The record is not at the old envelope's version.
        """
        if old.track != "full":
            return new
        change = Change(
            self._item + old.id,
            value=pending_value(body, writer),
            expect=old.version,
            ttl=self._life(new),
            index=self._index["pending"],
            fetch=True,
        )
        record = (await self._write_item([change], writer, "pending"))[0]
        return new._replace(version=record.version)

    async def _write_item(
        self, changes: Sequence[Change], writer: str, status: str
    ) -> list[Record]:
        """Write; a conflict with our own earlier try of the same write counts as its success."""
        try:
            return await self.store.write(changes)
        except ConflictError as conflict:
            item = read_item(conflict.records[0])
            expected = changes[0].expect
            if (
                item is not None
                and item.writer == writer
                and item.status == status
                and isinstance(expected, int)
                and item.version > expected
            ):
                return conflict.records
            raise WriteConflictError(conflict.records[0]) from conflict

    # ---- cancel, redrive -----------------------------------------------------------------------

    async def ask_to_stop(self, id: str) -> None:
        """Count a request to cancel on the record of a running work."""
        await self.store.write([Change(self.key(id), add={CANCEL: 1})])

    async def reopen(
        self, item: Item, new: Envelope, body: str, *, writer: str, cancels: int = 0
    ) -> Envelope:
        """Bring a dead work back to pending and count it again; return it at its version.

        Args:
            item: The dead work.
            new: Its new life.
            body: That as text.
            writer: The token of who brings it back.
            cancels: How often its old life was asked to stop: the new one was not.

        Raises:
            WriteConflictError: The record changed meanwhile.
        """
        again = {OPEN: 1, OPENED: 1}
        counter = new.counter
        add = {CANCEL: -cancels} if cancels else {}
        if counter == new.id:
            add |= again
        changes = [
            Change(
                self.key(new.id),
                value=pending_value(body, writer),
                expect=item.version,
                add=add,
                ttl=self._life(new),
                index=self._index["pending"],
                fetch=True,
            )
        ]
        if counter is not None and counter != new.id:
            if new.gate:
                counts = {MEMBERS: 1, FAILED: -1}
                changes.append(Change(self.key(counter), add=counts, needs=(MEMBERS,)))
            else:
                life = max(self._life(new), LONGEST_GROUP_TTL)
                changes.append(Change(self.key(counter), add=again, ttl=life))
        records = await self._write_item(changes, writer, "pending")
        return new._replace(version=records[0].version)

    async def outlive(self, id: str) -> None:
        """Keep the record of a settled root for as long as any of its group may be under way."""
        await self.store.write([Change(self.key(id), ttl=LONGEST_GROUP_TTL)])

    # ---- groups --------------------------------------------------------------------------------

    async def claim_group_end(self, root: Record, *, repeat: bool = False) -> bool:
        """Whether this caller is the one that ends the group now, once per time it ended.

        A lone work needs no claim: its own settle is the end of its group, and whoever only
        repeats what follows a settle does not end it again.
        """
        epoch = root.count(OPENED)
        if epoch == 0:
            return not repeat
        current = root
        while True:
            item = read_item(current)
            if item is None or not item.terminal:
                return item is None
            if item.header.get("done", -1) >= epoch or current.count(OPEN) > 0:
                return False
            change = Change(
                current.key,
                value=with_header(item, done=epoch),
                expect=item.version,
                ttl=self._result_ttl,
                index=self._index[item.status],
                fetch=True,
            )
            try:
                ended = (await self.store.write([change]))[0]
            except ConflictError as conflict:
                current = conflict.records[0]
                epoch = current.count(OPENED)
            else:
                if ended.count(OPEN) > 0:  # a redrive has opened it again meanwhile
                    await self.outlive(self.id_of(current.key))
                return True

    # ---- waiting -------------------------------------------------------------------------------

    async def wait_mark(self, id: str, counter: str = WAITERS, by: int = 1) -> Record:
        """Count somebody who waits, and read the record in the same write."""
        change = Change(self.key(id), add={counter: by}, ttl=self._result_ttl, fetch=True)
        return (await self.store.write([change]))[0]

    async def read(self, ids: Sequence[str]) -> list[Record]:
        """The records of works, in the order of the ids."""
        return await self.store.read([self.key(id) for id in ids])
