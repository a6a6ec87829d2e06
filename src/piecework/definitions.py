"""Work types and works: what a handler becomes once it is defined."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
)

from piecework.context import WorkContext
from piecework.errors import ConfigError, InvalidWorkError, shown
from piecework.options import (
    NO_OPTIONS,
    ExecutorKind,
    Options,
    Track,
    WorkOptions,
    is_name,
    parse_options,
)
from piecework.running import new_id

if TYPE_CHECKING:
    from datetime import datetime

    from piecework.binding import Binding
    from piecework.clock import Seconds
    from piecework.codec import Codec
    from piecework.doers import Doer
    from piecework.ports.queue import Queue
    from piecework.retry import Retry
    from piecework.state import WorkEvent, WorkInfo

P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Delay:
    """Returned by ``on_failure``: try again in so many seconds without spending an attempt.

    Example:
        >>> def on_failure(error, info):
        ...     return Delay(30) if isinstance(error, RateLimited) else None
    """

    seconds: Seconds


@dataclass(frozen=True, slots=True)
class RunAt:
    """Returned by ``on_failure``: try again at this time without spending an attempt.

    Example:
        >>> def on_failure(error, info):
        ...     return RunAt(error.resets_at) if isinstance(error, RateLimited) else None
    """

    at: datetime


Fate: TypeAlias = Literal["retry", "abort"] | Delay | RunAt | None
"""What ``on_failure`` returns: how a failure is to be treated; ``None`` means as usual."""

OnFailure: TypeAlias = Callable[[BaseException, "WorkInfo"], Fate]
OnEvent: TypeAlias = Callable[["WorkEvent"], None]


class TypeOptions(TypedDict, total=False):
    """The options of a work type.

    Attributes:
        retry: Fields given here win over the system's.
        priority: Higher goes first among the works that a doer holds.
        group: The tenant of all works of the type.
        doer: Decides how many of its works run and which is next, in place of the system's.
        queue: The queue of its works, in place of the system's.
        options: A function of the handler's arguments that returns options of that one work.
        codec: Sees the input and the result in place of pydantic and the system's codec.
        on_event: Called with the events of its works, after the system's.
        on_failure: Decides on failures, in place of the system's.
        log_context: A function of the input that returns fields for the log records.
        skip_queue: Make the first attempts in the process that enqueues.
        timeout: Seconds that one attempt may take.
        executor: ``"loop"`` (default for ``async def``), ``"thread"`` (default for ``def``) or
            ``"process"`` for work that keeps a processor busy.
        track: ``"full"`` (default), ``"result"`` (the result only) or ``"none"``.
    """

    retry: Retry | None
    priority: int
    group: str | None
    doer: Doer | None
    queue: Queue | None
    options: Callable[..., WorkOptions | Mapping[str, Any]] | None
    codec: Codec | None
    on_event: OnEvent | None
    on_failure: OnFailure | None
    log_context: Callable[[dict[str, Any]], Mapping[str, object]] | None
    skip_queue: bool
    timeout: Seconds | None
    executor: ExecutorKind | None
    track: Track


@dataclass(frozen=True, slots=True)
class BatchPolicy:
    """How works of a batch type are collected: up to ``size``, at most ``max_wait`` seconds."""

    size: int
    max_wait: float


class Work(Generic[R_co]):
    """One call of a work type, built and not yet sent.

    Attributes:
        id: Its id, known before it is enqueued. Enqueueing the same work twice runs it once.
        type: The name of its work type.
        options: What ``with_options`` was given.
        sent: Whether this object was enqueued before.

    Example:
        >>> add(1, b=2).with_options(delay=5).input
        {'a': 1, 'b': 2}
    """

    __slots__ = ("encoded", "id", "options", "sent", "type", "work_type")

    def __init__(
        self,
        work_type: WorkType[..., Any],
        encoded: str,
        *,
        id: str | None = None,
        options: Options = NO_OPTIONS,
    ) -> None:
        self.work_type = work_type
        self.type = work_type.type
        self.encoded = encoded
        self.options = options
        self.sent = False
        self.id = id or options.id or new_id(self.type, encoded)

    @property
    def input(self) -> dict[str, Any]:
        """The arguments by the names of the handler's parameters, JSON-able."""
        return self.work_type.binding.mapping(self.encoded)

    def with_options(self, **options: Unpack[WorkOptions]) -> Work[R_co]:
        """The same work, with the same id, and these options over those that it has.

        Raises:
            InvalidWorkError: An option is unknown or its value cannot be used.
        """
        given = parse_options(options, self.type)
        return Work(
            self.work_type, self.encoded, id=given.id or self.id, options=given.over(self.options)
        )

    def __repr__(self) -> str:
        return f"<Work {self.type} {self.id}>"


