"""A handle on an enqueued work: its result, its group's result, its state, its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Sequence

    from piecework.clock import Seconds
    from piecework.options import Track
    from piecework.state import Progress, WorkState
    from piecework.system import WorkSystem

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class WorkHandle(Generic[R_co]):
    """An enqueued work. Awaiting the handle waits for its whole group.

    Attributes:
        id: The id of the work.
        group_id: The id of its group.

    Example:
        >>> handle = await work.enqueue(add(1, 2))
        >>> await handle.result(timeout=10)
        3
    """

    __slots__ = ("_after", "_load", "_system", "_track", "group_id", "id")

    def __init__(
        self,
        system: WorkSystem,
        id: str,
        group_id: str,
        load: Callable[[str], Any] | None = None,
        track: Track = "full",
        after: str | None = None,
    ) -> None:
        self._system = system
        self._load = load
        self._track: Track = track
        self._after = after  # the gate that starts the work, which has no record before
        self.id = id
        self.group_id = group_id

    async def result(self, timeout: Seconds | None = None) -> R_co:
        """Wait for what the handler returned.

        Args:
            timeout: Seconds to wait at most; ``None`` for as long as it takes.

        Raises:
            WorkFailedError: The work died.
            WorkCancelledError: It was cancelled.
            WorkExpiredError: It passed its deadline.
            TimeoutError: It has not ended within ``timeout``; it goes on.
            ConfigError: Its type is not tracked, so that nobody can wait for it.
        """
        return await self._system.wait_result(
            self.id, self._load, timeout, self._track, after=self._after
        )

    async def group(self, timeout: Seconds | None = None) -> Any:
        """Wait until all works of the group have ended, well or not; give the group's result.

        Raises:
            TimeoutError: They have not ended within ``timeout`` seconds.
        """
        return await self._system.wait_group(self.group_id, timeout, self._track)

    def __await__(self) -> Generator[Any, None, Any]:
        return self.group().__await__()

    async def state(self) -> WorkState | None:
        """What is known of the work now; ``None`` if nothing is (any more)."""
        return await self._system.state(self.id)

    async def cancel(self) -> bool:
        """Cancel the work; see ``WorkSystem.cancel``."""
        return await self._system.cancel(self.id)

    def progress(self) -> AsyncIterator[Progress]:
        """What the handler says with ``ctx.progress``, from now until the work has ended."""
        return self._system.watch_progress(self.id, after=self._after)

    def __repr__(self) -> str:
        return f"<WorkHandle {self.id}>"


class WorkHandles(list[WorkHandle[R]]):
    """The handles of works that were enqueued together, in their order.

    Attributes:
        then: The handles of the works that a gate starts.
        gate: The handle of that gate; ``None`` without ``then=``.

    Example:
        >>> handles = await work.enqueue_many([add(1, 2), add(3, 4)])
        >>> await handles.results()
        [3, 7]
    """

    then: Sequence[WorkHandle[Any]] = ()
    gate: WorkHandle[None] | None = None

    async def results(self, timeout: Seconds | None = None) -> list[R]:
        """Wait for all results; raise what the first one that failed raises."""
        return [await handle.result(timeout) for handle in self]
