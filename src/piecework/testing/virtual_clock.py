"""A clock that owns the time of event loops: an hour of waiting passes in a millisecond.

Only waiting is skipped, never work. Wherever a loop would block until its next timer, the clock
jumps to that timer. While threads or worker processes still work for the loop, time runs at real
pace, so that their results arrive before the timeouts that watch over them.
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar, cast

from piecework import clock as clock_module
from piecework.clock import from_ms, seconds, sleep, to_ms

if TYPE_CHECKING:
    from collections.abc import Coroutine, Generator

    from piecework.clock import Seconds

T = TypeVar("T")

#: Seconds of real time that sockets get before time jumps past them: enough for the loopback.
_IO_GRACE = 0.001

#: Rounding of floats must not turn 9.999999 ms, reached by a timer for 10 ms, into 9 ms.
_ROUNDING_MS = 0.001

#: Seconds within which a loop counts a timer as due: above what a float can tell apart after a
#: century, where the loop's own nanosecond would add nothing and a timer would never be due.
_RESOLUTION = 1e-6

#: How many waiting tasks the error of a stuck loop names.
_NAMED_TASKS = 5


class _Time:
    """How much virtual time has passed, shared by a clock and its loops."""

    __slots__ = ("elapsed", "patience", "real")

    def __init__(self, patience: float) -> None:
        self.elapsed = 0.0
        self.patience = patience
        self.real = 0

    @contextmanager
    def real_pace(self) -> Generator[None]:
        self.real += 1
        try:
            yield
        finally:
            self.real -= 1


class VirtualClock:
    """Time that passes only by waiting, for event loops and for stamps.

    The fixture ``virtual_clock`` makes the loop of a test follow such a clock. Then
    ``asyncio.sleep``, ``asyncio.timeout``, ``wait_for`` and ``call_later`` take no real time, their
    order is the order of their due times, and systems built without ``now=`` stamp with it.

    A loop that can never go on (no timer, no socket, no work in threads) ends with a
    ``RuntimeError`` that names the tasks that wait, in place of a test that hangs.

    Event loops based on selectors are supported (the default of Linux and macOS; not uvloop).

    Args:
        start: The time at which the clock starts, with a time zone.
        patience: Real seconds that a loop with nothing left to wait for is given until it fails;
            another thread may still call into it.

    Raises:
        ConfigError: ``start`` has no time zone.

    Example:
        >>> clock = VirtualClock()
        >>> clock.run(clock.advance(3600))
        >>> clock.now().isoformat()
        '2026-01-01T01:00:00+00:00'
    """

    def __init__(
        self, start: datetime = datetime(2026, 1, 1, tzinfo=UTC), *, patience: float = 5.0
    ) -> None:
        self._start_ms = to_ms(start)
        self._time = _Time(patience)
        self._loops: dict[asyncio.AbstractEventLoop, _LoopTime] = {}

    def now_ms(self) -> int:
        """Milliseconds since 1970-01-01 UTC, in virtual time."""
        return self._start_ms + int(self._time.elapsed * 1000 + _ROUNDING_MS)

    def now(self) -> datetime:
        """The virtual time, in UTC."""
        return from_ms(self.now_ms())

    async def advance(self, duration: Seconds = 0.0) -> None:
        """Let time pass, and all that is due until then run, in its order.

        Returns when the loop has nothing more to do at the time reached, so that what was due at
        that very moment has run too. ``advance(0)`` lets run what is ready now.

        Args:
            duration: How much time passes: seconds, or a ``timedelta``.

        Raises:
            RuntimeError: The running loop does not follow this clock.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            raise RuntimeError(
                "this event loop runs in real time; use the fixture virtual_clock, "
                "VirtualClock.run(), patched() or install(loop)"
            )
        await sleep(seconds(duration))
        await self._loops[loop].idle()

    def run(self, main: Coroutine[Any, Any, T]) -> T:
        """``asyncio.run`` in virtual time.

        Args:
            main: The coroutine to run to its end.
        """
        with self.patched():
            return asyncio.run(main)

    @contextmanager
    def real_pace(self) -> Generator[None]:
        """Let time pass at real pace inside: for servers, threads or processes of your own.

        Work that goes through ``loop.run_in_executor`` or ``asyncio.to_thread`` is known without.

        Example:
            >>> with clock.real_pace():
            ...     async with asyncio.timeout(5):
            ...         await ask_a_real_server()
        """
        with self._time.real_pace():
            yield

    def install(self, loop: asyncio.AbstractEventLoop) -> None:
        """Make one loop follow this clock. Timers that it holds keep their distance.

        Does nothing when it follows this clock already. Call it in the thread of the loop.

        Raises:
            RuntimeError: The loop follows another clock, or is not based on a selector.
        """
        if loop in self._loops:
            return
        if not hasattr(getattr(loop, "_selector", None), "get_map"):
            raise RuntimeError(
                f"VirtualClock needs an event loop based on a selector, "
                f"{type(loop).__name__} is not; use asyncio.SelectorEventLoop"
            )
        if _is_virtual(loop):
            raise RuntimeError("this event loop follows another VirtualClock; uninstall that first")
        self._loops[loop] = _LoopTime(self._time, loop)

    def uninstall(self, loop: asyncio.AbstractEventLoop) -> None:
        """Give a loop its real time back. Timers that it holds keep their distance."""
        virtual = self._loops.pop(loop, None)
        if virtual is not None:
            virtual.restore()

    @contextmanager
    def patched(self) -> Generator[VirtualClock]:
        """Make each event loop that runs in this thread meanwhile follow the clock.

        Loops of other threads stay in real time. Systems without ``now=`` take their stamps from
        this clock, in every thread. All is as before afterwards.

        Example:
            >>> with VirtualClock().patched() as clock:
            ...     asyncio.run(main())
        """
        thread = threading.get_ident()
        base = cast("Any", asyncio.BaseEventLoop)
        run_once, wall_ms = base._run_once, clock_module.wall_ms
        before = set(self._loops)

        def run_once_virtually(loop: asyncio.AbstractEventLoop) -> None:
            if threading.get_ident() == thread and not _is_virtual(loop):
                self.install(loop)
            run_once(loop)

        base._run_once, clock_module.wall_ms = run_once_virtually, self.now_ms
        try:
            yield self
        finally:
            base._run_once, clock_module.wall_ms = run_once, wall_ms
            for loop in set(self._loops) - before:
                self.uninstall(loop)


