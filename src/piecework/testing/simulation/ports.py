"""The ports as one simulated process sees them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from piecework.errors import BackendError, ConflictError
from piecework.ports import KEEP, PubSub, Queue, Store, Subscription

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.memory import MemoryPubSub, MemoryQueue
    from piecework.ports import Capabilities, Change, Lease, Listener, Message, Page, Record
    from piecework.testing.simulation.book import BookedStore
    from piecework.testing.simulation.host import Host
    from piecework.testing.simulation.network import Network

#: Seconds by which a message comes late, at most.
_LATE = 20.0


class SimulatedQueue(Queue):
    """A queue that all hosts share, behind the network.

    Args:
        network: Carries the calls.
        host: Who calls.
        inner: The queue.
    """

    def __init__(self, network: Network, host: Host, inner: MemoryQueue) -> None:
        self._network = network
        self._host = host
        self._inner = inner
        self._letters: SimulatedQueue | None = None

    @property
    def capabilities(self) -> Capabilities:
        """What the queue can do."""
        return self._inner.capabilities

    @property
    def dead_letter_queue(self) -> Queue | None:
        """Its dead letters, behind the same network."""
        if not self._inner.capabilities.native_dead_letters:
            return None
        if self._letters is None:
            self._letters = SimulatedQueue(self._network, self._host, self._inner.dead)
        return self._letters

    async def push(self, messages: Sequence[Message]) -> None:
        """Add messages."""

        async def effect(fault: str | None) -> None:
            await self._inner.push(self._disturbed(messages, fault))

        await self._call("push", effect)

    def _disturbed(self, messages: Sequence[Message], fault: str | None) -> Sequence[Message]:
        random, longest = self._host.random, self._inner.capabilities.max_delay
        if fault == "partial":
            return messages[: random.randrange(len(messages) + 1)]
        if fault == "doubled":
            again = random.choice(messages)
            delay = min(longest, again.delay + random.choice((0.0, _LATE)) * random.random())
            return [*messages, again._replace(delay=delay)]
        if fault == "late-message":
            return [
                m._replace(delay=min(longest, m.delay + _LATE * random.random())) for m in messages
            ]
        return messages

    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        """Lease messages."""

        async def effect(fault: str | None) -> list[Lease]:
            lapses = visibility
            if fault == "early-lapse":
                lapses *= self._host.random.random()
            return await self._inner.pop(max, lapses, wait)

        return await self._network.call(self._host, "queue", "pop", effect, self._undo_pop)

    def _undo_pop(self, leases: list[Lease]) -> None:
        """A cancelled pop keeps nothing."""
        _at_once(self._inner.release(leases, 0.0))

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        """Renew leases."""

        async def effect(fault: str | None) -> list[Lease]:
            return await self._inner.extend(self._part(leases, fault), visibility)

        return await self._call("extend", effect)

    async def ack(self, leases: Sequence[Lease]) -> None:
        """Remove messages."""

        async def effect(fault: str | None) -> None:
            await self._inner.ack(self._part(leases, fault))

        await self._call("ack", effect)

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        """Give messages back."""

        async def effect(fault: str | None) -> None:
            await self._inner.release(self._part(leases, fault), delay)

        await self._call("release", effect)

    def _part(self, leases: Sequence[Lease], fault: str | None) -> Sequence[Lease]:
        return leases if fault != "partial" else leases[: self._host.random.randrange(len(leases))]

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        """Move a message to the dead letters."""

        async def effect(_: str | None) -> None:
            await self._inner.dead_letter(lease, reason)

        await self._call("dead_letter", effect)

    async def size(self) -> int:
        """How many messages there are."""
        return await self._inner.size()

    async def _call(self, operation: str, effect: Any) -> Any:
        return await self._network.call(self._host, "queue", operation, effect)


class SimulatedStore(Store):
    """A store that all hosts share, behind the network.

    Args:
        network: Carries the calls.
        host: Who calls.
        inner: The store.
    """

    def __init__(self, network: Network, host: Host, inner: BookedStore) -> None:
        self._network = network
        self._host = host
        self._inner = inner

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._inner.capabilities

    async def read(self, keys: Sequence[str]) -> list[Record]:
        """Read records."""

        async def effect(_: str | None) -> list[Record]:
            return await self._inner.read(keys)

        return await self._network.call(self._host, "store", "read", effect)

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        """Write all or nothing."""

        async def effect(fault: str | None) -> list[Record]:
            if fault == "conflict":  # refused before it comes here, unless it is one change
                raise BackendError("the simulated store", "write", "the transaction lost")
            answer = await self._inner.write(changes)
            for change, record in zip(changes, answer, strict=True):
                self._inner.book.tell(self._host, change, record)
            if fault == "repeated" and _is_safe_to_repeat(changes):
                return await self._inner.write(changes)
            return answer

        try:
            return await self._network.call(self._host, "store", "write", effect)
        except ConflictError:
            self._network.plan.counts["lost-race"] += 1
            raise

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """List keys."""

        async def effect(_: str | None) -> Page[str]:
            return await self._inner.list(index, limit, cursor)

        return await self._network.call(self._host, "store", "list", effect)


def _is_safe_to_repeat(changes: Sequence[Change]) -> bool:
    """Whether an adapter may repeat a write: its own effect then makes the condition fail."""
    return any(
        isinstance(change.expect, int) and (change.value is not KEEP or change.delete)
        for change in changes
    )


class SimulatedPubSub(PubSub):
    """A pub/sub that all hosts share, behind the network.

    Args:
        network: Carries the calls.
        host: Who calls.
        inner: The pub/sub.
    """

    def __init__(self, network: Network, host: Host, inner: MemoryPubSub) -> None:
        self._network = network
        self._host = host
        self._inner = inner

    async def publish(self, message: str) -> None:
        """Tell every subscriber."""

        async def effect(fault: str | None) -> None:
            if fault == "lost-notice":
                return
            await self._inner.publish(message)
            if fault == "doubled-notice":
                await self._inner.publish(message)

        await self._network.call(self._host, "pubsub", "publish", effect)

    async def subscribe(self, listener: Listener) -> Subscription:
        """Listen, in the context of the host: a dead one hears nothing."""

        async def effect(_: str | None) -> Subscription:
            return await self._inner.subscribe(
                lambda message: self._host.context.copy().run(self._hear, listener, message)
            )

        inner = await self._network.call(self._host, "pubsub", "subscribe", effect)
        return _Subscription(inner)

    def _hear(self, listener: Listener, message: str) -> None:
        if self._host.runs and self._network.reaches(self._host, "pubsub"):
            listener(message)


class _Subscription(Subscription):
    def __init__(self, inner: Subscription) -> None:
        self._inner = inner

    async def close(self) -> None:
        await self._inner.close()


def _at_once(coroutine: Any) -> None:
    """Run a call of a port in memory, none of which waits."""
    try:
        coroutine.send(None)
    except StopIteration:
        return
    raise RuntimeError("a port in memory waited")
