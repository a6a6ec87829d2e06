"""What a handler is given as ``ctx``: its own place, its children, and what it may ask for."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Generic, TypeVar, Unpack, overload

from piecework.errors import PieceworkError

if TYPE_CHECKING:
    import concurrent.futures
    from collections.abc import Generator, Iterable, Sequence

    from piecework.definitions import Work
    from piecework.gates import When
    from piecework.options import WorkOptions
    from piecework.state import WorkState

T = TypeVar("T")


class Reply(Generic[T]):
    """An answer under way: ``await`` it in an ``async def`` handler, ``wait()`` in a ``def`` one.

    What was asked for happens in either case, also when nobody waits, and always before the work
    settles.

    Example:
        >>> async def handler(ctx):
        ...     first = await ctx.claim("only-once")
        >>> def threaded(ctx):
        ...     first = ctx.claim("only-once").wait()
    """

    __slots__ = ("_future",)

    def __init__(self, future: asyncio.Future[T] | concurrent.futures.Future[T]) -> None:
        self._future = future

    def __await__(self) -> Generator[Any, None, T]:
        future = self._future
        if isinstance(future, asyncio.Future):
            return (yield from asyncio.shield(future).__await__())
        return (yield from asyncio.wrap_future(future).__await__())

    def wait(self, timeout: float | None = None) -> T:
        """Block this thread until the answer is there.

        Args:
            timeout: Seconds to wait at most; ``None`` for as long as it takes.

        Raises:
            TimeoutError: It took longer.
            PieceworkError: Called on the event loop, which would wait for itself.
        """
        if isinstance(self._future, asyncio.Future):
            raise PieceworkError(
                "wait() blocks the event loop that the answer must come from; use await"
            )
        return self._future.result(timeout)


class ChildId(str):
    """The id of a queued child; ``await`` it to know that the child is accepted."""

    __slots__ = ("reply",)

    reply: Reply[None]

    def __await__(self) -> Generator[Any, None, str]:
        yield from self.reply.__await__()
        return str(self)

    def wait(self, timeout: float | None = None) -> str:
        """Block this thread until the child is accepted (for ``def`` handlers)."""
        self.reply.wait(timeout)
        return str(self)


class ChildIds(list[str]):
    """The ids of queued children; ``await`` them to know that the children are accepted."""

    reply: Reply[None]

    def __await__(self) -> Generator[Any, None, list[str]]:
        yield from self.reply.__await__()
        return list(self)

    def wait(self, timeout: float | None = None) -> list[str]:
        """Block this thread until the children are accepted (for ``def`` handlers)."""
        self.reply.wait(timeout)
        return list(self)


class Scope(ABC):
    """What stands behind a ``WorkContext``: the engine here, a pipe in a worker process."""

    @abstractmethod
    def queue(
        self,
        works: Sequence[Work[Any]],
        then: Sequence[Work[Any]] | None,
        when: When,
        options: WorkOptions,
    ) -> tuple[list[str], Reply[None]]:
        """Queue children; return their ids at once and the acceptance as a reply."""

    @abstractmethod
    def set_result(self, value: Any) -> Reply[None]:
        """Write the group's result."""

    @abstractmethod
    def states(self, ids: Sequence[str]) -> Reply[list[WorkState | None]]:
        """Read states."""

    @abstractmethod
    def results(self, ids: Sequence[str]) -> Reply[list[Any]]:
        """Read results."""

    @abstractmethod
    def claim(self, key: str) -> Reply[bool]:
        """Be the first to claim a key."""

    @abstractmethod
    def progress(self, done: float, total: float | None, message: str) -> None:
        """Note how far the work is."""

    @abstractmethod
    def remaining(self) -> float | None:
        """Seconds until the attempt is stopped."""

    @property
    @abstractmethod
    def cancelled(self) -> bool:
        """Whether the work was asked to stop."""


