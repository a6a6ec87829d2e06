"""The ledger over a store, held against a model of it by random sequences of calls."""

# ruff: noqa: D102 - the name of a rule is its sentence

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from piecework.clock import Clock, SystemClock
from piecework.counters import CANCEL, GROUP_WAITERS, HOLD, MEMBERS, OPEN, OPENED, WAITERS
from piecework.envelope import Envelope, encode
from piecework.errors import ConflictError
from piecework.gates import DEPENDENCY_TYPE, GateSpec, is_gate, judge_gate
from piecework.ids import random_id
from piecework.ledger import (
    LONGEST_GROUP_TTL,
    PENDING_TTL,
    GateLedger,
    Ledger,
    WriteConflictError,
    register_unique,
    release_unique,
    unique_key,
)
from piecework.ports import Record
from piecework.record import Outcome, read_item
from piecework.state import TERMINAL
from piecework.testing.conformance.ledger_model import Entry, LedgerModel, RefusedError
from piecework.testing.conformance.probe import Probe

if TYPE_CHECKING:
    from piecework.gates import When
    from piecework.ports import Store
    from piecework.record import Item
    from piecework.state import Status

_Call: TypeAlias = tuple[Callable[[], Awaitable[Any]], Callable[[], Any]]
_Seen: TypeAlias = "tuple[Record, Entry]"

_RESULT_TTL = 6 * 3600.0
_HOUR = 3600
_DAY = 86400
_DELAYS = (0, 10, 2 * _DAY, 20 * _DAY, 300 * _DAY)

_ROOTS = ("root 0", "root 1", "root 2")
_CHILDREN = tuple(f"child {n}" for n in range(6))
_UNIQUE = ("only 0", "only 1", "only 2")
_TIMED = ("timed 0", "timed 1")
_GATES = ("gate 0", "gate 1")
_IDS = (*_ROOTS, *_CHILDREN, *_UNIQUE, *_TIMED, *_GATES)
_KEYS = ("key", "timed key")
_CLAIM = "claim "
_WHEN: tuple[When, ...] = ("all-done", "all-success", {"count": 1})

#: Draws one of a list whose length is not known beforehand.
_any = st.integers(0, 59)
_old = st.sampled_from((False, False, False, True))


class LedgerConformance(Probe):
    """Subclass it and give a fixture ``store``, open; it needs hypothesis.

    Each example works under a prefix of its own, so the store need not be empty, nor is it emptied.
    The calls run in the event loop of the async fixtures, one after the other; under pytest-asyncio
    in strict mode, or where the store lives in a loop of another scope, override ``store_loop``.

    Attributes:
        clock: Where the store's time comes from, if ``advance`` moves it. Without it, nothing
            expires in the test, and no time passes.
        examples: How many sequences of calls are tried. A slow store wants fewer.
        steps: How many calls one sequence has at most.

    Example::

        class TestLedgerOnMyStore(LedgerConformance):
            examples = 20

            @pytest.fixture
            async def store(self):
                store = MyStore()
                await store.open()
                yield store
                await store.close()
    """

    clock: Clock | None = None
    examples: int = 100
    steps: int = 40

    @pytest.fixture
    async def store_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the store is used in; it runs while the machine waits, only then."""
        return asyncio.get_running_loop()

    def run_machine(self, machine: Callable[[], RuleBasedStateMachine]) -> None:
        """Try sequences of a machine's rules, and show the shortest one that fails."""
        run_state_machine_as_test(
            cast("type[RuleBasedStateMachine]", machine),
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=self.steps,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )

    def test_every_record_is_as_the_model_says(
        self, store: Store, store_loop: asyncio.AbstractEventLoop
    ) -> None:
        """One call after the other, by workers that may know an old state or repeat themselves."""
        run = random_id()
        numbers = itertools.count()
        self.run_machine(lambda: LedgerMachine(self, store, store_loop, f"{run}:{next(numbers)}:"))


