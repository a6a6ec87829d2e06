"""The state machine of a work over the store's atoms, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from piecework.clock import FunctionClock
from piecework.counters import (
    CANCEL,
    FAILED,
    GROUP_WAITERS,
    HOLD,
    MEMBERS,
    OK,
    OPEN,
    OPENED,
    WAITERS,
)
from piecework.envelope import Envelope, encode
from piecework.errors import BackendError, ConflictError
from piecework.ledger import (
    PENDING_TTL,
    GateLedger,
    Ledger,
    WriteConflictError,
    register_unique,
    release_unique,
    unique_key,
)
from piecework.memory import MemoryStore
from piecework.ports.capabilities import Capabilities
from piecework.ports.store import Change, Record
from piecework.record import Item, Outcome, read_item

SUCCESS = Outcome("success", "3")
DEAD = Outcome("dead", error="E: no", error_type="E")


class Time:
    def __init__(self) -> None:
        self.seconds = 1_000_000.0

    def __call__(self) -> float:
        return self.seconds


class LostAnswers(MemoryStore):
    """Loses the answers of writes: they were made, and the caller hears of a failure."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.lose = 0
        self.writes: list[Sequence[Change]] = []
        self.most = 100

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(in_process=True, max_changes=self.most)

    async def write(self, changes: Sequence[Change]) -> list[Record]:
        answer = await super().write(changes)
        self.writes.append(changes)
        if self.lose:
            self.lose -= 1
            raise BackendError("table", "write", "the answer was lost")
        return answer


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def store(time):
    return LostAnswers(now=time)


@pytest.fixture
def ledger(store, time):
    return Ledger(store, FunctionClock(time), prefix="p:", result_ttl=3600.0)


def work(id: str, group_id: str | None = None, **fields: Any) -> Envelope:
    return Envelope(id, "add", "{}", group_id or id, 1_000_000_000, 1_000_000_000, **fields)


async def register(ledger: Ledger, *envs: Envelope) -> list[bool]:
    return [(await ledger.register(env, encode(env))).new for env in envs]


async def look(ledger: Ledger, id: str) -> tuple[Item | None, Record]:
    record = (await ledger.read([id]))[0]
    return read_item(record), record


async def status(ledger: Ledger, id: str) -> str | None:
    item, _ = await look(ledger, id)
    return None if item is None else item.status


async def counters(ledger: Ledger, id: str) -> dict[str, int]:
    _, record = await look(ledger, id)
    return {name: count for name, count in record.counters.items() if count}


async def settle(ledger: Ledger, env: Envelope, outcome: Outcome = SUCCESS, **more: Any):
    options: dict[str, Any] = {"writer": "x", "run_at": None, **more}
    return await ledger.settle(env, outcome, **options)


def test_keys_and_indexes_stand_under_the_prefix(ledger):  # S14
    assert ledger.key("w1") == "p:item:w1"
    assert ledger.id_of("p:item:w1") == "w1"
    assert ledger.index("dead") == "p:dead"
    assert ledger.now_ms() == 1_000_000_000


# ---- register -------------------------------------------------------------------------------


async def test_a_root_is_registered_once_and_counts_itself(ledger, store):  # S38 S87
    assert await register(ledger, work("w1"), work("w1")) == [True, False]
    assert await counters(ledger, "w1") == {OPEN: 1}
    assert await status(ledger, "w1") == "pending"
    assert (await store.list("p:pending")).items == ["p:item:w1"]


async def test_a_work_that_is_not_tracked_is_not_written_down(ledger):
    for track in ("result", "none"):
        assert await register(ledger, work("w1", track=track)) == [True]
    assert await status(ledger, "w1") is None


async def test_children_count_in_their_group_in_the_same_write(ledger, store):  # S39 S87
    await register(ledger, work("w1"))
    several = [work(f"c{n}", "w1") for n in range(3)]
    done = await ledger.register_children([(env, encode(env)) for env in several])
    assert [one.new for one in done] == [True] * 3
    assert await counters(ledger, "w1") == {OPEN: 4, OPENED: 3}
    assert len(store.writes) == 2


