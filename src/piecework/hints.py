"""The parameters of a handler and what their annotations mean, read late.

Annotations may name what is defined further down a module, or only inside the function that defines
the handler; so they are resolved when the first work is bound, not when the type is defined.
"""

from __future__ import annotations

import inspect
import sys
import types
import typing
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Annotated, Any, Final, TypeVar, Union, cast, get_args, get_origin

from piecework.errors import ConfigError

if typing.TYPE_CHECKING:
    from collections.abc import Callable, Mapping

RESULT: Final = "return"
"""The name under which the return annotation stands among the hints."""

_UNIONS: Final = (Union, types.UnionType)


def signature_of(fn: Callable[..., Any], work_type: str) -> inspect.Signature:
    """The signature of a handler, its annotations as they were written.

    Raises:
        ConfigError: It has none (some callables written in C).
    """
    read = cast("Any", inspect.signature)
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            return read(fn, annotation_format=annotationlib.Format.FORWARDREF)
        return read(fn)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"work type {work_type!r}: its handler has no signature that can be read ({error}). "
            f"Wrap it in a function with named parameters."
        ) from error


def local_names(fn: Callable[..., Any]) -> dict[str, Any]:
    """Classes and modules of the running function that defines ``fn``, for its annotations.

    Only a handler defined inside a function has any. What is no class, type form or module is left
    out, so that no other local is kept alive.
    """
    owner = _function(fn)
    outer, found, _ = getattr(owner, "__qualname__", "").rpartition(".<locals>.")
    if not found:
        return {}
    frame = inspect.currentframe()
    while frame is not None:
        code = frame.f_code
        if code.co_qualname == outer and code.co_filename == owner.__code__.co_filename:
            return {name: v for name, v in frame.f_locals.items() if _is_type_form(v)}
        frame = frame.f_back
    return {}


def resolve_hints(
    fn: Callable[..., Any],
    signature: inspect.Signature,
    *,
    work_type: str,
    names: Mapping[str, Any],
    known: type,
) -> dict[str, Any]:
    """What each parameter (and ``return``) is annotated with; ``Any`` where nothing is written.

    Args:
        fn: The handler.
        signature: Its signature.
        work_type: The name for errors.
        names: Local names to look in as well.
        known: A class that is found by its name even where it is imported for type checkers only.

    Raises:
        ConfigError: An annotation names what cannot be found.
    """
    owner = _function(fn)
    outer = {known.__name__: known, **getattr(owner, "__globals__", {})}
    inner = {**names, **_closure(owner)}
    raw = {p.name: p.annotation for p in signature.parameters.values()}
    raw[RESULT] = signature.return_annotation
    return {name: _resolve(a, outer, inner, work_type, name) for name, a in raw.items()}


def _resolve(
    annotation: Any, outer: dict[str, Any], inner: dict[str, Any], work_type: str, name: str
) -> Any:
    if annotation is inspect.Signature.empty:
        return Any

    def holder() -> None: ...

    holder.__annotations__ = {"it": annotation}
    try:
        hints = typing.get_type_hints(holder, outer, inner, include_extras=True)
    except Exception as error:
        what = "its return annotation" if name == RESULT else f"the annotation of {name!r}"
        raise ConfigError(
            f"work type {work_type!r}: {what} cannot be resolved ({error}). "
            f"Import or define the name where the handler's module can see it."
        ) from error
    return _without_type_variable(hints["it"])


def _without_type_variable(annotation: Any) -> Any:
    """A bare type variable stands for its bound, its constraints, or anything."""
    if not isinstance(annotation, TypeVar):
        return annotation
    if annotation.__constraints__:
        return Union[annotation.__constraints__]  # noqa: UP007 - the members are known at run time
    return annotation.__bound__ or Any


def is_open(annotation: Any) -> bool:
    """Whether an annotation says nothing, so that the codec must keep the value's own type."""
    return annotation is Any or annotation is object


def names_class(annotation: Any, cls: type) -> bool:
    """Whether an annotation is that class, also inside ``Annotated`` or a union."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return names_class(get_args(annotation)[0], cls)
    if origin in _UNIONS:
        return any(names_class(member, cls) for member in get_args(annotation))
    found = origin or annotation
    return isinstance(found, type) and issubclass(found, cls)


def awaited(annotation: Any) -> Any:
    """What a handler gives in the end: the inside of ``Awaitable[R]`` and ``Coroutine[..., R]``."""
    if get_origin(annotation) in (Awaitable, Coroutine):
        return get_args(annotation)[-1]
    return None if annotation in (typing.NoReturn, typing.Never) else annotation


def item_of(annotation: Any) -> Any:
    """The ``T`` of ``list[T]`` (or of another sequence); ``Any`` where none is written."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return item_of(arguments[0])
    return arguments[0] if arguments else Any


def without_errors(annotation: Any) -> Any:
    """What a batch handler gives for a work that succeeds: a union less its exceptions.

    Where nothing is left (a list of exceptions alone), no work ever succeeds, or with ``None``.
    """
    if get_origin(annotation) not in _UNIONS:
        return None if _is_error(annotation) else annotation
    kept = tuple(member for member in get_args(annotation) if not _is_error(member))
    return Union[kept] if kept else None  # noqa: UP007 - the members are known at run time


def _is_error(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseException)


def _function(fn: Any) -> Any:
    """The function that holds the annotations of a callable."""
    while isinstance(fn, partial):
        fn = cast("Any", fn).func
    fn = inspect.unwrap(fn)
    if inspect.ismethod(fn):
        return fn.__func__
    if inspect.isclass(fn):
        return fn.__init__
    return fn if inspect.isfunction(fn) else cast("Any", type(fn)).__call__


def _closure(owner: Any) -> dict[str, Any]:
    """The closed-over variables that have a value."""
    if not inspect.isfunction(owner):
        return {}
    found: dict[str, Any] = {}
    for name, cell in zip(owner.__code__.co_freevars, owner.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _is_type_form(value: Any) -> bool:
    if isinstance(value, (type, types.ModuleType, types.GenericAlias, types.UnionType)):
        return True
    return type(value).__module__ in ("typing", "typing_extensions")
