"""Handles: results, groups, lost notices, and what waiting leaves behind."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from piecework import (
    ResultGoneError,
    Retry,
    WorkContext,
    WorkFailedError,
    define_work,
)
from piecework.clock import sleep


@define_work("add")
async def add(a: int, b: int) -> int:
    return a + b


@define_work("nap")
async def nap(seconds: float) -> str:
    await sleep(seconds)
    return "slept"


@define_work("fail", retry=Retry(attempts=1))
async def fail() -> None:
    raise ValueError("no")


async def test_a_result_arrives_from_another_system_at_once(make, virtual_clock):  # S45
    producer, worker = make(nap, auto_start=False), make(nap)
    await worker.start()
    handle = await producer.enqueue(nap(4.25))
    began = virtual_clock.now()
    assert await handle.result() == "slept"
    assert (virtual_clock.now() - began).total_seconds() == 4.25


@pytest.mark.parametrize("trouble", ["drops", "publish", "subscribe"])
async def test_a_result_arrives_within_a_fallback_read_without_notices(
    make, pubsub, virtual_clock, trouble, errors
):  # S45
    if trouble == "drops":
        pubsub.drops = True
    else:
        pubsub.plan.fail(trouble, 1000)
    work = make(nap, on_error=errors)
    for seconds in (0.5, 3):
        handle = await work.enqueue(nap(seconds))
        began = virtual_clock.now()
        assert await handle.result() == "slept"
        waited = (virtual_clock.now() - began).total_seconds()
        assert seconds <= waited <= seconds + 3.01
    group = await work.enqueue(nap(0.5))
    assert await group is None
    assert bool(errors) == (trouble != "drops")


async def test_the_fallback_read_grows_and_stays_below_its_limit(make, pubsub, store):  # S45
    pubsub.drops = True
    work = make(nap, start_after=1000)
    handle = await work.enqueue(nap(299))
    assert await handle.result() == "slept"
    assert 15 < store.plan.count("read") < 35


async def test_a_waiter_outlives_a_store_that_is_away(make, store, errors):  # S45 Q7
    work = make(nap, on_error=errors)
    handle = await work.enqueue(nap(1))
    waiting = asyncio.create_task(handle.result())
    await sleep(0.5)
    store.plan.fail("read", 2)
    store.plan.fail("write", 3)
    assert await waiting == "slept"
    assert errors


async def test_a_dead_work_rejects_with_its_error(make):  # S46
    work = make(fail)
    handle = await work.enqueue(fail())
    with pytest.raises(WorkFailedError, match=r"^ValueError: no$") as caught:
        await handle.result()
    error = caught.value
    assert (error.id, error.type, error.error_type) == (handle.id, "fail", "ValueError")
    assert 'raise ValueError("no")' in error.traceback
    assert (await handle.state()).error == "ValueError: no"


async def test_a_group_resolves_whatever_becomes_of_its_works(make):  # S47
    @define_work("parent", retry=Retry(attempts=1))
    async def parent(ctx: WorkContext) -> None:
        ctx.queue([fail(), fail()])
        raise ValueError("no")

    work = make(parent, fail)
    handle = await work.enqueue(parent())
    assert await handle is None
    assert await handle.group() is None
    assert {s.status for s in await work.list()} == {"dead"}


async def test_after_a_redrive_the_old_error_does_not_win(make):  # S48
    broken = [True]

    @define_work("mended", retry=Retry(attempts=1))
    async def mended(ctx: WorkContext) -> str:
        if broken:
            raise ValueError("no")
        ctx.set_result("group's")
        return "ok"

    work = make(mended)
    handle = await work.enqueue(mended())
    with pytest.raises(WorkFailedError):
        await handle.result()
    assert await handle is None
    broken.clear()
    assert await work.redrive([handle.id]) == 1
    assert await handle.result() == "ok"
    assert await handle == "group's"
    state = await handle.state()
    assert (state.status, state.error) == ("success", None)


async def test_the_result_of_nothing_is_none(make):  # S49
    async def nothing() -> None: ...

    async def untyped():
        return None

    work = make(define_work("nothing", nothing), define_work("untyped", untyped))
    assert await work.run("nothing") is None
    assert await work.run("untyped") is None


async def test_junk_on_the_channel_breaks_no_waiter(make, pubsub, loop_errors):  # S51
    work = make(nap)
    handle = await work.enqueue(nap(1))
    waiting = asyncio.create_task(handle.result())
    await sleep(0.1)
    for junk in (
        "",
        "junk",
        "null",
        "[]",
        "{}",
        "[1, 2]",
        '["done"]',
        '["done", 5]',
        '["what", "id"]',
        '["done", "id", 1, 2, 3]',
        f'["progress", "{handle.id}"]',
        f'["progress", "{handle.id}", {{"a": 1}}]',
        f'["progress", "{handle.id}", [1, 2, 3, 4, 5]]',
        "[" * 100_000,
    ):
        await pubsub.publish(junk)
    assert await waiting == "slept"
    assert loop_errors == []


async def test_a_notice_of_a_work_that_goes_on_wakes_nobody_for_good(make, pubsub):  # S51
    work = make(nap)
    handle = await work.enqueue(nap(1))
    waiting = asyncio.create_task(handle.result())
    await sleep(0.5)
    await pubsub.publish(f'["done", "{handle.id}"]')
    await sleep(0.1)
    assert not waiting.done()
    assert await waiting == "slept"


async def test_waiting_leaves_no_listener_and_no_place(make, pubsub):  # S52
    work = make(nap, fail)
    handles = [await work.enqueue(nap(1)) for _ in range(5)]
    assert await asyncio.gather(*(h.result() for h in handles)) == ["slept"] * 5
    assert len(pubsub.open_subscriptions) == 1
    assert work._engine.waiters.count == 0
    await work.stop()
    assert pubsub.open_subscriptions == set()


async def test_a_thousand_cancelled_waiters_leave_nothing(make, pubsub):  # S52 Q6
    work = make(nap)
    handle = await work.enqueue(nap(5))
    waiting = [asyncio.create_task(handle.result()) for _ in range(500)]
    waiting += [asyncio.create_task(handle.group()) for _ in range(500)]
    await sleep(0.1)
    assert work._engine.waiters.count == 1000
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    assert work._engine.waiters.count == 0
    assert work._engine.waiters._waiting == {}
    assert await handle.result() == "slept"


async def test_a_timeout_of_waiting_leaves_the_work_alone(make, virtual_clock):
    work = make(nap)
    handle = await work.enqueue(nap(5))
    with pytest.raises(TimeoutError):
        await handle.result(timeout=1)
    with pytest.raises(TimeoutError):
        await handle.group(timeout=1)
    assert await handle.result(timeout=10) == "slept"
    assert work.stats()["nap"]["started"] == 1


async def test_a_waiter_that_outlives_the_stop_leaves_no_listener(
    make, pubsub, virtual_clock
):  # S52
    one, two = make(nap), make(nap)
    handle = await one.enqueue(nap(30))
    await virtual_clock.advance(0.1)
    waiting = asyncio.create_task(handle.result())
    await virtual_clock.advance(0.1)
    await one.stop(drain=0)
    await two.start()
    assert await waiting == "slept"
    await two.stop()
    await sleep(0)
    assert pubsub.open_subscriptions == set()


async def test_an_unknown_id_has_no_result_and_no_state(make):
    work = make(add)
    handle = work.handle("unknown")
    with pytest.raises(ResultGoneError, match="no record of work unknown"):
        await handle.result()
    assert await handle is None
    assert await handle.state() is None
    assert await handle.cancel() is False


async def test_a_result_is_gone_after_its_time(make, virtual_clock):
    work = make(add, result_ttl=100)
    handle = await work.enqueue(add(1, 2))
    assert await handle.result() == 3
    await virtual_clock.advance(101)
    with pytest.raises(ResultGoneError):
        await handle.result()


async def test_many_wait_for_one_work_in_many_systems(make):
    systems = [make(nap) for _ in range(3)]
    handle = await systems[0].enqueue(nap(1))
    waits = [s.handle(handle.id).result() for s in systems for _ in range(10)]
    assert await asyncio.gather(*waits) == ["slept"] * 30


async def test_progress_is_heard_until_the_end(make, virtual_clock):
    @define_work("steps")
    async def steps(ctx: WorkContext) -> None:
        for n in range(4):
            ctx.progress(n, 4, f"step {n}")
            await sleep(2)

    work = make(steps)
    handle = await work.enqueue(steps())
    heard = [(p.done, p.total, p.message) async for p in handle.progress()]
    assert heard == [(n, 4, f"step {n}") for n in range(len(heard))]
    assert len(heard) >= 3


def test_a_program_that_does_not_stop_its_system_still_ends():  # S53
    code = """
import asyncio, threading
from piecework import create_work, define_work

@define_work("slow")
def slow() -> None:
    threading.Event().wait(60)

@define_work("add")
async def add(a: int, b: int) -> int:
    return a + b

async def main():
    work = create_work(work=[slow, add])
    await work.enqueue(slow())
    print(await work.run(add(1, 2)))

asyncio.run(main())
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=False
    )
    assert done.stdout.strip() == "3"
    assert done.returncode == 0


async def test_a_handle_that_nobody_awaits_reports_nothing(make, loop_errors, errors):  # Q7
    work = make(fail, on_error=errors)
    handle = await work.enqueue(fail())
    await sleep(1)
    del handle
    assert loop_errors == []
    assert errors == []
