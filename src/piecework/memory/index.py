"""The keys of one index by the order of their writes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

#: Entries per chunk: small enough that removing one from the middle costs next to nothing.
_CHUNK = 512


class WriteOrder:
    """Keys with rising serial numbers, in chunks: every operation costs the same at any length."""

    __slots__ = ("_chunks", "_firsts")

    def __init__(self) -> None:
        self._chunks: list[tuple[list[int], list[str]]] = []
        #: No serial number of a chunk is below the one that it began with.
        self._firsts: list[int] = []

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def append(self, serial: int, key: str) -> None:
        """Add a key; its serial number must be above all others."""
        if self._chunks:
            serials, keys = self._chunks[-1]
            if len(serials) < _CHUNK:
                serials.append(serial)
                keys.append(key)
                return
        self._chunks.append(([serial], [key]))
        self._firsts.append(serial)

    def remove(self, serial: int) -> None:
        """Take out the key with that serial number, which must be there."""
        at = bisect_right(self._firsts, serial) - 1
        serials, keys = self._chunks[at]
        position = bisect_left(serials, serial)
        del serials[position], keys[position]
        if not serials:
            del self._chunks[at], self._firsts[at]

    def newest(self, below: int | None = None) -> Iterator[tuple[int, str]]:
        """The keys from the newest on, or from the newest with a serial number under ``below``."""
        last = len(self._chunks) - 1
        if below is not None:
            last = bisect_left(self._firsts, below) - 1
        for at in range(last, -1, -1):
            serials, keys = self._chunks[at]
            count = len(serials)
            if below is not None and at == last:
                count = bisect_left(serials, below)
            for position in range(count - 1, -1, -1):
                yield serials[position], keys[position]