async def test_children_that_are_there_already_do_not_count_again(ledger):  # P2
    await register(ledger, work("w1"))
    several = [(env, encode(env)) for env in (work("c1", "w1"), work("c2", "w1"))]
    assert [one.new for one in await ledger.register_children(several[:1])] == [True]
    assert [one.new for one in await ledger.register_children(several)] == [False, True]
    assert [one.new for one in await ledger.register_children(several)] == [False, False]
    assert await counters(ledger, "w1") == {OPEN: 3, OPENED: 2}


async def test_many_children_go_in_writes_of_the_stores_size(ledger, store):
    await register(ledger, work("w1"))
    store.most = 4
    several = [work(f"c{n}", "w1") for n in range(7)]
    await ledger.register_children([(env, encode(env)) for env in several])
    assert [len(changes) for changes in store.writes[1:]] == [4, 4, 2]
    assert await counters(ledger, "w1") == {OPEN: 8, OPENED: 7}


async def test_a_late_child_becomes_a_root_and_its_group_stays_ended(ledger):  # P3
    await register(ledger, work("w1"))
    await settle(ledger, work("w1"))
    child = work("c1", "w1")
    again = [await ledger.register(child, encode(child)) for _ in range(2)]
    assert [one.env.group_id for one in again] == ["c1", "w1"]
    assert [one.new for one in again] == [True, False]
    assert await counters(ledger, "c1") == {OPEN: 1}
    assert (await counters(ledger, "w1")).get(OPEN, 0) == 0
    item, _ = await look(ledger, "c1")
    assert item is not None
    assert item.envelope().group_id == "c1"


async def test_late_children_of_which_some_are_there(ledger):  # P3
    await register(ledger, work("w1"))
    early, late = work("c1", "w1"), work("c2", "w1")
    await register(ledger, early)
    await settle(ledger, early)
    await settle(ledger, work("w1"))
    done = await ledger.register_children([(env, encode(env)) for env in (early, late)])
    assert [(one.new, one.env.group_id) for one in done] == [(False, "w1"), (True, "c2")]


async def test_works_of_a_gate_count_in_the_gate_while_it_is_held(ledger, store):
    await store.write([Change(ledger.key("gate"), add={HOLD: 1})])
    env = work("c1", "w1", gate="gate")
    assert await register(ledger, env) == [True]
    assert await counters(ledger, "gate") == {HOLD: 1, MEMBERS: 1}
    await settle(ledger, env)
    assert await counters(ledger, "gate") == {HOLD: 1, OK: 1}
    other = work("c2", "w1", gate="gate")
    await register(ledger, other)
    await settle(ledger, other, DEAD)
    assert await counters(ledger, "gate") == {HOLD: 1, OK: 1, FAILED: 1}


async def test_a_gate_that_was_released_takes_no_more_works(ledger):
    done = await ledger.register(
        work("c1", "w1", gate="gate"), encode(work("c1", "w1", gate="gate"))
    )
    assert (done.env.gate, done.env.group_id) == (None, "c1")


async def test_a_work_planned_for_later_keeps_its_record_until_then(ledger, time):  # S92
    year = 366 * 86400
    env = work("w1")._replace(start_at=round((time.seconds + year) * 1000))
    await register(ledger, env)
    time.seconds += year + PENDING_TTL - 1
    assert await status(ledger, "w1") == "pending"
    time.seconds += 2
    assert await status(ledger, "w1") is None
    assert await register(ledger, env) == [True]
    assert await counters(ledger, "w1") == {OPEN: 1}


# ---- start and settle -----------------------------------------------------------------------


async def start(ledger: Ledger, env: Envelope, writer: str = "x") -> Envelope:
    record = await ledger.start(env, encode(env), writer=writer, run_at=1, lease_until=2)
    return env._replace(version=record.version)


