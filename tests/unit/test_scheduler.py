"""The scheduler in virtual time: hours pass in milliseconds."""

from __future__ import annotations

import asyncio
import json
import selectors
from collections import Counter
from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest

from piecework.clock import sleep
from piecework.engine.schedule_run import RELEASE_TIME
from piecework.engine.scheduler import Scheduler
from piecework.errors import BackendError, ConfigError, ConflictError
from piecework.ids import derived_id
from piecework.occurrences import recurrence
from piecework.ports import ANY, KEEP, Capabilities, Change, Page, Record, Store

START = int(datetime(2024, 5, 1, 12, 0, 0, 500_000, tzinfo=UTC).timestamp() * 1000)
NOON = START - 500
MINUTE = 60_000


class _Selector(selectors.DefaultSelector):
    """When nothing is ready, time leaps to the next timer."""

    loop: VirtualLoop
    timers: list[float]

    def select(self, timeout=None):
        events = super().select(0)
        assert events or timeout is not None, "nothing will ever happen"
        if not events and timeout:
            self.timers.append(timeout)
            self.loop.now += timeout
        return events


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        self.now = 0.0
        selector = _Selector()
        selector.loop = self
        self.timers = selector.timers = []
        super().__init__(selector)

    def time(self):
        return self.now


def virtually(test):
    """Run a coroutine function as a test on a virtual loop."""

    def run():
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(test())

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


class LoopClock:
    def __init__(self, skew=0.0):
        self.skew = skew

    def now_ms(self):
        return START + round((asyncio.get_running_loop().time() + self.skew) * 1000)


class DictStore(Store):
    """Values with versions and ttl; no counters, no index."""

    def __init__(self):
        self.data = {}
        self.calls = 0

    @property
    def capabilities(self):
        return Capabilities(in_process=True)

    def record(self, key):
        value, version, end = self.data.get(key, (None, 0, 0))
        if end and end <= asyncio.get_running_loop().time():
            return Record(key)
        return Record(key, value, version)

    async def read(self, keys):
        self.calls += 1
        await sleep(0.001)
        return [self.record(key) for key in keys]

    async def write(self, changes: list[Change]):
        self.calls += 1
        await sleep(0.001)
        before = [self.record(c.key) for c in changes]
        if any(c.expect not in (ANY, r.version) for c, r in zip(changes, before, strict=True)):
            raise ConflictError(before)
        for c, r in zip(changes, before, strict=True):
            assert c.value is not KEEP or c.delete
            if c.delete:
                self.data.pop(c.key, None)
            else:
                end = asyncio.get_running_loop().time() + c.ttl if c.ttl else 0
                self.data[c.key] = (c.value, r.version + 1, end)
        await sleep(0.001)
        return [self.record(c.key) for c in changes]

    async def list(self, index, limit=100, cursor=None):
        return Page([])


class Link(Store):
    """One instance's way to the store; it can be cut, or fail a number of calls."""

    def __init__(self, store):
        self.store = store
        self.dead = False
        self.failures = 0
        self.fail_after = 0

    @property
    def capabilities(self):
        return self.store.capabilities

    async def _check(self):
        if self.dead:
            await asyncio.Event().wait()
        if self.failures:
            self.failures -= 1
            raise BackendError("table", "write", "throttled")

    async def read(self, keys):
        await self._check()
        return await self.store.read(keys)

    async def write(self, changes):
        await self._check()
        return await self.store.write(changes)

    async def list(self, index, limit=100, cursor=None):
        return Page([])


class Instance:
    def __init__(self, store, name="a", skew=0.0, prefix="p:"):
        self.link = Link(store)
        self.fired = []
        self.errors = []
        self.before_fire = None
        self.scheduler = Scheduler(
            store=self.link,
            clock=LoopClock(skew),
            prefix=prefix,
            fire=self.fire,
            report=self.report,
            worker_id=name,
        )

    async def fire(self, entry, occurrence_ms, work_id):
        if self.before_fire:
            await self.before_fire(entry, occurrence_ms)
        self.fired.append((entry.name, occurrence_ms, work_id))

    def report(self, error, source):
        assert source == "queue"
        self.errors.append(error)

    def times(self, name="s"):
        return [ms for n, ms, _ in self.fired if n == name]


