"""The contract of a doer: it decides how many works run at once, and which is next."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from contextvars import Context


@dataclass(slots=True, eq=False)
class Task:
    """One thing to do: a work's attempt, or a batch of them. A doer holds a task object once.

    Attributes:
        run: Does it. It reports its own errors; one that escapes goes to the exception handler of
            the event loop, and the doer goes on.
        id: The id of the work, for messages.
        group: What a balanced doer shares its places among. ``None`` is a group like any other.
        priority: The higher is sooner.
        created_at: Any stamp that can be compared; the smaller is older, and sooner.
        owner: Whose task it is: several systems may share a doer.
        context: The context variables it runs in; a doer that lets it wait notes those of ``do``.
    """

    run: Callable[[], Coroutine[Any, Any, None]]
    id: str = ""
    group: str | None = None
    priority: int = 0
    created_at: float = 0.0
    owner: object = None
    context: Context | None = field(default=None, repr=False)


class Doer(ABC):
    """Runs tasks: decides how many at once, and which of the waiting ones is next.

    A doer binds no event loop: it may be made when a module is imported, and used again after the
    loop that it ran in was closed (what it held then is forgotten). It serves one loop at a time.

    Example:
        >>> create_work(work=[add], doer=balanced_doer(max=10))
    """

    __slots__ = ()

    @property
    @abstractmethod
    def available(self) -> int:
        """How many more tasks it takes now; 0 when it is full."""

    @property
    @abstractmethod
    def running(self) -> int:
        """How many tasks run."""

    @property
    @abstractmethod
    def waiting(self) -> int:
        """How many tasks it holds that have not started."""

    @abstractmethod
    def do(self, task: Task) -> None:
        """Start the task, or keep it until there is room for it.

        It never waits and never refuses: a full doer keeps the task beyond its buffer. Must be
        called where an event loop runs.
        """

    @abstractmethod
    def take_back(self, owner: object = None) -> list[Task]:
        """Remove and return the owner's tasks that have not started, in the order they came.

        ``None`` stands for all owners, here and in the methods below.
        """

    @abstractmethod
    def tasks(self, owner: object = None) -> list[asyncio.Task[None]]:
        """The asyncio tasks of what runs for the owner, to be cancelled or waited for."""

    @abstractmethod
    async def done(self, owner: object = None) -> None:
        """Wait until nothing of the owner runs or waits; returns at once if that is so."""

    @abstractmethod
    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Have ``listener`` called whenever ``available`` grew (and perhaps when it did not).

        Returns:
            A function that ends it; calling it again does nothing.
        """
