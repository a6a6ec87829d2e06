"""Work types and works: what a handler becomes once it is defined."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from piecework.clock import Seconds, seconds
from piecework.context import WorkContext
from piecework.errors import ConfigError, InvalidWorkError
from piecework.options import (
    NO_OPTIONS,
    ExecutorKind,
    Options,
    Track,
    WorkOptions,
    parse_options,
)
from piecework.running import new_id

if TYPE_CHECKING:
    from datetime import datetime

    from piecework.binding import Binding
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
        named = isinstance(type, str) and type != ""  # pyright: ignore[reportUnnecessaryIsInstance] - not all callers are checked
        if not named or not callable(fn) or isinstance(fn, WorkType):
            raise ConfigError(
                f"work type {type!r}: a name and a handler are needed, and the handler is a "
                f"function, not {fn!r}; the one of a work type is its .fn"
            )
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
        if asked not in ("loop", "thread", "process"):
            raise ConfigError(
                f"work type {self.type!r}: executor must be 'loop', 'thread' or 'process', "
                f"not {asked!r}"
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


def _timeout(type: str, value: Seconds | None) -> float | None:
    return parse_options({"timeout": value}, type).timeout


def _level(type: str, options: TypeOptions) -> Options:
    levels = ("retry", "priority", "group", "skip_queue", "timeout")
    own = {name: value for name, value in options.items() if name in levels}
    if options.get("track", "full") not in ("full", "result", "none"):
        raise ConfigError(
            f"work type {type!r}: track must be 'full', 'result' or 'none', "
            f"not {options.get('track')!r}"
        )
    return parse_options(own, type)


class _Unknown:
    """No value is one: only a parameter without an annotation, ``Any`` or ``object`` takes it.

    A handler whose first parameter is such would count as one that takes a context, and lose that
    parameter. The overloads with this class come first and leave its arguments unchecked.
    """


class Define(Protocol):
    """The decorator that ``define_work(...)`` returns."""

    @overload
    def __call__(
        self, fn: Callable[Concatenate[_Unknown, ...], Awaitable[R]], /
    ) -> WorkType[..., R]: ...
    @overload
    def __call__(
        self, fn: Callable[Concatenate[WorkContext, P], Awaitable[R]], /
    ) -> WorkType[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, Awaitable[R]], /) -> WorkType[P, R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[_Unknown, ...], R], /) -> WorkType[..., R]: ...
    @overload
    def __call__(self, fn: Callable[Concatenate[WorkContext, P], R], /) -> WorkType[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> WorkType[P, R]: ...


@overload
def define_work(
    name: Callable[Concatenate[_Unknown, ...], Awaitable[R]], /
) -> WorkType[..., R]: ...
@overload
def define_work(name: Callable[Concatenate[WorkContext, P], Awaitable[R]], /) -> WorkType[P, R]: ...
@overload
def define_work(name: Callable[P, Awaitable[R]], /) -> WorkType[P, R]: ...
@overload
def define_work(name: Callable[Concatenate[_Unknown, ...], R], /) -> WorkType[..., R]: ...
@overload
def define_work(name: Callable[Concatenate[WorkContext, P], R], /) -> WorkType[P, R]: ...
@overload
def define_work(name: Callable[P, R], /) -> WorkType[P, R]: ...
@overload
def define_work(
    name: str,
    handler: Callable[Concatenate[_Unknown, ...], Awaitable[R]],
    /,
    **options: Unpack[TypeOptions],
) -> WorkType[..., R]: ...
@overload
def define_work(
    name: str,
    handler: Callable[Concatenate[WorkContext, P], Awaitable[R]],
    /,
    **options: Unpack[TypeOptions],
) -> WorkType[P, R]: ...
@overload
def define_work(
    name: str, handler: Callable[P, Awaitable[R]], /, **options: Unpack[TypeOptions]
) -> WorkType[P, R]: ...
@overload
def define_work(
    name: str, handler: Callable[Concatenate[_Unknown, ...], R], /, **options: Unpack[TypeOptions]
) -> WorkType[..., R]: ...
@overload
def define_work(
    name: str, handler: Callable[Concatenate[WorkContext, P], R], /, **options: Unpack[TypeOptions]
) -> WorkType[P, R]: ...
@overload
def define_work(
    name: str, handler: Callable[P, R], /, **options: Unpack[TypeOptions]
) -> WorkType[P, R]: ...
@overload
def define_work(name: str | None = None, /, **options: Unpack[TypeOptions]) -> Define: ...
def define_work(
    name: str | Callable[..., Any] | None = None,
    handler: Callable[..., Any] | None = None,
    /,
    **options: Unpack[TypeOptions],
) -> Any:
    """Make a handler a work type, as a decorator (with or without arguments) or as a function.

    The handler's parameters and its result are validated and serialized from their annotations by
    pydantic; what has no annotation goes through the default codec. A parameter annotated with
    ``WorkContext`` receives the context and is not part of the input.

    Args:
        name: The name of the type; the function's name if it is left out.
        handler: The handler, in the functional form.
        **options: See ``TypeOptions``.

    Raises:
        ConfigError: An option cannot be used with this handler.

    Example:
        >>> @define_work("resize", timeout=60)
        ... async def resize(ctx: WorkContext, url: str, width: int = 640) -> str: ...
        >>> @define_work
        ... def add(a: int, b: int) -> int:
        ...     return a + b
        >>> sub = define_work("sub", lambda a, b: a - b)
    """
    if callable(name):
        return cast("WorkType[..., Any]", WorkType(_name_of(name), name, options))
    if handler is not None:
        return cast(
            "WorkType[..., Any]",
            WorkType(_name_of(handler) if name is None else name, handler, options),
        )

    def decorate(fn: Callable[..., Any]) -> WorkType[..., Any]:
        return WorkType(_name_of(fn) if name is None else name, fn, options)

    return decorate


class DefineBatch(Protocol):
    """The decorator that ``define_batch_work(...)`` returns."""

    @overload
    def __call__(
        self, fn: Callable[[list[T]], Awaitable[Sequence[R | Exception]]], /
    ) -> WorkType[[T], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], Awaitable[None]], /) -> WorkType[[T], None]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], Sequence[R | Exception]], /) -> WorkType[[T], R]: ...
    @overload
    def __call__(self, fn: Callable[[list[T]], None], /) -> WorkType[[T], None]: ...


@overload
def define_batch_work(
    name: str,
    handler: Callable[[list[T]], Awaitable[Sequence[R | Exception]]],
    /,
    *,
    size: int,
    max_wait: Seconds = 0.1,
    **options: Unpack[TypeOptions],
) -> WorkType[[T], R]: ...
@overload
def define_batch_work(
    name: str,
    handler: Callable[[list[T]], Awaitable[None]],
    /,
    *,
    size: int,
    max_wait: Seconds = 0.1,
    **options: Unpack[TypeOptions],
) -> WorkType[[T], None]: ...
@overload
def define_batch_work(
    name: str,
    handler: Callable[[list[T]], Sequence[R | Exception]],
    /,
    *,
    size: int,
    max_wait: Seconds = 0.1,
    **options: Unpack[TypeOptions],
) -> WorkType[[T], R]: ...
@overload
def define_batch_work(
    name: str, /, *, size: int, max_wait: Seconds = 0.1, **options: Unpack[TypeOptions]
) -> DefineBatch: ...
def define_batch_work(
    name: str,
    handler: Callable[..., Any] | None = None,
    /,
    *,
    size: int,
    max_wait: Seconds = 0.1,
    **options: Unpack[TypeOptions],
) -> Any:
    """Make a handler of many inputs a work type whose works are queued one by one.

    The handler takes a list of inputs and returns a list with one output per input, in the same
    order; one that returns ``None`` gives each of them ``None``. An output that is an exception
    fails that work alone: annotate ``list[R | Exception]``.

    Args:
        name: The name of the type.
        handler: The handler, in the functional form.
        size: How many works one call takes at most.
        max_wait: Seconds that the first work of a batch waits for others.
        **options: See ``TypeOptions``.

    Raises:
        ConfigError: An option cannot be used.

    Example:
        >>> @define_batch_work("embed", size=50, max_wait=0.1)
        ... async def embed(texts: list[str]) -> list[int]:
        ...     return [len(text) for text in texts]
        >>> embed = define_batch_work("embed", handler, size=50)
    """
    policy = _batch_policy(name, size, max_wait)
    if handler is not None:
        return cast("WorkType[..., Any]", WorkType(name, handler, options, batch=policy))

    def decorate(fn: Callable[..., Any]) -> WorkType[..., Any]:
        return WorkType(name, fn, options, batch=policy)

    return decorate


def _batch_policy(name: str, size: object, max_wait: Seconds) -> BatchPolicy:
    wait = seconds(max_wait)
    if type(size) is not int or size < 1 or not 0 <= wait < float("inf"):
        raise ConfigError(
            f"work type {name!r}: size must be a whole number from 1 and max_wait at least 0 "
            f"seconds, not {size!r} and {wait:g}"
        )
    return BatchPolicy(size, wait)


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", "")
    if not name or name == "<lambda>":
        raise ConfigError(f"{fn!r} has no name of its own; give one: define_work('name', handler)")
    return str(name)
