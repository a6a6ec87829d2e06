"""The store port: records with a version and counters, written all or nothing."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence  # noqa: TC003 - get_type_hints() of the dataclasses needs them
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, Literal, NamedTuple, TypeAlias, TypeVar

from piecework.errors import ConflictError

if TYPE_CHECKING:
    from piecework.ports.capabilities import Capabilities

T = TypeVar("T")


class _Mark(Enum):
    KEEP = "keep"
    ANY = "any"


KEEP: Final = _Mark.KEEP
"""As a change's value: leave the value, its version, its index and its expiry order as they are."""
ANY: Final = _Mark.ANY
"""As a change's expectation: whatever the version is."""

Keep: TypeAlias = Literal[_Mark.KEEP]
Any_: TypeAlias = Literal[_Mark.ANY]

_NONE: Final[Mapping[str, int]] = MappingProxyType({})


class Record(NamedTuple):
    """What a store holds under a key.

    Attributes:
        key: The key.
        value: The text, or ``None`` where no value was written (or it expired).
        version: How often the value was written; 0 where there is no value.
        counters: The named counters that were ever added to.

    Example:
        >>> [record] = await store.read(["a"])
        >>> record.value, record.version, record.count("seen")
    """

    key: str
    value: str | None = None
    version: int = 0
    counters: Mapping[str, int] = _NONE

    def count(self, name: str) -> int:
        """The counter of that name; 0 where it was never added to."""
        return self.counters.get(name, 0)


class Change(NamedTuple):
    """One change of an atomic write.

    Attributes:
        key: The record to change. A write names each key once.
        value: The new value, which raises the version by one; ``KEEP`` leaves it.
        expect: The version that the record must have; 0 means "no value yet"; ``ANY`` for any.
        add: Added to the named counters; the version stays as it is.
        needs: Counters that must be above zero before the write.
        ttl: Seconds from now after which the whole record counts as absent. ``None`` leaves the
            expiry as it is, 0 removes it. With a new value it is set exactly; without one
            (``KEEP``) it only ever lengthens the life of the record.
        index: With a new value: the index that lists the key from now on, in place of any other;
            ``None`` lists it nowhere. Without a new value the index is left as it is.
        delete: Remove the record, its counters and its place in the index.
        fetch: The caller needs this record as it is at or after the write; without it an adapter
            may return the record with only what it knows without another request.

    Example:
        >>> Change("a", value="1", expect=0, add={"seen": 1}, ttl=60)
    """

    key: str
    value: str | Keep = KEEP
    expect: int | Any_ = ANY
    add: Mapping[str, int] = _NONE
    needs: Sequence[str] = ()
    ttl: float | None = None
    index: str | None = None  # pyright: ignore[reportIncompatibleMethodOverride] - tuple.index is not used
    delete: bool = False
    fetch: bool = False


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """A part of a list; ``cursor`` asks for the next part and is ``None`` at the end."""

    items: Sequence[T]
    cursor: str | None = None


class Store(ABC):
    """Records under keys: two atoms and one index.

    A record past its ``ttl`` counts as absent in reads, in lists and in conditions, also where the
    backend removes it later.

    Example:
        >>> await store.write([Change("a", value="1", expect=0, add={"seen": 1})])
        >>> await store.get("a")
        '1'
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this store can do."""

    async def open(self) -> None:  # noqa: B027 - nothing to open is a valid answer
        """Connect and check. Calling it again does nothing.

        Raises:
            BackendError: The store cannot be used; the text names the resource and the fix.
        """

    async def close(self) -> None:  # noqa: B027 - nothing to close is a valid answer
        """Release connections. Calling it again, or before ``open``, does nothing."""

    @abstractmethod
    async def read(self, keys: Sequence[str]) -> list[Record]:
        """The records in the order of the keys, strongly consistent; absent ones have version 0."""

    @abstractmethod
    async def write(self, changes: Sequence[Change]) -> list[Record]:
        """Apply all changes, or none, in one step; return the records in the order of the changes.

        Raises:
            ConflictError: An ``expect`` or a ``needs`` did not hold; it carries the current record
                of every change. Nothing was written.
            BackendError: It is not known whether the changes were written.
        """

    @abstractmethod
    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """The keys in an index, the latest written first (may lag behind writes by a moment)."""

    async def get(self, key: str) -> str | None:
        """The value under a key, or ``None``."""
        return (await self.read([key]))[0].value

    async def set(self, key: str, value: str, ttl: float | None = None) -> None:
        """Write a value, whatever was there; ``ttl`` in seconds, ``None`` for ever."""
        await self.write([Change(key, value=value, ttl=ttl or 0)])

    async def set_if_not_exists(self, key: str, value: str, ttl: float | None = None) -> bool:
        """Write a value if there is none; tell whether it was written. Atomic over the fleet."""
        try:
            await self.write([Change(key, value=value, expect=0, ttl=ttl or 0)])
        except ConflictError:
            return False
        return True

    async def increment(self, key: str, by: int = 1, ttl: float | None = None) -> int:
        """Add to the counter ``value`` of a record and return it. Atomic over the fleet."""
        change = Change(key, add={"value": by}, ttl=ttl, fetch=True)
        return (await self.write([change]))[0].count("value")

    async def delete(self, key: str) -> None:
        """Remove a record; removing an absent one does nothing."""
        await self.write([Change(key, delete=True)])