async def test_a_short_work_goes_from_pending_to_terminal_in_one_write(ledger, store):  # S71
    await register(ledger, work("w1"))
    settled = await settle(ledger, work("w1"))
    assert settled.counter is settled.record
    assert settled.record.count(OPEN) == 0
    assert len(store.writes) == 2
    assert (await store.list("p:success")).items == ["p:item:w1"]
    assert (await store.list("p:pending")).items == []


async def test_a_work_settles_once(ledger):  # Q2 P2
    await register(ledger, work("w1"))
    await settle(ledger, work("w1"))
    with pytest.raises(WriteConflictError) as caught:
        await settle(ledger, work("w1"), DEAD, writer="y")
    assert caught.value.item is not None
    assert caught.value.item.status == "success"
    assert (await counters(ledger, "w1")).get(OPEN, 0) == 0


async def test_a_child_counts_down_once(ledger):  # Q2 P2 P3
    await register(ledger, work("w1"), work("c1", "w1"))
    settled = await settle(ledger, work("c1", "w1"))
    assert settled.counter is not None
    assert (settled.counter.key, settled.counter.count(OPEN)) == ("p:item:w1", 1)
    with pytest.raises(WriteConflictError):
        await settle(ledger, work("c1", "w1"), writer="y")
    assert await counters(ledger, "w1") == {OPEN: 1, OPENED: 1}


async def test_a_stale_worker_can_neither_start_nor_settle_nor_put_off(ledger):  # Q8
    await register(ledger, work("w1"))
    stale = work("w1")
    fresh = await start(ledger, stale, "new")
    for write in (
        start(ledger, stale, "old"),
        settle(ledger, stale, writer="old"),
        ledger.put_off(stale, stale, encode(stale), writer="old"),
    ):
        with pytest.raises(WriteConflictError) as caught:
            await write
        assert caught.value.record.version == 2
    await settle(ledger, fresh, writer="new")


async def test_a_running_work_is_written_down_again_and_again(ledger, store):
    await register(ledger, work("w1"))
    env = await start(ledger, await start(ledger, work("w1")))
    assert env.version == 3
    assert (await store.list("p:running")).items == ["p:item:w1"]
    assert (await counters(ledger, "w1")) == {OPEN: 1}


@pytest.mark.parametrize("outcome", [SUCCESS, DEAD, Outcome("cancelled"), Outcome("expired")])
@pytest.mark.parametrize("child", [False, True])
async def test_a_settle_whose_answer_was_lost_succeeds_when_repeated(ledger, store, outcome, child):
    await register(ledger, work("w1"))
    env = work("c1", "w1") if child else work("w1")
    await register(ledger, env)
    store.lose = 1
    with pytest.raises(BackendError):
        await settle(ledger, env, outcome, writer="run 1")
    settled = await settle(ledger, env, outcome, writer="run 1")
    assert settled.record.version == 2
    assert settled.counter is not None
    assert settled.counter.count(OPEN) == (1 if child else 0)
    with pytest.raises(WriteConflictError):
        await settle(ledger, env, outcome, writer="run 2")


async def test_a_start_and_a_put_off_whose_answers_were_lost_succeed_when_repeated(ledger, store):
    await register(ledger, work("w1"))
    store.lose = 1
    with pytest.raises(BackendError):
        await start(ledger, work("w1"))
    running = await start(ledger, work("w1"))
    store.lose = 1
    later = running._replace(attempt=2)
    with pytest.raises(BackendError):
        await ledger.put_off(running, later, encode(later), writer="x")
    put_off = await ledger.put_off(running, later, encode(later), writer="x")
    assert (running.version, put_off.version) == (2, 3)
    assert await status(ledger, "w1") == "pending"


async def test_a_put_off_of_the_same_run_does_not_count_as_its_settle(ledger):
    await register(ledger, work("w1"))
    await ledger.put_off(work("w1"), work("w1"), encode(work("w1")), writer="x")
    with pytest.raises(WriteConflictError):
        await settle(ledger, work("w1"), writer="x")


async def test_what_is_not_fully_tracked_is_put_off_without_a_write(ledger, store):
    env = work("w1", track="result")
    assert await ledger.put_off(env, env, "", writer="x") is env
    assert store.writes == []


