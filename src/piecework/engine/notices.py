"""Notifications between systems: short texts that speed up what also works without them."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple, TypeAlias, cast

NoticeKind: TypeAlias = Literal["done", "group", "cancel", "progress"]
_KINDS = frozenset({"done", "group", "cancel", "progress"})


class Notice(NamedTuple):
    """A work or a group has ended, is to be cancelled, or has made progress.

    Attributes:
        kind: What happened.
        id: The id of the work or the group.
        data: For ``progress``: done, total and message.
    """

    kind: NoticeKind
    id: str
    data: Any = None


def encode_notice(kind: NoticeKind, id: str, data: Any = None) -> str:
    """The text of a notice."""
    return json.dumps([kind, id] if data is None else [kind, id, data])


def decode_notice(text: str) -> Notice | None:
    """Read a notice; ``None`` for anything that is none."""
    try:
        values: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, list):
        return None
    parts = cast("list[Any]", values)
    if not 2 <= len(parts) <= 3 or not all(isinstance(part, str) for part in parts[:2]):
        return None
    return Notice(*parts) if parts[0] in _KINDS else None
