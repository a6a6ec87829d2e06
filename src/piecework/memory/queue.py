"""A queue in this process: leases, delays, dead letters, at any length."""

from __future__ import annotations

import asyncio
import math
import threading
from typing import TYPE_CHECKING

from piecework.clock import as_clock
from piecework.errors import ConfigError, PayloadTooLargeError
from piecework.ids import Ids, random_id
from piecework.memory.line import Line, Waiter
from piecework.memory.shelf import Entry, Shelf
from piecework.ports.capabilities import Capabilities
from piecework.ports.queue import Lease, Message, Queue

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.clock import Now

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
        self._dead = dead
        self._lock = threading.Lock()
        self._line = Line()
        self._shelf = Shelf(ids(), self._clock, ordered=self._capabilities.ordered)

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
            shelf = self._shelf
            now = shelf.now()
            for message in messages:
                shelf.add(message, now)
            if self._line:
                self._alert()

    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        """Lease up to ``max`` messages for ``visibility`` seconds; wait up to ``wait`` for one."""
        with self._lock:
            leases = self._shelf.lease(max, visibility)
            if leases and self._line:
                self._alert()
        if leases or wait <= 0 or max <= 0:
            return leases
        return await self._wait(max, visibility, wait)

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        """Let the leases end ``visibility`` seconds from now; return those that are lost."""
        with self._lock:
            shelf = self._shelf
            now = shelf.now()
            lost = [lease for lease in leases if not shelf.extend(lease, visibility, now)]
            self._settle()
        return lost

    async def ack(self, leases: Sequence[Lease]) -> None:
        """Remove the messages for good. A stale token changes nothing."""
        with self._lock:
            shelf = self._shelf
            shelf.now()
            for lease in leases:
                entry = shelf.end(lease)
                if entry is not None:
                    shelf.forget(entry)
            self._settle()

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        """Give the messages back, visible after ``delay`` seconds; a stale token does nothing."""
        delay = min(delay, self._capabilities.max_delay)
        with self._lock:
            shelf = self._shelf
            now = shelf.now()
            for lease in leases:
                entry = shelf.end(lease)
                if entry is not None:
                    shelf.put_back(entry, delay, now)
            self._settle()

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        """Move the message to ``dead`` with its reason. A stale token changes nothing."""
        with self._lock:
            self._shelf.now()
            entry = self._shelf.end(lease)
            if entry is None:
                return
            self._shelf.forget(entry)
            self._settle()
            if self._capabilities.native_dead_letters:
                self._dead_queue()._adopt(entry, reason)  # noqa: SLF001 - one of its own kind

    async def size(self) -> int:
        """How many messages are in the queue: visible, delayed and leased."""
        with self._lock:
            return len(self._shelf)

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

    def _settle(self) -> None:
        self._shelf.tidy()
        if self._line:
            self._alert()

    def _alert(self) -> None:
        self._line.alert(len(self._shelf.ready), self._shelf.due_ms())

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
                    leases = self._shelf.lease(most, visibility)
                    if leases or loop.time() >= end:
                        return leases
                    due = self._shelf.due_ms() if self._line.is_first(waiter) else math.inf
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

    def _dead_queue(self) -> MemoryQueue:
        if self._dead is None:
            self._dead = MemoryQueue(
                now=self._clock, capabilities=self._capabilities, ids=self._ids
            )
        return self._dead

    def _adopt(self, entry: Entry, reason: str) -> None:
        """Take over a message of another queue as a dead letter."""
        with self._lock:
            self._shelf.adopt(entry, reason)
            if self._line:
                self._alert()