async def test_a_result_alone_is_recorded_once_and_counted_nowhere(ledger):
    env = work("w1", track="result")
    settled = await settle(ledger, env)
    assert settled.counter is None
    with pytest.raises(WriteConflictError):
        await settle(ledger, env, writer="y")
    assert await counters(ledger, "w1") == {}


async def test_a_child_whose_group_is_gone_is_told_at_its_own_version(ledger, time):  # P3
    await register(ledger, work("w1"))
    child = work("c1", "w1")._replace(start_at=round((time.seconds + 86400 * 365) * 1000))
    await register(ledger, child)
    await ledger.store.write([Change(ledger.key("w1"), delete=True)])
    with pytest.raises(WriteConflictError) as caught:
        await settle(ledger, child)
    assert caught.value.item is not None
    assert (caught.value.item.version, caught.value.item.status) == (1, "pending")
    settled = await settle(ledger, child, counted=False)
    assert settled.counter is None
    assert await status(ledger, "c1") == "success"
    assert await counters(ledger, "w1") == {}  # a count of less than nothing would be wrong


async def test_a_record_that_is_gone_conflicts_as_absent(ledger, time):
    await register(ledger, work("w1"))
    time.seconds += PENDING_TTL + 1
    with pytest.raises(WriteConflictError) as caught:
        await settle(ledger, work("w1"))
    assert caught.value.item is None


async def test_a_terminal_record_is_kept_for_the_result_ttl(ledger, time):  # S92
    await register(ledger, work("w1"))
    time.seconds += 100_000
    await settle(ledger, work("w1"))
    time.seconds += 3599
    assert await status(ledger, "w1") == "success"
    time.seconds += 2
    assert await status(ledger, "w1") is None


async def test_a_child_renews_the_life_of_its_group(ledger, time):
    await register(ledger, work("w1"))
    await settle_and_keep_open(ledger)
    time.seconds += 3000
    later = work("c2", "w1")._replace(start_at=round((time.seconds + 86400) * 1000))
    await register(ledger, later)
    time.seconds += 86400
    assert await status(ledger, "w1") == "success"
    assert (await counters(ledger, "w1"))[OPEN] == 2


async def settle_and_keep_open(ledger: Ledger) -> None:
    await register(ledger, work("c1", "w1"))
    await settle(ledger, work("w1"))


# ---- reopen ---------------------------------------------------------------------------------


async def dead_item(ledger: Ledger, env: Envelope) -> Item:
    await settle(ledger, env, DEAD, body=encode(env))
    item, _ = await look(ledger, env.id)
    assert item is not None
    return item


@pytest.mark.parametrize("child", [False, True])
async def test_a_dead_work_is_reopened_and_counted_again(ledger, store, child):  # S118 Q9
    await register(ledger, work("w1"))
    env = work("c1", "w1") if child else work("w1")
    await register(ledger, env)
    item = await dead_item(ledger, env)
    opened = (await counters(ledger, "w1")).get(OPENED, 0)
    store.lose = 1
    with pytest.raises(BackendError):
        await ledger.reopen(item, env, encode(env), writer="r")
    back = await ledger.reopen(item, env, encode(env), writer="r")  # the answer was lost
    assert back.version == 3
    assert await status(ledger, env.id) == "pending"
    assert await counters(ledger, "w1") == {OPEN: 2 if child else 1, OPENED: opened + 1}
    with pytest.raises(WriteConflictError):
        await ledger.reopen(item, env, encode(env), writer="other")
    again, _ = await look(ledger, env.id)
    assert again is not None
    assert "err" not in again.header
    await settle(ledger, back, writer="y")


async def test_a_work_of_a_gate_comes_back_while_others_of_it_run(ledger, store):
    await store.write([Change(ledger.key("gate"), add={HOLD: 1})])
    first, second = (work(name, "w1", gate="gate") for name in ("c1", "c2"))
    await register(ledger, first, second)
    item = await dead_item(ledger, first)
    await ledger.reopen(item, first, encode(first), writer="r")
    assert await counters(ledger, "gate") == {HOLD: 1, MEMBERS: 2}


