"""Ports that do what a test asks for: note their calls, fail, hold, lose messages.

They wrap the ports of any backend, so that the same tests run over all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from piecework import BackendError
from piecework.ports import Capabilities, PubSub, Queue, Store, Subscription


@dataclass
class Fault:
    """One planned failure of an operation."""

    operation: str
    times: float
    error: Callable[[], Exception]
    after: bool
    where: Callable[..., bool] | None

    def strikes(self, operation: str, args: tuple[Any, ...]) -> bool:
        if operation != self.operation or self.times <= 0:
            return False
        if self.where is not None and not self.where(*args):
            return False
        self.times -= 1
        return True


@dataclass
class Plan:
    """The calls of a port so far, and the failures to come."""

    port: str
    calls: list[tuple[str, tuple[Any, ...]]] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    held: dict[str, asyncio.Event] = field(default_factory=dict)

    def fail(
        self,
        operation: str,
        times: float = 1,
        *,
        after: bool = False,
        where: Callable[..., bool] | None = None,
        error: Callable[[], Exception] | None = None,
    ) -> None:
        """Fail the next calls of an operation; ``after`` fails them once they were done."""
        wanted = error or (lambda: BackendError(self.port, operation, "asked to fail"))
        self.faults.append(Fault(operation, times, wanted, after, where))

    def heal(self) -> None:
        """Fail no more."""
        self.faults.clear()

    def hold(self, operation: str) -> asyncio.Event:
        """Let calls of an operation wait until the event is set."""
        self.held[operation] = asyncio.Event()
        return self.held[operation]

    def count(self, operation: str) -> int:
        return len(self.arguments(operation))

    def arguments(self, operation: str) -> list[tuple[Any, ...]]:
        return [args for name, args in self.calls if name == operation]

    async def __call__(self, operation: str, inner: Callable[..., Any], *args: Any) -> Any:
        self.calls.append((operation, args))
        if operation in self.held:
            await self.held[operation].wait()
        fault = next((one for one in self.faults if one.strikes(operation, args)), None)
        if fault is not None and not fault.after:
            raise fault.error()
        answer = await inner(*args)
        if fault is not None:
            raise fault.error()
        return answer


class WatchedQueue(Queue):
    """A queue that notes what is asked of it."""

    def __init__(self, inner: Queue) -> None:
        self.inner = inner
        self.plan = Plan("queue")

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def dead_letter_queue(self) -> Queue | None:
        return self.inner.dead_letter_queue

    async def open(self):
        await self.plan("open", self.inner.open)

    async def close(self):
        await self.plan("close", self.inner.close)

    async def push(self, messages):
        await self.plan("push", self.inner.push, messages)

    async def pop(self, max, visibility, wait):
        return await self.plan("pop", self.inner.pop, max, visibility, wait)

    async def extend(self, leases, visibility):
        return await self.plan("extend", self.inner.extend, leases, visibility)

    async def ack(self, leases):
        await self.plan("ack", self.inner.ack, leases)

    async def release(self, leases, delay=0.0):
        await self.plan("release", self.inner.release, leases, delay)

    async def dead_letter(self, lease, reason):
        await self.plan("dead_letter", self.inner.dead_letter, lease, reason)

    async def size(self):
        return await self.inner.size()


class WatchedStore(Store):
    """A store that notes what is asked of it."""

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.plan = Plan("store")

    @property
    def capabilities(self) -> Capabilities:
        return self.inner.capabilities

    @property
    def keys(self) -> set[str]:
        """All keys that were ever read or written."""
        written = {c.key for (changes,) in self.plan.arguments("write") for c in changes}
        return written | {key for (keys,) in self.plan.arguments("read") for key in keys}

    async def open(self):
        await self.plan("open", self.inner.open)

    async def close(self):
        await self.plan("close", self.inner.close)

    async def read(self, keys):
        return await self.plan("read", self.inner.read, keys)

    async def write(self, changes):
        return await self.plan("write", self.inner.write, changes)

    async def list(self, index, limit=100, cursor=None):
        return await self.plan("list", self.inner.list, index, limit, cursor)


class _WatchedSubscription(Subscription):
    def __init__(self, inner: Subscription, pubsub: WatchedPubSub) -> None:
        self._inner = inner
        self._pubsub = pubsub
        pubsub.open_subscriptions.add(self)

    async def close(self):
        self._pubsub.open_subscriptions.discard(self)
        await self._inner.close()


class WatchedPubSub(PubSub):
    """A pub/sub that notes what is asked of it, and loses messages on request."""

    def __init__(self, inner: PubSub, *, drops: bool = False) -> None:
        self.inner = inner
        self.drops = drops
        self.plan = Plan("pubsub")
        self.open_subscriptions: set[Subscription] = set()

    async def publish(self, message):
        async def lost(message: str) -> None:
            return None

        await self.plan("publish", lost if self.drops else self.inner.publish, message)

    async def subscribe(self, listener):
        inner = await self.plan("subscribe", self.inner.subscribe, listener)
        return _WatchedSubscription(inner, self)


def starting(prefix: str) -> Callable[..., bool]:
    """For ``where=``: writes that give a record a value that starts so."""
    return lambda changes: any(str(c.value).startswith(prefix) for c in changes)
