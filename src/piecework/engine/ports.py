"""The ports as the engine sees them: wrapped once, for metrics and ``port_retry``."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from piecework.errors import ConflictError, PayloadTooLargeError
from piecework.ports.pubsub import Listener, PubSub, Subscription
from piecework.ports.queue import Lease, Message, Queue
from piecework.ports.store import Change, Page, Record, Store
from piecework.retry import retry as retry_call

if TYPE_CHECKING:
    from piecework.metrics import Metrics
    from piecework.ports.capabilities import Capabilities
    from piecework.retry import Retry

T = TypeVar("T")

_FINAL = (ConflictError, PayloadTooLargeError)


class PortCalls:
    """Counts and times the calls of one port, and repeats those that are safe to repeat.

    Args:
        port: The name of the port, for the metrics.
        metrics: Where the series are.
        policy: How failed writes are repeated; ``None`` for not at all.
        random: For the jitter.
    """

    __slots__ = ("_metrics", "_policy", "_port", "_random")

    def __init__(
        self, port: str, metrics: Metrics, policy: Retry | None, random: Callable[[], float]
    ) -> None:
        self._port = port
        self._metrics = metrics
        self._policy = policy
        self._random = random

    def series(self, operation: str) -> CallSeries:
        """The series of one operation."""
        return CallSeries(self._metrics, self._port, operation)

    async def repeat(self, call: Callable[[], Awaitable[T]]) -> T:
        """Make a write, again after a failure that a repeat may mend."""
        if self._policy is None:
            return await call()
        return await retry_call(
            call,
            options=self._policy,
            on=lambda error: not isinstance(error, _FINAL),
            random=self._random,
        )


class CallSeries:
    """The metrics of one operation of a port."""

    __slots__ = ("calls", "errors", "time")

    def __init__(self, metrics: Metrics, port: str, operation: str) -> None:
        labels = {"port": port, "operation": operation}
        self.calls = metrics.counter("port.calls", **labels)
        self.errors = metrics.counter("port.errors", **labels)
        self.time = metrics.summary("port.time", **labels)

    async def run(self, call: Awaitable[T]) -> T:
        """Await a call and note how long it took and how it ended."""
        began = time.perf_counter()
        self.calls.inc()
        try:
            return await call
        except ConflictError:
            raise
        except Exception:
            self.errors.inc()
            raise
        finally:
            self.time.observe(time.perf_counter() - began)


class EngineQueue(Queue):
    """A queue with metrics and repeats; ``push`` and ``ack`` are repeated, the rest is not."""

    def __init__(self, inner: Queue, calls: PortCalls) -> None:
        self.inner = inner
        self._capabilities = inner.capabilities
        self._calls = calls
        self._push = calls.series("push")
        self._pop = calls.series("pop")
        self._extend = calls.series("extend")
        self._ack = calls.series("ack")
        self._release = calls.series("release")
        self._dead_letter = calls.series("dead_letter")

    @property
    def capabilities(self) -> Capabilities:
        """What the queue can do."""
        return self._capabilities

    @property
    def dead_letter_queue(self) -> Queue | None:
        """The queue's own dead letters."""
        return self.inner.dead_letter_queue

    async def open(self) -> None:
        """Connect and check."""
        await self.inner.open()

    async def close(self) -> None:
        """Release connections."""
        await self.inner.close()

    async def push(self, messages: Sequence[Message]) -> None:
        """Add messages."""
        await self._calls.repeat(lambda: self._push.run(self.inner.push(messages)))

    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        """Lease messages."""
        return await self._pop.run(self.inner.pop(max, visibility, wait))

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        """Renew leases."""
        return await self._extend.run(self.inner.extend(leases, visibility))

    async def ack(self, leases: Sequence[Lease]) -> None:
        """Remove messages."""
        await self._calls.repeat(lambda: self._ack.run(self.inner.ack(leases)))

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        """Give messages back."""
        await self._release.run(self.inner.release(leases, delay))

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        """Move a message to the dead letters."""
        await self._dead_letter.run(self.inner.dead_letter(lease, reason))

    async def size(self) -> int:
        """How many messages are in the queue."""
        return await self.inner.size()


class EngineStore(Store):
    """A store with metrics and repeats; writes are repeated, reads are not."""

    def __init__(self, inner: Store, calls: PortCalls) -> None:
        self.inner = inner
        self._capabilities = inner.capabilities
        self._calls = calls
        self._read = calls.series("read")
        self._write = calls.series("write")
        self._list = calls.series("list")

    @property
    def capabilities(self) -> Capabilities:
        """What the store can do."""
        return self._capabilities

    async def open(self) -> None:
        """Connect and check."""
        await self.inner.open()

    async def close(self) -> None:
        """Release connections."""
        await self.inner.close()

    async def read(self, keys: Sequence[str]) -> list[Record]:
        """Read records."""
        return await self._read.run(self.inner.read(keys))

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        """Write changes, all or none."""
        return await self._calls.repeat(lambda: self._write.run(self.inner.write(changes)))

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """List keys."""
        return await self._list.run(self.inner.list(index, limit, cursor))


class EnginePubSub(PubSub):
    """A pub/sub with metrics. A failed publish is reported by its caller: it is best effort."""

    def __init__(self, inner: PubSub, calls: PortCalls) -> None:
        self.inner = inner
        self._publish = calls.series("publish")

    async def open(self) -> None:
        """Check."""
        await self.inner.open()

    async def close(self) -> None:
        """Release connections."""
        await self.inner.close()

    async def publish(self, message: str) -> None:
        """Tell every subscriber."""
        await self._publish.run(self.inner.publish(message))

    async def subscribe(self, listener: Listener) -> Subscription:
        """Listen."""
        return await self.inner.subscribe(listener)
