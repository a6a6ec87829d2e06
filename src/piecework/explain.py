"""Pydantic's errors in one sentence, without the values (which may be secret)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from piecework.errors import InvalidWorkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydantic import ValidationError


def invalid_work(
    error: ValidationError, *, work_type: str, field: str = "", known: Sequence[str] = ()
) -> InvalidWorkError:
    """The first of pydantic's errors as ours; the others are counted.

    Args:
        error: What pydantic raised; chain it as the cause.
        work_type: The name of the work type.
        field: What stands before the places that pydantic names.
        known: The parameters that exist, for the fix.
    """
    details: list[Any] = list(error.errors(include_url=False, include_context=False))
    first = details[0]
    problem, fix = _explain(first, known)
    if len(details) > 1:
        more = len(details) - 1
        problem += f" (and {more} more error{'s' if more > 1 else ''})"
    return InvalidWorkError(
        problem, work_type=work_type, field=place_of(first["loc"], field), fix=fix
    )


def _explain(details: Any, known: Sequence[str]) -> tuple[str, str]:
    kind, message = details["type"], str(details["msg"])
    top = len(details["loc"]) == 1
    if kind == "missing":
        return "is missing", "Pass it, or give the parameter a default." if top else ""
    if kind == "extra_forbidden" and top:
        return "is not a parameter", f"The parameters are: {', '.join(known) or 'none'}."
    if kind == "json_invalid":
        return f"the text is not JSON: {message.removeprefix('Invalid JSON: ')}", ""
    got = type(details["input"]).__qualname__
    message = message.replace("Input should be", "must be", 1).replace("Input should", "must", 1)
    return f"{message} (got {got})", "Pass what the annotation says, or change the annotation."


def place_of(parts: tuple[str | int, ...], field: str = "") -> str:
    """A place in the usual notation: ``items[3].owner``."""
    place = field
    for part in parts:
        if isinstance(part, int):
            place += f"[{part}]"
        else:
            place += f".{part}" if place else part
    return place
