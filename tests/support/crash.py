"""Ports that fail on request, and a crash that can be put at any call of any port.

``Switch`` stands for one process: all of its calls pass through it. Once it is dead, none of its
calls has any effect any more, as if the process had been killed: they hang until they are
cancelled. ``Wire`` is what the processes share: the ports in memory, and a book of all that was
written, which checks the promises while it is written.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from piecework.clock import sleep
from piecework.memory import MemoryPubSub, MemoryQueue, MemoryStore
from piecework.ports import (
    KEEP,
    Capabilities,
    Change,
    Lease,
    Listener,
    Message,
    Page,
    PubSub,
    Queue,
    Record,
    Store,
    Subscription,
)
from piecework.record import read_item
from piecework.state import TERMINAL

T = TypeVar("T")

#: What a backend on the other end of a network says of itself, so that the engine overlaps calls.
REMOTE_QUEUE = Capabilities(max_delay=40)
REMOTE_STORE = Capabilities(max_changes=100)


class Switch:
    """The life of one process: counts its calls, and ends it at one of them.

    Args:
        name: For messages.
        kill_at: The call (from 1) at which the process dies; ``None`` for never.
        before: Whether it dies before that call has its effect, or after it.
        lag: Seconds by operation that pass before a call has its effect.
    """

    def __init__(
        self,
        name: str = "",
        *,
        kill_at: int | None = None,
        before: bool = True,
        lag: Mapping[str, float] | None = None,
    ) -> None:
        self.name = name
        self.calls: list[str] = []
        #: The calls at which a death can make a difference: not the waits that brought nothing.
        self.telling: set[int] = set()
        self._noting = True
        self.kill_at = kill_at
        self.before = before
        self.lag = lag or {}
        self.dead = False
        self.buried = False
        self.died = asyncio.Event()
        self._hanging: list[asyncio.Future[None]] = []
        #: Called for each operation before its effect; what it raises comes out of the call.
        self.fail: Callable[[str], None] | None = None
        #: Operations that never answer.
        self.hang_at: set[str] = set()
        self._frozen: asyncio.Event | None = None

    def keep_alive(self) -> None:
        """Do not die any more."""
        self.kill_at = None
        self._noting = False

    def kill(self) -> None:
        """From now on none of its calls has any effect."""
        self.dead = True
        self.died.set()

    def freeze(self) -> None:
        """From now on its calls wait, with no effect, until it thaws."""
        self._frozen = asyncio.Event()

    def thaw(self) -> None:
        """Let the calls that wait have their effect now."""
        if self._frozen is not None:
            self._frozen.set()
            self._frozen = None

    def bury(self) -> None:
        """End what hangs: calls of a dead process raise ``CancelledError`` from now on."""
        self.dead = self.buried = True
        self.died.set()

    def revive(self) -> None:
        """Let calls through again, and end those that hang, so that a test can clean up."""
        self.dead = False
        self.kill_at = None
        self.died.clear()
        for hanging in self._hanging:
            hanging.cancel()

    async def hang(self) -> Any:
        if self.buried:
            raise asyncio.CancelledError
        # Kept, or the collector would find nobody who waits for it.
        hanging = asyncio.get_running_loop().create_future()
        self._hanging.append(hanging)
        await hanging

    async def call(self, operation: str, effect: Callable[[], Awaitable[T]]) -> T:
        """Make a call, unless the process is dead by then."""
        if self.dead:
            return await self.hang()
        if operation in self.hang_at:
            return await self.hang()
        if self._frozen is not None:
            await self._frozen.wait()
        self.calls.append(operation)
        number = len(self.calls)
        here = number == self.kill_at
        if here and self.before:
            self.kill()
            return await self.hang()
        if self.fail is not None:
            self.fail(operation)
        pause = self.lag.get(operation, 0.0)
        if pause:
            await sleep(pause)
            if self.dead:  # it died while the request was on its way
                return await self.hang()
        answer = await self._while_alive(effect)
        if answer != [] and self._noting:
            self.telling.add(number)
        if here:
            self.kill()
        if self.dead:
            return await self.hang()
        return answer

    async def _while_alive(self, effect: Callable[[], Awaitable[T]]) -> T:
        """An effect that waits ends with its process: a dead one must take no message."""
        task = asyncio.ensure_future(effect())
        dying = asyncio.ensure_future(self.died.wait())
        try:
            await asyncio.wait([task, dying], return_when=asyncio.FIRST_COMPLETED)
            if not task.done():
                task.cancel()
                await asyncio.wait([task])
                return await self.hang()
            return task.result()
        finally:
            task.cancel()
            dying.cancel()


class FaultQueue(Queue):
    """A queue as one process sees it.

    Args:
        inner: The queue that all share.
        switch: The life of the process.
        capabilities: What it claims.
    """

    def __init__(
        self, inner: MemoryQueue, switch: Switch, capabilities: Capabilities = REMOTE_QUEUE
    ) -> None:
        self.inner = inner
        self.switch = switch
        self._capabilities = capabilities
        self._letters: FaultQueue | None = None

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    @property
    def dead_letter_queue(self) -> Queue | None:
        if not self._capabilities.native_dead_letters:
            return None
        if self._letters is None:
            self._letters = FaultQueue(self.inner.dead, self.switch, self._capabilities)
        return self._letters

    async def push(self, messages: Sequence[Message]) -> None:
        await self.switch.call("push", lambda: self.inner.push(messages))

    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        return await self.switch.call("pop", lambda: self.inner.pop(max, visibility, wait))

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        return await self.switch.call("extend", lambda: self.inner.extend(leases, visibility))

    async def ack(self, leases: Sequence[Lease]) -> None:
        await self.switch.call("ack", lambda: self.inner.ack(leases))

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        await self.switch.call("release", lambda: self.inner.release(leases, delay))

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        await self.switch.call("dead_letter", lambda: self.inner.dead_letter(lease, reason))

    async def size(self) -> int:
        return await self.inner.size()


class FaultStore(Store):
    """A store as one process sees it.

    Args:
        inner: The store that all share.
        switch: The life of the process.
        capabilities: What it claims.
    """

    def __init__(
        self, inner: Store, switch: Switch, capabilities: Capabilities = REMOTE_STORE
    ) -> None:
        self.inner = inner
        self.switch = switch
        self._capabilities = capabilities

    @property
    def capabilities(self) -> Capabilities:
        return self._capabilities

    async def read(self, keys: Sequence[str]) -> list[Record]:
        return await self.switch.call("read", lambda: self.inner.read(keys))

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        return await self.switch.call("write", lambda: self.inner.write(changes))

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        return await self.switch.call("list", lambda: self.inner.list(index, limit, cursor))


class FaultPubSub(PubSub):
    """A pub/sub as one process sees it; with ``drop`` nothing ever arrives.

    Args:
        inner: The pub/sub that all share.
        switch: The life of the process.
        drop: Whether to lose every notice.
    """

    def __init__(self, inner: MemoryPubSub, switch: Switch, *, drop: bool = False) -> None:
        self.inner = inner
        self.switch = switch
        self.drop = drop

    async def publish(self, message: str) -> None:
        async def effect() -> None:
            if not self.drop:
                await self.inner.publish(message)

        await self.switch.call("publish", effect)

    async def subscribe(self, listener: Listener) -> Subscription:
        def alive(message: str) -> None:
            if not self.switch.dead:
                listener(message)

        return await self.switch.call("subscribe", lambda: self.inner.subscribe(alive))


@dataclass
class Book:
    """What was written to the records of works, and what of it broke a promise.

    Attributes:
        settles: How often each work became terminal.
        reopened: How often each work came back from the dead.
        group_ends: How often each group's end was claimed.
        emptied: How often the count of open works of each group came down to zero.
        broken: Promises that were broken, in words.
    """

    settles: Counter[str] = field(default_factory=Counter)
    reopened: Counter[str] = field(default_factory=Counter)
    group_ends: Counter[str] = field(default_factory=Counter)
    emptied: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)


class BookedStore(MemoryStore):
    """A store in memory that keeps a book of the works' lives.

    It checks at each write that a terminal work stays as it is, and that a group's count comes to
    zero only when all of its works are terminal.
    """

    def __init__(self, *, prefix: str = "work:") -> None:
        super().__init__()
        self.book = Book()
        self._item = f"{prefix}item:"

    def _records(self) -> dict[str, Record]:
        return {
            key[len(self._item) :]: cell.record
            for key, cell in self._cells.items()
            if key.startswith(self._item)
        }

    def works(self) -> dict[str, Record]:
        """The records of works by their ids."""
        return {id: r for id, r in self._records().items() if r.value is not None}

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        keys = [c.key for c in changes if c.key.startswith(self._item)]
        before = {r.key: r for r in await super().read(keys)}
        answer = await super().write(changes)
        for record in await super().read(keys):
            self._note(record.key[len(self._item) :], before[record.key], record)
        return answer

    def _note(self, id: str, before: Record, after: Record) -> None:
        old, new = read_item(before), read_item(after)
        book = self.book
        was = old is not None and old.terminal
        is_now = new is not None and new.terminal
        if is_now and not was:
            book.settles[id] += 1
        if was and new is not None:
            if not is_now:
                book.reopened[id] += 1
                if old.status != "dead":
                    book.broken.append(f"{id} was {old.status} and came back")
            elif (old.status, old.payload) != (new.status, new.payload):
                book.broken.append(f"{id} was {old.status} and became {new.status}")
            elif old.header.get("done", -1) != new.header.get("done", -1):
                book.group_ends[id] += 1
        for name in ("open", "members", "hold"):
            if after.count(name) < 0:
                book.broken.append(f"the counter {name} of {id} is {after.count(name)}")
        if before.count("open") > 0 and after.count("open") == 0:
            book.emptied[id] += 1
            waiting = [other for other, record in self._group(id) if not _is_over(record)]
            if waiting:
                book.broken.append(f"the group {id} ended before {waiting}")

    def _group(self, root: str) -> list[tuple[str, Record]]:
        return [(id, r) for id, r in self.works().items() if group_of(id, r) == root]


def _is_over(record: Record) -> bool:
    item = read_item(record)
    return item is None or item.terminal


def status_of(record: Record) -> str:
    """The status in a work's record."""
    item = read_item(record)
    return "absent" if item is None else item.status


