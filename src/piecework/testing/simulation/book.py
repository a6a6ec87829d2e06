"""A store that keeps a book of all works' lives, and checks the promises while it is written."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from piecework.counters import FAILED, HOLD, MEMBERS, OK, OPEN, OPENED
from piecework.gates import GateSpec, is_gate, judge
from piecework.memory import MemoryStore
from piecework.ports import KEEP
from piecework.record import Item, read_item

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from piecework.clock import Clock
    from piecework.envelope import Envelope
    from piecework.ports import Capabilities, Change, Record
    from piecework.testing.simulation.host import Host

_NEVER_BELOW_ZERO = (OPEN, OPENED, MEMBERS, HOLD, OK, FAILED)


@dataclass(frozen=True, slots=True)
class Violation:
    """A promise that was broken.

    Attributes:
        kind: Which, in a word: what shrinking keeps the same.
        text: What happened, with the ids.
    """

    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class Life:
    """What has happened to one work.

    Attributes:
        id: Its id.
        type: Its work type.
        group_id: The root of its group.
        gate: The gate that counts it.
        parent: The work that queued it.
        unique: The key by which it is the only one, with its type.
        upstream: The gate that started it.
        status: Where it is.
        registered: How often it came into the ledger.
        settles: How often it became terminal.
        reopened: How often it was brought back.
        emptied: How often the count of its group came down to zero (roots).
        refilled: How often it rose from zero again (roots).
        ends: How often the end of its group was claimed (roots).
        is_gate: Whether it is the gate of a ``then=``.
        spec: What a gate waits for.
        recorded_late: Its first record was its last state: ``track="result"``, or never run.
    """

    id: str
    type: str = ""
    group_id: str = ""
    gate: str | None = None
    parent: str | None = None
    unique: tuple[str, str] | None = None
    upstream: str | None = None
    is_gate: bool = False
    spec: GateSpec | None = None
    status: str = "absent"
    registered: int = 0
    settles: int = 0
    reopened: int = 0
    emptied: int = 0
    refilled: int = 0
    ends: int = 0
    recorded_late: bool = False


@dataclass(slots=True)
class Book:
    """The lives of all works, and what of them broke a promise.

    Attributes:
        lives: By id.
        open: The works that are not terminal.
        broken: The promises that were broken.
        claims: Which work holds a unique key.
        members: The works of each gate.
    """

    lives: dict[str, Life] = field(default_factory=dict[str, Life])
    open: dict[str, None] = field(default_factory=dict[str, None])
    broken: list[Violation] = field(default_factory=list[Violation])
    groups: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    members: dict[str, dict[str, None]] = field(default_factory=dict[str, dict[str, None]])
    claims: dict[tuple[str, str], str] = field(default_factory=dict[tuple[str, str], str])
    settled: Counter[str] = field(default_factory=Counter[str])
    #: Called with what is written, for the history.
    told: Callable[[Host, str], None] | None = None

    def wrong(self, kind: str, text: str) -> None:
        """Note a broken promise."""
        self.broken.append(Violation(kind, text))

    def tell(self, host: Host, change: Change, record: Record) -> None:
        """Add a write to the history."""
        if self.told is None:
            return
        head = "" if not isinstance(change.value, str) else change.value.split("\n", 1)[0][:80]
        if change.value is KEEP:
            head = "counts only" if change.add else "lives longer"
        counts = {name: count for name, count in record.counters.items() if count}
        self.told(host, f"writes {record.key} v{record.version}: {head} {counts or ''}")


class BookedStore(MemoryStore):
    """A store in memory that checks the promises at each write.

    Args:
        now: Where its time comes from.
        capabilities: What it claims to be.
        prefix: Stands before every key.
    """

    def __init__(self, *, now: Clock, capabilities: Capabilities, prefix: str = "work:") -> None:
        super().__init__(now=now, capabilities=capabilities)
        self.book = Book()
        self._item_key = f"{prefix}item:"
        self._written: list[tuple[str, Record | None, Record]] = []
        #: Whether the write brings a dead work back, which opens its group again.
        self._reopens = False

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        """Write, and look at what has become of the works."""
        self._written = []
        self._reopens = False
        answer = await super().write(changes)
        for key, before, after in self._written:
            self._note_value(key, before, after)
        for key, before, after in self._written:
            self._note_counts(key, before, after)
        return answer

    def _apply(self, change: Change, cell: Any, now: int) -> Record:
        before = None if cell is None else cell.record
        after = super()._apply(change, cell, now)
        if change.key.startswith(self._item_key):
            self._written.append((change.key[len(self._item_key) :], before, after))
        return after

    # ---- states --------------------------------------------------------------------------------

    def _note_value(self, id: str, before: Record | None, after: Record) -> None:
        old = None if before is None else read_item(before)
        new = read_item(after)
        if new is None or (before is not None and before.version == after.version):
            return
        life = self.book.lives.setdefault(id, Life(id))
        if old is None:
            self._registered(life, new)
        elif old.terminal:
            self._rewritten(life, old, new)
        life.status = new.status
        if not new.terminal:
            self.book.open[id] = None
            return
        self.book.open.pop(id, None)
        if old is None or not old.terminal:
            life.settles += 1
            self.book.settled[new.status] += 1

    def _registered(self, life: Life, new: Item) -> None:
        life.registered += 1
        if life.registered > 1 and not life.recorded_late:
            self.book.wrong("registered-twice", f"{life.id} ({life.type}) came anew")
        if new.terminal:
            life.type, life.group_id = new.header["t"], new.header.get("gid", life.id)
            life.gate = new.header.get("gate")
            life.recorded_late = True
            return
        env = new.envelope()
        life.type, life.group_id, life.gate = env.type, env.group_id, env.gate
        life.parent, life.upstream = env.parent_id, env.upstream
        life.is_gate = is_gate(env)
        if life.is_gate:
            life.spec = GateSpec.decode(env.input)
        book = self.book
        book.groups.setdefault(env.group_id, {})[life.id] = None
        if env.gate is not None:
            book.members.setdefault(env.gate, {})[life.id] = None
        if env.unique is not None:
            self._claimed(life, env)
        if env.upstream is not None:
            self._started_by_gate(life, env.upstream)

    def _claimed(self, life: Life, env: Envelope) -> None:
        assert env.unique is not None
        life.unique = (env.type, env.unique)
        first = self.book.claims.get(life.unique)
        if first is not None and env.unique_until is None:
            held = self.book.lives[first]
            if held.status in ("pending", "running"):
                self.book.wrong(
                    "not-unique", f"{life.id} came while {first} of the same key is {held.status}"
                )
        if env.unique_until is None:
            self.book.claims[life.unique] = life.id

    def _started_by_gate(self, life: Life, gate: str) -> None:
        """A dependent came into the ledger: its gate's condition must hold by now."""
        opener = self.book.lives.get(gate)
        if opener is None or opener.spec is None:
            return  # a dependency(), which is a work with a message
        spec = opener.spec
        states = [self.book.lives[id].status for id in self.book.members.get(gate, {})]
        ok = sum(1 for status in states if status == "success")
        waiting = sum(1 for status in states if status in ("pending", "running"))
        verdict = judge(
            spec.when,
            total=spec.total,
            ok=ok,
            failed=len(states) - ok - waiting,
            drained=waiting == 0 and len(states) >= spec.total,
        )
        if verdict != "fire":
            self.book.wrong("early-gate", f"{life.id} came, but {gate} says {verdict}: {states}")

    def _rewritten(self, life: Life, old: Item, new: Item) -> None:
        if not new.terminal:
            life.reopened += 1
            self._reopens = True
            if old.status != "dead":
                self.book.wrong("reopened", f"{life.id} was {old.status} and became {new.status}")
        elif (old.status, old.payload) != (new.status, new.payload):
            self.book.wrong("settled-twice", f"{life.id} was {old.status}, became {new.status}")
        elif old.header.get("done", -1) != new.header.get("done", -1):
            life.ends += 1

    # ---- counts --------------------------------------------------------------------------------

    def _note_counts(self, id: str, before: Record | None, after: Record) -> None:
        book = self.book
        for name in _NEVER_BELOW_ZERO:
            if after.count(name) < 0:
                book.wrong("count-below-zero", f"{name} of {id} is {after.count(name)}")
        was = 0 if before is None else before.count(OPEN)
        now = after.count(OPEN)
        if was == now or (was > 0 and now > 0):
            return
        life = book.lives.setdefault(id, Life(id))
        if now > 0:
            life.refilled += 1
            if life.emptied and before is not None and not self._reopens:
                book.wrong("opened-again", f"the group {id} had ended, and no redrive opened it")
            return
        life.emptied += 1
        waiting = [other for other in book.groups.get(id, {}) if other in book.open]
        if waiting:
            book.wrong("early-group", f"the group {id} ended before {waiting}")

    def left_over(self) -> list[str]:
        """The records that nothing will ever remove."""
        never = 1 << 61
        return [key for key, cell in self._cells.items() if cell.expires_ms > never]

    def count_of(self, id: str, name: str) -> int:
        """A counter of a work's record."""
        cell = self._cells.get(self._item_key + id)
        return 0 if cell is None else cell.record.count(name)
