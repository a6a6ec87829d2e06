"""Works as plain data: how they travel to a worker process, and in a dependency's input."""

from __future__ import annotations

import dataclasses
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from piecework.definitions import Work
from piecework.errors import InvalidWorkError
from piecework.options import Options, is_name
from piecework.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.definitions import WorkType


def pack_work(work: Work[Any]) -> dict[str, Any]:
    """A work as plain data: its type, id, input and options."""
    return {
        "type": work.type,
        "id": work.id,
        "input": work.encoded,
        "options": plain_options(work.options),
    }


def plain_options(options: Options) -> dict[str, Any]:
    """One level of options as plain data."""
    plain: dict[str, Any] = {}
    for field in dataclasses.fields(options):
        value = getattr(options, field.name)
        if isinstance(value, Retry):
            plain[field.name] = list(value.given)
        elif isinstance(value, datetime):
            plain[field.name] = {"at": value.isoformat()}
        elif isinstance(value, timedelta):
            plain[field.name] = value.total_seconds()
        elif value is not None:
            plain[field.name] = value
    return plain


def read_options(plain: dict[str, Any]) -> Options:
    """The options that ``plain_options`` wrote."""
    values = dict(plain)
    if "retry" in values:
        values["retry"] = Retry(*values["retry"])
    if isinstance(values.get("deadline"), dict):
        values["deadline"] = datetime.fromisoformat(values["deadline"]["at"])
    return Options(**values)


def unpack_work(type_of: Callable[[str], WorkType[..., Any]], packed: dict[str, Any]) -> Work[Any]:
    """The work that ``pack_work`` wrote; ``type_of`` gives the type of a name.

    Raises:
        InvalidWorkError: It is none that it wrote.
    """
    try:
        id, input = packed["id"], packed["input"]
        if not is_name(id) or not isinstance(input, str):
            raise TypeError("its id and its input must be texts")
        return Work(type_of(packed["type"]), input, id=id, options=read_options(packed["options"]))
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidWorkError(
            f"a packed work cannot be read ({type(error).__name__}: {error})",
            fix="Make it with pack_work.",
        ) from error