def group_of(id: str, record: Record) -> str:
    """The group in a work's record."""
    item = read_item(record)
    assert item is not None
    if item.terminal:
        return item.header.get("gid", id)
    return item.envelope().group_id


class Wire:
    """What several processes share: a queue, a store and a pub/sub in memory."""

    def __init__(self, capabilities: Capabilities = REMOTE_QUEUE) -> None:
        self.queue = MemoryQueue(capabilities=capabilities)
        self.store = BookedStore()
        self.pubsub = MemoryPubSub()

    def ports(self, switch: Switch) -> dict[str, Any]:
        """The ports as a process sees them: ``create_work(**wire.ports(switch))``."""
        return {
            "queue": FaultQueue(self.queue, switch, self.queue.capabilities),
            "store": FaultStore(self.store, switch),
            "pubsub": FaultPubSub(self.pubsub, switch),
        }

    def open_works(self) -> dict[str, str]:
        """The works that are not terminal, with their statuses."""
        works = {id: status_of(record) for id, record in self.store.works().items()}
        return {id: status for id, status in works.items() if status not in TERMINAL}


__all__ = [
    "KEEP",
    "REMOTE_QUEUE",
    "REMOTE_STORE",
    "Book",
    "BookedStore",
    "FaultPubSub",
    "FaultQueue",
    "FaultStore",
    "Switch",
    "Wire",
    "group_of",
    "status_of",
]
