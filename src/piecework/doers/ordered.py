"""Doers that run so many at once and pick the next one by an order: balanced, priority, age."""

from __future__ import annotations

from contextvars import copy_context
from typing import TYPE_CHECKING

from piecework.doers.tracked import TrackedDoer
from piecework.doers.waiting import BalancedWaiting, RankedWaiting, by_age, by_priority
from piecework.errors import ConfigError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterable

    from piecework.doers.doer import Task
    from piecework.doers.waiting import Waiting


class OrderedDoer(TrackedDoer):
    """Runs up to ``max`` tasks at once; the others wait, and the order says which is next.

    See ``balanced_doer``, ``priority_doer`` and ``age_doer``, which make it.

    Args:
        waiting: Holds what waits, and picks.
        max: The most tasks that run at once.
        buffer: How many more it asks for, to have them at hand.
        on_backlog: Is called with the number that wait when it rises over the threshold.
        backlog_over: The threshold; ``None`` is the buffer.
    """

    __slots__ = ("_backlog_over", "_buffer", "_max", "_on_backlog", "_pumping", "_waiting")

    def __init__(
        self,
        waiting: Waiting,
        max: int,
        buffer: int,
        on_backlog: Callable[[int], None] | None = None,
        backlog_over: int | None = None,
    ) -> None:
        super().__init__()
        self._waiting = waiting
        self._max = whole("max", max, 1)
        self._buffer = whole("buffer", buffer, 0)
        self._on_backlog = on_backlog
        self._backlog_over = (
            buffer if backlog_over is None else whole("backlog_over", backlog_over, 0)
        )
        self._pumping = False

    @property
    def available(self) -> int:
        """``max + buffer`` less what runs and waits; 0 when it is full."""
        self._forget_closed_loop()
        room = self._max + self._buffer - len(self._running) - len(self._waiting)
        return max(room, 0)

    @property
    def waiting(self) -> int:
        """How many tasks it holds that have not started."""
        self._forget_closed_loop()
        return len(self._waiting)

    def do(self, task: Task) -> None:
        """Start the task if a place is free, else let it wait, beyond the buffer too."""
        loop = self._enter()
        waiting = self._waiting
        if not waiting and self._may_start(loop):
            waiting.started(task)
            self._start(loop, task)
            return
        if task.context is None:
            task.context = copy_context()  # else it would run in that of the task it waited for
        waiting.add(task)
        # A task is added at a time, so that the rise over the threshold is never jumped.
        if self._on_backlog is not None and len(waiting) == self._backlog_over + 1:
            self._call(self._on_backlog, len(waiting))
        self._pump(loop)

    def take_back(self, owner: object = None) -> list[Task]:
        """Remove and return the owner's tasks that have not started, in the order they came."""
        self._forget_closed_loop()
        taken = self._waiting.take(owner)
        if taken:
            self._wake_idlers()
            if self.available:
                self._tell_room()
        return taken

    def _may_start(self, loop: asyncio.AbstractEventLoop) -> bool:
        return len(self._running) < self._max

    def _pump(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start what may start. An eager task may end, and come here again, within ``_start``."""
        if self._pumping:
            return
        self._pumping = True
        try:
            while self._waiting and self._may_start(loop):
                self._start(loop, self._waiting.pick())
        finally:
            self._pumping = False

    def _finished(self, loop: asyncio.AbstractEventLoop, task: Task) -> None:
        self._waiting.finished(task)
        self._pump(loop)
        if self._listeners and self.available:
            self._tell_room()

    def _held_back(self) -> Iterable[Task]:
        return self._waiting

    def _forget(self) -> None:
        super()._forget()
        self._waiting.clear()


def balanced_doer(
    max: int,
    buffer: int | None = None,
    on_backlog: Callable[[int], None] | None = None,
    *,
    backlog_over: int | None = None,
) -> OrderedDoer:
    """A doer that shares its places fairly among groups.

    Next is a task of the group that has the fewest running; then the higher priority, the older,
    the one that came first. So a tenant with a million works delays no other. Tasks without a group
    form one group.

    Args:
        max: The most tasks that run at once, from 1.
        buffer: How many more a worker may hold here, waiting; ``None`` is ``max``. Balance needs
            some: only what is here can be chosen from.
        on_backlog: Is called with the number that wait when it rises over ``backlog_over``.
        backlog_over: ``None`` is the buffer.

    Raises:
        ConfigError: A number is out of its range.

    Example:
        >>> create_work(work=[resize], doer=balanced_doer(max=20, buffer=100))
    """
    return OrderedDoer(BalancedWaiting(), max, _buffer(max, buffer), on_backlog, backlog_over)


def priority_doer(
    max: int,
    buffer: int | None = None,
    on_backlog: Callable[[int], None] | None = None,
    *,
    backlog_over: int | None = None,
) -> OrderedDoer:
    """A doer that picks the highest priority, then the oldest. The arguments of ``balanced_doer``.

    Example:
        >>> create_work(work=[resize], doer=priority_doer(max=20))
    """
    waiting = RankedWaiting(by_priority)
    return OrderedDoer(waiting, max, _buffer(max, buffer), on_backlog, backlog_over)


def age_doer(
    max: int,
    buffer: int | None = None,
    on_backlog: Callable[[int], None] | None = None,
    *,
    backlog_over: int | None = None,
) -> OrderedDoer:
    """A doer that picks the oldest, whatever its priority. The arguments of ``balanced_doer``.

    Example:
        >>> create_work(work=[resize], doer=age_doer(max=20))
    """
    waiting = RankedWaiting(by_age)
    return OrderedDoer(waiting, max, _buffer(max, buffer), on_backlog, backlog_over)


def _buffer(max: int, buffer: int | None) -> int:
    return max if buffer is None else buffer


def whole(name: str, value: int, low: int) -> int:
    """The value, if it is a whole number from ``low``; else ``ConfigError``."""
    if type(value) is not int or value < low:
        raise ConfigError(f"doer: {name} must be a whole number from {low}, not {value!r}")
    return value
