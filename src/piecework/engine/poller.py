"""Polling: one poller per queue, never taking more than the doers have room for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from piecework.engine.hooks import resolve
from piecework.metrics import BackpressureContext

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from piecework.engine.core import Core
    from piecework.engine.ports import EngineQueue
    from piecework.ports.queue import Lease

#: Seconds between two tries after a failed receive: the first, and the most.
_FIRST_PAUSE, _LAST_PAUSE = 0.5, 15.0

#: Seconds that a receive may take beyond its wait, until it counts as one that never answers.
_ANSWER_TIME = 10.0

#: Seconds: the shortest pause between two looks at whether ``on_backlog`` is due.
_SHORTEST_NOTE = 0.05

#: Seconds that somebody must be full before the poller looks for works of others behind theirs:
#: the first time, and the most. Each look puts messages back, which counts as a delivery.
_FIRST_LOOK, _LAST_LOOK = 1.0, 15.0


class HasRoom(Protocol):
    """A doer or a batcher: takes works while it has room."""

    @property
    def available(self) -> int:
        """How many more it takes now."""
        ...


@dataclass(frozen=True, slots=True)
class Handed:
    """What became of a receive.

    Attributes:
        taken: How many works were taken.
        full: Who had no room for a work, so that it was put back.
    """

    taken: int
    full: set[HasRoom]


class Poller:
    """Pulls the messages of one queue for as long as it runs.

    Args:
        core: The shared parts.
        queue: The queue.
        room: How many messages of this queue can be taken now.
        active: How many works this process holds.
        hand: Takes what was received.
        idle: Called after a wait that brought nothing; says whether it has found work.
    """

    def __init__(
        self,
        core: Core,
        queue: EngineQueue,
        *,
        room: Callable[[], int],
        active: Callable[[], int],
        hand: Callable[[EngineQueue, list[Lease]], Awaitable[Handed]],
        idle: Callable[[EngineQueue], Awaitable[bool]],
    ) -> None:
        self._core = core
        self._queue = queue
        self._room = room
        self._active = active
        self._hand = hand
        self._idle = idle
        self._stopping = False
        self._freed = asyncio.Event()
        self._receiving: asyncio.Task[list[Lease]] | None = None
        self._task: asyncio.Task[None] | None = None
        self._full: set[HasRoom] = set()
        self._look_pause = _FIRST_LOOK
        self._look_at = 0.0
        self._behind_since: float | None = None
        self._told_at = 0.0
        self.failing_since: float | None = None

    def start(self) -> None:
        """Begin to pull."""
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run())

    def room_appeared(self) -> None:
        """Look again at whether there is room."""
        self._freed.set()

    async def stop(self, within: float) -> None:
        """Start no receive; give back what an open one brings within so many seconds."""
        self._stopping = True
        self._freed.set()
        task, self._task = self._task, None
        if task is None:
            return
        receiving = self._receiving
        if receiving is not None and self._queue.capabilities.in_process:
            receiving.cancel()  # a wait in this process loses nothing when it is cut short
        done, _ = await asyncio.wait([task], timeout=within)
        if not done:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        pause = 0.0
        while not self._stopping:
            try:
                if pause:
                    await self._pause(pause)
                    if self._stopping:
                        return
                await self._turn()
                pause = 0.0
                self.failing_since = None
            except asyncio.CancelledError as error:
                if _cancelling():
                    raise
                # Something inside the adapter was cancelled, not this task.
                pause = self._failed(error, pause)
            except Exception as error:  # noqa: BLE001 - a bad receive does not stop the worker
                pause = self._failed(error, pause)

    def _failed(self, error: BaseException, pause: float) -> float:
        """Report a failed receive; give the pause until the next."""
        if self.failing_since is None:
            self.failing_since = asyncio.get_running_loop().time()
        self._core.hooks.report(error, "queue", "receiving failed")
        return min(max(pause * 2, _FIRST_PAUSE), _LAST_PAUSE)

    async def _pause(self, delay: float) -> None:
        """Wait, but not beyond a stop."""
        try:
            async with asyncio.timeout(delay):
                while not self._stopping:
                    self._freed.clear()
                    await self._freed.wait()
        except TimeoutError:
            return

    async def _turn(self) -> None:
        """One receive, if there is room for what it may bring."""
        self._freed.clear()
        room = min(self._room(), self._core.settings.poll_cap)
        if room <= 0:
            self._note_backlog(full=True)
            await self._wait_for_room()
            return
        if self._full:
            places = self._places()
            if places > 0:
                room = min(room, places)
            elif not await self._may_look():
                return
        else:
            places = 0
        delay = await self._backpressure()
        if delay > 0:
            await self._pause(delay)
            return
        leases = await self._receive(room)
        if self._stopping:
            if leases:
                await self._queue.release(leases, 0.0)
            return
        if leases:
            handed = await self._hand(self._queue, leases)
            self._note_full(handed, places, drained=len(leases) < room)
            self._note_backlog(full=len(leases) >= room and handed.taken > 0)
        else:
            self._full = set()
            self._note_backlog(full=False)
            await self._idle(self._queue)

    # ---- types that share a queue --------------------------------------------------------------
    #
    # What a receive will bring is not known before: works of one type may fill it, though only
    # others have room. While somebody is full, no more is taken than they have places, so that
    # nothing goes back and forth; only now and then the poller looks for what stands behind.

    def _places(self) -> int:
        return sum(place.available for place in self._full)

    async def _may_look(self) -> bool:
        """Wait until there is room for what had none, or until it is time to look behind it."""
        left = self._look_at - asyncio.get_running_loop().time()
        if left <= 0:
            return True
        try:
            async with asyncio.timeout(left):
                await self._freed.wait()
        except TimeoutError:
            pass
        return False

    def _note_full(self, handed: Handed, places: int, *, drained: bool) -> None:
        if handed.full:
            again = places == 0 and bool(self._full)
            self._look_pause = min(self._look_pause * 1.5, _LAST_LOOK) if again else _FIRST_LOOK
            self._full = handed.full
            self._look_at = asyncio.get_running_loop().time() + self._look_pause
        elif self._full and (drained or self._places() >= places):
            self._full = set()  # the queue is empty, or others' works come by now
        elif self._full:
            self._look_at = asyncio.get_running_loop().time() + _FIRST_LOOK

    async def _wait_for_room(self) -> None:
        """Wait until a doer has room, but no longer than ``on_backlog`` may be due."""
        settings = self._core.settings
        limit = None
        if self._core.hooks.on_backlog is not None:
            limit = max(_SHORTEST_NOTE, min(settings.backlog_after, settings.backlog_every))
        try:
            async with asyncio.timeout(limit):
                await self._freed.wait()
        except TimeoutError:
            return

    async def _receive(self, room: int) -> list[Lease]:
        settings = self._core.settings
        receive = asyncio.ensure_future(
            self._queue.pop(room, settings.visibility, settings.poll_interval)
        )
        self._receiving = receive
        limit = settings.poll_interval + _ANSWER_TIME
        try:
            async with asyncio.timeout(limit):
                return await asyncio.shield(receive)
        except TimeoutError:
            if receive.done():
                return receive.result()  # its own answer, or its own error
            receive.cancel()
            raise TimeoutError(f"the receive has not answered for {limit:g} s") from None
        except asyncio.CancelledError:
            if self._stopping and receive.cancelled() and not _cancelling():
                return []
            receive.cancel()
            await asyncio.wait([receive])
            if not receive.cancelled() and receive.exception() is None and receive.result():
                await self._queue.release(receive.result(), 0.0)
            raise
        finally:
            self._receiving = None

    async def _backpressure(self) -> float:
        hook = self._core.hooks.backpressure
        if hook is None:
            return 0.0
        try:
            answer = await resolve(hook(BackpressureContext(self._core.metrics, self._active())))
            return max(0.0, float(answer or 0.0))
        except Exception as error:  # noqa: BLE001 - a hook must not stop the worker
            self._core.hooks.report(error, "queue", "backpressure raised")
            return self._core.settings.put_back

    def _note_backlog(self, *, full: bool) -> None:
        """Tell ``on_backlog`` while more keeps coming than can be taken."""
        hook = self._core.hooks.on_backlog
        if hook is None:
            return
        now = asyncio.get_running_loop().time()
        if not full:
            self._behind_since = None
            return
        if self._behind_since is None:
            self._behind_since = now
            self._told_at = now - self._core.settings.backlog_every
        behind = now - self._behind_since
        due = now - self._told_at >= self._core.settings.backlog_every
        if behind >= self._core.settings.backlog_after and due:
            self._told_at = now
            try:
                hook(self._active())
            except Exception as error:  # noqa: BLE001 - a hook must not stop the worker
                self._core.hooks.report(error, "queue", "on_backlog raised")


def _cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