async def after(seconds):
    await sleep(seconds)


HOURLY = recurrence(cron="0 * * * *")
MINUTELY = recurrence(every=60)


@virtually
async def test_each_occurrence_is_fired_once_in_time():
    store = DictStore()
    a = Instance(store)
    a.scheduler.add("s", MINUTELY, None)
    async with a.scheduler:
        await after(181)
    assert a.times() == [NOON + MINUTE * n for n in (1, 2, 3)]
    assert a.fired[0][2] == derived_id("schedule", "p:", "s", NOON + MINUTE)
    assert not a.errors
    assert len(asyncio.all_tasks()) == 1


@virtually
async def test_an_idle_schedule_sleeps_a_minute_at_a_time_and_leaves_the_store_alone():
    # S113
    store = DictStore()
    a = Instance(store)
    a.scheduler.add("s", HOURLY, None)
    a.scheduler.start()
    await after(1)
    calls, timers = store.calls, asyncio.get_running_loop().timers
    del timers[:]
    await after(3500)
    assert store.calls == calls
    assert len(timers) <= 62
    await a.scheduler.stop()


@virtually
async def test_start_and_stop_bear_any_order():
    a = Instance(DictStore())
    await a.scheduler.stop()
    a.scheduler.add("s", MINUTELY, None)
    a.scheduler.start()
    a.scheduler.start()
    await after(61)
    await a.scheduler.stop()
    await a.scheduler.stop()
    await after(600)
    a.scheduler.start()
    await after(1)
    await a.scheduler.stop()
    # S116: of the missed ones the latest
    assert a.times() == [NOON + MINUTE, NOON + 11 * MINUTE]


@virtually
async def test_adding_a_name_again_replaces_the_schedule_and_an_old_handle_leaves_it_alone():
    a = Instance(DictStore())
    async with a.scheduler:
        old = a.scheduler.add("s", MINUTELY, "old")
        await after(1)
        new = a.scheduler.add("s", HOURLY, "new")
        assert a.scheduler.entries() == [new]
        assert not a.scheduler.remove(old)
        await after(3600)
        assert a.times() == [NOON + 60 * MINUTE]
        assert a.scheduler.remove(new)
        assert not a.scheduler.remove("s")
        await after(7200)
    assert len(a.fired) == 1
    assert a.scheduler.entries() == []


@virtually
async def test_a_schedule_removed_by_its_own_factory_fires_to_the_end():
    store = DictStore()
    a = Instance(store)

    async def before(entry, ms):
        a.scheduler.remove(entry)
        await sleep(0.01)

    a.before_fire = before
    a.scheduler.add("s", MINUTELY, None)
    async with a.scheduler:
        await after(300)
    assert a.times() == [NOON + MINUTE]
    assert json.loads(store.record("p:schedule:s").value)["last"] == NOON + MINUTE


@virtually
async def test_stop_from_within_a_factory_does_not_wait_for_itself():
    a = Instance(DictStore())

    async def before(entry, ms):
        await a.scheduler.stop()

    a.before_fire = before
    a.scheduler.add("s", MINUTELY, None)
    a.scheduler.start()
    await after(62)
    assert len(a.fired) == 1
    await a.scheduler.stop()


