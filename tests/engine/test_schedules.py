"""Schedules through a system: one fire per occurrence, over the fleet and over restarts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from tests.support.unreliable import Process, in_process

from piecework import (
    ConfigError,
    MemoryPubSub,
    MemoryQueue,
    MemoryStore,
    WorkContext,
    create_work,
    define_work,
    next_after,
)
from piecework.clock import sleep
from piecework.testing.virtual_clock import VirtualClock

HOUR = timedelta(hours=1)


class Ticks(list):
    """A work type whose runs are noted."""

    def __init__(self, clock):
        super().__init__()

        @define_work("tick")
        async def tick(ctx: WorkContext, n: int = 0) -> None:
            self.append((clock.now(), n, ctx.id))

        self.type = tick

    @property
    def times(self):
        return [time for time, _, _ in self]


@pytest.fixture
def ticks(virtual_clock):
    return Ticks(virtual_clock)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"cron": "* * * * *", "every": 5},
        {"cron": "61 * * * *"},
        {"cron": "* * * * *", "tz": "Mars/Base"},
        {"every": 0},
        {"cron": "* * * * *", "catch_up": "some"},
    ],
)
async def test_a_schedule_that_cannot_be_used_is_refused(backend, ticks, options):
    # S108
    work = create_work(work=[ticks.type], **backend)
    with pytest.raises(ConfigError):
        work.schedule("bad", ticks.type(), **options)


async def test_a_cron_schedule_fires_until_it_is_cancelled(virtual_clock, backend, ticks):
    # S108, S113: at the second, not up to a second late
    async with create_work(work=[ticks.type], **backend) as work:
        handle = work.schedule("hourly", ticks.type(), cron="0 * * * *")
        await virtual_clock.advance(3 * HOUR + timedelta(minutes=1))
        handle.cancel()
        handle.cancel()
        await virtual_clock.advance(3 * HOUR)
    assert [time.replace(microsecond=0) for time in ticks.times] == [
        datetime(2026, 1, 1, hour, tzinfo=UTC) for hour in (1, 2, 3)
    ]


async def test_a_schedule_made_before_the_start_fires_after_it(virtual_clock, backend, ticks):
    # S113
    work = create_work(work=[ticks.type], **backend)
    work.schedule("minutely", ticks.type(), every=60)
    await virtual_clock.advance(600)
    assert ticks == []
    async with work:
        await virtual_clock.advance(130)
    assert len(ticks) == 2


async def test_the_same_name_replaces_a_schedule_and_its_old_handle_cancels_nothing(
    virtual_clock, backend, ticks
):
    # S108
    async with create_work(work=[ticks.type], **backend) as work:
        old = work.schedule("x", ticks.type(1), every=60)
        work.schedule("x", ticks.type(2), every=60)
        old.cancel()
        await virtual_clock.advance(130)
    assert [n for _, n, _ in ticks] == [2, 2]


async def test_two_instances_fire_an_occurrence_once(virtual_clock, backend, ticks):
    # S114, P5
    systems = [create_work(work=[ticks.type], **backend) for _ in range(3)]
    for system in systems:
        system.schedule("minutely", ticks.type(), cron="* * * * *")
        await system.start()
    await virtual_clock.advance(timedelta(minutes=10, seconds=30))
    assert len(ticks) == len({id for _, _, id in ticks}) == 10
    for system in systems:
        await system.stop()


async def test_a_schedule_by_function_fires_once_on_a_fleet_whose_clocks_differ(
    virtual_clock, backend, ticks
):
    # Q4, S114: what the first instance stored is what all of them use
    def in_a_minute(last):
        return last + timedelta(seconds=60)

    systems = []
    for _ in range(3):
        system = create_work(work=[ticks.type], **backend)
        system.schedule("by function", ticks.type(), next=in_a_minute)
        await system.start()
        systems.append(system)
        await virtual_clock.advance(1.7)
    await virtual_clock.advance(timedelta(minutes=10))
    assert 9 <= len(ticks) <= 10
    gaps = [b - a for a, b in zip(ticks.times, ticks.times[1:], strict=False)]
    assert min(gaps) > timedelta(seconds=55)
    for system in systems:
        await system.stop()


async def test_an_occurrence_whose_claimer_died_is_fired_by_another(virtual_clock, ticks):
    # S114, P5
    shared = {"queue": MemoryQueue(), "store": MemoryStore(), "pubsub": MemoryPubSub()}
    doomed = Process()
    first = create_work(work=[ticks.type], on_error=lambda *_: None, **in_process(shared, doomed))
    first.schedule("minutely", ticks.type(), cron="* * * * *")
    await first.start()
    await virtual_clock.advance(10)
    pushes = []

    def dies_at(call):
        if call == "push":
            pushes.append(1)
        return bool(pushes)

    second = create_work(work=[ticks.type], **shared)
    doomed.dies_at = dies_at
    await virtual_clock.advance(51)  # the claimer dies with the claim
    second.schedule("minutely", ticks.type(), cron="* * * * *")
    await second.start()
    await virtual_clock.advance(timedelta(minutes=9))
    minutes = {time.replace(second=0, microsecond=0) for time in ticks.times}
    ids = [id for _, _, id in ticks]
    assert len(ids) == len(set(ids))
    assert len(minutes) >= 8
    assert doomed.dead
    await first.stop(drain=0)
    await second.stop()


async def test_what_a_function_returns_is_enqueued_under_the_occurrences_id(
    virtual_clock, backend, ticks
):
    # S115: its own id is dropped, so that firing twice is harmless
    built = []

    def make():
        built.append(ticks.type(7).with_options(priority=4))
        return built[-1]

    events = []
    async with create_work(work=[ticks.type], on_event=events.append, **backend) as work:
        work.schedule("x", make, every=60)
        await virtual_clock.advance(130)
        states = [await work.state(id) for _, _, id in ticks]
    assert [n for _, n, _ in ticks] == [7, 7]
    assert not {work.id for work in built} & {id for _, _, id in ticks}
    assert [state.priority for state in states] == [4, 4]


@pytest.mark.parametrize("flavour", ["plain", "async"])
async def test_a_function_that_returns_nothing_did_it_itself(
    virtual_clock, backend, ticks, flavour
):
    # S115
    called = []

    async def later():
        await sleep(0)
        called.append(1)

    async with create_work(work=[ticks.type], **backend) as work:
        work.schedule("x", later if flavour == "async" else lambda: called.append(1), every=60)
        await virtual_clock.advance(130)
        assert await work.list() == []
    assert len(called) == 2


async def test_a_function_that_raises_is_reported_and_asked_again(virtual_clock, backend, ticks):
    # S115
    errors, calls = [], []

    def make():
        calls.append(1)
        if len(calls) == 1:
            raise RuntimeError("not now")
        if len(calls) == 2:
            return "no work"
        return ticks.type()

    async with create_work(
        work=[ticks.type], on_error=lambda error, phase: errors.append(str(error)), **backend
    ) as work:
        work.schedule("x", make, every=3600)
        await virtual_clock.advance(3700)
    assert len(ticks) == 1
    assert errors[0] == "not now"
    assert "must return a work or None, not str" in errors[1]


@pytest.mark.parametrize(("catch_up", "missed"), [("one", 1), ("skip", 0), ("all", 5)])
async def test_missed_occurrences_follow_the_policy(
    virtual_clock, backend, ticks, catch_up, missed
):
    # S116: after a stop one fire, then on from now; or none, or all
    work = create_work(work=[ticks.type], **backend)
    work.schedule("hourly", ticks.type(), cron="0 * * * *", catch_up=catch_up)
    await work.start()
    await virtual_clock.advance(HOUR + timedelta(minutes=30))
    assert len(ticks) == 1
    await work.stop()
    await virtual_clock.advance(5 * HOUR)
    await work.start()
    await virtual_clock.advance(timedelta(minutes=5))
    assert len(ticks) == 1 + missed
    await virtual_clock.advance(HOUR)
    assert len(ticks) == 2 + missed
    await work.stop()


async def test_a_new_process_catches_up_with_what_the_old_one_left(virtual_clock, backend, ticks):
    # S116: the fleet's record, not a process, knows the last occurrence
    for _ in range(2):
        async with create_work(work=[ticks.type], **backend) as work:
            work.schedule("hourly", ticks.type(), cron="0 * * * *")
            await virtual_clock.advance(timedelta(minutes=90))
        await virtual_clock.advance(3 * HOUR)
    # 01:00; then at 04:30 the latest that was missed; then 05:00 and 06:00
    assert [time.hour for time in ticks.times] == [1, 4, 5, 6]


@pytest.mark.parametrize(
    ("day", "cron", "fired"),
    [
        (datetime(2026, 3, 29), "30 2 * * *", 1),  # 02:30 does not exist
        (datetime(2026, 10, 25), "30 2 * * *", 1),  # 02:30 happens twice
    ],
)
def test_a_day_of_a_time_change_has_one_occurrence(day, cron, fired):
    # Q5
    clock = VirtualClock(day.replace(tzinfo=ZoneInfo("Europe/Berlin")))
    ticks = Ticks(clock)

    async def main():
        async with create_work(work=[ticks.type], now=clock) as work:
            work.schedule("nightly", ticks.type(), cron=cron, tz="Europe/Berlin")
            await clock.advance(timedelta(hours=12))

    clock.run(main())
    assert len(ticks) == fired


def test_the_29th_of_february_is_waited_for_over_years():
    # Q5
    found = next_after("0 0 29 2 *", datetime(2026, 3, 1, tzinfo=UTC))
    assert found is not None
    assert (found.year, found.month, found.day) == (2028, 2, 29)


async def test_a_schedule_by_function_ends_when_it_returns_nothing(virtual_clock, backend, ticks):
    # S112
    answers = [timedelta(minutes=1), timedelta(minutes=1), None]

    def following(last):
        step = answers.pop(0) if answers else None
        return None if step is None else last + step

    async with create_work(work=[ticks.type], **backend) as work:
        work.schedule("x", ticks.type(), next=following)
        await virtual_clock.advance(HOUR)
    assert len(ticks) == 2
