"""The simulator finds what it is for: a library that breaks a promise fails within few seeds."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import pytest

from piecework.engine.heart import Heart
from piecework.engine.settler import Settler
from piecework.engine.submit import Submitter
from piecework.engine.follow import FollowUps
from piecework.engine import submit as submit_module
from piecework.envelope import Envelope, encode
from piecework.errors import ConflictError
from piecework.ledger import gates as gates_module
from piecework.ledger import unique as unique_module
from piecework.ledger.gates import GateLedger
from piecework.ledger.works import Ledger, WriteConflictError
from piecework.memory import MemoryStore
from piecework.memory import store as store_module
from piecework.ports import ANY, Change
from piecework.testing.simulation.__main__ import drawn
from piecework.testing.simulation.campaign import run_seeds

#: The seeds within which a mutant must be found.
SEEDS = 1000

Patch = pytest.MonkeyPatch
_TERMINAL = ("success", "dead", "cancelled", "expired")


def ack_before_push(patch: Patch) -> None:
    """A retry lets go of the old message before the new one is in the queue."""

    async def put_off(self: Settler, active: Any, new: Envelope) -> bool:
        if (writing := self._heart.end_writes(active)) is not None:
            await asyncio.wait([writing])
        old = active.env
        new = new._replace(version=old.version + 1 if old.track == "full" else 0, recheck=False)

        async def write() -> Envelope:
            return await self._core.ledger.put_off(old, new, encode(new), writer=active.writer)

        written = await self._commit(active, write)
        if written is None:
            return False
        await self._messages.ack(active)
        await self._messages.push(active, written)
        return True

    patch.setattr(Settler, "put_off", put_off)


def settle_without_version_check(patch: Patch) -> None:
    """A settle is written whatever the record's version is."""
    write_item = Ledger._write_item

    async def unfenced(self: Ledger, changes: Sequence[Change], writer: str, status: str) -> Any:
        if status in _TERMINAL:
            changes = [changes[0]._replace(expect=ANY), *changes[1:]]
        return await write_item(self, changes, writer, status)

    patch.setattr(Ledger, "_write_item", unfenced)


def count_outside_the_settle(patch: Patch) -> None:
    """A work is settled in one write, and counted in its group or gate in a second one."""
    write_item = Ledger._write_item

    async def apart(self: Ledger, changes: Sequence[Change], writer: str, status: str) -> Any:
        if status not in _TERMINAL or len(changes) == 1:
            return await write_item(self, changes, writer, status)
        settled = await write_item(self, changes[:1], writer, status)
        return [*settled, *await self.store.write(changes[1:])]

    patch.setattr(Ledger, "_write_item", apart)


class _Unconditional:
    """A store whose writes expect no version."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def write(self, changes: Sequence[Change]) -> Any:
        return await self._store.write([change._replace(expect=ANY) for change in changes])


def gate_without_its_claim(patch: Patch) -> None:
    """Whoever sees that a gate may fire settles it, also after somebody else has."""
    write = GateLedger._write

    async def unclaimed(self: GateLedger, id: str, expect: int, *rest: Any, **more: Any) -> Any:
        return await write(self, id, ANY, *rest, **more)  # type: ignore[arg-type]

    patch.setattr(GateLedger, "_write", unclaimed)


def ttl_ignored_in_conditions(patch: Patch) -> None:
    """A record past its ttl is absent to readers, but still there for the conditions of writes."""
    live, write = MemoryStore._live, MemoryStore.write
    writing: set[MemoryStore] = set()

    async def condition_on_expired(self: MemoryStore, changes: Sequence[Change]) -> Any:
        writing.add(self)
        try:
            return await write(self, changes)
        finally:
            writing.discard(self)

    def live_or_expired(self: MemoryStore, key: str, now: int) -> Any:
        return self._cells.get(key) if self in writing else live(self, key, now)

    patch.setattr(MemoryStore, "write", condition_on_expired)
    patch.setattr(MemoryStore, "_live", live_or_expired)
    patch.setattr(MemoryStore, "_sweep", lambda self, now: None)


def retry_without_version_check(patch: Patch) -> None:
    """A retry is written whatever the record's version is."""
    write_item = Ledger._write_item

    async def unfenced(self: Ledger, changes: Sequence[Change], writer: str, status: str) -> Any:
        if status == "pending":
            changes = [changes[0]._replace(expect=ANY), *changes[1:]]
        return await write_item(self, changes, writer, status)

    patch.setattr(Ledger, "_write_item", unfenced)


