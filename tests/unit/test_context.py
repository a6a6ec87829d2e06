"""What a handler is given, the replies to what it asks, and handles."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest

from piecework import PieceworkError, WorkContext, WorkHandle, WorkHandles, define_work
from piecework.context import ChildId, ChildIds, Reply, Scope, in_loop_thread


@define_work
def add(a: int, b: int) -> int:
    return a + b


def told(value: Any = None) -> Reply[Any]:
    future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    future.set_result(value)
    return Reply(future)


class Noted(Scope):
    """A scope that notes what is asked of it."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    def queue(self, works: Any, then: Any, when: Any, options: Any):
        self.asked.append(("queue", list(works), then, when, options))
        return [work.id for work in works], told()

    def set_result(self, value: Any):
        self.asked.append(("set_result", value))
        return told()

    def states(self, ids: Sequence[str]):
        return told([None for _ in ids])

    def results(self, ids: Sequence[str]):
        return told([1 for _ in ids])

    def claim(self, key: str):
        return told(key == "free")

    def progress(self, done: float, total: float | None, message: str) -> None:
        self.asked.append(("progress", done, total, message))

    def remaining(self) -> float | None:
        return 3.0

    @property
    def cancelled(self) -> bool:
        return True


def context(scope: Scope) -> WorkContext:
    return WorkContext(scope, id="w1", type="add", group_id="g1", attempt=2, upstream=["u"])


async def test_a_context_says_where_its_handler_is():  # S41
    ctx = context(Noted())
    assert (ctx.id, ctx.type, ctx.group_id, ctx.attempt) == ("w1", "add", "g1", 2)
    assert (ctx.parent_id, ctx.upstream) == (None, ["u"])
    assert repr(ctx) == "<WorkContext add w1 attempt 2>"
    assert (ctx.remaining(), ctx.cancelled) == (3.0, True)


async def test_one_child_has_an_id_at_once_and_is_accepted_when_awaited():  # S39
    scope, work = Noted(), add(1, 2)
    child = context(scope).queue(work, delay=3)
    assert isinstance(child, ChildId)
    assert child == work.id
    assert await child == work.id
    assert type(await child) is str
    assert scope.asked == [("queue", [work], None, "all-done", {"delay": 3})]


async def test_several_children_have_a_list_of_ids():  # S39
    scope, works, last = Noted(), [add(1, 2), add(3, 4)], add(5, 6)
    children = context(scope).queue((work for work in works), then=last, when="all-success")
    assert isinstance(children, ChildIds)
    assert list(children) == [work.id for work in works]
    assert await children == [work.id for work in works]
    assert scope.asked == [("queue", works, [last], "all-success", {})]
    await context(scope).queue([], then=[last])
    assert scope.asked[1][1:3] == ([], [last])


async def test_what_a_context_is_asked_reaches_what_stands_behind_it():  # S42 S44
    scope = Noted()
    ctx = context(scope)
    await ctx.set_result(3)
    ctx.progress(1, 2, "half")
    assert scope.asked == [("set_result", 3), ("progress", 1, 2, "half")]
    assert (await ctx.claim("free"), await ctx.claim("taken")) == (True, False)
    assert await ctx.states(["a", "b"]) == [None, None]
    assert await ctx.results(["a"]) == [1]


# ---- replies --------------------------------------------------------------------------------


async def test_a_reply_on_the_loop_is_awaited_and_never_blocks_it():
    reply = told(3)
    assert (await reply, await reply) == (3, 3)
    for wait in (reply.wait, child_of(reply).wait, children_of(reply).wait):
        with pytest.raises(PieceworkError, match="use await"):
            wait()


def child_of(reply: Reply[Any]) -> ChildId:
    child = ChildId("c")
    child.reply = reply
    return child


def children_of(reply: Reply[Any]) -> ChildIds:
    children = ChildIds(["c"])
    children.reply = reply
    return children


async def test_somebody_who_gives_up_waiting_does_not_stop_what_was_asked():  # S40
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0):
            await Reply(future)
    assert not future.cancelled()
    future.set_result(3)
    assert await Reply(future) == 3


def test_a_reply_in_a_thread_is_waited_for():
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    reply = Reply(future)
    with pytest.raises(TimeoutError):
        reply.wait(0)
    future.set_result(None)
    assert reply.wait() is None
    assert child_of(reply).wait(1) == "c"
    assert children_of(reply).wait(1) == ["c"]


async def test_a_reply_for_a_thread_may_be_awaited_on_a_loop_too():
    future: concurrent.futures.Future[int] = concurrent.futures.Future()
    future.set_result(3)
    assert await Reply(future) == 3
    failed: concurrent.futures.Future[int] = concurrent.futures.Future()
    failed.set_exception(ValueError("no"))
    with pytest.raises(ValueError, match="no"):
        await Reply(failed)
    with pytest.raises(ValueError, match="no"):
        Reply(failed).wait()


async def test_the_thread_of_a_loop_is_known():
    loop = asyncio.get_running_loop()
    assert in_loop_thread(loop)
    assert not await asyncio.to_thread(in_loop_thread, loop)
    other = asyncio.new_event_loop()
    assert not in_loop_thread(other)
    other.close()


# ---- handles --------------------------------------------------------------------------------


class System:
    """Answers a handle, and notes with what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []

    async def wait_result(self, id: str, load: Any, timeout: Any, track: str, **more: Any) -> Any:
        self.asked.append(("result", id, timeout))
        return f"result of {id}"

    async def wait_group(self, group_id: str, timeout: Any, track: str) -> Any:
        self.asked.append(("group", group_id, timeout))
        return "group"

    async def state(self, id: str) -> Any:
        return f"state of {id}"

    async def cancel(self, id: str) -> bool:
        return id == "w1"

    def watch_progress(self, id: str, **more: Any) -> Any:
        return f"progress of {id}"


async def test_a_handle_asks_its_system():  # S45 S47
    system: Any = System()
    handle: WorkHandle[Any] = WorkHandle(system, "w1", "g1")
    assert (handle.id, handle.group_id, repr(handle)) == ("w1", "g1", "<WorkHandle w1>")
    assert await handle.result(timedelta(seconds=3)) == "result of w1"
    assert await handle == "group"
    assert await handle.group(5) == "group"
    assert await handle.state() == "state of w1"
    assert await handle.cancel()
    assert handle.progress() == "progress of w1"
    assert system.asked == [
        ("result", "w1", timedelta(seconds=3)),
        ("group", "g1", None),
        ("group", "g1", 5),
    ]


async def test_handles_give_their_results_in_their_order():
    system: Any = System()
    handles: WorkHandles[Any] = WorkHandles(WorkHandle(system, id, id) for id in "abc")
    assert await handles.results(3) == [f"result of {id}" for id in "abc"]
    assert (handles.then, handles.gate) == ((), None)
