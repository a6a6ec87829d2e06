"""A pool of daemon threads: what runs in it may block for ever without holding the process."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import Executor, Future
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from piecework.errors import PieceworkError

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class _Call:
    """One submitted call."""

    __slots__ = ("_args", "_error", "_fn", "_kwargs", "_result", "_runs", "future")

    def __init__(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self.future: Future[Any] = Future()
        self._fn = fn
        self._args = args
        self._kwargs = kwargs
        self._runs = False
        self._result: Any = None
        self._error: BaseException | None = None

    def run(self) -> None:
        """Run it, unless it was cancelled before; nobody is told yet."""
        self._runs = self.future.set_running_or_notify_cancel()
        if not self._runs:
            return
        try:
            self._result = self._fn(*self._args, **self._kwargs)
        except BaseException as error:  # noqa: BLE001 - whoever waits for the future gets it
            self._error = error

    def deliver(self) -> None:
        """Tell whoever waits for the future."""
        if self._error is not None:
            self.future.set_exception(self._error)
        elif self._runs:
            self.future.set_result(self._result)


class _Seat:
    """One thread's place in the pool: where it sleeps and finds its next call."""

    __slots__ = ("call", "given_up", "wake")

    def __init__(self, call: _Call) -> None:
        self.call: _Call | None = call
        self.given_up = False
        self.wake = threading.Lock()
        self.wake.acquire()


class DaemonPool(Executor):
    """Runs calls in daemon threads, which are started when needed and kept.

    ``concurrent.futures.ThreadPoolExecutor`` joins its threads when the interpreter exits, so one
    stuck call there keeps the process alive for ever. This one does not, and a thread that is
    stuck can be given up: it no longer counts, and ends when its call does.

    Args:
        name: The start of the threads' names.
        limit: The most threads at a time, not counting those given up; further calls wait.
    """

    def __init__(self, name: str, limit: int) -> None:
        self._name = name
        self._limit = limit
        self._changed = threading.Condition(threading.Lock())
        self._seats: dict[int, _Seat] = {}
        self._idle: list[_Seat] = []
        self._backlog: deque[_Call] = deque()
        self._started = 0
        self._live = 0
        self._closed = False

    @property
    def started(self) -> int:
        """How many threads were ever started."""
        return self._started

    @property
    def live(self) -> int:
        """How many threads belong to the pool now."""
        return self._live

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Run ``fn`` in a thread.

        Raises:
            PieceworkError: The pool is shut down.
        """
        call = _Call(fn, args, kwargs)
        with self._changed:
            if self._closed:
                raise PieceworkError(f"the threads {self._name}-* are stopped; nothing new runs")
            if self._idle:
                seat = self._idle.pop()
                seat.call = call
                seat.wake.release()
            elif self._live < self._limit:
                self._start(call)
            else:
                self._backlog.append(call)
        return call.future

    def give_up(self, thread_id: int) -> bool:
        """Stop counting a thread that is stuck; calls that wait for a thread get a new one.

        Returns whether the thread counted so far.
        """
        with self._changed:
            seat = self._seats.get(thread_id)
            if seat is None or seat.given_up:
                return False
            seat.given_up = True
            self._live -= 1
            self._changed.notify_all()
            if self._backlog:
                self._start(self._backlog.popleft())
            return True

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no new calls and let the threads end: idle ones now, busy ones after their calls.

        Args:
            wait: Return when all threads have ended; those given up are not waited for.
            cancel_futures: Cancel the calls that have not started.
        """
        with self._changed:
            self._closed = True
            while cancel_futures and self._backlog:
                self._backlog.popleft().future.cancel()
            for seat in self._idle:
                seat.wake.release()
            self._idle.clear()
        if wait:
            self.join(None)

    def join(self, timeout: float | None) -> bool:
        """Wait until no thread is left. Returns whether that came true within ``timeout`` seconds.

        Only a pool that is shut down empties itself.
        """
        with self._changed:
            return self._changed.wait_for(lambda: self._live == 0, timeout)

    def _start(self, call: _Call) -> None:
        number = self._started + 1
        threading.Thread(
            target=self._work, args=(_Seat(call),), name=f"{self._name}-{number}", daemon=True
        ).start()
        self._started = number
        self._live += 1

    def _work(self, seat: _Seat) -> None:
        thread_id = threading.get_ident()
        self._seats[thread_id] = seat
        while (call := seat.call) is not None:
            seat.call = None
            call.run()
            # The thread is free before its caller knows, so that the caller's next call finds it.
            sleeps = self._take_next(seat)
            call.deliver()
            # What the call held must not live on while the thread sleeps.
            del call
            if sleeps:
                seat.wake.acquire()
        del self._seats[thread_id]
        if not seat.given_up:
            with self._changed:
                self._live -= 1
                self._changed.notify_all()

    def _take_next(self, seat: _Seat) -> bool:
        """Give the thread its next call, if there is one. Returns whether it has to sleep."""
        with self._changed:
            if seat.given_up:
                return False
            if self._backlog:
                seat.call = self._backlog.popleft()
                return False
            if self._closed:
                return False
            self._idle.append(seat)
            return True