class WorkType(Generic[P, R_co]):
    """A handler under a name. Calling it builds a ``Work`` and sends nothing.

    Attributes:
        type: The name, which travels in messages: renaming it orphans what is queued.
        fn: The plain function, to call it directly (in a test, say).
        options: The options of the type.
        batch: How works are collected, for a batch type.

    Example:
        >>> add = define_work("add", lambda a, b: a + b)
        >>> add(1, b=2).type, add.fn(1, 2)
        ('add', 3)
    """

    def __init__(
        self,
        type: str,
        fn: Callable[..., Any],
        options: TypeOptions,
        *,
        batch: BatchPolicy | None = None,
    ) -> None:
        unknown = sorted(options.keys() - TypeOptions.__annotations__.keys())
        if unknown:
            known = ", ".join(TypeOptions.__annotations__)
            raise ConfigError(
                f"work type {type!r}: there is no option {unknown[0]!r}. Known: {known}."
            )
        given: object = fn
        if not is_name(type) or not callable(fn) or isinstance(fn, WorkType):
            raise ConfigError(
                f"work type {shown(type)}: a name and a handler are needed, and the handler is a "
                f"function, not {shown(given)}; the one of a work type is its .fn"
            )
        _check_parts(type, options)
        self.type = type
        self.fn = fn
        self.options = options
        self.batch = batch
        self.is_async = is_async(fn)
        self.executor: ExecutorKind = self._executor(options.get("executor"))
        self.timeout = _timeout(type, options.get("timeout"))
        self.level = _level(type, options)
        functools.update_wrapper(self, fn, updated=())

    @functools.cached_property
    def binding(self) -> Binding:
        """Maps arguments and results to and from JSON text."""
        from piecework.binding import Binding  # brings pydantic, which defining does not need

        return Binding(
            self.fn,
            work_type=self.type,
            codec=self.options.get("codec"),
            context_type=WorkContext,
            batch=self.batch is not None,
        )

    def _executor(self, asked: ExecutorKind | None) -> ExecutorKind:
        if asked is None:
            return "loop" if self.is_async else "thread"
        if not isinstance(asked, str) or asked not in ("loop", "thread", "process"):  # pyright: ignore[reportUnnecessaryIsInstance] - not all callers are checked
            raise ConfigError(
                f"work type {self.type!r}: executor must be 'loop', 'thread' or 'process', "
                f"not {shown(asked)}"
            )
        if asked == "thread" and self.is_async:
            raise ConfigError(
                f"work type {self.type!r}: an async handler runs on the loop or in a process; "
                f"make it a plain def to run it in a thread"
            )
        if asked == "process" and self.batch:
            raise ConfigError(f"work type {self.type!r}: a batch type cannot run in a process")
        return asked

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Work[R_co]:
        """Build a work from the handler's own arguments, without ``ctx``.

        Raises:
            InvalidWorkError: An argument is missing, unexpected or of the wrong type.
        """
        return Work(self, self.binding.bind(args, kwargs))

    def from_mapping(self, arguments: Mapping[str, Any]) -> Work[R_co]:
        """Build a work from arguments by name, as ``enqueue("name", {...})`` does."""
        return Work(self, self.binding.bind_mapping(arguments))

    def __repr__(self) -> str:
        return f"<WorkType {self.type}>"


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives a coroutine: also for partials and objects with ``__call__``."""
    inner = fn
    while isinstance(inner, functools.partial):
        inner = inner.func
    return inspect.iscoroutinefunction(inner) or inspect.iscoroutinefunction(
        getattr(inner, "__call__", None)  # noqa: B004 - the method itself is asked
    )


def check_distinct(works: Sequence[Work[Any]]) -> None:
    """Check that no work is given twice.

    Raises:
        InvalidWorkError: Two of the works have the same id.
    """
    seen: set[str] = set()
    for work in works:
        if work.id in seen:
            raise InvalidWorkError(
                f"the work {work.id} was given twice",
                work_type=work.type,
                fix="Build a new work for each call.",
            )
        seen.add(work.id)


#: What the options that are objects must have, by their names.
_PARTS: dict[str, tuple[tuple[str, ...], str]] = {
    "doer": (("do", "available", "subscribe"), "a doer, such as balanced_doer(max=10)"),
    "queue": (("push", "pop", "capabilities"), "a queue, such as MemoryQueue()"),
    "codec": (("encode", "decode"), "an object with encode and decode"),
    "options": (("__call__",), "a function of the handler's arguments"),
    "on_event": (("__call__",), "a function of an event"),
    "on_failure": (("__call__",), "a function of an error and a WorkInfo"),
    "log_context": (("__call__",), "a function of the input"),
}


def _check_parts(type: str, options: TypeOptions) -> None:
    for name, (methods, wanted) in _PARTS.items():
        value = options.get(name)
        if value is not None and not all(hasattr(value, method) for method in methods):
            raise ConfigError(f"work type {type!r}: {name} must be {wanted}, not {shown(value)}")


def _timeout(type: str, value: Seconds | None) -> float | None:
    return parse_options({"timeout": value}, type).timeout


def _level(type: str, options: TypeOptions) -> Options:
    levels = ("retry", "priority", "group", "skip_queue", "timeout")
    own = {name: value for name, value in options.items() if name in levels}
    track: object = options.get("track", "full")
    if not isinstance(track, str) or track not in ("full", "result", "none"):
        raise ConfigError(
            f"work type {type!r}: track must be 'full', 'result' or 'none', not {shown(track)}"
        )
    return parse_options(own, type)
