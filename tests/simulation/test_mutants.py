"""The simulator finds what it is for: a library that breaks a promise fails within few seeds."""

from __future__ import annotations

import asyncio
import copy
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from piecework.engine import submit as submit_module
from piecework.engine.follow import FollowUps
from piecework.engine.heart import Heart
from piecework.engine.settler import Settler
from piecework.engine.submit import Prepared, Submitter
from piecework.envelope import Envelope, encode
from piecework.ledger import unique as unique_module
from piecework.ledger.gates import GateLedger
from piecework.ledger.works import Ledger
from piecework.memory import MemoryStore
from piecework.ports import ANY, Change, Store
from piecework.testing.simulation.__main__ import drawn
from piecework.testing.simulation.campaign import run_seeds

#: The seeds within which a mutant must be found.
SEEDS = 1000

Patch = pytest.MonkeyPatch
#: What a count that is off leads to.
COUNTS = frozenset(
    {"count-below-zero", "count-not-zero", "early-group", "group-count", "group-ended-twice"}
)
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


def unique_without_condition(patch: Patch) -> None:
    """A unique key is taken by whoever comes."""

    def claim(key: str, **given: Any) -> Change:
        return Change(key, **given)._replace(expect=ANY)

    patch.setattr(unique_module, "Change", claim)


class _Uncounting:
    """A store that keeps the first change of a write, and that without its counts."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def write(self, changes: Sequence[Change]) -> Any:
        return await self._store.write([changes[0]._replace(add={})])


def redrive_does_not_count(patch: Patch) -> None:
    """A dead work is brought back, and its group or gate is not told."""
    reopen = Ledger.reopen

    async def uncounted(self: Ledger, *args: Any, **options: Any) -> Envelope:
        other = copy.copy(self)
        other.store = _Uncounting(self.store)  # type: ignore[assignment]
        return await reopen(other, *args, **options)

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


def registered_works_are_not_pushed(patch: Patch) -> None:
    """Whoever finds a work that another run or call has registered leaves the push to that one."""

    async def leave(self: Submitter, prepared: Prepared) -> Envelope:
        return prepared.env

    patch.setattr(Submitter, "push_again", leave)


def ack_before_settle(patch: Patch) -> None:
    """A work lets go of its message before its end is written."""
    settle = Settler.settle

    async def acked_first(self: Settler, active: Any, *args: Any) -> bool:
        await self._messages.ack(active)
        return await settle(self, active, *args)

    patch.setattr(Settler, "settle", acked_first)


def claim_without_condition(patch: Patch) -> None:
    """``ctx.claim`` tells everybody that they are the first."""

    async def set_anyway(self: Store, key: str, value: str, ttl: float | None = None) -> bool:
        await self.write([Change(key, value=value, ttl=ttl or 0)])
        return True

    patch.setattr(Store, "set_if_not_exists", set_anyway)


MUTANTS: tuple[tuple[Callable[[Patch], None], frozenset[str]], ...] = (
    (ack_before_push, frozenset({"lost"})),
    (ack_before_settle, frozenset({"lost", "not-terminal"})),
    (settle_without_version_check, COUNTS | {"settled-twice"}),
    (count_outside_the_settle, COUNTS | {"group-not-ended"}),
    (gate_without_its_claim, COUNTS | {"settled-twice"}),
    (ttl_ignored_in_conditions, frozenset({"claim-for-ever"})),
    (retry_without_version_check, COUNTS | {"reopened"}),
    (heart_never_beats, frozenset({"wrong-status", "lost"})),
    (lost_settle_is_not_looked_at, frozenset({"lost", "not-terminal", "group-not-ended"})),
    (claim_without_condition, frozenset({"claimed-twice"})),
    (unique_without_condition, frozenset({"not-unique"})),
    (redrive_does_not_count, COUNTS | {"early-gate"}),
    (child_pushed_before_it_is_counted, COUNTS | {"group-not-ended", "settled-twice"}),
    (follow_ups_are_not_repeated, frozenset({"group-not-ended", "lost", "not-terminal"})),
    (late_child_opens_its_group_again, frozenset({"opened-again"})),
    (registered_works_are_not_pushed, frozenset({"lost"})),
)


@pytest.mark.parametrize(
    ("mutate", "kinds"), MUTANTS, ids=[mutate.__name__ for mutate, _ in MUTANTS]
)
def test_the_simulator_finds(
    mutate: Callable[[Patch], None], kinds: frozenset[str], monkeypatch: Patch
) -> None:
    mutate(monkeypatch)

    totals = run_seeds(range(SEEDS), drawn, stop_at=1)

    assert totals.failed, f"{SEEDS} seeds have not found: {mutate.__doc__}"
    found = {violation.kind for violation in totals.failed[0].broken}
    assert found & kinds, f"seed {totals.failed[0].seed} found {found}"


def test_the_library_as_it_is_keeps_its_promises() -> None:
    totals = run_seeds(range(60), drawn)

    assert [(outcome.seed, outcome.broken) for outcome in totals.failed] == []
    assert totals.seeds == 60
    assert sum(totals.faults.values()) > 100


_DIGESTS = """
from piecework.testing.simulation.__main__ import drawn
from piecework.testing.simulation.run import run

for seed in ({seeds}):
    print(f"{{seed}} {{run(seed, drawn(seed)).digest:x}}")
"""


def _python(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_seed_is_the_same_history_whatever_ran_before_and_in_every_process() -> None:
    seeds = (6, 20, 54)
    order = (*seeds, 3, *reversed(seeds))
    lines = _python("-c", _DIGESTS.format(seeds=", ".join(map(str, order)))).splitlines()
    here = dict(line.split() for line in lines)

    assert len(here) == len(seeds) + 1, "the same seed gave two digests in one process"
    assert len(set(lines)) == len(here), lines
    assert len(set(here.values())) == len(here), "digests do not tell histories apart"
    for seed in seeds[:2]:
        story = _python("-m", "piecework.testing.simulation", "--replay", str(seed))
        assert re.findall(r"^digest (\S+)$", story, re.MULTILINE) == [here[str(seed)]]
