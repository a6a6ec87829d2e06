"""The doer without a limit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.doers.tracked import TrackedDoer

if TYPE_CHECKING:
    import asyncio

    from piecework.doers.doer import Task

#: What it says it takes: large enough that a worker's pulls are, and small enough that a worker
#: does not empty a queue that others could work on.
AVAILABLE = 256


class UnlimitedDoer(TrackedDoer):
    """Starts every task at once; see ``unlimited_doer``."""

    __slots__ = ()

    @property
    def available(self) -> int:
        """Always 256: there is always room, so that no listener is ever called."""
        return AVAILABLE

    @property
    def waiting(self) -> int:
        """Always 0."""
        return 0

    def do(self, task: Task) -> None:
        """Start the task."""
        self._start(self._enter(), task)

    def take_back(self, owner: object = None) -> list[Task]:
        """Nothing: every task has started."""
        return []

    def _held_back(self) -> tuple[Task, ...]:
        return ()

    def _finished(self, loop: asyncio.AbstractEventLoop, task: Task) -> None:
        pass


def unlimited_doer() -> UnlimitedDoer:
    """A doer that starts every task at once. The default: right for works that mostly wait.

    Example:
        >>> create_work(work=[resize], doer=unlimited_doer())
    """
    return UnlimitedDoer()