async def test_a_work_of_a_gate_that_has_drained_stays_dead(ledger, store):
    await store.write([Change(ledger.key("gate"), add={HOLD: 1})])
    env = work("c1", "w1", gate="gate")
    await register(ledger, env)
    item = await dead_item(ledger, env)
    with pytest.raises(WriteConflictError) as caught:
        await ledger.reopen(item, env, encode(env), writer="r")
    assert caught.value.item is not None
    assert caught.value.item.status == "dead"


async def test_a_work_that_is_not_counted_is_reopened_alone(ledger):
    env = work("w1", track="result")
    item = await dead_item(ledger, env)
    await ledger.reopen(item, env, encode(env), writer="r")
    assert await counters(ledger, "w1") == {}


# ---- the end of a group ---------------------------------------------------------------------


async def ends(ledger: Ledger, **options: Any) -> bool:
    _, record = await look(ledger, "w1")
    return await ledger.claim_group_end(record, **options)


async def test_a_lone_work_ends_its_group_by_itself(ledger, store):
    await register(ledger, work("w1"))
    await settle(ledger, work("w1"))
    assert await ends(ledger)
    assert not await ends(ledger, repeat=True)
    assert len(store.writes) == 2


async def test_the_end_of_a_group_is_claimed_once(ledger):  # Q2 S89
    await register(ledger, work("w1"), work("c1", "w1"))
    await settle(ledger, work("w1"))
    assert not await ends(ledger)
    await settle(ledger, work("c1", "w1"))
    _, record = await look(ledger, "w1")
    assert [await ledger.claim_group_end(record) for _ in range(3)] == [True, False, False]
    assert not await ends(ledger, repeat=True)
    assert await status(ledger, "w1") == "success"


async def test_a_group_whose_root_still_runs_has_not_ended(ledger):
    await register(ledger, work("w1"), work("c1", "w1"))
    await settle(ledger, work("c1", "w1"))
    assert not await ends(ledger)


async def test_a_group_that_was_opened_again_ends_again(ledger):  # Q9 S118
    await register(ledger, work("w1"), work("c1", "w1"))
    await settle(ledger, work("w1"))
    item = await dead_item(ledger, work("c1", "w1"))
    _, before = await look(ledger, "w1")
    assert await ends(ledger)
    back = await ledger.reopen(item, work("c1", "w1"), encode(work("c1", "w1")), writer="r")
    assert not await ends(ledger)
    await settle(ledger, back, writer="y")
    assert await ledger.claim_group_end(before)  # it knows an older record only
    assert not await ends(ledger)


async def test_the_end_of_a_group_whose_root_is_gone_is_not_held_back(ledger):
    assert await ledger.claim_group_end(Record("p:item:w1", None, 0, {OPENED: 1}))


# ---- marks ----------------------------------------------------------------------------------


async def test_who_waits_is_counted_and_reads_in_the_same_write(ledger, store):  # S45 S50
    await register(ledger, work("w1"))
    record = await ledger.wait_mark("w1")
    assert (record.count(WAITERS), record.version) == (1, 1)
    assert (await ledger.wait_mark("w1", GROUP_WAITERS)).count(GROUP_WAITERS) == 1
    assert (await ledger.wait_mark("w1", by=-1)).count(WAITERS) == 0
    await ledger.ask_to_stop("w1")
    assert (await counters(ledger, "w1"))[CANCEL] == 1
    await settle(ledger, work("w1"))  # marks do not disturb


async def test_a_mark_on_a_work_to_come_does_not_stop_it(ledger):
    await ledger.wait_mark("w1")
    assert await register(ledger, work("w1")) == [True]
    assert await counters(ledger, "w1") == {OPEN: 1, WAITERS: 1}


# ---- unique ---------------------------------------------------------------------------------


async def claim(ledger: Ledger, env: Envelope, unique_for: float | None = None):
    env = env._replace(unique="k")
    return await register_unique(ledger, env, unique_key("p:", env), unique_for=unique_for)


