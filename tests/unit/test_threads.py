from __future__ import annotations

import asyncio
import contextvars
import logging
import subprocess
import sys
import threading

import pytest

from piecework.clock import sleep
from piecework.engine.executors import (
    HandlerExitError,
    ThreadExecutor,
    ThreadInterrupted,
    describe,
)
from piecework.engine.executors.daemon_pool import DaemonPool
from piecework.engine.executors.threads import _Job
from piecework.errors import ConfigError, PieceworkError


@pytest.fixture
async def threads():
    executor = ThreadExecutor(max_workers=2, grace=0.05)
    yield executor
    await executor.close()


async def until(condition):
    async with asyncio.timeout(2):
        while not condition():
            await sleep(0.001)


def loop_for_ever(started: threading.Event, ended: threading.Event) -> None:
    try:
        started.set()
        while True:
            pass
    finally:
        ended.set()


async def test_a_function_runs_in_a_named_daemon_thread_and_returns_its_result(threads):
    thread = await threads.run(threading.current_thread)
    assert thread.name == "piecework-thread-1"
    assert thread.daemon
    assert thread is await threads.run(threading.current_thread)
    assert threads.threads == 1


async def test_the_context_of_the_caller_is_seen_and_not_changed(threads):
    name = contextvars.ContextVar("name", default="")
    name.set("outer")

    def change() -> str:
        seen = name.get()
        name.set("inner")
        return seen

    assert await threads.run(change) == "outer"
    assert name.get() == "outer"


async def test_an_exception_reaches_the_caller_as_it_is(threads):  # B27
    error = KeyError("a")

    def fail() -> None:
        raise error

    with pytest.raises(KeyError) as caught:
        await threads.run(fail)
    assert caught.value is error


@pytest.mark.parametrize(
    "error",
    [SystemExit(3), KeyboardInterrupt("x"), StopIteration("x"), asyncio.CancelledError("x")],
)
async def test_what_would_end_more_than_the_handler_is_contained(threads, error):  # B27
    def fail() -> None:
        raise error

    with pytest.raises(HandlerExitError, match=type(error).__name__) as caught:
        await threads.run(fail)
    assert caught.value.__cause__ is error
    assert caught.value.error_type == type(error).__name__
    assert await threads.run(lambda: 1) == 1


def test_an_exit_error_without_text_names_its_type():
    assert str(HandlerExitError("GeneratorExit")).startswith("the handler raised GeneratorExit. ")


async def test_more_calls_than_threads_wait_for_a_thread(threads):
    gate = threading.Event()
    runs = [asyncio.create_task(threads.run(gate.wait)) for _ in range(5)]
    await until(lambda: threads.threads == 2)
    gate.set()
    assert await asyncio.gather(*runs) == [True] * 5
    assert threads.threads == 2


async def test_a_timeout_interrupts_a_busy_loop(threads):  # Q10
    started, ended = threading.Event(), threading.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.02):
            await threads.run(lambda: loop_for_ever(started, ended))
    assert ended.is_set()
    assert await threads.run(lambda: 1) == 1
    assert threads.threads == 1


async def test_a_handler_that_swallows_the_interruption_is_still_cancelled(threads):
    started = threading.Event()

    def swallow() -> str:
        try:
            started.set()
            while True:
                pass
        except ThreadInterrupted:
            return "I go on"

    task = asyncio.create_task(threads.run(swallow))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await threads.run(lambda: 1) == 1


async def test_a_blocking_call_is_given_up_with_a_warning_and_its_thread_replaced(threads, caplog):
    gates = [threading.Event() for _ in range(2)]
    tasks = [asyncio.create_task(threads.run(gate.wait, name="send_mail")) for gate in gates]
    waiting = asyncio.create_task(threads.run(lambda: "ran"))
    await until(lambda: threads.threads == 2)
    with caplog.at_level(logging.WARNING, "piecework"):
        for task in tasks:
            task.cancel()
        for task in tasks:
            with pytest.raises(asyncio.CancelledError):
                await task
    assert await waiting == "ran"  # in a new thread
    assert [r.getMessage().startswith("send_mail did not end") for r in caplog.records] == [
        True
    ] * 2
    for gate in gates:
        gate.set()
    await until(lambda: not any("given-up" in t.name for t in threading.enumerate()))