@virtually
async def test_missed_occurrences_follow_the_policy_across_a_restart():
    # S116
    store = DictStore()
    a = Instance(store)
    for policy in ("skip", "one", "all"):
        a.scheduler.add(policy, recurrence(every=600, catch_up=policy), None)
    async with a.scheduler:
        await after(601)
    await after(1800 + 120)
    b = Instance(store, "b")
    for policy in ("skip", "one", "all"):
        b.scheduler.add(policy, recurrence(every=600, catch_up=policy), None)
    async with b.scheduler:
        await after(1)
    ten = 10 * MINUTE
    assert b.times("skip") == []
    assert b.times("one") == [NOON + 4 * ten]
    assert b.times("all") == [NOON + n * ten for n in (2, 3, 4)]


@virtually
async def test_a_stalled_instance_fires_the_latest_alone():
    # S116
    a = Instance(DictStore())
    a.scheduler.add("s", recurrence(every=10), None)
    async with a.scheduler:
        await after(11)
        asyncio.get_running_loop().now += 100  # the loop is blocked
        await after(1)
    assert a.times() == [NOON + 10_000, NOON + 110_000]


@virtually
async def test_one_bad_schedule_does_not_stop_the_others_and_is_retried_ever_later():
    a = Instance(DictStore())
    tries = []

    async def before(entry, ms):
        if entry.name == "bad":
            tries.append(asyncio.get_running_loop().time())
            if len(tries) < 8:
                raise ValueError("no")
        if entry.name == "cancelled":
            raise asyncio.CancelledError

    a.before_fire = before
    a.scheduler.add("bad", HOURLY, None)
    a.scheduler.add("cancelled", HOURLY, None)
    a.scheduler.add("s", MINUTELY, None)
    async with a.scheduler:
        await after(3600 + 200)
    gaps = [round(y - x) for x, y in pairwise(tries)]
    assert gaps == [1, 2, 4, 8, 16, 30, 30]
    assert a.times("bad") == [NOON + 60 * MINUTE]
    assert len(a.times("s")) == 63
    kinds = Counter(type(e).__name__ for e in a.errors)
    assert kinds["ValueError"] == 7
    assert kinds["CancelledError"] > 5


@virtually
async def test_a_failing_store_is_reported_and_tried_again():
    a = Instance(DictStore())
    a.link.failures = 4
    a.scheduler.add("s", MINUTELY, None)
    async with a.scheduler:
        await after(59)
        assert [type(e) for e in a.errors] == [BackendError] * 4
        a.link.failures = 2
        await after(10)
    assert a.times() == [NOON + MINUTE]


@virtually
async def test_an_occurrence_is_not_fired_again_when_only_the_record_could_not_be_advanced():
    store = DictStore()
    a = Instance(store)

    async def before(entry, ms):
        a.link.failures = 2

    a.before_fire = before
    a.scheduler.add("s", HOURLY, None)
    async with a.scheduler:
        await after(3700)
    assert a.times() == [NOON + 60 * MINUTE]
    assert len(a.errors) == 2
    assert json.loads(store.record("p:schedule:s").value)["last"] == NOON + 60 * MINUTE


@virtually
async def test_a_claim_that_was_written_before_an_error_is_taken_up_again():
    store = DictStore()
    a = Instance(store)
    a.scheduler.add("s", MINUTELY, None)
    await store.set(f"p:schedule:s:claim:{NOON + MINUTE}", "a:1", 90)
    async with a.scheduler:
        await after(61)
    assert a.times() == [NOON + MINUTE]


@virtually
async def test_a_claim_is_renewed_while_a_slow_factory_runs():
    store = DictStore()
    a, b = Instance(store), Instance(store, "b", skew=-1)

    async def slow(entry, ms):
        if ms == NOON + 60 * MINUTE:
            a.link.failures = 1  # one renewal fails; the next is in time
            await sleep(400)

    a.before_fire = slow
    for one in (a, b):
        one.scheduler.add("s", HOURLY, None)
        one.scheduler.start()
    await after(7201)
    await a.scheduler.stop()
    await b.scheduler.stop()
    assert [type(e) for e in a.errors] == [BackendError]
    assert sorted(a.times() + b.times()) == [NOON + 60 * MINUTE, NOON + 120 * MINUTE]


