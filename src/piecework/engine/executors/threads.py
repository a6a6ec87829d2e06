"""Runs ``def`` handlers in threads, and stops them when their tasks are cancelled."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from contextvars import copy_context
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast

from piecework.engine.executors.daemon_pool import DaemonPool
from piecework.engine.executors.outcome import contain
from piecework.errors import ConfigError, PieceworkError

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

T = TypeVar("T")

_log = logging.getLogger("piecework")

#: Seconds between two interruptions of a thread that goes on: long enough for the first to have
#: been handled, so that two never meet in the few lines that end a run.
_INTERRUPT_EVERY: Final = 1.0

#: Seconds for which a thread that was given up is interrupted, time and again.
_MOMENT: Final = 0.05

#: Most threads that wait for stopping ones; each needs a thread only while it waits.
_WATCHERS: Final = 1_000


class ThreadInterrupted(BaseException):
    """Raised inside a ``def`` handler whose work was cancelled, timed out or lost its lease.

    It is no ``Exception``, so ``except Exception`` lets it pass. Clean up in ``finally``, and do
    not hold it back.
    """


@cache
def _raiser() -> Callable[[object, object], object]:
    """The interpreter's function that raises in another thread; ``None`` takes it back."""
    import ctypes

    return ctypes.pythonapi.PyThreadState_SetAsyncExc


def _arguments(thread_id: int) -> tuple[object, object]:
    import ctypes

    return ctypes.c_ulong(thread_id), ctypes.py_object(ThreadInterrupted)


class _Job(Generic[T]):
    """One run of a function in a thread, which can be interrupted until it ends and never after.

    The running thread takes no lock: an exception raised from outside may strike just when a lock
    is taken and leave it so. In its place each side writes its own flag first and then reads the
    other's: the job sets ``_ended`` and waits while ``_interrupting``; an interrupter sets
    ``_interrupting`` and goes on unless ``_ended``.
    """

    __slots__ = (
        "_cancelled",
        "_context",
        "_ended",
        "_fn",
        "_gate",
        "_interrupters",
        "_interrupting",
        "_was_interrupted",
        "error",
        "result",
        "thread_id",
    )

    def __init__(self, fn: Callable[[], T], context: Context) -> None:
        self._fn = fn
        self._context = context
        self._cancelled = False
        self._interrupting = False
        self._was_interrupted = False
        self._ended = False
        self._interrupters = threading.Lock()
        self._gate = threading.Lock()
        self._gate.acquire()
        self.thread_id: int | None = None
        self.result: T | None = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        """Run the function; its end stands in ``result`` or ``error``. Raises nothing."""
        try:
            try:
                self.thread_id = threading.get_ident()
                if self._cancelled:
                    raise PieceworkError("the thread executor closed before this could start")
                self.result = self._context.run(self._fn)
            except BaseException as error:  # noqa: BLE001 - it goes to whoever awaits the run
                self.error = error
            self._leave()
        except ThreadInterrupted:
            self._leave()
        self._gate.release()

    def _leave(self) -> None:
        """From here on no interruption arrives, or is under way.

        One that was raised late may still be due. So one more is raised, which takes its place,
        and caught.
        """
        is_last = False
        while True:
            try:
                self._ended = True
                while self._interrupting:
                    time.sleep(0)
                if not self._was_interrupted:
                    return
                is_last = True
                _raiser()(*_arguments(threading.get_ident()))
                while True:
                    time.sleep(0)
            except ThreadInterrupted:
                if is_last:
                    return

    def cancel(self) -> bool:
        """Ask it not to start. Returns whether it started nevertheless and has not ended."""
        self._cancelled = True
        return self.thread_id is not None and not self._ended

    def interrupt(self, within: float) -> bool:
        """Raise ``ThreadInterrupted`` in its thread. Returns whether it ended ``within`` seconds.

        What has not struck by then (a call in C blocks) is taken back: up to Python 3.12 it would
        hold all threads on their slow path, and under a tracer 3.11 even stops them at their next
        call of a function, which is why none is called here while it is due.
        """
        assert self.thread_id is not None
        raise_in_thread = _raiser()
        thread, error = _arguments(self.thread_id)
        own_thread, _ = _arguments(threading.get_ident())
        with self._interrupters:
            self._interrupting = True
            if not self._ended:
                self._was_interrupted = True
                raise_in_thread(thread, error)
            self._interrupting = False
        if self._gate.acquire(timeout=within):
            self._gate.release()
            return True
        with self._interrupters:
            self._interrupting = True
            if not self._ended:
                raise_in_thread(thread, None)
            self._interrupting = False
        try:
            # Only one that strikes brings the interpreter back from its slow path.
            raise_in_thread(own_thread, error)
            while True:
                time.sleep(0)
        except ThreadInterrupted:
            return False

    def interrupt_until_ended(self, within: float) -> bool:
        """Interrupt it every second until it ends. Returns whether it did ``within`` seconds."""
        left = within
        while not self.interrupt(min(left, _INTERRUPT_EVERY)):
            left -= _INTERRUPT_EVERY
            if left <= 0:
                return False
        return True

    def pester(self) -> None:
        """Interrupt it for a moment in every second, until it ends."""
        while not self.interrupt(_MOMENT):
            if self._gate.acquire(timeout=_INTERRUPT_EVERY):
                self._gate.release()
                return