async def test_a_handler_that_was_given_up_is_interrupted_on(threads):
    started, swallowed, ended = (threading.Event() for _ in range(3))

    def swallow_once() -> None:
        started.set()
        try:
            while True:
                pass
        except ThreadInterrupted:
            swallowed.set()
        try:
            while True:
                pass
        finally:
            ended.set()

    task = asyncio.create_task(threads.run(swallow_once))
    await until(started.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(ended.is_set)
    assert swallowed.is_set()


async def test_a_call_that_waits_for_a_thread_can_be_cancelled(threads):
    gate, ran = threading.Event(), []
    busy = [asyncio.create_task(threads.run(gate.wait)) for _ in range(2)]
    await sleep(0)
    waiting = asyncio.create_task(threads.run(lambda: ran.append(1)))
    await sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    gate.set()
    await asyncio.gather(*busy)
    assert ran == []


async def test_a_second_cancel_does_not_wait_for_the_thread():
    threads = ThreadExecutor(max_workers=1, grace=0.3)
    gate = threading.Event()
    task = asyncio.create_task(threads.run(gate.wait))
    await until(lambda: threads.threads == 1)
    task.cancel()
    await sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        async with asyncio.timeout(0.1):
            await task
    gate.set()
    await threads.close()


async def test_an_interruption_never_hits_the_next_call_of_the_thread():
    threads = ThreadExecutor(max_workers=1)
    for number in range(200):
        task = asyncio.create_task(threads.run(lambda: sum(range(200))))
        for _ in range(number % 3):
            await sleep(0)
        task.cancel()
        nxt = asyncio.create_task(threads.run(lambda: sum(range(500))))
        assert await nxt == 124_750
        await asyncio.gather(task, return_exceptions=True)
    await threads.close()


def test_a_job_that_was_cancelled_before_it_started_does_not_run():
    ran = []
    job = _Job(lambda: ran.append(1), contextvars.copy_context())
    assert not job.cancel()
    job()
    assert isinstance(job.error, PieceworkError)
    assert ran == []


def test_a_job_that_was_interrupted_as_it_ended_ends_once():
    context = contextvars.copy_context()
    job = _Job(lambda: 1, context)
    leave, strikes = job._leave, [ThreadInterrupted()]

    class Struck(_Job):
        def _leave(self):
            if strikes:
                raise strikes.pop()
            leave()

    job = Struck(lambda: 1, context)
    leave = super(Struck, job)._leave
    job()
    assert job.result == 1
    assert job.interrupt_until_ended(0.0)
    assert not job.cancel()


async def test_calls_are_visible_on_the_loop_as_executor_calls(threads, monkeypatch):
    loop, seen = asyncio.get_running_loop(), []
    original = loop.run_in_executor

    def counted(executor, fn, *args):
        seen.append(executor)
        return original(executor, fn, *args)

    monkeypatch.setattr(loop, "run_in_executor", counted)
    await threads.run(lambda: None)
    assert len(seen) == 1


async def test_close_waits_and_then_interrupts():
    threads = ThreadExecutor(max_workers=2, grace=0.05)
    started, ended = threading.Event(), threading.Event()
    task = asyncio.create_task(threads.run(lambda: loop_for_ever(started, ended)))
    await until(started.is_set)
    await threads.close(grace=0.01)
    assert ended.is_set()
    with pytest.raises(HandlerExitError, match="ThreadInterrupted"):
        await task
    await threads.close()
    with pytest.raises(PieceworkError, match="closed"):
        await threads.run(lambda: 1)


async def test_close_gives_up_what_is_stuck_and_fails_what_never_started():
    threads = ThreadExecutor(max_workers=1, grace=0.02)
    gate = threading.Event()
    stuck = asyncio.create_task(threads.run(gate.wait))
    await until(lambda: threads.threads == 1)
    waiting = asyncio.create_task(threads.run(lambda: "never"))
    await sleep(0)
    await threads.close()
    for task in (stuck, waiting):
        with pytest.raises(PieceworkError, match="closed"):
            await task
    gate.set()


def test_a_stuck_handler_does_not_hold_the_interpreter():  # S53
    script = (
        "import asyncio, threading, time\n"
        "from piecework.engine.executors import ThreadExecutor\n"
        "async def main():\n"
        "    started = threading.Event()\n"
        "    stuck = lambda: (started.set(), time.sleep(60))\n"
        "    task = asyncio.create_task(ThreadExecutor(grace=0).run(stuck))\n"
        "    await asyncio.to_thread(started.wait)\n"
        "    task.cancel()\n"
        "    await asyncio.wait([task])\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], check=False, timeout=10, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "did not end 0 s after" in done.stderr


@pytest.mark.parametrize("options", [{"max_workers": 0}, {"grace": -1}])
def test_options_that_cannot_be_used_are_refused(options):
    with pytest.raises(ConfigError):
        ThreadExecutor(**options)


def test_the_pool_keeps_the_promises_of_an_executor():
    pool = DaemonPool("pool", 1)
    gate, started = threading.Event(), threading.Event()

    def wait() -> bool:
        started.set()
        return gate.wait(2)

    first = pool.submit(wait)
    started.wait(2)
    second = pool.submit(int, "7")
    third = pool.submit(int, "8")
    assert third.cancel()
    gate.set()
    assert [first.result(2), second.result(2)] == [True, 7]
    assert isinstance(pool.submit(int, "x").exception(2), ValueError)
    assert pool.started == 1
    assert not pool.join(0)
    gate.clear()
    started.clear()
    last = pool.submit(wait)
    started.wait(2)
    dropped = pool.submit(int, "9")
    pool.shutdown(wait=False, cancel_futures=True)
    assert dropped.cancelled()
    gate.set()
    pool.shutdown()
    assert (last.result(), pool.live) == (True, 0)
    assert not pool.give_up(threading.get_ident())


@pytest.mark.parametrize("broken", [False, True])
def test_any_exception_comes_down_to_text(broken, monkeypatch):  # B27
    class BadError(Exception):
        def __str__(self):
            raise RuntimeError("no")

    def explode(*args):
        raise RuntimeError("no")

    if broken:
        monkeypatch.setattr("traceback.format_exception", explode)
    try:
        raise BadError
    except BadError as error:
        text = describe(error)
    assert text.error_type == "BadError"
    assert text.text == "<no text: __str__ raised RuntimeError>"
    assert "test_threads.py" in text.traceback


def test_a_long_text_is_cut_and_what_cannot_be_stored_is_replaced():
    text = describe(ValueError("\udc80" + "x" * 9_000)).text
    assert text == "\ufffd" + "x" * 7_999