def heart_never_beats(patch: Patch) -> None:
    """Neither leases nor records of running works are renewed."""

    async def rest(self: Heart, queue: Any, actives: Any) -> None:
        pass

    patch.setattr(Heart, "_beat", rest)


def lost_settle_is_not_looked_at(patch: Patch) -> None:
    """A run whose settle meets another version acks its message, whatever the record says."""

    async def shrug(self: Settler, active: Any, standing: Any) -> None:
        await self._messages.ack(active)

    patch.setattr(Settler, "_yield_to", shrug)


def retry_is_not_written(patch: Patch) -> None:
    """A retry is pushed, and its record is left as it is."""

    async def put_off(
        self: Ledger, old: Envelope, new: Envelope, body: str, *, writer: str
    ) -> Envelope:
        return new._replace(version=old.version)

    patch.setattr(Ledger, "put_off", put_off)


def unique_without_condition(patch: Patch) -> None:
    """A unique key is taken by whoever comes."""

    def claim(key: str, **given: Any) -> Change:
        return Change(key, **given)._replace(expect=ANY)

    patch.setattr(unique_module, "Change", claim)


def redrive_does_not_count(patch: Patch) -> None:
    """A dead work is brought back, and its group or gate is not told."""
    reopen = Ledger.reopen

    async def uncounted(self: Ledger, item: Any, new: Envelope, body: str, **more: Any) -> Envelope:
        store = self.store

        class Uncounting:
            async def write(self, changes: Sequence[Change]) -> Any:
                return await store.write([changes[0]._replace(add={})])

        self.store = Uncounting()  # type: ignore[assignment]
        try:
            coroutine = reopen(self, item, new, body, **more)
            return await coroutine
        finally:
            self.store = store

    patch.setattr(Ledger, "reopen", uncounted)


def child_pushed_before_it_is_counted(patch: Patch) -> None:
    """A child's message goes out before the record that counts it is written."""
    both = Submitter._both

    async def push_first(self: Submitter, register: Any, prepared: Any) -> Any:
        if all(map(submit_module._stands_alone, prepared)):
            return await both(self, register, prepared)
        try:
            await self._push(prepared)
        except BaseException:
            register.close()
            raise
        return await register

    patch.setattr(Submitter, "_both", push_first)


def follow_ups_are_not_repeated(patch: Patch) -> None:
    """A delivery that finds its work settled does not do what follows a settle."""

    async def repeat(self: FollowUps, env: Envelope, item: Any) -> None:
        pass

    patch.setattr(FollowUps, "repeat", repeat)


def late_child_opens_its_group_again(patch: Patch) -> None:
    """A child is counted in its group, also when that has settled."""
    child_changes = Ledger._child_changes

    def needless(self: Ledger, new: Any) -> list[Change]:
        return [change._replace(needs=()) for change in child_changes(self, new)]

    patch.setattr(Ledger, "_child_changes", needless)


def dependents_are_not_pushed_again(patch: Patch) -> None:
    """Whoever finds a gate that may have been fired half way leaves its dependents."""
    send = Submitter.send_children

    async def once(self: Submitter, children: Any, *, again: bool = True) -> Any:
        return await send(self, children, again=False)

    patch.setattr(Submitter, "send_children", once)


MUTANTS = [v for v in list(globals().values()) if callable(v) and getattr(v, "__annotations__", {}).get("patch") == "Patch"]
