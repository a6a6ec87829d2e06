"""The messages of a queue in this process: visible ones, and those that a moment makes visible."""

from __future__ import annotations

import math
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from piecework.ports.queue import Lease

if TYPE_CHECKING:
    from piecework.clock import Clock
    from piecework.ports.queue import Message

#: A timer is one integer, ``moment in ms << _BITS | serial number``: cheap to compare and unique.
_BITS = 44
#: Timers whose message moved on stay in the heap until they outnumber the live ones by this.
_STALE = 1000
#: No delay is longer, in seconds (3,000 years): it keeps infinity out of integer arithmetic.
_FOREVER = 1e11


class Entry:
    """One message; the only object per message that the garbage collector sees."""

    __slots__ = (
        "body",
        "dedupe_key",
        "deliveries",
        "group",
        "message_id",
        "reason",
        "sent_at_ms",
        "timer",
        "token",
    )

    def __init__(self, message: Message, message_id: str, now_ms: int) -> None:
        self.body = message.body
        self.group = message.group
        self.dedupe_key = message.dedupe_key
        self.reason = message.reason
        self.message_id = message_id
        self.sent_at_ms = now_ms
        self.deliveries = 0
        self.token = ""
        self.timer = 0


class Shelf:
    """Entries by when they are visible. Nothing here waits or locks; the queue's lock guards it.

    Every operation costs O(log n) at most, and nothing grows beyond the messages that are there.

    Args:
        name: What the tokens and message ids begin with.
        clock: Where its time comes from.
        ordered: Deliver the messages of a group one at a time, in their order.
    """

    __slots__ = (
        "_behind",
        "_clock",
        "_dedupe",
        "_heap",
        "_leased",
        "_name",
        "_ordered",
        "_serial",
        "_timed",
        "ready",
    )

    def __init__(self, name: str, clock: Clock, *, ordered: bool) -> None:
        self._name = name
        self._clock = clock
        self._ordered = ordered
        self._serial = 0
        #: Visible messages, the longest visible first.
        self.ready: deque[Entry] = deque()
        #: Delayed and leased messages by their timer, and the timers in the order of time.
        self._timed: dict[int, Entry] = {}
        self._heap: list[int] = []
        #: Leased messages by their token.
        self._leased: dict[str, Entry] = {}
        self._dedupe: set[str] = set()
        #: Ordered only: behind the message of a group that is out, those that follow it.
        self._behind: dict[str, deque[Entry]] = {}

    def __len__(self) -> int:
        return len(self.ready) + len(self._timed) + sum(map(len, self._behind.values()))

    def now(self) -> int:
        """The time, after what became due by then is visible, in the order of those moments."""
        now = self._clock.now_ms()
        heap, timed = self._heap, self._timed
        if heap:
            limit = (now + 1) << _BITS
            while heap and heap[0] < limit:
                entry = timed.pop(heappop(heap), None)
                if entry is not None:
                    if entry.token:
                        del self._leased[entry.token]
                        entry.token = ""
                    self.ready.append(entry)
        return now

    def due_ms(self) -> float:
        """When the next message becomes visible by itself; infinite if none does."""
        heap, timed = self._heap, self._timed
        while heap and heap[0] not in timed:
            heappop(heap)
        return heap[0] >> _BITS if heap else math.inf

    def add(self, message: Message, now: int) -> None:
        """Take in a message, unless one with its key is here."""
        key = message.dedupe_key
        if key is not None:
            if key in self._dedupe:
                return
            self._dedupe.add(key)
        self._serial = serial = self._serial + 1
        self.place(Entry(message, f"{self._name}-{serial}", now), message.delay, now)

    def adopt(self, entry: Entry, reason: str) -> None:
        """Take over a message of another shelf as a dead letter, as if it was never delivered."""
        entry.reason = reason
        entry.deliveries = 0
        entry.dedupe_key = None
        self.place(entry, 0, self.now())

    def place(self, entry: Entry, delay: float, now: int) -> None:
        """Put in a new entry, to be visible after ``delay`` seconds."""
        if self._ordered and entry.group is not None:
            behind = self._behind.get(entry.group)
            if behind is not None:
                entry.timer = now + _ms(delay)
                behind.append(entry)
                return
            self._behind[entry.group] = deque()
        self.put_back(entry, delay, now)

    def put_back(self, entry: Entry, delay: float, now: int) -> None:
        """Make an entry visible after ``delay`` seconds."""
        if delay > 0:
            self._set_timer(entry, now + _ms(delay))
        else:
            self.ready.append(entry)

    def lease(self, count: int, visibility: float) -> list[Lease]:
        """Lease up to ``count`` visible messages for ``visibility`` seconds."""
        now = self.now()
        ready = self.ready
        if not ready:
            return []
        end = (now + _ms(visibility)) << _BITS
        leases: list[Lease] = []
        for _ in range(min(count, len(ready))):
            entry = ready.popleft()
            self._serial = serial = self._serial + 1
            entry.token = token = f"{self._name}.{serial}"
            entry.deliveries = deliveries = entry.deliveries + 1
            entry.timer = timer = end | serial
            self._timed[timer] = self._leased[token] = entry
            heappush(self._heap, timer)
            leases.append(
                Lease(
                    entry.body,
                    token,
                    deliveries,
                    entry.message_id,
                    entry.group,
                    entry.reason,
                    entry.sent_at_ms,
                )
            )
        return leases

    def extend(self, lease: Lease, visibility: float, now: int) -> bool:
        """Let the lease end ``visibility`` seconds from now; false if its token is stale."""
        entry = self._leased.get(lease.token)
        if entry is None:
            return False
        del self._timed[entry.timer]
        self._set_timer(entry, now + _ms(visibility))
        return True

    def end(self, lease: Lease) -> Entry | None:
        """End the lease and hand out its entry; ``None`` if its token is stale."""
        entry = self._leased.pop(lease.token, None)
        if entry is not None:
            del self._timed[entry.timer]
            entry.token = ""
        return entry

    def forget(self, entry: Entry) -> None:
        """Free what a message that leaves kept back: its key, and those behind it."""
        if entry.dedupe_key is not None:
            self._dedupe.discard(entry.dedupe_key)
        if self._ordered and entry.group is not None:
            self._follow(entry.group)

    def tidy(self) -> None:
        """Drop the timers of messages that moved on, when they are many."""
        if len(self._heap) > 2 * len(self._timed) + _STALE:
            self._heap = list(self._timed)
            heapify(self._heap)

    def _set_timer(self, entry: Entry, due_ms: int) -> None:
        self._serial = serial = self._serial + 1
        entry.timer = timer = due_ms << _BITS | serial
        self._timed[timer] = entry
        heappush(self._heap, timer)

    def _follow(self, group: str) -> None:
        behind = self._behind[group]
        if not behind:
            del self._behind[group]
            return
        entry = behind.popleft()
        if entry.timer > self._clock.now_ms():
            self._set_timer(entry, entry.timer)
        else:
            self.ready.append(entry)


def _ms(seconds: float) -> int:
    return round(min(seconds, _FOREVER) * 1000) if seconds > 0 else 0