@virtually
async def test_a_stop_while_firing_gives_the_claim_back():
    store = DictStore()
    a, b = Instance(store), Instance(store, "b", skew=-1)

    async def hang(entry, ms):
        await asyncio.Event().wait()

    a.before_fire = hang
    for one in (a, b):
        one.scheduler.add("s", HOURLY, None)
        one.scheduler.start()
    await after(3602)
    await a.scheduler.stop()
    await after(15)
    assert b.times() == [NOON + 60 * MINUTE]
    await b.scheduler.stop()


@virtually
async def test_a_stop_does_not_hang_on_a_store_that_hangs():
    a = Instance(DictStore())

    async def hang(entry, ms):
        a.link.dead = True
        await asyncio.Event().wait()

    a.before_fire = hang
    a.scheduler.add("s", MINUTELY, None)
    a.scheduler.start()
    await after(61)
    before = asyncio.get_running_loop().time()
    await a.scheduler.stop()
    assert asyncio.get_running_loop().time() - before <= RELEASE_TIME + 0.1
    assert [type(e) for e in a.errors] == [TimeoutError]


@virtually
async def test_an_error_of_the_report_ends_in_the_report():
    a = Instance(DictStore())
    a.link.failures = 1
    seen = []

    def report(error, source):
        seen.append(error)
        if len(seen) == 1:
            raise RuntimeError("the report is broken")

    a.scheduler = Scheduler(
        store=a.link, clock=LoopClock(), prefix="", fire=a.fire, report=report, worker_id="a"
    )
    a.scheduler.add("s", MINUTELY, None)
    async with a.scheduler:
        await after(5)
    assert [type(e) for e in seen] == [BackendError, RuntimeError]


# --- functions ---------------------------------------------------------------------------------


@virtually
async def test_none_ends_a_schedule_until_a_start_finds_a_new_time():
    # S112
    store = DictStore()
    end = datetime.fromtimestamp(NOON / 1000, UTC) + timedelta(minutes=2, seconds=30)

    def until(now):
        return now + timedelta(minutes=1) if now < end - timedelta(minutes=1) else None

    a = Instance(store)
    a.scheduler.add("s", recurrence(next=until), None)
    async with a.scheduler:
        await after(600)
        assert len(asyncio.all_tasks()) == 1
    first, second = a.times()
    assert second - first == MINUTE
    assert 0 <= first - START - MINUTE < 10
    b = Instance(store, "b")
    b.scheduler.add("s", recurrence(next=until), None)
    async with b.scheduler:
        await after(600)
    assert b.fired == []
    c = Instance(store, "c")
    c.scheduler.add("s", recurrence(next=lambda now: 60), None)
    async with c.scheduler:
        await after(61)
    assert len(c.fired) == 1


@virtually
async def test_a_restart_brings_a_time_forward_and_never_puts_it_off():
    store = DictStore()
    for _ in range(5):
        a = Instance(store)
        a.scheduler.add("s", recurrence(next=lambda now: 300), None)
        async with a.scheduler:
            await after(100)
        assert not a.errors
        if a.fired:
            break
    assert a.fired
    b = Instance(store, "b")
    b.scheduler.add("s", recurrence(next=lambda now: 10), None)
    async with b.scheduler:
        await after(11)
    assert len(b.fired) == 1


@virtually
async def test_a_function_that_fails_is_asked_again_after_its_occurrence_was_fired():
    a = Instance(DictStore())
    date = datetime.fromtimestamp(START / 1000, UTC) + timedelta(minutes=1)
    fixed = [True]
    a.scheduler.add("s", recurrence(next=lambda now: date if fixed[0] else 30), None)
    async with a.scheduler:
        await after(200)
        assert a.times() == [START + MINUTE]
        assert {type(e) for e in a.errors} == {ConfigError}
        fixed[0] = False
        await after(61)
    assert len(a.fired) >= 2