class ThreadExecutor:
    """Runs functions in a bounded pool of daemon threads.

    Threads are started when they are needed and kept; a call beyond ``max_workers`` waits for a
    thread, so let ``max_workers`` be at least the number of ``def`` handlers that run at a time. A
    function that is cancelled is interrupted: ``ThreadInterrupted`` is raised in it between two
    steps of Python. A blocking call in C (``time.sleep``, a socket without a timeout) cannot be
    interrupted; when ``grace`` is over its thread is given up, replaced, and ends by itself when
    the call returns. Threads never keep the interpreter from exiting.

    Args:
        max_workers: The most threads; by default ``min(32, cpus + 4)``.
        grace: Seconds that an interrupted function has to end.

    Raises:
        ConfigError: ``max_workers`` is below 1 or ``grace`` is negative.

    Example:
        >>> import asyncio
        >>> async def main():
        ...     threads = ThreadExecutor(max_workers=2)
        ...     total = await threads.run(lambda: sum(range(10)))
        ...     await threads.close()
        ...     return total
        >>> asyncio.run(main())
        45
    """

    def __init__(self, max_workers: int | None = None, *, grace: float = 1.0) -> None:
        limit = min(32, (os.cpu_count() or 1) + 4) if max_workers is None else max_workers
        if limit < 1:
            raise ConfigError(f"max_workers is {limit}; a thread executor needs at least 1")
        if grace < 0:
            raise ConfigError(f"grace is {grace}; pass 0 or more seconds")
        self._grace = grace
        self._pool = DaemonPool("piecework-thread", limit)
        self._watchers = DaemonPool("piecework-interrupter", _WATCHERS)
        self._running: dict[_Job[Any], asyncio.Future[None]] = {}
        self._closed = False

    @property
    def threads(self) -> int:
        """How many threads there are now, without those given up."""
        return self._pool.live

    async def run(self, fn: Callable[[], T], *, name: str = "") -> T:
        """Run ``fn`` in a thread, in a copy of the current context.

        If the awaiting task is cancelled, ``fn`` is interrupted, and the ``CancelledError`` goes on
        when it has ended or been given up.

        Args:
            fn: What to run.
            name: What a warning calls it; by default the function's name.

        Returns:
            What ``fn`` returned.

        Raises:
            Exception: What ``fn`` raised.
            HandlerExitError: ``fn`` raised something that would end more than itself.
            PieceworkError: The executor is closed.
        """
        if self._closed:
            raise PieceworkError("the thread executor is closed; nothing new runs")
        loop = asyncio.get_running_loop()
        job = _Job(fn, copy_context())
        waiter = loop.run_in_executor(self._pool, job)
        self._running[job] = waiter
        try:
            await waiter
        except asyncio.CancelledError:
            if not _is_cancelled():
                raise PieceworkError("the thread executor closed; the thread is given up") from None
            if job.cancel():
                what = name or getattr(fn, "__qualname__", repr(fn))
                await loop.run_in_executor(self._watchers, self._stop, job, what)
            raise
        finally:
            del self._running[job]
        error = job.error
        if error is None:
            return cast("T", job.result)
        try:
            raise contain(error)
        finally:
            # The traceback holds this frame, which must not hold the error.
            del job, error

    def _stop(self, job: _Job[Any], name: str) -> None:
        """In a thread of its own: interrupt the job; give its thread up when that does not help."""
        if job.interrupt_until_ended(self._grace):
            return
        assert job.thread_id is not None
        if not self._pool.give_up(job.thread_id):
            return
        _log.warning(
            "%s did not end %g s after it was interrupted; its thread is given up and runs on "
            "until the call that blocks it returns. Give that call a timeout, or use "
            'executor="process", which can be killed.',
            name,
            self._grace,
        )
        threading.Thread(
            target=job.pester, name="piecework-interrupter-of-given-up", daemon=True
        ).start()

    async def close(self, grace: float = 0.0) -> None:
        """End the threads. A second call does nothing more.

        Args:
            grace: Seconds that running functions have to end; then they are interrupted, and given
                up if that does not help. Callers who still await those get an error.
        """
        if self._closed:
            return
        self._closed = True
        self._pool.shutdown(wait=False)
        if self._pool.live:
            loop = asyncio.get_running_loop()
            if not await loop.run_in_executor(self._watchers, self._pool.join, grace):
                await asyncio.gather(
                    *(
                        loop.run_in_executor(self._watchers, self._stop, job, "a handler")
                        for job in list(self._running)
                        if job.cancel()
                    )
                )
                await loop.run_in_executor(self._watchers, self._pool.join, self._grace)
                for waiter in self._running.values():
                    waiter.cancel()
        self._watchers.shutdown(wait=False)


def _is_cancelled() -> bool:
    """Whether somebody asked the running task to end."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