def _is_virtual(loop: asyncio.AbstractEventLoop) -> bool:
    return "time" in vars(loop)


class _LoopTime:
    """One loop in virtual time: its timers, its wait for I/O, and its work in threads."""

    __slots__ = ("_idle", "_loop", "_resolution", "_select", "_selector", "_time", "_working")

    def __init__(self, virtual: _Time, loop: asyncio.AbstractEventLoop) -> None:
        self._time = virtual
        self._loop = cast("Any", loop)
        self._selector = self._loop._selector
        self._select = self._selector.select
        self._idle: list[asyncio.Future[None]] = []
        self._working = 0
        self._resolution = self._loop._clock_resolution
        self._loop._clock_resolution = _RESOLUTION
        real = self._loop.time()
        self._loop.time = self._now
        self._move_timers(self._now() - real)
        self._selector.select = self._wait
        self._wrap_executor()

    def restore(self) -> None:
        """Undo it; the class's own methods come to light again."""
        virtual = self._now()
        loop = self._loop
        del loop.time, loop.run_in_executor, loop.shutdown_default_executor, self._selector.select
        loop._clock_resolution = self._resolution
        self._move_timers(loop.time() - virtual)

    async def idle(self) -> None:
        """Wait until the loop would have to wait for a timer, I/O or a thread."""
        waiter = self._loop.create_future()
        self._idle.append(waiter)
        await waiter

    def _now(self) -> float:
        return self._time.elapsed

    def _move_timers(self, distance: float) -> None:
        # All move alike, so the heap stays a heap.
        for handle in self._loop._scheduled:
            handle._when += distance

    def _wrap_executor(self) -> None:
        run_in_executor = self._loop.run_in_executor
        shutdown = self._loop.shutdown_default_executor

        def counted(executor: Any, func: Any, *args: Any) -> asyncio.Future[Any]:
            future = run_in_executor(executor, func, *args)
            self._working += 1
            future.add_done_callback(done)
            return future

        def done(_: asyncio.Future[Any]) -> None:
            self._working -= 1

        async def shutdown_at_real_pace(*args: Any, **options: Any) -> None:
            # Since 3.12 a timer guards the end of the threads; it must not jump past them.
            with self._time.real_pace():
                await shutdown(*args, **options)

        self._loop.run_in_executor = counted
        self._loop.shutdown_default_executor = shutdown_at_real_pace

    def _wait(self, timeout: float | None = None) -> list[Any]:
        """Stands in for ``selector.select``: the one place where a loop waits."""
        if timeout is not None and timeout <= 0:
            return self._select(timeout)
        sockets = len(self._selector.get_map()) > 1
        events = self._select(_IO_GRACE if sockets else 0)
        if events:
            return events
        if self._idle:
            self._tell_idle()
            return []
        if self._working or self._time.real:
            return self._wait_at_real_pace(timeout)
        if timeout is not None:
            self._time.elapsed += timeout
            return []
        return self._select(None) if sockets else self._wait_for_other_threads()

    def _tell_idle(self) -> None:
        waiters, self._idle = self._idle, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    def _wait_at_real_pace(self, timeout: float | None) -> list[Any]:
        began = time.monotonic()  # noqa: TID251 - the pace of threads is the real one
        events = self._select(timeout)
        self._time.elapsed += time.monotonic() - began  # noqa: TID251 - see above
        return events

    def _wait_for_other_threads(self) -> list[Any]:
        events = self._select(self._time.patience)
        if not events:
            raise RuntimeError(
                f"virtual time: nothing left to wait for: no timer, no socket and no work in "
                f"threads could wake {self._waiting_tasks()}. Set the event they wait for, or wrap "
                f"work of threads of your own in VirtualClock.real_pace()"
            )
        return events

    def _waiting_tasks(self) -> str:
        tasks = asyncio.all_tasks(self._loop)
        names = sorted(
            f"{task.get_name()} ({getattr(task.get_coro(), '__qualname__', '?')})" for task in tasks
        )
        more = len(names) - _NAMED_TASKS
        return ", ".join(names[:_NAMED_TASKS]) + (f" and {more} more" if more > 0 else "")
