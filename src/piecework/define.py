"""Defining work types: the decorators, and how they are typed."""

from __future__ import annotations

from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    overload,
)

from piecework.clock import Seconds, seconds
from piecework.definitions import BatchPolicy, TypeOptions, WorkType
from piecework.errors import ConfigError, shown

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from piecework.context import WorkContext

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")


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
    try:
        wait = seconds(max_wait)
    except ConfigError as error:
        raise ConfigError(f"work type {shown(name)}: max_wait: {error}") from error
    if type(size) is not int or size < 1 or not 0 <= wait < float("inf"):
        raise ConfigError(
            f"work type {shown(name)}: size must be a whole number from 1 and max_wait at least 0 "
            f"seconds, not {shown(size)} and {wait:g}"
        )
    return BatchPolicy(size, wait)


def _name_of(fn: Callable[..., Any]) -> str:
    name = getattr(fn, "__name__", "")
    if not name or name == "<lambda>":
        raise ConfigError(
            f"{shown(fn)} has no name of its own; give one: define_work('name', handler)"
        )
    return str(name)
