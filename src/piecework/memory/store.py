"""A store in this process: records that expire by the clock, written all or nothing."""

from __future__ import annotations

import threading
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

from piecework.clock import as_clock
from piecework.errors import ConfigError, ConflictError, PayloadTooLargeError
from piecework.memory.index import WriteOrder
from piecework.ports.capabilities import Capabilities
from piecework.ports.store import ANY, KEEP, Change, Page, Record, Store

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from piecework.clock import Now

#: The most changes of one write: they are made in one step, in which nothing else runs.
_MAX_CHANGES = 1000
#: Expiries that were renewed stay in the heap until they outnumber the records by this.
_STALE = 1000
#: How many expired records a write removes beside its own work, at most.
_SWEEP = 8
#: Where a record has no expiry: a moment that never comes, in milliseconds.
_NEVER = 1 << 62


class MemoryStore(Store):
    """Records in this process; they are gone when it ends.

    It may be shared by systems in several threads. No call suspends. A record past its ``ttl`` is
    absent, and its memory is freed by later writes, a few records at each.

    Args:
        now: Where its time comes from; ``None`` is the computer's clock.
        capabilities: What it shall claim (and hold to), to act like another backend.

    Example:
        >>> import asyncio
        >>> async def main() -> tuple[bool, bool]:
        ...     store = MemoryStore()
        ...     first = await store.set_if_not_exists("key", "1", ttl=60)
        ...     return first, await store.set_if_not_exists("key", "2", ttl=60)
        >>> asyncio.run(main())
        (True, False)
    """

    def __init__(self, *, now: Now | None = None, capabilities: Capabilities | None = None) -> None:
        self._clock = as_clock(now)
        self._capabilities = capabilities or Capabilities(in_process=True, max_changes=_MAX_CHANGES)
        self._max_value_bytes = self._capabilities.max_value_bytes
        self._lock = threading.Lock()
        self._cells: dict[str, _Cell] = {}
        self._indexes: dict[str, WriteOrder] = {}
        self._expiries: list[tuple[int, str]] = []
        self._serial = 0

    @property
    def capabilities(self) -> Capabilities:
        """What this store can do."""
        return self._capabilities

    async def read(self, keys: Sequence[str]) -> list[Record]:
        """The records in the order of the keys; absent ones have version 0."""
        with self._lock:
            now = self._clock.now_ms()
            records: list[Record] = []
            for key in keys:
                cell = self._live(key, now)
                records.append(Record(key) if cell is None else cell.record)
            return records

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        """Apply all changes, or none, in one step; return the records in the order of the changes.

        Raises:
            ConflictError: An ``expect`` or a ``needs`` did not hold; it carries the current record
                of every change. Nothing was written.
            ConfigError: A key is named twice, or there are more than ``Capabilities.max_changes``.
            PayloadTooLargeError: A value is over ``Capabilities.max_value_bytes``.
        """
        if self._max_value_bytes is not None:
            _check_sizes(changes, self._max_value_bytes)
        if len(changes) != 1:
            self._check_keys(changes)
        with self._lock:
            now = self._clock.now_ms()
            if self._expiries and self._expiries[0][0] <= now:
                self._sweep(now)
            if len(changes) == 1:
                (change,) = changes
                cell = self._live(change.key, now)
                if not _holds(change, cell):
                    raise self._conflict(changes, now)
                return [self._apply(change, cell, now)]
            cells: list[_Cell | None] = []
            for change in changes:
                cell = self._live(change.key, now)
                if not _holds(change, cell):
                    raise self._conflict(changes, now)
                cells.append(cell)
            return [
                self._apply(change, cell, now) for change, cell in zip(changes, cells, strict=True)
            ]

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        """The keys in an index, the latest written first.

        Raises:
            ConfigError: The cursor is not from an earlier page, or the limit is below 1.
        """
        if limit < 1:
            raise ConfigError(f"limit={limit} lists nothing; pass 1 or more")
        below = None if cursor is None else _serial_of(cursor)
        with self._lock:
            now = self._clock.now_ms()
            order = self._indexes.get(index)
            keys: list[str] = []
            expired: list[str] = []
            last, more = 0, False
            for serial, key in order.newest(below) if order else ():
                if self._cells[key].expires_ms <= now:
                    expired.append(key)
                elif len(keys) == limit:
                    more = True
                    break
                else:
                    keys.append(key)
                    last = serial
            for key in expired:
                self._drop(key)
            return Page(keys, str(last) if more else None)

    # Everything below holds the lock, but ``_check_keys``.

    def _check_keys(self, changes: Sequence[Change]) -> None:
        if len(changes) > self._capabilities.max_changes:
            raise ConfigError(
                f"a write of {len(changes):,} changes is over the "
                f"{self._capabilities.max_changes:,} that this store takes; split it"
            )
        seen: set[str] = set()
        for change in changes:
            if change.key in seen:
                raise ConfigError(
                    f"the key {change.key!r} is named twice in one write; make it one change"
                )
            seen.add(change.key)

    def _live(self, key: str, now: int) -> _Cell | None:
        cell = self._cells.get(key)
        if cell is None or cell.expires_ms > now:
            return cell
        self._drop(key)
        return None

    def _conflict(self, changes: Sequence[Change], now: int) -> ConflictError:
        cells = [(change.key, self._live(change.key, now)) for change in changes]
        return ConflictError([Record(key) if cell is None else cell.record for key, cell in cells])

    def _apply(self, change: Change, cell: _Cell | None, now: int) -> Record:
        key, value, add, ttl = change.key, change.value, change.add, change.ttl
        if change.delete:
            if cell is not None:
                self._drop(key)
            return Record(key)
        if cell is not None:
            old = cell.record
            counters = _added(old.counters, add) if add else old.counters
            if value is not KEEP:
                record = Record(key, value, old.version + 1, counters)
            elif add:
                record = Record(key, old.value, old.version, counters)
            else:
                record = old
            cell.record = record
            exact = value is not KEEP
        elif value is not KEEP or add:
            # A new dictionary: the caller may change its own.
            record = Record(key, *((None, 0) if value is KEEP else (value, 1)), {**add})
            cell = self._cells[key] = _Cell(record)
            exact = True
        else:
            return Record(key)
        index = change.index
        if value is not KEEP and (index is not None or cell.index is not None):
            self._list_in(index, key, cell)
        if ttl is not None:
            expires = now + round(ttl * 1000) if ttl else _NEVER
            if exact or expires > cell.expires_ms:
                cell.expires_ms = expires
                # Where the heap looks at it earlier, it is put back then.
                if expires < cell.checked_ms:
                    self._check_at(key, cell, expires)
        return record

    def _list_in(self, index: str | None, key: str, cell: _Cell) -> None:
        """List the key as the newest of the index, in place of where it was."""
        if cell.index is not None:
            self._unlist(cell)
        cell.index = index
        if index is None:
            return
        order = self._indexes.get(index)
        if order is None:
            order = self._indexes[index] = WriteOrder()
        self._serial = cell.serial = serial = self._serial + 1
        order.append(serial, key)

    def _unlist(self, cell: _Cell) -> None:
        if cell.index is not None:
            order = self._indexes[cell.index]
            order.remove(cell.serial)
            if not order:
                del self._indexes[cell.index]

    def _drop(self, key: str) -> None:
        self._unlist(self._cells.pop(key))

    def _check_at(self, key: str, cell: _Cell, moment_ms: int) -> None:
        cell.checked_ms = moment_ms
        heappush(self._expiries, (moment_ms, key))
        if len(self._expiries) > 2 * len(self._cells) + _STALE:
            self._rebuild()

    def _rebuild(self) -> None:
        expiries: list[tuple[int, str]] = []
        for key, cell in self._cells.items():
            cell.checked_ms = cell.expires_ms
            if cell.expires_ms < _NEVER:
                expiries.append((cell.expires_ms, key))
        heapify(expiries)
        self._expiries = expiries

    def _sweep(self, now: int) -> None:
        for _ in range(_SWEEP):
            if not self._expiries or self._expiries[0][0] > now:
                return
            checked, key = heappop(self._expiries)
            cell = self._cells.get(key)
            if cell is None or cell.checked_ms != checked:
                continue
            if cell.expires_ms <= now:
                self._drop(key)
                continue
            cell.checked_ms = _NEVER
            if cell.expires_ms < _NEVER:
                self._check_at(key, cell, cell.expires_ms)