class WorkContext:
    """A handler's own place in the world; a parameter with this annotation receives it.

    Attributes:
        id: The id of this work.
        type: The name of its work type.
        group_id: The id of its group's root work.
        attempt: Which attempt this is, from 1.
        parent_id: The work whose handler queued this one, or ``None``.
        upstream: The ids of the works that a gate waited for before this one started.

    Example:
        >>> from piecework import WorkContext, define_work
        >>> @define_work
        ... async def order(ctx: WorkContext, number: int) -> None:
        ...     await ctx.queue([charge(number), pack(number)], then=[ship(number)])
    """

    __slots__ = ("_scope", "attempt", "group_id", "id", "parent_id", "type", "upstream")

    def __init__(
        self,
        scope: Scope,
        *,
        id: str,
        type: str,
        group_id: str,
        attempt: int,
        parent_id: str | None = None,
        upstream: Sequence[str] = (),
    ) -> None:
        self._scope = scope
        self.id = id
        self.type = type
        self.group_id = group_id
        self.attempt = attempt
        self.parent_id = parent_id
        self.upstream = upstream

    def __repr__(self) -> str:
        return f"<WorkContext {self.type} {self.id} attempt {self.attempt}>"

    @overload
    def queue(
        self,
        works: Work[Any],
        *,
        then: Sequence[Work[Any]] | Work[Any] | None = None,
        when: When = "all-done",
        **options: Unpack[WorkOptions],
    ) -> ChildId: ...
    @overload
    def queue(
        self,
        works: Iterable[Work[Any]],
        *,
        then: Sequence[Work[Any]] | Work[Any] | None = None,
        when: When = "all-done",
        **options: Unpack[WorkOptions],
    ) -> ChildIds: ...
    def queue(
        self,
        works: Work[Any] | Iterable[Work[Any]],
        *,
        then: Sequence[Work[Any]] | Work[Any] | None = None,
        when: When = "all-done",
        **options: Unpack[WorkOptions],
    ) -> ChildId | ChildIds:
        """Queue children: the group settles only after all of them.

        Their ids are known at once. They are accepted before this work settles, also when nobody
        awaits the answer; if that fails, this work fails. A replay of this handler queues the same
        children again, which does nothing.

        Args:
            works: One work, or several.
            then: Works that start once those of this call have met ``when``.
            when: ``"all-done"``, ``"all-success"`` or ``{"count": n, "of": "success" | "done"}``.
            **options: Options of the works, as at ``enqueue``.

        Returns:
            The id, or the list of ids; ``await`` it (or ``wait()`` in a thread) for acceptance.

        Raises:
            InvalidWorkError: An option cannot be used.
        """
        from piecework.definitions import Work

        single = isinstance(works, Work)
        several: list[Work[Any]] = [works] if isinstance(works, Work) else list(works)
        after = [then] if isinstance(then, Work) else then
        ids, reply = self._scope.queue(several, after, when, options)
        if single:
            one = ChildId(ids[0])
            one.reply = reply
            return one
        many = ChildIds(ids)
        many.reply = reply
        return many

    def set_result(self, value: Any) -> Reply[None]:
        """Set the result of the whole group, what awaiting its handle gives; the last one wins."""
        return self._scope.set_result(value)

    def states(self, ids: Sequence[str]) -> Reply[list[WorkState | None]]:
        """The states of works, in the order of the ids; ``None`` for one that is not known."""
        return self._scope.states(ids)

    def results(self, ids: Sequence[str]) -> Reply[list[Any]]:
        """The results of works, in the order of the ids; ``None`` for one that has none."""
        return self._scope.results(ids)

    def claim(self, key: str) -> Reply[bool]:
        """True for the first who claims a key within ``result_ttl``, over the whole fleet."""
        return self._scope.claim(key)

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far this work is; ``handle.progress()`` and ``watch`` show it. Throttled."""
        self._scope.progress(done, total, message)

    def remaining(self) -> float | None:
        """Seconds until the timeout or deadline stops this attempt; ``None`` without one."""
        return self._scope.remaining()

    @property
    def cancelled(self) -> bool:
        """Whether this work was asked to stop; a ``def`` handler should look now and then."""
        return self._scope.cancelled


def in_loop_thread(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether the caller runs on that loop."""
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False
