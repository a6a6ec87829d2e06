"""Finding loaded classes by name, and rebuilding exceptions without running their code.

A payload is data from outside: reading one never imports a module, never evaluates text and never
runs a constructor that is not Python's own.
"""

from __future__ import annotations

import sys
from enum import Enum
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping


_NOTHING: Mapping[str, Any] = {}


class RestoredError(Exception):
    """Stands for an exception that cannot be rebuilt here; it keeps the name and the text.

    Args:
        error_type: The name of the original class, as ``module:qualname``.
        text: What the original exception said.

    Example:
        >>> str(RestoredError("shop.cards:Stolen", "card 7"))
        'card 7'
    """

    def __init__(self, error_type: str, text: str) -> None:
        self.error_type = error_type
        self.text = text
        super().__init__(error_type, text)

    def __str__(self) -> str:
        return self.text


def class_name(cls: type) -> str:
    """The name under which ``find_class`` looks a class up: ``module:qualname``."""
    return f"{cls.__module__}:{cls.__qualname__}"


def find_class(name: str, known: Mapping[str, type]) -> type | None:
    """The class of that name, from ``known`` or from the modules that are loaded already.

    Attributes are read from dictionaries alone, so that no module's ``__getattr__`` (which may
    import) and no descriptor runs.
    """
    found: Any = known.get(name)
    if found is not None:
        return cast("type", found)
    module_name, _, qualname = name.partition(":")
    found = sys.modules.get(module_name)
    for part in qualname.split("."):
        found = _names_in(found).get(part)
    if not issubclass(type(found), type) or class_name(found) != name:
        return None
    return cast("type", found)


def _names_in(found: Any) -> Mapping[str, Any]:
    """What stands in a module or a class, without a word to their own ``__getattribute__``.

    A module that is loaded late would be loaded by that, and a proxy would ask what it stands for.
    """
    if issubclass(type(found), ModuleType):
        return object.__getattribute__(found, "__dict__")
    return type.__getattribute__(found, "__dict__") if issubclass(type(found), type) else _NOTHING


def find_enum(name: str, known: Mapping[str, type]) -> type[Enum] | None:
    """The loaded enum class of that name."""
    found = find_class(name, known)
    return found if found is not None and issubclass(found, Enum) else None


def rebuild_exception(
    cls: type, args: tuple[Any, ...], attributes: Mapping[str, Any]
) -> BaseException | None:
    """An exception of that class with those arguments, or ``None`` where Python refuses it.

    A class of Python's own is called. For any other class the constructor of its nearest built-in
    parent is, so its own ``__new__`` and ``__init__`` do not run; ``attributes`` replace what they
    had set.
    """
    if not issubclass(cls, BaseException):
        return None
    native = next(c for c in cls.__mro__ if c.__module__ == "builtins")
    make = cast("Any", native)
    try:
        if cls is native:
            error = make(*args)
        else:
            error = make.__new__(cls, *args)
            make.__init__(error, *args)
        error.__dict__.update(attributes)
    except (TypeError, ValueError, ArithmeticError):
        return None
    return cast("BaseException", error)