async def test_while_a_unique_work_is_under_way_others_are_that_one(ledger):  # S136
    first = await claim(ledger, work("w1"))
    assert (first.new, first.env.id) == (True, "w1")
    second = await claim(ledger, work("w2"))
    assert (second.new, second.env.id, second.env.group_id) == (False, "w1", "w1")
    assert await status(ledger, "w2") is None
    same = await claim(ledger, work("w1"))
    assert (same.new, same.env.id) == (False, "w1")


async def test_a_key_is_free_once_its_work_is_terminal(ledger):
    await claim(ledger, work("w1"))
    await settle(ledger, work("w1"))
    assert (await claim(ledger, work("w2"))).env.id == "w2"
    assert (await claim(ledger, work("w3"))).env.id == "w2"


async def test_a_key_with_a_life_of_its_own_outlives_its_work(ledger, time):
    await claim(ledger, work("w1"), 60.0)
    await settle(ledger, work("w1"))
    held = await claim(ledger, work("w2"), 60.0)
    assert (held.new, held.env.id, held.env.group_id) == (False, "w1", "w1")
    time.seconds += 61
    assert (await claim(ledger, work("w2"), 60.0)).env.id == "w2"


async def test_a_claim_whose_work_was_never_registered_is_taken_over(ledger, store):  # P1
    key = "p:unique:add:k"
    await store.set(key, "ghost")
    done = await claim(ledger, work("w2"))
    assert (done.new, done.env.id, done.env.group_id) == (True, "ghost", "ghost")
    assert await status(ledger, "ghost") == "pending"
    assert await status(ledger, "w2") is None


async def test_a_unique_child_of_an_ended_group_becomes_a_root(ledger):
    await register(ledger, work("w1"))
    await settle(ledger, work("w1"))
    done = await claim(ledger, work("c1", "w1"))
    assert (done.new, done.env.id, done.env.group_id) == (True, "c1", "c1")


async def test_a_unique_child_counts_in_its_group(ledger, store):
    await register(ledger, work("w1"))
    await store.set("p:unique:add:k", "ghost")
    done = await claim(ledger, work("c1", "w1"))
    assert (done.env.id, done.env.group_id) == ("ghost", "w1")
    assert await counters(ledger, "w1") == {OPEN: 2, OPENED: 1}
    other = await claim(ledger, work("c2", "w1"))
    assert (other.new, other.env.id, other.env.group_id) == (False, "ghost", "w1")


async def test_a_key_is_let_go_by_its_holder_alone(ledger, store):
    key = "p:unique:add:k"
    await claim(ledger, work("w1"))
    await release_unique(ledger, work("w2"), key)
    assert await store.get(key) == "w1"
    await release_unique(ledger, work("w1", unique_until=9), key)
    assert await store.get(key) == "w1"
    await release_unique(ledger, work("w1"), key)
    assert await store.get(key) is None
    await release_unique(ledger, work("w1"), key)


async def test_a_key_that_is_taken_over_meanwhile_is_left_alone(ledger, store, monkeypatch):
    key = "p:unique:add:k"
    await claim(ledger, work("w1"))
    write = store.write

    async def late(changes: Sequence[Change]) -> list[Record]:
        await write([Change(key, value="w2")])
        return await write(changes)

    monkeypatch.setattr(store, "write", late)
    await release_unique(ledger, work("w1"), key)
    assert await store.get(key) == "w2"


async def test_a_claim_that_ends_while_it_is_looked_at_is_taken(ledger, store, monkeypatch):
    await claim(ledger, work("w1"))
    await settle(ledger, work("w1"))
    write, tries = store.write, []

    async def racing(changes: Sequence[Change]) -> list[Record]:
        tries.append(changes[-1].expect)
        if len(tries) == 2:
            await write([Change("p:unique:add:k", delete=True)])
        return await write(changes)

    monkeypatch.setattr(store, "write", racing)
    assert (await claim(ledger, work("w2"))).env.id == "w2"
    assert tries == [0, 1, 0]


