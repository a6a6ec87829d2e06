"""A queue in this process: leases, delays, dead letters, at any length."""

from __future__ import annotations

import asyncio
import math
import threading
from collections import deque
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from piecework.clock import as_clock
from piecework.errors import ConfigError, PayloadTooLargeError
from piecework.ids import Ids, random_id
from piecework.memory.line import Line, Waiter
from piecework.ports.capabilities import Capabilities
from piecework.ports.queue import Lease, Message, Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.clock import Now

#: A timer is one integer, ``moment in ms << _BITS | serial number``: cheap to compare and unique.
_BITS = 44
#: Timers whose message moved on stay in the heap until they outnumber the live ones by this.
_STALE = 1000
#: No delay is longer, in seconds (3,000 years): it keeps infinity out of integer arithmetic.
_FOREVER = 1e11
#: A waiting pop whose timer rang before the clock's time doubles its pause up to this, in seconds.
_PAUSE = 1.0


class MemoryQueue(Queue):
    """Messages with leases in this process; they are gone when it ends.

    It may be shared by systems in several threads. No call suspends, but a ``pop`` that waits.
    With ``Capabilities(ordered=True)`` the messages of a group are delivered one at a time.

    Args:
        now: Where its time comes from; ``None`` is the computer's clock. A waiting ``pop`` uses
            the loop's timers and looks at this clock when they ring.
        dead: The queue for dead letters; ``None`` makes one at first use.
        capabilities: What it shall claim (and hold to), to act like another backend.
        ids: Makes the name that its tokens and message ids begin with.

    Example:
        >>> import asyncio
        >>> async def main() -> str:
        ...     queue = MemoryQueue()
        ...     await queue.push([Message("hello")])
        ...     (lease,) = await queue.pop(10, visibility=30, wait=0)
        ...     await queue.ack([lease])
        ...     return lease.body
        >>> asyncio.run(main())
        'hello'
    """

    def __init__(
        self,
        *,
        now: Now | None = None,
        dead: MemoryQueue | None = None,
        capabilities: Capabilities | None = None,
        ids: Ids = random_id,
    ) -> None:
        self._clock = as_clock(now)
        self._capabilities = capabilities or Capabilities(in_process=True)
        self._ids = ids
        self._name = ids()
        self._dead = dead
        self._lock = threading.Lock()
        self._line = Line()
        self._serial = 0
        #: Visible messages, the longest visible first.
        self._ready: deque[_Entry] = deque()
        #: Delayed and leased messages by their timer, and the timers in the order of time.
        self._timed: dict[int, _Entry] = {}
        self._heap: list[int] = []
        #: Leased messages by their token.
        self._leased: dict[str, _Entry] = {}
        self._dedupe: set[str] = set()
        #: Ordered queues only: behind the message of a group that is out, those that follow it.
        self._behind: dict[str, deque[_Entry]] = {}
        self._ordered = self._capabilities.ordered

    @property
    def capabilities(self) -> Capabilities:
        """What this queue can do."""
        return self._capabilities

    @property
    def dead(self) -> MemoryQueue:
        """The queue of its dead letters."""
        with self._lock:
            return self._dead_queue()

    @property
    def dead_letter_queue(self) -> Queue | None:
        """The same as ``dead``; ``None`` where the capabilities say that it keeps none."""
        return self.dead if self._capabilities.native_dead_letters else None

    async def push(self, messages: Sequence[Message]) -> None:
        """Add messages; one whose ``dedupe_key`` is in the queue is dropped.

        Raises:
            PayloadTooLargeError: A body is over ``Capabilities.max_body_bytes``; none was added.
            ConfigError: A delay is over ``Capabilities.max_delay``; none was added.
        """
        self._check(messages)
        with self._lock:
            now = self._now()
            for message in messages:
                key = message.dedupe_key
                if key is not None:
                    if key in self._dedupe:
                        continue
                    self._dedupe.add(key)
                self._serial = serial = self._serial + 1
                entry = _Entry(message, f"{self._name}-{serial}", now)
                if self._ordered and self._stand_behind(entry, message.delay):
                    continue
                if message.delay > 0:
                    self._set_timer(entry, now + _ms(message.delay))
                else:
                    self._ready.append(entry)
            if self._line:
                self._alert()

    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        """Lease up to ``max`` messages for ``visibility`` seconds; wait up to ``wait`` for one."""
        with self._lock:
            leases = self._take(max, visibility)
            if leases and self._line:
                self._alert()
        if leases or wait <= 0 or max <= 0:
            return leases
        return await self._wait(max, visibility, wait)

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        """Let the leases end ``visibility`` seconds from now; return those that are lost."""
        lost: list[Lease] = []
        with self._lock:
            end = self._now() + _ms(visibility)
            for lease in leases:
                entry = self._leased.get(lease.token)
                if entry is None:
                    lost.append(lease)
                else:
                    del self._timed[entry.timer]
                    self._set_timer(entry, end)
            self._tidy()
        return lost

    async def ack(self, leases: Sequence[Lease]) -> None:
        """Remove the messages for good. A stale token changes nothing."""
        with self._lock:
            self._now()
            for lease in leases:
                entry = self._end_lease(lease)
                if entry is not None:
                    self._forget(entry)
            self._tidy()

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        """Give the messages back, visible after ``delay`` seconds; a stale token does nothing."""
        delay = min(delay, self._capabilities.max_delay)
        with self._lock:
            now = self._now()
            for lease in leases:
                entry = self._end_lease(lease)
                if entry is None:
                    continue
                if delay > 0:
                    self._set_timer(entry, now + _ms(delay))
                else:
                    self._ready.append(entry)
            self._tidy()

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        """Move the message to ``dead`` with its reason. A stale token changes nothing."""
        with self._lock:
            self._now()
            entry = self._end_lease(lease)
            if entry is None:
                return
            self._forget(entry)
            self._tidy()
            if self._capabilities.native_dead_letters:
                self._dead_queue()._adopt(entry, reason)  # noqa: SLF001 - one of its own kind

    async def size(self) -> int:
        """How many messages are in the queue: visible, delayed and leased."""
        with self._lock:
            return len(self._ready) + len(self._timed) + sum(map(len, self._behind.values()))

    # Everything below holds the lock, but ``_check`` and ``_wait``.

    def _check(self, messages: Sequence[Message]) -> None:
        limit, longest = self._capabilities.max_body_bytes, self._capabilities.max_delay
        if limit is None and longest == math.inf:
            return
        for message in messages:
            if message.delay > longest:
                raise ConfigError(
                    f"a delay of {message.delay} s is over the {longest} s that this queue takes; "
                    f"push it with a shorter delay and again when that has passed"
                )
            if limit is not None:
                size = len(message.body.encode("utf-8", "surrogatepass"))
                if size > limit:
                    raise PayloadTooLargeError("the body of a message", size=size, limit=limit)

    def _now(self) -> int:
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
                    self._ready.append(entry)
        return now

    def _take(self, max: int, visibility: float) -> list[Lease]:
        now = self._now()
        ready = self._ready
        if not ready:
            return []
        end = (now + _ms(visibility)) << _BITS
        leases: list[Lease] = []
        for _ in range(min(max, len(ready))):
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

    def _set_timer(self, entry: _Entry, due_ms: int) -> None:
        self._serial = serial = self._serial + 1
        entry.timer = timer = due_ms << _BITS | serial
        self._timed[timer] = entry
        heappush(self._heap, timer)

    def _end_lease(self, lease: Lease) -> _Entry | None:
        entry = self._leased.pop(lease.token, None)
        if entry is not None:
            del self._timed[entry.timer]
            entry.token = ""
        return entry

    def _forget(self, entry: _Entry) -> None:
        if entry.dedupe_key is not None:
            self._dedupe.discard(entry.dedupe_key)
        if self._ordered:
            self._follow(entry)

    def _tidy(self) -> None:
        if len(self._heap) > 2 * len(self._timed) + _STALE:
            self._heap = list(self._timed)
            heapify(self._heap)
        if self._line:
            self._alert()

    def _due_ms(self) -> float:
        heap, timed = self._heap, self._timed
        while heap and heap[0] not in timed:
            heappop(heap)
        return heap[0] >> _BITS if heap else math.inf

    def _alert(self) -> None:
        self._line.alert(len(self._ready), self._due_ms())

    async def _wait(self, most: int, visibility: float, wait: float) -> list[Lease]:
        loop = asyncio.get_running_loop()
        end = loop.time() + wait
        waiter = Waiter(loop, most)
        pause = 0.0
        with self._lock:
            self._line.join(waiter)
        try:
            while True:
                with self._lock:
                    # Nothing suspends between this and the return: a cancelled pop holds no lease.
                    leases = self._take(most, visibility)
                    if leases or loop.time() >= end:
                        return leases
                    due = self._due_ms() if self._line.is_first(waiter) else math.inf
                    # A clock that stands still while the loop's time goes on is asked ever less.
                    early = due == waiter.armed_ms and not waiter.woken
                    pause = min(pause * 2 + 0.001, _PAUSE) if early else 0.0
                    waiter.arm(due)
                    ahead = (due - self._clock.now_ms()) / 1000
                await waiter.rest(min(end, loop.time() + max(ahead, pause)))
        except GeneratorExit:
            # Its loop is gone, and the collector may end it while this thread holds the lock.
            waiter.destroyed = True
            raise
        finally:
            if not waiter.destroyed:
                with self._lock:
                    self._line.leave(waiter)
                    if self._line:
                        self._alert()

    def _stand_behind(self, entry: _Entry, delay: float) -> bool:
        """On an ordered queue: whether the message has to wait for the one before it."""
        if entry.group is None:
            return False
        behind = self._behind.get(entry.group)
        if behind is None:
            self._behind[entry.group] = deque()
            return False
        entry.timer = entry.sent_at_ms + _ms(delay)
        behind.append(entry)
        return True

    def _follow(self, entry: _Entry) -> None:
        """On an ordered queue: the next message of the group may be delivered."""
        if entry.group is None:
            return
        behind = self._behind[entry.group]
        if not behind:
            del self._behind[entry.group]
            return
        follower = behind.popleft()
        if follower.timer > self._clock.now_ms():
            self._set_timer(follower, follower.timer)
        else:
            self._ready.append(follower)

    def _dead_queue(self) -> MemoryQueue:
        if self._dead is None:
            self._dead = MemoryQueue(
                now=self._clock, capabilities=self._capabilities, ids=self._ids
            )
        return self._dead

    def _adopt(self, entry: _Entry, reason: str) -> None:
        """Take over a message of another queue as a dead letter."""
        with self._lock:
            self._now()
            entry.reason = reason
            entry.deliveries = 0
            entry.dedupe_key = None
            if not (self._ordered and self._stand_behind(entry, 0)):
                self._ready.append(entry)
            if self._line:
                self._alert()


class _Entry:
    """One message in the queue; the only object per message that the garbage collector sees."""

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


def _ms(seconds: float) -> int:
    return round(min(seconds, _FOREVER) * 1000) if seconds > 0 else 0