class LedgerMachine(RuleBasedStateMachine):
    """Calls the ledger and the model of it, and compares all records after each call."""

    def __init__(
        self,
        suite: LedgerConformance,
        store: Store,
        loop: asyncio.AbstractEventLoop,
        prefix: str,
    ) -> None:
        super().__init__()
        self._suite = suite
        self._store = store
        self._loop = loop
        self._prefix = prefix
        self._clock = suite.clock or SystemClock()
        self._ledger = Ledger(store, self._clock, prefix=prefix, result_ttl=_RESULT_TTL)
        self._gates = GateLedger(self._ledger, result_ttl=_RESULT_TTL)
        self._model = LedgerModel(self._clock.now_ms, _RESULT_TTL)
        self._numbers = itertools.count(1)
        self._began = self._clock.now_ms()
        self._plans: dict[str, Envelope] = {}
        self._old: list[Envelope] = []
        self._seen: list[_Seen] = []
        self._calls: list[_Call] = []
        self._ended: set[tuple[str, int]] = set()
        self._shown: dict[str, _Shown] = {}
        self._reopening: set[str] = set()
        #: Whether all was well when it was last compared: after a failure nothing more is.
        self._sound = True

    # ---- calling -------------------------------------------------------------------------------

    def _run(self, call: Awaitable[Any]) -> Any:
        return self._loop.run_until_complete(call)

    def _both(
        self,
        actual: Callable[[], Awaitable[Any]],
        expected: Callable[[], Any],
        *,
        once: bool = False,
    ) -> Any:
        """Make a call on both; return what came of it, or the record of the conflict."""
        self._sound = False
        if not once:
            self._calls.append((actual, expected))
        try:
            want = expected()
        except RefusedError as refused:
            want = ("refused", refused.version)
        try:
            got = self._run(actual())
        except WriteConflictError as error:
            return self._refused(error.record, want)
        except ConflictError as error:
            return self._refused(error.records[0], want)
        assert got == want, f"the call gave {got!r}, not {want!r}"
        return got

    @staticmethod
    def _refused(record: Record, want: Any) -> Record:
        assert want == ("refused", record.version), f"refused with {record}, not {want!r}"
        return record

    def _writer(self) -> str:
        return f"run {next(self._numbers)}"

    def _plan(self, id: str, group_id: str, **fields: Any) -> Envelope:
        """The work of an id: the same one whenever it is queued."""
        if id not in self._plans:
            now = self._clock.now_ms()
            start_at = now + 1000 * fields.pop("delay", 0)
            work_type = fields.pop("type", "work")
            self._plans[id] = Envelope(
                id, work_type, fields.pop("input", "{}"), group_id, now, start_at, **fields
            )
        return self._plans[id]

    def _open_works(self) -> list[Envelope]:
        return [
            entry.known()
            for _, entry in self._model.entries()
            if entry.env and not entry.terminal and not is_gate(entry.env)
        ]

    def _pick(self, pick: int, *, old: bool) -> Envelope | None:
        """What some worker knows of some work that is, or was, under way."""
        works = self._old if old else self._open_works()
        return works[pick % len(works)] if works else None

    def _keep(self, env: Envelope) -> None:
        """Some worker keeps what it knows of this work, and never hears of what comes."""
        self._old.append(env)

    # ---- register ------------------------------------------------------------------------------

    @rule(root=st.sampled_from(_ROOTS), delay=st.sampled_from(_DELAYS))
    def register_root(self, root: str, delay: int) -> None:
        env = self._plan(root, root, delay=delay)
        self._register([env], None)

    @rule(
        ids=st.lists(st.sampled_from(_CHILDREN), min_size=1, max_size=4, unique=True),
        group=st.sampled_from(_ROOTS),
        delay=st.sampled_from(_DELAYS),
        early=st.booleans(),
    )
    def register_children(self, ids: list[str], group: str, delay: int, early: bool) -> None:
        works = [self._plan(id, group, delay=delay) for id in ids]
        root = self._plan(group, group) if early else None
        self._register_each(works, root)

    @rule(
        ids=st.lists(st.sampled_from(_CHILDREN), min_size=1, max_size=4, unique=True),
        gate=st.sampled_from(_GATES),
        delay=st.sampled_from(_DELAYS),
    )
    def register_members(self, ids: list[str], gate: str, delay: int) -> None:
        if gate in self._plans:
            group = self._plans[gate].group_id
            works = [self._plan(id, group, gate=gate, delay=delay) for id in ids]
            self._register_each(works, None)

    def _register_each(self, works: Sequence[Envelope], root: Envelope | None) -> None:
        for counter in dict.fromkeys(env.counter for env in works):
            counted = [env for env in works if env.counter == counter]
            own = root if root is not None and counter == root.id else None
            self._register(counted, own)

    def _register(self, works: Sequence[Envelope], root: Envelope | None) -> None:
        bodies = [(env, encode(env)) for env in works]

        async def actual() -> list[bool]:
            if len(bodies) == 1:
                return [(await self._ledger.register(*bodies[0], root)).new]
            return [one.new for one in await self._ledger.register_children(bodies, root)]

        self._both(actual, lambda: self._model.register(works, root))

    # ---- run -----------------------------------------------------------------------------------

    @rule(pick=_any, old=_old)
    def start(self, pick: int, old: bool) -> None:
        env = self._pick(pick, old=old)
        if env is None:
            return
        writer = self._writer()

        async def actual() -> int:
            record = await self._ledger.start(
                env, encode(env), writer=writer, run_at=1, lease_until=2
            )
            return record.version

        self._keep(env)
        self._both(actual, lambda: self._model.start(env, writer))

    @rule(pick=_any, old=_old, delay=st.sampled_from(_DELAYS), failed=st.booleans())
    def put_off(self, pick: int, old: bool, delay: int, failed: bool) -> None:
        env = self._pick(pick, old=old)
        if env is None:
            return
        writer = self._writer()
        new = env._replace(
            version=env.version + 1,
            attempt=env.attempt + failed,
            turn=env.turn + (not failed),
            start_at=self._clock.now_ms() + 1000 * delay,
        )

        async def actual() -> int:
            return (await self._ledger.put_off(env, new, encode(new), writer=writer)).version

        self._keep(env)
        self._both(actual, lambda: self._model.put_off(env, new, writer))

    @rule(
        pick=_any,
        old=_old,
        status=st.sampled_from(("success", "success", "dead", "dead", "cancelled", "expired")),
        parent=st.booleans(),
    )
    def settle(self, pick: int, old: bool, status: Status, parent: bool) -> None:
        env = self._pick(pick, old=old)
        if env is not None:
            self._keep(env)
            self._settle(env, status, parent=parent)

    def _settle(self, env: Envelope, status: Status, *, parent: bool) -> None:
        """Settle as a worker does: told at its own version, what counted its work is gone."""
        parent = parent and self._model.look(env.id).count(OPENED) > 0
        writer = self._writer()
        result = self._settle_once(env, status, writer, parent=parent, counted=True)
        if isinstance(result, Record):
            item = read_item(result)
            if item is None or item.terminal or item.version != env.version:
                return
            result = self._settle_once(env, status, writer, parent=parent, counted=False)
        assert not isinstance(result, Record), f"refused with {result}"
        entry = self._model.look(env.id)
        if not parent and entry.count(OPEN) > 0:
            self._both(lambda: self._ledger.outlive(env.id), lambda: self._model.outlive(env.id))
        if env.unique is not None:
            claim = _CLAIM + env.unique
            self._both(
                lambda: release_unique(self._ledger, env, self._claim(env)),
                lambda: self._model.release_unique(env, claim),
            )

    def _settle_once(
        self, env: Envelope, status: Status, writer: str, *, parent: bool, counted: bool
    ) -> Any:
        body = encode(env) if status == "dead" else ""

        async def actual() -> tuple[int, dict[str, int] | None]:
            settled = await self._ledger.settle(
                env,
                _outcome(status),
                writer=writer,
                run_at=None,
                body=body,
                counted=counted,
                parent=parent,
            )
            counter = settled.counter
            return settled.record.version, None if counter is None else _counts(counter.counters)

        def expected() -> tuple[int, dict[str, int] | None]:
            version, counts = self._model.settle(
                env, status, writer, parent=parent, counted=counted
            )
            return version, None if counts is None else _counts(counts)

        return self._both(actual, expected)

    # ---- cancel, redrive, waiting --------------------------------------------------------------

    @rule(pick=_any)
    def cancel(self, pick: int) -> None:
        env = self._pick(pick, old=False)
        if env is None:
            return
        if self._model.look(env.id).status == "running":
            self._both(
                lambda: self._ledger.ask_to_stop(env.id),
                lambda: self._model.ask_to_stop(env.id),
                once=True,
            )
        else:
            self._keep(env)
            self._settle(env, "cancelled", parent=False)

    @rule(pick=_any)
    def redrive(self, pick: int) -> None:
        dead = [
            id
            for id, entry in self._model.entries()
            if entry.status == "dead" and entry.env and not is_gate(entry.env)
        ]
        if not dead:
            return
        record = self._read([dead[pick % len(dead)]])[0]
        item = read_item(record)
        assert item is not None
        old = self._model.look(self._ledger.id_of(record.key)).known()
        now = self._clock.now_ms()
        new = old._replace(
            version=item.version + 1, attempt=1, queue_at=now, start_at=now, redrives=1
        )
        self._reopening.add(new.id)
        if not self._reopen(item, record, new) and new.gate is not None:
            assert self._reopen(item, record, new._replace(gate=None))  # its gate has closed

    def _reopen(self, item: Item, record: Record, new: Envelope) -> bool:
        writer = self._writer()
        cancels = record.count(CANCEL)

        async def actual() -> int:
            env = await self._ledger.reopen(item, new, encode(new), writer=writer, cancels=cancels)
            return env.version

        def expected() -> int:
            return self._model.reopen(item.version, new, writer, cancels)

        return isinstance(self._both(actual, expected), int)

    @rule(id=st.sampled_from(_IDS), group=st.booleans(), leave=st.booleans())
    def wait(self, id: str, group: bool, leave: bool) -> None:
        counter = GROUP_WAITERS if group else WAITERS
        by = -1 if leave and self._model.look(id).count(counter) > 0 else 1

        async def actual() -> int:
            return (await self._ledger.wait_mark(id, counter, by)).count(counter)

        self._both(actual, lambda: self._model.wait_mark(id, counter, by), once=True)

    # ---- groups --------------------------------------------------------------------------------

    @rule(id=st.sampled_from((*_ROOTS, *_GATES)))
    def see(self, id: str) -> None:
        """Somebody reads a record, and acts on it later."""
        self._see(id)

    def _see(self, id: str) -> _Seen:
        entry = self._model.look(id)
        seen = self._read([id])[0], replace(entry, counts=dict(entry.counts))
        self._seen.append(seen)
        return seen

    def _pick_seen(self, id: str, pick: int, *, old: bool) -> _Seen:
        key = self._ledger.key(id)
        seen = [one for one in self._seen if one[0].key == key] if old else []
        return seen[pick % len(seen)] if seen else self._see(id)

    @rule(id=st.sampled_from((*_ROOTS, *_GATES)), pick=_any, old=_old, repeat=st.booleans())
    def end_group(self, id: str, pick: int, old: bool, repeat: bool) -> None:
        record, seen = self._pick_seen(id, pick, old=old)
        open_before = self._model.counted_by(id, gate=False)
        ended = self._both(
            lambda: self._ledger.claim_group_end(record, repeat=repeat),
            lambda: self._model.claim_group_end(id, seen, repeat=repeat),
        )
        if ended and seen.version > 0 and seen.count(OPENED) > 0:
            end = (id, self._model.look(id).done)
            assert end not in self._ended, "the end of a group was claimed twice"
            assert not open_before or old, "a group has ended, and works of it are open"
            self._ended.add(end)

    # ---- gates ---------------------------------------------------------------------------------

    @rule(
        gate=st.sampled_from(_GATES),
        group=st.sampled_from((*_ROOTS, None)),
        when=st.sampled_from(_WHEN),
    )
    def open_gate(self, gate: str, group: str | None, when: When) -> None:
        spec = GateSpec((), when, 3).encode()
        env = self._plan(gate, group or gate, type=DEPENDENCY_TYPE, input=spec)
        came = self._both(lambda: self._gates.open(env), lambda: self._model.open_gate(env))
        if came in ("late", "rootless"):
            self._plans[gate] = root = env._replace(group_id=gate)
            self._both(lambda: self._gates.open(root), lambda: self._model.open_gate(root))

    @rule(gate=st.sampled_from(_GATES))
    def release_gate(self, gate: str) -> None:
        async def actual() -> None:
            await self._gates.release(gate)

        if self._model.find(gate) is not None:
            self._both(actual, lambda: self._model.release(gate))

    @rule(gate=st.sampled_from(_GATES), pick=_any, old=_old)
    def decide_gate(self, gate: str, pick: int, old: bool) -> None:
        """Decide a gate by its counters, or take it out of its group."""
        record, seen = self._pick_seen(gate, pick, old=old)
        item = read_item(record)
        if item is None:
            return
        if item.terminal:
            if seen.closed and not seen.drained:
                self._drain(gate, item, seen)
            return
        env = item.envelope()
        verdict = judge_gate(GateSpec.decode(env.input), record)
        if verdict == "wait":
            return
        status: Status = "success" if verdict == "fire" else "dead"

        async def actual() -> bool:
            _, root = await self._gates.settle(env, record, _outcome(status))
            return root is not None

        self._both(actual, lambda: self._model.decide(env, seen, status))

    def _drain(self, gate: str, item: Item, seen: Entry) -> None:
        async def actual() -> bool:
            return (await self._gates.drain(gate, item))[1] is not None

        self._both(actual, lambda: self._model.drain(gate, seen))

    @rule(gate=st.sampled_from(_GATES), pick=_any, old=_old)
    def close_gate(self, gate: str, pick: int, old: bool) -> None:
        """End a gate whose works will never all be queued."""
        record, seen = self._pick_seen(gate, pick, old=old)
        item = read_item(record)
        if item is None or item.terminal or record.count(HOLD) == 0:
            return

        async def actual() -> None:
            await self._gates.close(record, item, _outcome("dead"))

        self._both(actual, lambda: self._model.close_gate(gate, seen))

    @rule(id=st.sampled_from(_CHILDREN), gate=st.sampled_from(_GATES))
    def kill_dependent(self, id: str, gate: str) -> None:
        group = self._plans[gate].group_id if gate in self._plans else id
        env = self._plan(id, group, upstream=gate)

        async def actual() -> None:
            await self._gates.kill_dependent(env, encode(env), _outcome("dead"))

        self._both(actual, lambda: self._model.kill_dependent(env))

    # ---- unique --------------------------------------------------------------------------------

    @rule(
        id=st.sampled_from(_UNIQUE),
        group=st.sampled_from((None, *_ROOTS)),
        delay=st.sampled_from(_DELAYS),
    )
    def register_unique(self, id: str, group: str | None, delay: int) -> None:
        self._register_unique(self._plan(id, group or id, delay=delay, unique="key"), None)

    @rule(id=st.sampled_from(_TIMED), group=st.sampled_from((None, *_ROOTS)))
    def register_unique_for_a_time(self, id: str, group: str | None) -> None:
        until = self._clock.now_ms() + 1000 * _HOUR
        env = self._plan(id, group or id, unique="timed key", unique_until=until)
        self._register_unique(env, float(_HOUR))

    @rule(id=st.sampled_from(_UNIQUE))
    def claim_and_die(self, id: str) -> None:
        """Another release may claim a key before it registers the work, and die in between."""
        env = self._plan(id, id, unique="key")
        claim = _CLAIM + "key"
        if self._model.find(claim) is None:
            self._both(
                lambda: self._store.set(self._claim(env), id, PENDING_TTL),
                lambda: self._model.claim(id, claim, PENDING_TTL),
                once=True,
            )

    def _register_unique(self, env: Envelope, unique_for: float | None) -> None:
        async def actual() -> tuple[str, bool]:
            done = await register_unique(self._ledger, env, self._claim(env), unique_for=unique_for)
            return done.env.id, done.new

        def expected() -> tuple[str, bool]:
            return self._model.register_unique(env, _CLAIM + (env.unique or ""), unique_for)

        self._both(actual, expected)

    def _claim(self, env: Envelope) -> str:
        return unique_key(self._prefix, env)

    # ---- repeated calls, and time --------------------------------------------------------------

    @precondition(lambda self: self._calls)
    @rule(pick=st.sampled_from((1, 1, 1, 2, 3, 5, 8)))
    def repeat(self, pick: int) -> None:
        """Somebody makes a call once more whose answer was lost."""
        actual, expected = self._calls[-min(pick, len(self._calls))]
        self._both(actual, expected, once=True)

    @precondition(lambda self: self._suite.clock is not None)
    @rule(seconds=st.sampled_from((10, _HOUR, _DAY, 16 * _DAY, 101 * _DAY)))
    def let_time_pass(self, seconds: int) -> None:
        """Time passes, as long as works that are counted have workers that renew their records."""
        known = {id for id, _ in self._model.entries()}
        life = self._model.shortest_open_life() / 1000 - 5
        passed = (self._clock.now_ms() - self._began) / 1000
        left = min(life, LONGEST_GROUP_TTL - passed - _DAY)
        if left < 1:
            return
        self._run(self._suite.advance(min(seconds, left)))
        while self._model.near_an_expiry(2000):
            self._run(self._suite.advance(1.0))
        gone = known - {id for id, _ in self._model.entries()}
        if gone:  # nobody knows a work for longer than its record lives
            self._old = [env for env in self._old if env.id not in gone]
            self._seen = [one for one in self._seen if self._ledger.id_of(one[0].key) not in gone]
            self._calls.clear()
            self._ended = {end for end in self._ended if end[0] not in gone}
            for id in gone:
                self._shown.pop(id, None)

    # ---- what must hold ------------------------------------------------------------------------

    def _read(self, ids: Sequence[str]) -> list[Record]:
        return self._run(self._ledger.read(ids))

    @invariant()
    def all_holds(self) -> None:
        """Everything, after every call."""
        self._sound = False
        self.every_record_is_as_the_model_says()
        self.every_counter_is_the_number_of_its_open_works()
        self.what_counts_a_work_lives_as_long_as_it()
        self.a_key_has_one_live_work()
        self._sound = True

    def every_record_is_as_the_model_says(self) -> None:
        """Status, version, attempt, place and counters; or nothing at all."""
        records = self._read(_IDS)
        shown = {id: _show(record) for id, record in zip(_IDS, records, strict=True)}
        for id in _IDS:
            expected = _show_entry(self._model.look(id))
            assert shown[id] == expected, f"{id} is {shown[id]}, not {expected}"
        self._terminal_is_final(shown)
        claims = [f"{self._prefix}unique:work:{key}" for key in _KEYS]
        held = [record.value for record in self._run(self._store.read(claims))]
        expected = [self._model.look(_CLAIM + key).status for key in _KEYS]
        assert held == expected, f"the keys are held by {held}, not {expected}"

    def _terminal_is_final(self, shown: dict[str, _Shown]) -> None:
        """What has settled stays as it is, but for the dead ones that are brought back."""
        for id, now in shown.items():
            before = self._shown.get(id)
            if before is not None and before[0] in TERMINAL and now[:1] != before[:1]:
                back = before[0] == "dead" and now[0] == "pending" and id in self._reopening
                assert back, f"{id} was {before} and is {now}"
        self._shown = shown
        self._reopening.clear()

    def every_counter_is_the_number_of_its_open_works(self) -> None:
        """The counters say what a look at all works says, and nothing is less than none."""
        for id, entry in self._model.entries():
            assert min(entry.counts.values(), default=0) >= 0, (id, entry.counts)
            if entry.version > 0 and not id.startswith(_CLAIM):
                counted = [self._model.counted_by(id, gate=gate) for gate in (False, True)]
                assert counted == [entry.count(OPEN), entry.count(MEMBERS)], (id, entry)

    def what_counts_a_work_lives_as_long_as_it(self) -> None:
        """A group must not lose its count while something of it is open."""
        for id, entry in self._model.entries():
            counter = entry.known().counter if self._model.is_open(entry) else None
            if counter is not None and counter != id:
                assert self._model.look(counter).version > 0, f"{counter} is gone, {id} is not"

    def a_key_has_one_live_work(self) -> None:
        """Of the works of one key one is under way, unless another was brought back."""
        live = [
            id
            for id, entry in self._model.entries()
            if id in _UNIQUE and self._model.is_open(entry) and not entry.known().redrives
        ]
        assert len(live) <= 1, live

    def teardown(self) -> None:
        """In the end every status lists its works."""
        if not self._sound:
            return
        self._run(self._listed())

    async def _listed(self) -> None:
        ids: dict[str, set[str]] = {}
        for id, entry in self._model.entries():
            if entry.env is not None and entry.status is not None:
                ids.setdefault(entry.status, set()).add(id)

        async def listed() -> dict[str, set[str]]:
            pages = {
                status: await self._store.list(self._ledger.index(status))
                for status in ("pending", "running", *sorted(TERMINAL))
            }
            return {
                status: set(map(self._ledger.id_of, page.items))
                for status, page in pages.items()
                if page.items
            }

        async def same() -> bool:
            return await listed() == ids

        try:
            await self._suite.eventually(same)
        except TimeoutError:
            found = await listed()
            assert found == ids, f"listed are {found}, not {ids}"


_Shown: TypeAlias = tuple[Any, ...]


def _outcome(status: Status) -> Outcome:
    if status == "success":
        return Outcome(status, result="3")
    return Outcome(status, error=f"Error: {status}", error_type="Error")


def _counts(counters: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counters.items() if count}


def _show(record: Record) -> _Shown:
    item = read_item(record)
    counts = _counts(record.counters)
    if item is None:
        return None, record.version, counts
    if item.terminal:
        head = item.header
        id = record.key.rpartition(":item:")[2]
        place = head.get("gid", id), head.get("gate")
        marks = head.get("done", -1), head.get("drained", False)
        return item.status, item.version, counts, head["a"], place, marks
    env = item.envelope()
    marks = -1, False
    return item.status, item.version, counts, env.attempt, (env.group_id, env.gate), marks


def _show_entry(entry: Entry) -> _Shown:
    counts = _counts(entry.counts)
    if entry.env is None:
        return None, entry.version, counts
    env = entry.env
    marks = entry.done, entry.drained
    return entry.status, entry.version, counts, env.attempt, (env.group_id, env.gate), marks
