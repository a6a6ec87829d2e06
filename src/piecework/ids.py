"""Ids: where they come from, and the names that keep one kind from being taken for another."""

from __future__ import annotations

import hashlib
import os
import random
from collections.abc import Callable
from typing import NewType, TypeAlias

WorkId = NewType("WorkId", str)
"""The id of one work; also the id of the group that it is the root of."""

Ids: TypeAlias = Callable[[], str]
"""Makes a new unique id at each call."""


def chance() -> float:
    """A random number from 0 to 1, for jitter: what systems use that are given no other."""
    return random.random()  # noqa: S311, TID251 - spreads retries; nothing secret hangs on it


def entropy(size: int) -> bytes:
    """Random bytes from the operating system. The simulator replaces this function."""
    return os.urandom(size)


def random_id() -> str:
    """A random id in the form of a UUID version 4 (RFC 9562)."""
    raw = bytearray(entropy(16))
    raw[6] = (raw[6] & 0x0F) | 0x40
    raw[8] = (raw[8] & 0x3F) | 0x80
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def derived_id(*parts: str | int) -> str:
    """The same id for the same parts, in every process: what makes a replay harmless.

    Example:
        >>> derived_id("parent", 0, "add") == derived_id("parent", 0, "add")
        True
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in parts:
        data = str(part).encode()
        digest.update(len(data).to_bytes(8, "big"))
        digest.update(data)
    text = digest.hexdigest()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
