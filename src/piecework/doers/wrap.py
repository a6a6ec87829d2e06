"""Calls of a function through a doer."""

from __future__ import annotations

import asyncio
import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, overload

from piecework.doers.doer import Doer, Task

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Coroutine

P = ParamSpec("P")
T = TypeVar("T")


@overload
def do_with(
    doer: Doer, fn: Callable[P, Awaitable[T]], *, group: str | None = None, priority: int = 0
) -> Callable[P, Coroutine[Any, Any, T]]: ...
@overload
def do_with(
    doer: Doer, fn: Callable[P, T], *, group: str | None = None, priority: int = 0
) -> Callable[P, Coroutine[Any, Any, T]]: ...
def do_with(
    doer: Doer, fn: Callable[P, Any], *, group: str | None = None, priority: int = 0
) -> Callable[P, Coroutine[Any, Any, Any]]:
    """An async function that calls ``fn`` when the doer has a place for it.

    Result and error come back to the caller. A cancelled caller takes its call back, or cancels it
    and waits for its end. They start in their order, and count as older than any work
    that waits in the same doer.

    Args:
        doer: Decides when. It may be that of a work system: the places are shared.
        fn: The function, async or plain (which runs in the event loop).
        group: The group of its calls, for a balanced doer.
        priority: The priority of its calls.

    Example:
        >>> ask = do_with(rate_limited_doer(10, 1.0), client.ask)
        >>> answer = await ask("question")
    """

    @wraps(fn)
    async def through(*args: P.args, **kwargs: P.kwargs) -> Any:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        async def run() -> None:
            await _settle(future, _call(fn, *args, **kwargs))

        doer.do(Task(run, group=group, priority=priority, owner=future))
        try:
            return await future
        except asyncio.CancelledError:
            doer.take_back(future)
            for task in doer.tasks(future):
                task.cancel()
            await doer.done(future)
            raise

    return through


async def _call(fn: Callable[P, Any], *args: P.args, **kwargs: P.kwargs) -> Any:
    result = fn(*args, **kwargs)
    return await result if inspect.isawaitable(result) else result


async def _settle(future: asyncio.Future[Any], call: Coroutine[Any, Any, Any]) -> None:
    """Give the outcome of the call to the one who waits for it, unless it went away."""
    try:
        result = await call
    except asyncio.CancelledError:
        future.cancel()
        raise
    except BaseException as error:
        if not future.done():
            future.set_exception(error)
        if not isinstance(error, Exception):
            raise
        return
    if not future.done():
        future.set_result(result)