async def test_a_conflict_tells_the_current_records(ledger, store):
    await register(ledger, work("w1"))
    with pytest.raises(ConflictError, match=r"p:item:w1 \(version 1\)"):
        await store.write([Change("p:item:w1", value="", expect=5)])


# ---- lives that depend on others ------------------------------------------------------------

DAY = 86400


def later(time: Time, days: int) -> int:
    return round((time.seconds + days * DAY) * 1000)


async def test_a_settled_parent_outlives_a_child_that_was_planned_before_its_last_beat(
    ledger, time
):  # P3 S92
    await register(ledger, work("w1"))
    child = work("c1", "w1", version=1)._replace(start_at=later(time, 60))
    await register(ledger, child)
    await settle(ledger, await start(ledger, work("w1")), parent=True)
    time.seconds += 61 * DAY
    settled = await settle(ledger, child)
    assert settled.counter is not None
    assert settled.counter.count(OPEN) == 0
    assert await ledger.claim_group_end(settled.counter)


async def test_a_gate_outlives_a_work_that_is_put_off(ledger, time):  # P3 P4
    gates = GateLedger(ledger, result_ttl=3600.0)
    await gates.open(work("gate"))
    env = work("c1", "gate", gate="gate")
    await register(ledger, env)
    new = env._replace(start_at=later(time, 60))
    put_off = await ledger.put_off(env, new, encode(new), writer="x")
    time.seconds += 61 * DAY
    await settle(ledger, put_off)
    assert await counters(ledger, "gate") == {HOLD: 1, OK: 1, OPEN: 1, OPENED: 1}


async def test_a_group_outlives_a_work_of_it_that_was_brought_back_and_put_off(
    ledger, time
):  # P3 Q9
    await register(ledger, work("w1"), work("c1", "w1"))
    await settle(ledger, work("w1"))
    item = await dead_item(ledger, work("c1", "w1"))
    assert await ends(ledger)
    back = await ledger.reopen(item, work("c1", "w1"), encode(work("c1", "w1")), writer="r")
    new = back._replace(start_at=later(time, 60))
    put_off = await ledger.put_off(back, new, encode(new), writer="x")
    time.seconds += 61 * DAY
    settled = await settle(ledger, put_off)
    assert settled.counter is not None
    assert await ledger.claim_group_end(settled.counter)


async def test_an_end_that_is_claimed_late_does_not_shorten_the_life_of_the_group(
    ledger, time
):  # P3 Q9
    await register(ledger, work("w1"), work("c1", "w1"))
    await settle(ledger, work("w1"))
    item = await dead_item(ledger, work("c1", "w1"))
    _, before = await look(ledger, "w1")
    back = await ledger.reopen(item, work("c1", "w1"), encode(work("c1", "w1")), writer="r")
    assert await ledger.claim_group_end(before)  # of the end before it was opened again
    time.seconds += DAY
    settled = await settle(ledger, back)
    assert settled.counter is not None
    assert await ledger.claim_group_end(settled.counter)


@pytest.mark.parametrize("child", [False, True])
async def test_a_work_that_comes_back_was_not_asked_to_stop(ledger, child):  # S118
    await register(ledger, work("w1"))
    env = work("c1", "w1") if child else work("w1")
    await register(ledger, env)
    await ledger.ask_to_stop(env.id)
    item = await dead_item(ledger, env)
    for _ in range(2):  # the second answers for the first
        await ledger.reopen(item, env, encode(env), writer="r", cancels=1)
    assert (await counters(ledger, env.id)).get(CANCEL, 0) == 0


async def test_a_key_is_held_while_its_work_is_put_off(ledger, time):  # S136
    first = (await claim(ledger, work("w1"))).env
    new = first._replace(start_at=later(time, 60))
    await ledger.put_off(first, new, encode(new), writer="x")
    time.seconds += 61 * DAY
    again = await claim(ledger, work("w2"))
    assert (again.new, again.env.id) == (False, "w1")
