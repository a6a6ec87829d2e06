"""The pops that wait for a message, in the order in which they came."""

from __future__ import annotations

import asyncio
import math


class Waiter:
    """One waiting pop.

    Attributes:
        max: How many messages it takes.
        woken: It was told to look again and has not looked yet.
        armed_ms: The moment (clock, ms) at which it looks by itself; infinite if it does not.
        destroyed: It ended without leaving the line.
    """

    __slots__ = ("_future", "_loop", "armed_ms", "destroyed", "max", "woken")

    def __init__(self, loop: asyncio.AbstractEventLoop, max: int) -> None:
        self._loop = loop
        self._future: asyncio.Future[None] = loop.create_future()
        self.max = max
        self.woken = False
        self.armed_ms: float = math.inf
        self.destroyed = False

    @property
    def gone(self) -> bool:
        """Nobody waits any more: its loop was closed under it."""
        return self.destroyed or self._loop.is_closed()

    def arm(self, due_ms: float) -> None:
        """Before each ``rest``: say when it looks by itself, and forget earlier calls."""
        self.armed_ms = due_ms
        self.woken = False
        self._future = self._loop.create_future()

    async def rest(self, until: float) -> None:
        """Wait for a call, or for the loop's time ``until``."""
        future = self._future
        timer = None
        if until < math.inf:
            timer = self._loop.call_at(until, _resolve, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()

    def call(self, here: asyncio.AbstractEventLoop | None) -> bool:
        """Tell it to look again, from the loop ``here``; false if it will not look soon."""
        self.woken = True
        if self._loop is here:
            _resolve(self._future)
            return True
        try:
            self._loop.call_soon_threadsafe(_resolve, self._future)
        except RuntimeError:  # its loop is closed: nobody waits there any more
            return False
        return self._loop.is_running()


class Line:
    """Who waits, first come first served. The queue's lock guards it."""

    __slots__ = ("_waiters",)

    def __init__(self) -> None:
        self._waiters: dict[Waiter, None] = {}

    def __bool__(self) -> bool:
        return bool(self._waiters)

    def join(self, waiter: Waiter) -> None:
        """Stand at the end."""
        self._waiters[waiter] = None

    def leave(self, waiter: Waiter) -> None:
        """Stand no longer."""
        self._waiters.pop(waiter, None)

    def is_first(self, waiter: Waiter) -> bool:
        """Whether it watches the time for all."""
        for first in tuple(self._waiters):
            if not first.gone:
                return first is waiter
            del self._waiters[first]
        return False

    def alert(self, ready: int, due_ms: float) -> None:
        """Call those that can take ``ready`` messages, and the first if ``due_ms`` is news."""
        here = _running_loop()
        gone: list[Waiter] = []
        first = True
        for waiter in self._waiters:
            if waiter.gone:
                gone.append(waiter)
                continue
            if ready <= 0 and not (first and waiter.armed_ms > due_ms):
                break
            if waiter.woken or waiter.call(here):
                ready -= waiter.max
                first = False
        for waiter in gone:
            del self._waiters[waiter]


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
