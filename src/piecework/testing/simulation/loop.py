"""An event loop without a clock or sockets: time jumps, and the seed chooses what runs next."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar, cast

from piecework.testing.simulation.host import HOST, Host

if TYPE_CHECKING:
    from random import Random

T = TypeVar("T")

#: Seconds within which a timer counts as due: floats cannot tell less apart after a century.
_RESOLUTION = 1e-6


#: Callbacks of one history: many times what the longest needs.
_LONGEST = 400_000


class StuckError(RuntimeError):
    """Nothing is ready and no timer runs, or the same callbacks come back without an end."""


class SimulationLoop(asyncio.BaseEventLoop):
    """Runs callbacks in an order that a random number generator chooses, in virtual time.

    Every callback belongs to the host in whose context it was scheduled. Those of a host that is
    dead or frozen are kept back: no line of its code runs, no ``finally`` either.

    Args:
        random: Chooses the order.
        shuffle: How often, from 0 to 1, the next callback is any of those that are ready, and not
            the one that has been ready for longest.
    """

    def __init__(self, random: Random, shuffle: float) -> None:
        super().__init__()
        self.elapsed = 0.0
        self._serial = 0
        inner = cast("Any", self)  # the places where BaseEventLoop lets others in
        inner._selector = _Jump(self)  # noqa: SLF001
        inner._clock_resolution = _RESOLUTION  # noqa: SLF001
        self._ready = _Ready(self, random, shuffle)
        self.set_task_factory(self._new_task)
        #: Errors of callbacks and tasks that nobody looked at.
        self.unhandled: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.unhandled.append(context))

    def time(self) -> float:
        """Seconds of virtual time since the start."""
        return self.elapsed

    def thaw(self, host: Host) -> None:
        """Let run what was kept back of a host."""
        while host.kept:
            self._ready.append(host.kept.popleft())

    def create_future(self) -> asyncio.Future[Any]:
        """A future whose place in a set depends on nothing but the history."""
        return _Future(self)

    def next_serial(self) -> int:
        """A number that no other object of this loop has."""
        self._serial += 1
        return self._serial

    def run_in_executor(self, executor: Any, func: Any, *args: Any) -> Any:
        """Not simulated.

        Raises:
            RuntimeError: Always: the order of threads cannot be chosen.
        """
        raise RuntimeError(
            f"{func!r} was to run in a thread, which cannot be simulated; "
            f"simulate works whose handlers are async def"
        )

    def _new_task(
        self, _: asyncio.AbstractEventLoop, coroutine: Any, /, **options: Any
    ) -> asyncio.Task[Any]:
        return SimulatedTask(coroutine, loop=self, **options)

    def _process_events(self, event_list: list[Any]) -> None:
        """There are no sockets, so there are no events."""

    def _write_to_self(self) -> None:
        """Nothing sleeps that another thread would have to wake."""


class SimulatedTask(asyncio.Task[Any]):
    """A task that knows its host, and whose place in a set depends on the history alone."""

    def __init__(self, coroutine: Any, *, loop: SimulationLoop, **options: Any) -> None:
        self.serial = loop.next_serial()
        context = options.get("context")
        self.host = HOST.get() if context is None else context.get(HOST)
        super().__init__(coroutine, loop=loop, **options)

    def __hash__(self) -> int:
        return self.serial


def host_of(task: asyncio.Task[Any]) -> Host | None:
    """The host that a task belongs to."""
    return task.host if isinstance(task, SimulatedTask) else None


class _Future(asyncio.Future[Any]):
    def __init__(self, loop: SimulationLoop) -> None:
        self.serial = loop.next_serial()
        super().__init__(loop=loop)

    def __hash__(self) -> int:
        return self.serial


class _Jump:
    """Stands in for a selector: where a loop would wait, time jumps."""

    def __init__(self, loop: SimulationLoop) -> None:
        self._loop = loop

    def select(self, timeout: float | None) -> list[Any]:
        if timeout is None:
            raise StuckError("nothing is left to wait for: no callback is ready, no timer runs")
        self._loop.elapsed += timeout
        return []


class _Ready:
    """The callbacks that are ready, in place of the deque of ``BaseEventLoop``."""

    def __init__(self, loop: SimulationLoop, random: Random, shuffle: float) -> None:
        self._loop = loop
        self._queue: deque[asyncio.Handle] = deque()
        self._random = random.random
        self._shuffle = shuffle
        self._nothing = asyncio.Handle(_nothing, (), loop)
        self._nothing.cancel()
        self._left = _LONGEST
        self.append = self._queue.append
        self.clear = self._queue.clear

    def __len__(self) -> int:
        return len(self._queue)

    def popleft(self) -> asyncio.Handle:
        """The next callback; a cancelled one in place of one that is kept back."""
        queue = self._queue
        self._left -= 1
        if self._left < 0:
            self._left = _LONGEST
            raise StuckError(f"more than {_LONGEST:,} callbacks, of late {queue.popleft()!r}")
        if self._shuffle and len(queue) > 1 and self._random() < self._shuffle:
            at = int(self._random() * len(queue))
            queue.rotate(-at)
            handle = queue.popleft()
            queue.rotate(at)
        else:
            handle = queue.popleft()
        if isinstance(handle, asyncio.TimerHandle) and handle.when() > self._loop.elapsed:
            # Due by less than a float can tell: whoever looks at the time must not find it early.
            self._loop.elapsed = handle.when()
        host: Host | None = cast("Any", handle)._context.get(HOST)  # noqa: SLF001
        if host is not None and not host.runs:
            host.kept.append(handle)
            return self._nothing
        return handle


def _nothing() -> None:
    """Never called."""
