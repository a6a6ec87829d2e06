"""What all doers share: starting tasks, knowing which run, and telling when they are done."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from asyncio import get_running_loop
from types import coroutine
from typing import TYPE_CHECKING

from piecework.doers.doer import Doer, Task

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable


@coroutine
def _begin() -> Generator[None, None, None]:
    """Pause once, without an event loop: see ``TrackedDoer.start``."""
    yield


_gone = object()


class TrackedDoer(Doer):
    """Starts tasks and keeps the books; what waits, and what is next, is up to the subclass."""

    __slots__ = ("_idlers", "_listeners", "_loop", "_running", "_subscribers")

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        # The value is None only while the loop starts the task; the entry is what keeps it alive.
        self._running: dict[Task, asyncio.Task[None] | None] = {}
        self._idlers: list[tuple[object, asyncio.Future[None]]] = []
        self._subscribers: dict[object, Callable[[], None]] = {}
        self._listeners: tuple[Callable[[], None], ...] = ()

    @abstractmethod
    def _held_back(self) -> Iterable[Task]:
        """The tasks that wait, in any order."""

    @abstractmethod
    def _finished(self, loop: asyncio.AbstractEventLoop, task: Task) -> None:
        """A task is over, and no longer among the running."""

    @property
    def running(self) -> int:
        """How many tasks run."""
        self._forget_closed_loop()
        return len(self._running)

    def tasks(self, owner: object = None) -> list[asyncio.Task[None]]:
        """The asyncio tasks of what runs for the owner; ``None`` for all."""
        self._forget_closed_loop()
        return [
            handle
            for task, handle in self._running.items()
            if handle is not None and (owner is None or task.owner is owner)
        ]

    async def done(self, owner: object = None) -> None:
        """Wait until nothing of the owner (``None``: nothing at all) runs or waits."""
        self._forget_closed_loop()
        while self._holds(owner):
            idler = (owner, get_running_loop().create_future())
            self._idlers.append(idler)
            try:
                await idler[1]
            finally:
                if idler in self._idlers:
                    self._idlers.remove(idler)

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called whenever ``available`` grew; returns what ends it."""
        key = object()
        self._subscribers[key] = listener
        self._listeners = tuple(self._subscribers.values())

        def unsubscribe() -> None:
            self._subscribers.pop(key, None)
            self._listeners = tuple(self._subscribers.values())

        return unsubscribe

    def _enter(self) -> asyncio.AbstractEventLoop:
        loop = get_running_loop()
        if loop is not self._loop:
            self._forget_closed_loop()
            self._loop = loop
        return loop

    def _start(self, loop: asyncio.AbstractEventLoop, task: Task) -> None:
        running = self._running
        running[task] = None
        body = self._body(loop, task)
        # Asyncio throws a cancel that comes before the first step in at the top of a coroutine,
        # where no `finally` is entered. Going into the `try` beforehand keeps the books right.
        body.send(None)
        handle = loop.create_task(body, context=task.context)
        if task in running:  # an eager task factory may be through with it already
            running[task] = handle

    async def _body(self, loop: asyncio.AbstractEventLoop, task: Task) -> None:
        try:
            await _begin()
            await task.run()
        except Exception as error:  # noqa: BLE001 - a doer outlives what it does
            report(loop, f"a doer's task {task.id!r} raised", error)
        finally:
            # It is gone already where the loop was closed around it and the doer moved on.
            if self._running.pop(task, _gone) is not _gone and not loop.is_closed():
                self._finished(loop, task)
                if self._idlers:
                    self._wake_idlers()

    def _tell_room(self) -> None:
        for listener in self._listeners:
            self._call(listener)

    def _call(self, callback: Callable[..., object], *args: object) -> None:
        """Call a user's callback; an error of its own goes to the event loop's handler."""
        try:
            callback(*args)
        except Exception as error:  # noqa: BLE001 - a callback must not stop the doer
            report(self._loop or get_running_loop(), f"the callback {callback!r} raised", error)

    def _holds(self, owner: object) -> bool:
        if owner is None:
            return bool(self._running) or any(True for _ in self._held_back())
        return any(task.owner is owner for task in self._running) or any(
            task.owner is owner for task in self._held_back()
        )

    def _wake_idlers(self) -> None:
        for idler in [idler for idler in self._idlers if not self._holds(idler[0])]:
            self._idlers.remove(idler)
            if not idler[1].done():
                idler[1].set_result(None)

    def _forget_closed_loop(self) -> None:
        if self._loop is not None and self._loop.is_closed():
            self._loop = None
            self._forget()

    def _forget(self) -> None:
        self._running.clear()
        self._idlers.clear()


def report(loop: asyncio.AbstractEventLoop, message: str, error: BaseException) -> None:
    """Tell the event loop's exception handler, which logs unless the program set another."""
    loop.call_exception_handler({"message": message, "exception": error})