@virtually
async def test_missed_occurrences_of_a_function_follow_the_policy():
    store = DictStore()
    rules = {p: recurrence(next=lambda now: 600, catch_up=p) for p in ("skip", "one", "all")}
    a = Instance(store)
    for name, rule in rules.items():
        a.scheduler.add(name, rule, None)
    async with a.scheduler:
        await after(1)
    await after(2000)
    b = Instance(store, "b")
    for name, rule in rules.items():
        b.scheduler.add(name, rule, None)
    async with b.scheduler:
        await after(1)
        assert [len(b.times(name)) for name in rules] == [0, 1, 3]
        await after(602)
        assert [len(b.times(name)) for name in rules] == [1, 2, 4]
    assert not b.errors


# --- the fleet ---------------------------------------------------------------------------------

RULES = {
    "cron": recurrence(cron="*/5 * * * *"),
    "every": recurrence(every=20),
    "next": recurrence(next=lambda now: timedelta(minutes=5)),
}


@pytest.mark.parametrize("kind", list(RULES))
def test_a_fleet_fires_each_occurrence_though_claimers_die(kind):
    # P5, B43, Q4, S114
    @virtually
    async def run():
        store = DictStore()
        skews = (-2.0, -1.0, 0.0, 1.0, 2.0)
        fleet = [Instance(store, f"w{n}", skew) for n, skew in enumerate(skews)]
        killed, victims = [], {3, 7}
        seen = []

        def doomed(instance):
            async def before(entry, ms):
                seen.append(ms)
                if len(set(seen)) in victims and len(killed) < 2 and ms not in killed:
                    killed.append(ms)
                    instance.link.dead = True
                    await asyncio.Event().wait()  # claimed, never fired

            return before

        for one in fleet:
            one.before_fire = doomed(one)
            one.scheduler.add("s", RULES[kind], None)
            one.scheduler.start()
        await after(3600)
        fired = [item for one in fleet for item in one.fired]
        alive = [one for one in fleet if not one.link.dead]
        assert len(killed) == 2
        assert len(alive) == 3
        counts = Counter(work_id for _, _, work_id in fired)
        times = sorted(ms for _, ms, _ in fired)
        assert set(counts.values()) == {1}
        assert set(killed) <= set(times)
        step = 20_000 if kind == "every" else 5 * MINUTE
        now = START + 3600_000
        first = times[0]
        assert times == [first + n * step for n in range(len(times))]
        assert first <= START + step + 3000
        assert times[-1] > now - step - 3000
        if kind != "next":
            assert not first % step
        assert not [e for one in fleet for e in one.errors]
        for one in fleet:
            await one.scheduler.stop()

    run()


@virtually
async def test_normally_one_instance_claims_and_the_others_look_once_more():
    store = DictStore()
    fleet = [Instance(store, f"w{n}") for n in range(3)]
    for one in fleet:
        one.scheduler.add("s", HOURLY, None)
        one.scheduler.start()
    await after(3000)
    before = store.calls
    await after(1200)
    assert sum(len(one.fired) for one in fleet) == 1
    assert store.calls - before <= 3 + 2 * 4
    for one in fleet:
        await one.scheduler.stop()


@pytest.mark.parametrize("kind", ["every", "next"])
def test_an_instance_whose_record_was_advanced_meanwhile_goes_on_from_there(kind):
    @virtually
    async def run():
        store = DictStore()
        a = Instance(store)
        later = START + 20 * MINUTE

        async def overtaken(entry, ms):
            if not a.fired:
                value = {"last": later, "upcoming": later + 5 * MINUTE}
                await store.set("p:schedule:s", json.dumps(value))

        a.before_fire = overtaken
        a.scheduler.add("s", RULES[kind], None)
        async with a.scheduler:
            await after(30 * 60)
        assert len([ms for ms in a.times() if ms <= later]) == 1
        assert len(a.fired) > 1
        assert not a.errors

    run()
