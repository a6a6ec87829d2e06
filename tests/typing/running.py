"""What a type checker knows of systems, handles, contexts and ports. Checked, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, assert_type

from piecework import (
    Backend,
    Capabilities,
    Change,
    Doer,
    Lease,
    MemoryQueue,
    MemoryStore,
    Message,
    Progress,
    Queue,
    Record,
    Store,
    Work,
    WorkContext,
    WorkEvent,
    WorkHandle,
    WorkHandles,
    WorkInfo,
    WorkState,
    WorkSystem,
    create_work,
    define_work,
    dependency,
    do_with,
    memory_backend,
    unlimited_doer,
)
from piecework.context import ChildId, ChildIds, Reply
from piecework.ports.store import Page
from piecework.testing.virtual_clock import VirtualClock


@define_work
async def add(a: int, b: int) -> int:
    return a + b


@define_work
def shout(text: str) -> str:
    return text.upper()


def hear(event: WorkEvent) -> None:
    assert_type(event.id, str)


async def accept(info: WorkInfo) -> bool:
    return info.type == "add"


work = create_work(work=[add, shout], **memory_backend())
create_work(work=[add], queue=MemoryQueue(), store=MemoryStore(), visibility=timedelta(minutes=1))
create_work(on_event=hear, accept=accept, doer=unlimited_doer(), auto_start=False)
create_work(works=[add])  # pyright: ignore[reportCallIssue] - there is no such option
create_work(poll_interval="1")  # pyright: ignore[reportArgumentType] - seconds
create_work(store=MemoryQueue())  # pyright: ignore[reportArgumentType] - not a store
assert_type(work, WorkSystem)


async def enqueue_and_wait() -> None:
    handle = await work.enqueue(add(1, 2), delay=5)
    assert_type(handle, WorkHandle[int])
    assert_type(await handle.result(timeout=10), int)
    assert_type(await handle.state(), WorkState | None)
    assert_type(await handle.cancel(), bool)
    async for progress in handle.progress():
        assert_type(progress, Progress)
    assert_type(await work.run(add(1, 2)), int)
    assert_type(await work.run(shout("a"), priority=3), str)
    assert_type(await work.enqueue("add", {"a": 1, "b": 2}), WorkHandle[Any])
    await work.enqueue(add(1, 2), dealy=5)  # pyright: ignore[reportCallIssue]
    await work.enqueue(add)  # pyright: ignore[reportCallIssue, reportArgumentType] - a type
    async with work as same:
        assert_type(same, WorkSystem)
    many = await work.enqueue_many([add(1, 2), add(3, 4)], then=[shout("a")], when="all-success")
    assert_type(many, WorkHandles[int])
    assert_type(await many.results(), list[int])
    assert_type(many[0], WorkHandle[int])
    await work.enqueue_many([add(1, 2)], when={"count": 1, "of": "success"})
    await work.enqueue_many([add(1, 2)], when="most")  # pyright: ignore[reportArgumentType]
    any_handle: WorkHandle[int | str] = handle
    assert_type(any_handle.id, str)
    assert_type(await work.states(["a"]), list[WorkState | None])
    assert_type(await work.list("dead", limit=3), list[WorkState])
    assert_type(dependency([handle.id, add(1, 2)], shout("a"), when="all-done"), Work[None])


async def context(ctx: WorkContext) -> None:
    one = ctx.queue(add(1, 2), delay=timedelta(seconds=3))
    several = ctx.queue([add(1, 2), shout("a")], then=shout("b"), when={"count": 1})
    assert_type(one, ChildId)
    assert_type(several, ChildIds)
    assert_type(await one, str)
    assert_type(await several, list[str])
    assert_type(ctx.claim("a"), Reply[bool])
    assert_type(await ctx.claim("a"), bool)
    assert_type(ctx.claim("a").wait(), bool)
    assert_type(await ctx.states(several), list[WorkState | None])
    assert_type(await ctx.results([one]), list[Any])
    assert_type(await ctx.set_result({"a": 1}), None)
    assert_type(ctx.remaining(), float | None)
    assert_type(ctx.cancelled, bool)
    ctx.progress(1, 2, "half")
    ctx.queue(add(1, 2), when="never")  # pyright: ignore[reportArgumentType, reportCallIssue]
    ctx.queue(3)  # pyright: ignore[reportArgumentType, reportCallIssue] - not a work
    ctx.queue(add(1, 2), dealy=3)  # pyright: ignore[reportCallIssue]


async def fetch(url: str, *, tries: int = 1) -> bytes:
    return url.encode() * tries


limited: Callable[..., Awaitable[bytes]] = do_with(unlimited_doer(), fetch)
doer: Doer = unlimited_doer()


async def do() -> None:
    call = do_with(doer, fetch)
    assert_type(await call("a", tries=2), bytes)
    await call(1)  # pyright: ignore[reportArgumentType] - a text


class OwnStore(Store):
    """A store of a user needs two methods and the index."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def read(self, keys: Sequence[str]) -> list[Record]:
        return [Record(key, None, 0, {}) for key in keys]

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        return [Record(change.key, None, 1, {}) for change in changes]

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        return Page([])


class OwnQueue(Queue):
    """A queue of a user."""

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def push(self, messages: Sequence[Message]) -> None: ...
    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        return []

    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        return []

    async def ack(self, leases: Sequence[Lease]) -> None: ...
    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None: ...
    async def dead_letter(self, lease: Lease, reason: str) -> None: ...
    async def size(self) -> int:
        return 0


class HalfAQueue(Queue): ...


create_work(queue=OwnQueue(), store=OwnStore())
HalfAQueue()  # pyright: ignore[reportAbstractUsage] - its methods are missing


async def custom_store(store: OwnStore) -> None:
    assert_type(await store.get("a"), str | None)
    assert_type(await store.increment("a"), int)


async def test_with_the_fixtures(piecework_memory: Backend, virtual_clock: VirtualClock) -> None:
    async with create_work(work=[add], **piecework_memory) as system:
        await virtual_clock.advance(3600)
        assert_type(await system.run(add(1, 2)), int)
