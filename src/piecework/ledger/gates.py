"""The states of gates: opened with a hold, settled once, and taken out of their group once drained.

A gate is a work without a message. Its record counts its works; what is decided on it is written
here, by conditional writes, so that of several who decide at once only one is heard.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

from piecework.counters import HOLD, OPEN, OPENED
from piecework.envelope import Envelope, encode
from piecework.errors import ConflictError
from piecework.gates import is_drained
from piecework.ledger.works import LONGEST_GROUP_TTL
from piecework.ports.store import Change, Record
from piecework.record import Item, Outcome, read_item, terminal_value, with_header

if TYPE_CHECKING:
    from piecework.ledger.works import Ledger

#: Names the writer of gates' records: whoever decides, decides the same.
_WRITER = "gate"

Opening: TypeAlias = Literal["opened", "there", "late", "rootless"]
"""What came of opening a gate: it is new, it was there, its group had settled, or its group has no
record yet."""


class GateLedger:
    """Writes the states of gates.

    Args:
        ledger: Where works are registered and counted.
        result_ttl: Seconds that the record of a gate is kept once it is out of its group.
    """

    def __init__(self, ledger: Ledger, *, result_ttl: float) -> None:
        self._ledger = ledger
        self._result_ttl = result_ttl

    async def open(self, env: Envelope) -> Opening:
        """Register a gate with its hold, and count it in its group."""
        first, *rest = self._ledger.register_changes(env, encode(env))
        add = {**first.add, HOLD: 1}
        if env.group_id == env.id:
            add[OPENED] = 1
        # It is not known how long its works will be put off, and none of them renews its record.
        life = max(first.ttl or 0.0, LONGEST_GROUP_TTL)
        lasting = [change._replace(ttl=life) for change in (first, *rest)]
        try:
            await self._ledger.store.write([lasting[0]._replace(add=add), *lasting[1:]])
        except ConflictError as conflict:
            if conflict.records[0].version > 0:
                return "there"
            return "rootless" if conflict.records[-1].version == 0 else "late"
        return "opened"

    async def release(self, id: str) -> Record:
        """Say that all works of a gate are queued; return its record. Can be repeated."""
        change = Change(self._ledger.key(id), add={HOLD: -1}, needs=(HOLD,), fetch=True)
        try:
            return (await self._ledger.store.write([change]))[0]
        except ConflictError as conflict:
            return conflict.records[0]

    async def settle(
        self, env: Envelope, record: Record, outcome: Outcome
    ) -> tuple[Record, Record | None]:
        """Decide a gate.

        Returns:
            Its record, and the record of its group's root if it was taken out of its group as well.

        Raises:
            ConflictError: It was decided meanwhile; carries its record.
        """
        value = self._value(env, outcome)
        settled = read_item(record._replace(value=value))
        assert settled is not None
        drained = is_drained(record)
        return await self._write(env.id, record.version, settled, env.group_id, drained=drained)

    async def drain(self, id: str, item: Item) -> tuple[Record, Record | None]:
        """Take a decided gate, none of whose works is open, out of its group.

        Raises:
            ConflictError: Its record changed meanwhile; carries it.
        """
        root = item.header.get("gid", id)
        return await self._write(id, item.version, item, root, drained=True)

    async def _write(
        self, id: str, expect: int, item: Item, root: str, *, drained: bool
    ) -> tuple[Record, Record | None]:
        own = root == id
        change = Change(
            self._ledger.key(id),
            value=with_header(item, drained=drained),
            expect=expect,
            add={OPEN: -1} if own and drained else {},
            # A record that counts lives as long as what it counts may; a group's end shortens it.
            ttl=self._result_ttl if drained and not own else None,
            index=self._ledger.index(item.status),
            fetch=True,
        )
        changes = [change]
        if drained and not own:
            changes.append(Change(self._ledger.key(root), add={OPEN: -1}, fetch=True))
        records = await self._ledger.store.write(changes)
        return records[0], records[-1] if drained else None

    async def close(self, record: Record, item: Item, outcome: Outcome) -> Record:
        """Decide a gate that was never released, and release it; return its record."""
        change = Change(
            record.key,
            value=self._value(item.envelope(), outcome),
            expect=item.version,
            add={HOLD: -1},
            needs=(HOLD,),
            index=self._ledger.index(outcome.status),
            fetch=True,
        )
        try:
            return (await self._ledger.store.write([change]))[0]
        except ConflictError as conflict:
            return conflict.records[0]

    async def kill_dependent(self, env: Envelope, body: str, outcome: Outcome) -> Record:
        """Write down that a dependent of a broken gate will not run; return its record."""
        change = Change(
            self._ledger.key(env.id),
            value=self._value(env, outcome, body),
            expect=0,
            ttl=self._result_ttl,
            index=self._ledger.index(outcome.status),
            fetch=True,
        )
        try:
            return (await self._ledger.store.write([change]))[0]
        except ConflictError as conflict:
            return conflict.records[0]

    def _value(self, env: Envelope, outcome: Outcome, body: str = "") -> str:
        now = self._ledger.now_ms()
        return terminal_value(env, outcome, writer=_WRITER, run_at=None, end_at=now, body=body)
