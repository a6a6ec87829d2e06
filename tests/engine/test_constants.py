"""Every number of the engine is a setting or a named constant, in seconds; and what is left out."""

from __future__ import annotations

import dataclasses
import inspect

import pytest

from piecework import ConfigError, MemoryQueue, WorkContext, create_work, define_work
from piecework.clock import sleep
from piecework.engine.log import WorkLogFilter
from piecework.engine.settings import Settings
from piecework.ids import random_id
from piecework.ledger import PENDING_TTL
from piecework.retry import Retry, merge

#: The names of the reference's constants, ours, and their defaults in seconds.
CONSTANTS = [
    ("pop cap", "poll_cap", 512),
    ("result ttl", "result_ttl", 24 * 3600.0),
    ("orphan grace", "group_grace", 0.1),
    ("unknown type", "unknown_delay", 5.0),
    ("early arrival", "early", 1.0),
    ("schedule lease", "claim_ttl", 90.0),
    ("visibility", "visibility", 30.0),
    ("heartbeat", "heartbeat", 10.0),
    ("redrive count", "redrive_count", 10),
    ("longest poll", "poll_interval", 20.0),
    ("first fallback read", "fallback_first", 2.0),
    ("last fallback read", "fallback_last", 15.0),
]


@pytest.mark.parametrize(("what", "name", "default"), CONSTANTS)
def test_a_constant_is_a_setting_with_its_default(what, name, default):
    # S150
    assert getattr(Settings(), name) == default
    changed = dataclasses.replace(Settings(), **{name: type(default)(3)})
    assert getattr(changed, name) == 3


def test_stop_drains_five_seconds_by_default():
    # S150
    stop = inspect.signature(create_work().stop)
    assert stop.parameters["drain"].default == 5.0


def test_records_of_open_works_outlive_the_longest_message():
    # S150
    assert PENDING_TTL > 14 * 24 * 3600


@pytest.mark.parametrize(
    "options",
    [
        {"poll_interval": 0},
        {"visibility": 0},
        {"result_ttl": 0},
        {"visibility": 10, "heartbeat": 6},
        {"redrive_count": -1},
        {"start_after": -1},
    ],
)
def test_numbers_out_of_range_are_refused_by_name(options):
    # S150
    with pytest.raises(ConfigError, match=next(reversed(options))):
        create_work(**options)


def test_settings_are_what_create_work_was_given():
    # S150
    work = create_work(visibility=60, result_ttl=5, max_redrives=1, prefix="x:")
    settings = work.settings
    assert (settings.visibility, settings.heartbeat) == (60, 20)
    assert (settings.result_ttl, settings.max_redrives, settings.prefix) == (5, 1, "x:")


# ---- unique at the level of the engine ---------------------------------------------------------


async def test_a_unique_key_drops_a_second_work_until_the_first_has_ended(virtual_clock, backend):
    # S136
    runs = []

    @define_work
    async def sync(n: int) -> int:
        runs.append(n)
        await sleep(10)
        return n

    async with create_work(work=[sync], **backend) as work:
        first = await work.enqueue(sync(1), unique="account-1")
        second = await work.enqueue(sync(2), unique="account-1")
        other = await work.enqueue(sync(3), unique="account-2")
        assert second.id == first.id
        assert await second.result() == 1
        assert await other.result() == 3
        third = await work.enqueue(sync(4), unique="account-1")
        assert third.id != first.id
        assert await third.result() == 4
    assert runs == [1, 3, 4]


async def test_a_unique_key_holds_through_retries_and_until_the_work_is_dead(
    virtual_clock, backend
):
    # S136
    @define_work(retry=Retry(attempts=2, base=100, max=100, jitter=0))
    async def failing() -> None:
        raise ValueError("no")

    async with create_work(work=[failing], **backend) as work:
        first = await work.enqueue(failing(), unique="k")
        await virtual_clock.advance(50)
        assert (await work.enqueue(failing(), unique="k")).id == first.id
        await first.group()
        assert (await work.enqueue(failing(), unique="k")).id != first.id


async def test_unique_for_holds_a_fixed_time(virtual_clock, backend):
    # S136
    @define_work
    async def quick() -> int:
        return 1

    async with create_work(work=[quick], **backend) as work:
        first = await work.enqueue(quick(), unique="k", unique_for=60)
        await first.result()
        await virtual_clock.advance(50)
        assert (await work.enqueue(quick(), unique="k", unique_for=60)).id == first.id
        await virtual_clock.advance(11)
        assert (await work.enqueue(quick(), unique="k", unique_for=60)).id != first.id


async def test_a_unique_child_joins_nobody_elses_group(virtual_clock, backend):
    # S136: the group that asked second does not wait for the first one's work
    @define_work
    async def slow() -> None:
        await sleep(100)

    @define_work
    async def parent(ctx: WorkContext) -> str:
        return str(await ctx.queue(slow(), unique="k"))

    async with create_work(work=[slow, parent], **backend) as work:
        first = await work.enqueue(parent())
        await first.result()
        second = await work.enqueue(parent())
        began = virtual_clock.now()
        await second
        assert (virtual_clock.now() - began).total_seconds() < 5
        await first
        assert (virtual_clock.now() - began).total_seconds() > 90


# ---- durability, internals -------------------------------------------------------------------


def test_a_queue_in_memory_takes_no_file():
    # S138: durability in one process is the SQLite backend
    assert set(inspect.signature(MemoryQueue).parameters) == {"now", "dead", "capabilities", "ids"}
    with pytest.raises(TypeError, match="file"):
        MemoryQueue(file="work.db")


async def test_the_internal_pieces(virtual_clock):
    # S149: sleep, ids, merge, an identity log context
    began = virtual_clock.now()
    await sleep(3)
    assert (virtual_clock.now() - began).total_seconds() == 3
    ids = {random_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert {id[14] for id in ids} == {"4"}
    merged = merge(Retry(attempts=5, base=2.0), None, Retry(attempts=7))
    assert (merged.attempts, merged.base) == (7, 2.0)
    assert create_work()._hooks.log_with is None
    assert WorkLogFilter().filter is not None
