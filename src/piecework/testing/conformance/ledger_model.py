"""The ledger in plain dictionaries: what its records must be after each call.

It is written for being obviously right, with no thought of races, conditions or stores: one call
happens after the other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from piecework.counters import FAILED, HOLD, MEMBERS, OK, OPEN, OPENED
from piecework.gates import is_gate
from piecework.ledger import LONGEST_GROUP_TTL, PENDING_TTL
from piecework.state import TERMINAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from piecework.envelope import Envelope


class RefusedError(Exception):
    """The call must conflict and change nothing; ``version`` is what the conflict must show."""

    def __init__(self, version: int) -> None:
        self.version = version
        super().__init__(version)


@dataclass(slots=True)
class Entry:
    """What the record of a work, a gate or a claim must be.

    Attributes:
        status: Where the work is; ``None`` where only counters are there; the id of a claim.
        version: How often the state was written.
        counts: Its counters.
        expires: When it is gone, in milliseconds since 1970.
        env: The work as it was written last.
        writer: The token of the run that wrote the state.
        done: The count of openings for which the end of the group was claimed.
        drained: Whether a gate was taken out of its group.
    """

    status: str | None = None
    version: int = 0
    counts: dict[str, int] = field(default_factory=dict[str, int])
    expires: float = math.inf
    env: Envelope | None = None
    writer: str | None = None
    done: int = -1
    drained: bool = False

    @property
    def terminal(self) -> bool:
        """Whether the work has settled."""
        return self.status in TERMINAL

    @property
    def ended(self) -> bool:
        """Whether its group has ended and nobody has claimed that yet."""
        return self.terminal and self.count(OPEN) == 0 and self.done < self.count(OPENED)

    @property
    def closed(self) -> bool:
        """Whether the counts of a gate are final."""
        return self.count(HOLD) == 0 and self.count(MEMBERS) == 0

    def count(self, name: str) -> int:
        """A counter."""
        return self.counts.get(name, 0)

    def add(self, **by: int) -> None:
        """Add to counters."""
        for name, n in by.items():
            self.counts[name] = self.count(name) + n

    def known(self) -> Envelope:
        """The work as it was written last."""
        assert self.env is not None
        return self.env


class LedgerModel:
    """All records of a ledger.

    Args:
        now_ms: The time.
        result_ttl: Seconds that a settled work is kept.
    """

    def __init__(self, now_ms: Callable[[], int], result_ttl: float) -> None:
        self._now = now_ms
        self._result_ttl = result_ttl
        self._entries: dict[str, Entry] = {}

    # ---- looking -------------------------------------------------------------------------------

    def find(self, id: str) -> Entry | None:
        """The entry of an id, unless it is past its life."""
        entry = self._entries.get(id)
        if entry is not None and entry.expires <= self._now():
            del self._entries[id]
            return None
        return entry

    def look(self, id: str) -> Entry:
        """The entry of an id; an empty one where there is none."""
        return self.find(id) or Entry()

    def entries(self) -> Iterator[tuple[str, Entry]]:
        """All that are there."""
        for id in list(self._entries):
            if (entry := self.find(id)) is not None:
                yield id, entry

    def counted_by(self, counter: str, *, gate: bool) -> int:
        """How many works and gates are open that a record must count."""
        return sum(
            1
            for _, entry in self.entries()
            if entry.env is not None
            and self.is_open(entry)
            and entry.env.counter == counter
            and (entry.env.gate is not None) == gate
        )

    def shortest_open_life(self) -> float:
        """Milliseconds until the record of something that others count would be gone."""
        now = self._now()
        lives = [
            entry.expires - now
            for _, entry in self.entries()
            if self.is_open(entry) and (entry.known().counter != entry.known().id or entry.counts)
        ]
        return min(lives, default=math.inf)

    def near_an_expiry(self, ms: int) -> bool:
        """Whether a record is gone in so many milliseconds, or was there so shortly before."""
        now = self._now()
        return any(abs(entry.expires - now) <= ms for entry in self._entries.values())

    @staticmethod
    def is_open(entry: Entry) -> bool:
        """Whether something must count this: a gate is open until it is out of its group."""
        if entry.env is None:
            return False
        if is_gate(entry.env):
            return not entry.drained
        return not entry.terminal

    # ---- writing -------------------------------------------------------------------------------

    def _at(self, id: str) -> Entry:
        return self.find(id) or self._entries.setdefault(id, Entry())

    def _life(self, env: Envelope) -> float:
        return max(0, env.start_at - self._now()) / 1000 + PENDING_TTL

    def _until(self, ttl: float) -> float:
        return self._now() + ttl * 1000

    def _lengthen(self, entry: Entry, ttl: float) -> None:
        fresh = entry.version == 0 and entry.expires == math.inf
        until = self._until(ttl)
        entry.expires = until if fresh else max(entry.expires, until)

    def _put(self, env: Envelope, status: str, writer: str | None, ttl: float | None) -> Entry:
        entry = self._at(env.id)
        entry.status = status
        entry.version += 1
        entry.writer = writer
        entry.done = -1
        entry.env = env._replace(version=entry.version)
        if ttl is not None:
            entry.expires = self._until(ttl)
        return entry

    def _own(self, env: Envelope, version: int, status: str, writer: str) -> Entry | None:
        """The entry of a work, if a writer that knows this version may write.

        ``None`` where it has written the very same already: it repeats a call whose answer it lost.
        """
        entry = self.look(env.id)
        if entry.version == version:
            return entry
        if (entry.writer, entry.status) == (writer, status) and entry.version > version:
            return None
        raise RefusedError(entry.version)

    # ---- register ------------------------------------------------------------------------------

    def register(self, works: Sequence[Envelope], root: Envelope | None = None) -> list[bool]:
        """Register works that one record counts; tell which are new."""
        new = [env for env in works if self.look(env.id).version == 0]
        if not new:
            return [False for _ in works]
        counter = new[0].counter
        assert counter is not None
        if counter == new[0].id:
            self._register_root(new[0])
        elif self._takes(new[0], counter, root):
            self._count_in(new, self._at(counter))
        else:
            for env in new:
                self._register_root(env)
        return [env in new for env in works]

    def _takes(self, env: Envelope, counter: str, root: Envelope | None) -> bool:
        """Whether a record still counts works that come to it."""
        name = HOLD if env.gate else OPEN
        if self.look(counter).count(name) > 0:
            return True
        if root is not None and self.look(counter).version == 0:
            self.register([root])
        return self.look(counter).count(name) > 0

    def _register_root(self, env: Envelope) -> None:
        env = env._replace(group_id=env.id, gate=None)
        self._put(env, "pending", None, self._life(env)).add(open=1)

    def _count_in(self, new: Sequence[Envelope], counter: Entry) -> None:
        for env in new:
            self._put(env, "pending", None, self._life(env))
        if new[0].gate:
            counter.add(members=len(new))
        else:
            counter.add(open=len(new), opened=len(new))
        self._lengthen(counter, max(self._life(env) for env in new))

    # ---- run -----------------------------------------------------------------------------------

    def start(self, env: Envelope, writer: str) -> int:
        """A worker has a work under way; return the version."""
        if self._own(env, env.version, "running", writer) is not None:
            self._put(env, "running", writer, self._life(env))
        return self.look(env.id).version

    def put_off(self, old: Envelope, new: Envelope, writer: str) -> int:
        """A work waits for its turn again; return the version."""
        if self._own(old, old.version, "pending", writer) is not None:
            self._put(new, "pending", writer, self._life(new))
        return self.look(new.id).version

    def settle(
        self, env: Envelope, status: str, writer: str, *, parent: bool, counted: bool
    ) -> tuple[int, dict[str, int] | None]:
        """A work has ended; return its version, and the counts of what counts it."""
        entry = self._own(env, env.version, status, writer)
        counter = env.counter if counted else None
        own = counter == env.id
        if entry is not None:
            if counter is not None and not own and not self._counts(env, counter):
                raise RefusedError(entry.version)
            self._put(env, status, writer, self._result_ttl)
            if own and parent:
                entry.expires = self._until(LONGEST_GROUP_TTL)
            if counter is not None:
                self._uncount(env, self._at(counter), ok=status == "success")
        counts = None if counter is None else dict(self.look(counter).counts)
        return self.look(env.id).version, counts

    def _counts(self, env: Envelope, counter: str) -> bool:
        return self.look(counter).count(MEMBERS if env.gate else OPEN) > 0

    @staticmethod
    def _uncount(env: Envelope, counter: Entry, *, ok: bool) -> None:
        if env.gate is None:
            counter.add(open=-1)
        else:
            counter.add(members=-1, **{OK if ok else FAILED: 1})

    def outlive(self, id: str) -> None:
        """A settled root is kept for its group."""
        if (entry := self.find(id)) is not None:
            self._lengthen(entry, LONGEST_GROUP_TTL)

    # ---- cancel, redrive, waiting --------------------------------------------------------------

    def ask_to_stop(self, id: str) -> None:
        """A running work is asked to stop."""
        self._at(id).add(cancel=1)

    def reopen(self, version: int, new: Envelope, writer: str, cancels: int) -> int:
        """A dead work waits for its turn again, and counts again; return the version."""
        entry = self._own(new, version, "pending", writer)
        if entry is not None:
            assert new.counter is not None
            if new.gate and not self._counts(new, new.counter):
                raise RefusedError(entry.version)
            self._put(new, "pending", writer, self._life(new)).add(cancel=-cancels)
            counter = self._at(new.counter)
            if new.gate:
                counter.add(members=1, failed=-1)
            else:
                counter.add(open=1, opened=1)
                if new.counter != new.id:
                    self._lengthen(counter, max(LONGEST_GROUP_TTL, self._life(new)))
        return self.look(new.id).version

    def wait_mark(self, id: str, counter: str, by: int) -> int:
        """Somebody waits, or no longer does; return how many there are."""
        entry = self._at(id)
        entry.add(**{counter: by})
        self._lengthen(entry, self._result_ttl)
        return entry.count(counter)

    # ---- groups --------------------------------------------------------------------------------

    def claim_group_end(self, id: str, seen: Entry, *, repeat: bool) -> bool:
        """Whether who has seen this of a root is the one that ends its group."""
        epoch = seen.count(OPENED)
        if epoch == 0:
            return not repeat
        if seen.version == 0:
            return True
        if not seen.ended:
            return False
        entry = self.look(id)
        if entry.version != seen.version:  # else it was opened again since, which is another end
            epoch = entry.count(OPENED)
            if not entry.ended:
                return False
        self._put(entry.known(), entry.status or "", entry.writer, self._result_ttl).done = epoch
        if entry.count(OPEN) > 0:
            self.outlive(id)
        return True

    # ---- gates ---------------------------------------------------------------------------------

    def open_gate(self, env: Envelope) -> str:
        """A gate opens, held; return what came of it."""
        if self.look(env.id).version > 0:
            return "there"
        root = self.look(env.group_id)
        own = env.group_id == env.id
        if not own and root.count(OPEN) == 0:
            return "late" if root.version > 0 else "rootless"
        life = max(self._life(env), LONGEST_GROUP_TTL)
        self._put(env, "pending", None, life).add(hold=1)
        root = self._at(env.group_id)
        root.add(open=1, opened=1)
        self._lengthen(root, life)
        return "opened"

    def release(self, id: str) -> None:
        """All works of a gate are queued."""
        entry = self.find(id)
        if entry is not None and entry.count(HOLD) > 0:
            entry.add(hold=-1)

    def decide(self, env: Envelope, seen: Entry, status: str) -> bool:
        """A gate is decided by who has seen this of it; tell whether it is out of its group."""
        entry = self.look(env.id)
        if entry.version != seen.version:
            raise RefusedError(entry.version)
        self._put(env, status, "gate", None)
        return self._drained(env, entry, seen)

    def drain(self, id: str, seen: Entry) -> bool:
        """A decided gate with nothing open is taken out of its group."""
        entry = self.look(id)
        if entry.version != seen.version:
            raise RefusedError(entry.version)
        self._put(entry.known(), entry.status or "", "gate", None)
        return self._drained(entry.known(), entry, seen)

    def _drained(self, env: Envelope, entry: Entry, seen: Entry) -> bool:
        entry.drained = seen.closed
        if entry.drained:
            self._at(env.group_id).add(open=-1)
            if env.group_id != env.id:
                entry.expires = self._until(self._result_ttl)
        return entry.drained

    def close_gate(self, id: str, seen: Entry) -> None:
        """A gate that was never released ends as dead."""
        entry = self.look(id)
        if entry.version == seen.version and entry.count(HOLD) > 0:
            self._put(entry.known(), "dead", "gate", None).add(hold=-1)

    def kill_dependent(self, env: Envelope) -> None:
        """A work that will never run is dead from the start."""
        if self.look(env.id).version == 0:
            self._put(env, "dead", "gate", self._result_ttl)

    # ---- unique --------------------------------------------------------------------------------

    def register_unique(
        self, env: Envelope, key: str, unique_for: float | None
    ) -> tuple[str, bool]:
        """Register the one work of a key; return the id that has it, and whether it is new."""
        if self.look(env.id).version > 0:
            return env.id, False
        holder = self.look(key).status
        if holder is not None:
            held = self.look(holder)
            if held.version > 0 and (not held.terminal or unique_for is not None):
                return holder, False
            if held.version == 0:
                own = env.group_id == env.id
                env = env._replace(id=holder, group_id=holder if own else env.group_id)
        self.register([env])
        longest = max(self._life(env), LONGEST_GROUP_TTL)
        life = longest if unique_for is None else unique_for
        self.claim(env.id, key, life)
        return env.id, True

    def claim(self, id: str, key: str, life: float) -> None:
        """A work has a key."""
        claim = self._at(key)
        claim.status = id
        claim.version += 1
        claim.expires = self._until(life)

    def release_unique(self, env: Envelope, key: str) -> None:
        """Let go of the claim of a settled work."""
        if env.unique_until is None and self.look(key).status == env.id:
            self._entries.pop(key, None)