class _Cell:
    """A record with what the store knows about it beside."""

    __slots__ = ("checked_ms", "expires_ms", "index", "record", "serial")

    def __init__(self, record: Record) -> None:
        self.record = record
        self.expires_ms = _NEVER
        #: When the heap of expiries looks at it next.
        self.checked_ms = _NEVER
        self.index: str | None = None
        self.serial = 0


def _added(counters: Mapping[str, int], add: Mapping[str, int]) -> dict[str, int]:
    # A new dictionary each time: records that were returned share the old one.
    result = {**counters}
    for name, by in add.items():
        result[name] = result.get(name, 0) + by
    return result


def _holds(change: Change, cell: _Cell | None) -> bool:
    expect = change.expect
    if expect is not ANY and expect != (0 if cell is None else cell.record.version):
        return False
    if not change.needs:
        return True
    return cell is not None and all(cell.record.count(name) > 0 for name in change.needs)


def _check_sizes(changes: Sequence[Change], limit: int) -> None:
    for change in changes:
        if isinstance(change.value, str):
            size = len(change.value.encode("utf-8", "surrogatepass"))
            if size > limit:
                raise PayloadTooLargeError(f"the value of {change.key!r}", size=size, limit=limit)


def _serial_of(cursor: str) -> int:
    try:
        return int(cursor)
    except ValueError:
        raise ConfigError(
            f"the cursor {cursor!r} is not from an earlier page of this store; "
            f"pass the cursor of the page before, or None to start"
        ) from None
