"""Memory ports that keep a journal, fail on request, or die with their process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from piecework import Change, Lease, MemoryPubSub, MemoryQueue, MemoryStore, Message, Record
from piecework.ports import Capabilities, Page, Queue, Store


@dataclass
class Journal:
    """What was asked of the ports, in its order."""

    entries: list[str] = field(default_factory=list)

    def since(self, mark: int) -> list[str]:
        return self.entries[mark:]


def summary(change: Change) -> str:
    """A change in a word: the status it writes, or the counters it moves."""
    if change.delete:
        return "delete"
    if isinstance(change.value, str):
        return change.value.split("\n", 1)[0].split(" ", 1)[0]
    return ",".join(f"{name}{by:+d}" for name, by in change.add.items())


class JournalStore(MemoryStore):
    """Notes each write; raises what ``fail`` returns for it, before or after it happened."""

    def __init__(self, journal: Journal | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.journal = journal or Journal()
        self.fail: Callable[[Sequence[Change]], BaseException | None] = lambda changes: None
        self.fail_after: Callable[[Sequence[Change]], BaseException | None] = lambda changes: None

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        error = self.fail(changes)
        if error is not None:
            raise error
        records = await super().write(changes)
        self.journal.entries.append("write " + " ".join(summary(c) for c in changes))
        error = self.fail_after(changes)
        if error is not None:
            raise error
        return records


class JournalQueue(MemoryQueue):
    """Notes each call that changes something; raises what ``fail`` returns for it."""

    def __init__(self, journal: Journal | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.journal = journal or Journal()
        self.fail: Callable[[str], BaseException | None] = lambda operation: None

    def _note(self, operation: str) -> None:
        error = self.fail(operation)
        if error is not None:
            raise error
        self.journal.entries.append(operation)

    async def push(self, messages: Sequence[Message]) -> None:
        self._note("push")
        await super().push(messages)

    async def ack(self, leases: Sequence[Lease]) -> None:
        self._note("ack")
        await super().ack(leases)

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        self._note("release")
        await super().release(leases, delay)

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        self._note("dead_letter")
        await super().dead_letter(lease, reason)


class JournalPubSub(MemoryPubSub):
    """Notes what is published."""

    def __init__(self, journal: Journal | None = None) -> None:
        super().__init__()
        self.journal = journal or Journal()

    async def publish(self, message: str) -> None:
        self.journal.entries.append("publish")
        await super().publish(message)


def journal_backend(journal: Journal | None = None) -> dict[str, Any]:
    """The three ports with one journal."""
    journal = journal or Journal()
    return {
        "queue": JournalQueue(journal),
        "store": JournalStore(journal),
        "pubsub": JournalPubSub(journal),
    }


class ProcessDiedError(Exception):
    """What a call of a dead process gives: nobody is there to see it."""


@dataclass
class Process:
    """One process of a fleet; it dies just before the call that ``dies_at`` picks."""

    dies_at: Callable[[str], bool] = lambda call: False
    dead: bool = False

    def step(self, call: str) -> None:
        if not self.dead and self.dies_at(call):
            self.dead = True
        if self.dead:
            raise ProcessDiedError(call)


class ProcessStore(Store):
    """The view that one process has of a store."""

    def __init__(self, inner: Store, process: Process) -> None:
        self.inner = inner
        self.process = process

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    async def read(self, keys: Sequence[str]) -> list[Record]:
        self.process.step("read")
        return await self.inner.read(keys)

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        self.process.step("write " + " ".join(summary(c) for c in changes))
        return await self.inner.write(changes)

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        self.process.step("list")
        return await self.inner.list(index, limit, cursor)


class ProcessQueue(Queue):
    """The view that one process has of a queue; its leases end by themselves when it is dead."""

    def __init__(self, inner: Queue, process: Process) -> None:
        self.inner = inner
        self.process = process

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def dead_letter_queue(self) -> Queue | None:
        return self.inner.dead_letter_queue

    async def push(self, messages: Sequence[Message]) -> None:
        self.process.step("push")
        await self.inner.push(messages)

    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        self.process.step("pop")
        return await self.inner.pop(max, visibility, wait)

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        self.process.step("extend")
        return await self.inner.extend(leases, visibility)

    async def ack(self, leases: Sequence[Lease]) -> None:
        self.process.step("ack")
        await self.inner.ack(leases)

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        self.process.step("release")
        await self.inner.release(leases, delay)

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        self.process.step("dead_letter")
        await self.inner.dead_letter(lease, reason)

    async def size(self) -> int:
        return await self.inner.size()


def in_process(backend: dict[str, Any], process: Process) -> dict[str, Any]:
    """The ports of a backend as one process has them."""
    return {
        "queue": ProcessQueue(backend["queue"], process),
        "store": ProcessStore(backend["store"], process),
        "pubsub": backend["pubsub"],
    }
