from __future__ import annotations

import asyncio
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from piecework import clock as clock_module
from piecework.clock import Clock, SystemClock, as_clock
from piecework.errors import ConfigError
from piecework.testing.virtual_clock import VirtualClock


async def test_an_hour_of_sleeps_takes_milliseconds(virtual_clock: VirtualClock):
    began = time.perf_counter()
    for _ in range(3600):
        await asyncio.sleep(1)
    assert time.perf_counter() - began < 60  # of an hour
    assert virtual_clock.now() == datetime(2026, 1, 1, 1, tzinfo=UTC)


def test_the_clock_is_a_clock_and_starts_where_it_is_told():
    start = datetime(2030, 5, 6, 7, 8, 9, tzinfo=UTC)
    clock = VirtualClock(start)
    assert isinstance(clock, Clock)
    assert as_clock(clock) is clock
    assert clock.now() == start
    assert clock.now_ms() == int(start.timestamp() * 1000)


def test_a_start_without_time_zone_is_refused():
    with pytest.raises(ConfigError, match="no time zone"):
        VirtualClock(datetime(2030, 1, 1))


async def test_timers_run_in_the_order_of_their_due_times(virtual_clock: VirtualClock):
    seen: list[tuple[str, float]] = []
    loop = asyncio.get_running_loop()
    begin = loop.time()
    for name, delay in (("c", 300.0), ("a", 0.5), ("b", 60.0), ("d", 200_000.0)):
        loop.call_later(delay, lambda name=name: seen.append((name, loop.time() - begin)))
    await virtual_clock.advance(timedelta(seconds=300))
    assert seen == [("a", 0.5), ("b", 60.0), ("c", 300.0)]
    await virtual_clock.advance(200_000)  # longer than the longest wait of asyncio, a day
    assert seen[-1] == ("d", 200_000.0)


async def test_advance_lets_run_what_is_due_at_that_very_moment(virtual_clock: VirtualClock):
    seen: list[str] = []

    async def chain() -> None:
        await asyncio.sleep(10)
        for _ in range(5):
            await asyncio.sleep(0)
        seen.append("due")
        await asyncio.sleep(0.001)
        seen.append("late")

    task = asyncio.create_task(chain())
    await virtual_clock.advance(10)
    assert seen == ["due"]
    await task


async def test_advance_by_nothing_lets_run_what_is_ready(virtual_clock: VirtualClock):
    before = virtual_clock.now_ms()
    done = asyncio.create_task(asyncio.sleep(0))
    await virtual_clock.advance()
    assert done.done()
    assert virtual_clock.now_ms() == before


async def test_a_cancelled_advance_leaves_the_others_alone(virtual_clock: VirtualClock):
    both = [asyncio.create_task(virtual_clock.advance()) for _ in range(2)]
    for _ in range(2):  # until both wait for an idle loop
        await asyncio.sleep(0)
    both[0].cancel()
    results = await asyncio.gather(*both, return_exceptions=True)
    assert isinstance(results[0], asyncio.CancelledError)
    assert results[1] is None


async def test_advance_in_a_real_loop_says_what_to_do():
    with pytest.raises(RuntimeError, match="runs in real time"):
        await VirtualClock().advance(1)


async def test_timeouts_are_virtual(virtual_clock: VirtualClock):
    began = virtual_clock.now_ms()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(900):
            await asyncio.Event().wait()
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 100)
    assert virtual_clock.now_ms() - began == 1_000_000


async def test_stamps_never_lie_before_the_timer_that_woke(virtual_clock: VirtualClock):
    began = virtual_clock.now_ms()
    for count in range(1, 2001):
        await asyncio.sleep(0.001)
        assert virtual_clock.now_ms() == began + count


async def test_systems_without_a_clock_of_their_own_get_virtual_stamps(virtual_clock: VirtualClock):
    await virtual_clock.advance(5)
    assert SystemClock().now_ms() == virtual_clock.now_ms()


async def test_work_in_threads_runs_at_real_pace(virtual_clock: VirtualClock):
    began = virtual_clock.now_ms()
    async with asyncio.timeout(10):  # virtual time that jumped here would end it
        await asyncio.to_thread(time.sleep, 0.005)
    assert virtual_clock.now_ms() - began < 5000


async def test_timers_fire_at_real_pace_while_a_thread_works(virtual_clock: VirtualClock):
    go = threading.Event()
    loop = asyncio.get_running_loop()
    work = loop.run_in_executor(None, go.wait)
    await asyncio.sleep(0.003)
    go.set()
    assert await work
    before = virtual_clock.now_ms()
    await asyncio.sleep(3600)
    assert virtual_clock.now_ms() - before == 3_600_000


async def test_advance_does_not_wait_for_a_thread(virtual_clock: VirtualClock):
    go = threading.Event()
    work = asyncio.create_task(asyncio.to_thread(go.wait))
    await virtual_clock.advance(0.001)
    assert not work.done()
    go.set()
    assert await work


