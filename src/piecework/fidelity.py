"""Whether a value that was written and read again is still the same value."""

from __future__ import annotations

from collections import deque
from dataclasses import fields, is_dataclass
from typing import Any, NamedTuple, cast

from pydantic import BaseModel


class Difference(NamedTuple):
    """The first place where two values differ.

    Attributes:
        path: From the outside to the place: ``.items[3].owner``.
        problem: What is lost there, in half a sentence.
    """

    path: str
    problem: str


def first_difference(value: Any, back: Any, *, strict: bool, path: str = "") -> Difference | None:
    """Compare a value with what came back for it.

    A field that its model excludes on purpose is not compared. Two objects of one class that cannot
    be compared count as the same.

    Args:
        value: The value as it was given.
        back: The value as it was read again.
        strict: Whether equal values of different types differ (``1`` and ``Decimal(1)``).
        path: Where the two stand.

    Returns:
        ``None`` where nothing is lost.
    """
    if isinstance(value, BaseModel) or is_dataclass(value):
        return _compare_fields(value, back, strict=strict, path=path)
    if type(value) is type(back):
        if isinstance(value, dict):
            return _compare_dicts(cast("dict[Any, Any]", value), back, strict=strict, path=path)
        if isinstance(value, (list, tuple, deque)):
            return _compare_items(cast("list[Any]", value), back, strict=strict, path=path)
        if value == back or type(value).__eq__ is object.__eq__:
            return None
        if value != value and back != back:  # only a not-a-number
            return None
    elif value == back and not strict:
        return None
    return Difference(path, _change(value, back))


def _change(value: Any, back: Any) -> str:
    old, new = type(value).__qualname__, type(back).__qualname__
    if old != new:
        return f"a value of type {old} would come back as {new}"
    return f"a value of type {old} would come back as another {old}"


def _compare_fields(value: Any, back: Any, *, strict: bool, path: str) -> Difference | None:
    if not isinstance(value, cast("type[Any]", type(back))):
        return Difference(path, _change(value, back))
    for name, mine in _fields_of(value).items():
        if not hasattr(back, name):
            owner, base = type(value).__qualname__, type(back).__qualname__
            return Difference(f"{path}.{name}", f"a field of {owner} that {base} does not have")
        found = first_difference(mine, getattr(back, name), strict=strict, path=f"{path}.{name}")
        if found:
            return found
    return None


def _fields_of(value: Any) -> dict[str, Any]:
    if isinstance(value, BaseModel):
        declared = type(value).model_fields
        kept = {name: getattr(value, name) for name, f in declared.items() if not f.exclude}
        return kept | (value.__pydantic_extra__ or {})
    return {f.name: getattr(value, f.name) for f in fields(value)}


def _compare_dicts(
    value: dict[Any, Any], back: dict[Any, Any], *, strict: bool, path: str
) -> Difference | None:
    for key, mine in value.items():
        place = f"{path}.{key}" if isinstance(key, str) else f"{path}[{key!r}]"
        if key not in back:
            return Difference(place, "the entry would be lost")
        found = first_difference(mine, back[key], strict=strict, path=place)
        if found:
            return found
    if strict and [type(key) for key in value] != [type(key) for key in back]:
        return Difference(path, "the type of a key would change")
    return None if len(value) == len(back) else Difference(path, "entries would be added")


def _compare_items(
    value: list[Any], back: list[Any], *, strict: bool, path: str
) -> Difference | None:
    if len(value) != len(back):
        return Difference(path, f"{len(value)} items would come back as {len(back)}")
    for index, (mine, theirs) in enumerate(zip(value, back, strict=True)):
        found = first_difference(mine, theirs, strict=strict, path=f"{path}[{index}]")
        if found:
            return found
    return None
