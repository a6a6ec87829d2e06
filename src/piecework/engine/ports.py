"""The ports as the engine sees them: wrapped once, for metrics and ``port_retry``."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

from piecework.errors import ConflictError, PayloadTooLargeError
from piecework.ports.pubsub import Listener, PubSub, Subscription
from piecework.ports.queue import Lease, Message, Queue
from piecework.ports.store import Change, Page, Record, Store
from piecework.retry import retry as retry_call

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from piecework.metrics import PortMetrics, WorkRecorder
    from piecework.ports.capabilities import Capabilities
    from piecework.retry import Retry

T = TypeVar("T")

_FINAL = (ConflictError, PayloadTooLargeError)


class PortCalls:
    """Counts and times the calls of one port, and repeats those that are safe to repeat.

    Args:
        port: The name of the port, for the metrics.
        recorder: Where the series are.
        policy: How failed writes are repeated; ``None`` for not at all.
        random: For the jitter.
    """

    __slots__ = ("_policy", "_port", "_random", "_recorder")

    def __init__(
        self, port: str, recorder: WorkRecorder, policy: Retry | None, random: Callable[[], float]
    ) -> None:
        self._port = port
        self._recorder = recorder
        self._policy = policy
        self._random = random

    def once(self, operation: str) -> Call:
        """A call of one operation that is made once."""
        return Call(self._recorder.port(self._port, operation), None, self._random)

    def repeated(self, operation: str) -> Call:
        """A call of one operation that is repeated by the policy."""
        return Call(self._recorder.port(self._port, operation), self._policy, self._random)


class Call:
    """One operation of a port, measured and perhaps repeated."""

    __slots__ = ("_policy", "_random", "_series")

    def __init__(
        self, series: PortMetrics, policy: Retry | None, random: Callable[[], float]
    ) -> None:
        self._series = series
        self._policy = policy
        self._random = random

    async def __call__(self, fn: Callable[..., Awaitable[T]], *args: Any) -> T:
        """Make the call."""
        if self._policy is not None:
            return await self._repeated(self._policy, fn, args)
        began = time.perf_counter()
        try:
            answer = await fn(*args)
        except ConflictError:
            self._series.done(time.perf_counter() - began)
            raise
        except Exception:
            self._series.failed(time.perf_counter() - began)
            raise
        self._series.done(time.perf_counter() - began)
        return answer

    async def _repeated(
        self, policy: Retry, fn: Callable[..., Awaitable[T]], args: tuple[Any, ...]
    ) -> T:
        once = Call(self._series, None, self._random)
        return await retry_call(
            lambda: once(fn, *args),
            options=policy,
            on=lambda error: not isinstance(error, _FINAL),
            random=self._random,
        )


class EngineQueue(Queue):
    """A queue with metrics and repeats; ``push`` and ``ack`` are repeated, the rest is not.

    One that the engine did not know when it opened its ports, such as that of a type registered
    later, is opened at its first use.
    """

    def __init__(self, inner: Queue, calls: PortCalls) -> None:
        self.inner = inner
        self.is_open = False
        self._opening: asyncio.Lock | None = None
        self._capabilities = inner.capabilities
        self._push = calls.repeated("push")
        self._pop = calls.once("pop")
        self._extend = calls.once("extend")
        self._ack = calls.repeated("ack")
        self._release = calls.once("release")
        self._dead_letter = calls.once("dead_letter")

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
        self.is_open = True

    async def _open_late(self) -> None:
        lock = self._opening = self._opening or asyncio.Lock()
        try:
            async with lock:
                if not self.is_open:
                    await self.open()
        finally:
            self._opening = None

    async def close(self) -> None:
        """Release connections."""
        self.is_open = False
        await self.inner.close()

    async def push(self, messages: Sequence[Message]) -> None:
        """Add messages."""
        if not self.is_open:
            await self._open_late()
        await self._push(self.inner.push, messages)

    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        """Lease messages."""
        if not self.is_open:
            await self._open_late()
        return await self._pop(self.inner.pop, max, visibility, wait)

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        """Renew leases."""
        return await self._extend(self.inner.extend, leases, visibility)

    async def ack(self, leases: Sequence[Lease]) -> None:
        """Remove messages."""
        await self._ack(self.inner.ack, leases)

    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        """Give messages back."""
        await self._release(self.inner.release, leases, delay)

    async def dead_letter(self, lease: Lease, reason: str) -> None:
        """Move a message to the dead letters."""
        await self._dead_letter(self.inner.dead_letter, lease, reason)

    async def size(self) -> int:
        """How many messages are in the queue."""
        return await self.inner.size()


class EngineStore(Store):
    """A store with metrics and repeats; writes are repeated, reads are not."""

    def __init__(self, inner: Store, calls: PortCalls) -> None:
        self.inner = inner
        self._capabilities = inner.capabilities
        self._read = calls.once("read")
        self._write = calls.repeated("write")
        self._list = calls.once("list")

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
        return await self._read(self.inner.read, keys)

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        """Write changes, all or none."""
        return await self._write(self.inner.write, changes)

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """List keys."""
        return await self._list(self.inner.list, index, limit, cursor)


class EnginePubSub(PubSub):
    """A pub/sub with metrics. A failed publish is reported by its caller: it is best effort."""

    def __init__(self, inner: PubSub, calls: PortCalls) -> None:
        self.inner = inner
        self._publish = calls.once("publish")

    async def open(self) -> None:
        """Check."""
        await self.inner.open()

    async def close(self) -> None:
        """Release connections."""
        await self.inner.close()

    async def publish(self, message: str) -> None:
        """Tell every subscriber."""
        await self._publish(self.inner.publish, message)

    async def subscribe(self, listener: Listener) -> Subscription:
        """Listen."""
        return await self.inner.subscribe(listener)