async def test_an_executor_that_refuses_work_does_not_slow_time(virtual_clock: VirtualClock):
    pool = ThreadPoolExecutor(1)
    pool.shutdown()
    with pytest.raises(RuntimeError, match="shutdown"):
        asyncio.get_running_loop().run_in_executor(pool, time.perf_counter)
    began = time.perf_counter()
    await asyncio.sleep(3600)
    assert time.perf_counter() - began < 60  # of an hour


async def test_real_pace_holds_time_for_threads_of_ones_own(virtual_clock: VirtualClock):
    loop = asyncio.get_running_loop()
    done = loop.create_future()

    def work() -> None:
        time.sleep(0.003)
        loop.call_soon_threadsafe(done.set_result, "done")

    thread = threading.Thread(target=work)
    with virtual_clock.real_pace():
        thread.start()
        async with asyncio.timeout(10):
            assert await done == "done"
    thread.join()


async def test_sockets_work(virtual_clock: VirtualClock):
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(60)
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        port = server.sockets[0].getsockname()[1]
        async with asyncio.timeout(100):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()


async def test_a_loop_without_timers_waits_for_its_sockets(virtual_clock: VirtualClock):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        answer = threading.Timer(0.005, theirs.send, [b"x"])
        answer.start()
        before = virtual_clock.now_ms()
        assert await asyncio.get_running_loop().sock_recv(ours, 1) == b"x"
        answer.join()
    assert virtual_clock.now_ms() == before


async def test_loops_in_other_threads_stay_real(virtual_clock: VirtualClock):
    async def nap() -> float:
        began = time.perf_counter()
        await asyncio.sleep(0.005)
        return time.perf_counter() - began

    assert await asyncio.to_thread(lambda: asyncio.run(nap())) >= 0.004


def test_everything_is_restored_afterwards():
    run_once, wall_ms = asyncio.BaseEventLoop._run_once, clock_module.wall_ms
    loop = asyncio.new_event_loop()
    before = dict(vars(loop))
    with VirtualClock().patched():
        loop.run_until_complete(asyncio.sleep(100))
        assert loop.time() == 100
    assert asyncio.BaseEventLoop._run_once is run_once
    assert clock_module.wall_ms is wall_ms
    assert vars(loop).keys() == before.keys()
    assert "select" not in vars(loop._selector)
    assert loop.time() != 100
    loop.run_until_complete(asyncio.sleep(0.001))
    loop.close()


def test_timers_keep_their_distance_when_time_changes_hands():
    loop = asyncio.new_event_loop()
    seen: list[float] = []
    clock = VirtualClock()
    loop.call_later(50, lambda: seen.append(loop.time()))
    clock.install(loop)
    clock.install(loop)
    loop.run_until_complete(clock.advance(60))
    assert seen == [pytest.approx(50, abs=0.1)]
    late = loop.call_later(70, seen.clear)
    clock.uninstall(loop)
    clock.uninstall(loop)
    assert late.when() - loop.time() == pytest.approx(70, abs=0.5)
    loop.close()


def test_a_loop_follows_one_clock_only():
    loop = asyncio.new_event_loop()
    first, second = VirtualClock(), VirtualClock()
    first.install(loop)
    with pytest.raises(RuntimeError, match="another VirtualClock"):
        second.install(loop)
    first.uninstall(loop)
    loop.close()


def test_the_inner_of_two_clocks_owns_the_loops_that_run_meanwhile():
    with VirtualClock().patched() as outer:
        with VirtualClock().patched() as inner:
            asyncio.run(asyncio.sleep(5))
        asyncio.run(asyncio.sleep(7))
    assert (inner.now() - outer.now()).total_seconds() == -2


def test_a_loop_without_a_selector_is_refused():
    class Other(asyncio.AbstractEventLoop):
        pass

    with pytest.raises(RuntimeError, match="Other is not"):
        VirtualClock().install(Other())


def test_run_gives_the_result_and_time_goes_on_over_several_runs():
    clock = VirtualClock()

    async def main() -> str:
        await asyncio.to_thread(time.sleep, 0)
        await asyncio.sleep(3600)
        return "done"

    assert clock.run(main()) == "done"
    assert clock.run(main()) == "done"
    assert clock.now() - datetime(2026, 1, 1, 2, tzinfo=UTC) < timedelta(seconds=5)


def test_a_loop_with_nothing_left_to_wait_for_fails_and_names_the_tasks():
    clock = VirtualClock(patience=0.001)

    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(6):
                group.create_task(wait_for_ever(), name=f"stuck-{number}")

    with pytest.raises(RuntimeError, match=r"nothing left.*\(.*main\).*stuck-0 .* and 2 more"):
        clock.run(main())


def test_another_thread_may_still_wake_a_loop_that_has_nothing_to_wait_for():
    async def main() -> str:
        loop = asyncio.get_running_loop()
        done = loop.create_future()
        thread = threading.Timer(0.005, loop.call_soon_threadsafe, [done.set_result, "woken"])
        thread.start()
        result = await done
        thread.join()
        return result

    assert VirtualClock().run(main()) == "woken"


async def test_timers_ring_after_centuries_too(virtual_clock):
    for _ in range(3):
        await virtual_clock.advance(40 * 365 * 86_400)
        await asyncio.sleep(0.3)
