from __future__ import annotations

import asyncio
import contextlib
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import types
from datetime import UTC, datetime
from pathlib import Path

import psutil
import pytest

from piecework.clock import sleep
from piecework.engine.executors import (
    HandlerError,
    ProcessExecutor,
    WorkerDiedError,
    child,
    worker_process,
)
from piecework.engine.executors.outcome import decode_error, encode_error
from piecework.engine.executors.processes import ProcessStats, check_main_guard, check_target
from piecework.engine.executors.worker_process import WorkerProcess
from piecework.errors import ConfigError, InvalidWorkError, PieceworkError
from piecework.signals import RetryAbort, WorkDelayError

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def handlers(monkeypatch):
    """Worker processes get this process's ``sys.path``."""
    monkeypatch.syspath_prepend(str(SUPPORT))


@pytest.fixture
async def pool():
    executor = ProcessExecutor(max_workers=1)
    yield executor
    await executor.close()


async def no_rpc(method, args):
    raise AssertionError(method)


async def run(pool, name, rpc=no_rpc, **fields):
    return json.loads(await pool.run(f"process_handlers:{name}", json.dumps(fields), {}, rpc))


async def until(condition):
    async with asyncio.timeout(5):
        while not condition():
            await sleep(0.005)


def workers():
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if "spawn_main" in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


async def test_handlers_of_both_kinds_run_and_every_end_comes_back(pool):  # B27
    assert await run(pool, "add", a=1, b=2) == 3
    assert await run(pool, "add_later", a=1, b=2) == 3
    with pytest.raises(HandlerError, match="no such file") as caught:
        await run(pool, "fail")
    error = caught.value
    assert (error.error_type, error.kind) == ("FileNotFoundError", "error")
    assert error.path == "builtins:FileNotFoundError"
    assert "in fail" in error.traceback
    with pytest.raises(HandlerError) as caught:
        await run(pool, "fail_awkwardly")
    assert caught.value.error_type == "AwkwardError"
    assert caught.value.text == "<no text: __str__ raised ValueError>"
    with pytest.raises(HandlerError) as caught:
        await run(pool, "quit_python")
    assert (caught.value.error_type, str(caught.value)) == ("SystemExit", "3")
    with pytest.raises(InvalidWorkError, match="return_lock': field 'result': cannot keep"):
        await run(pool, "return_lock")
    with pytest.raises(HandlerError, match="cannot find 'process_handlers:nothing'"):
        await run(pool, "nothing")
    assert await run(pool, "send_interrupt") == "alive"
    assert pool.stats == ProcessStats(started=1, idle=1, busy=0)


async def test_signals_of_a_handler_arrive_as_themselves(pool):
    with pytest.raises(WorkDelayError) as delay:
        await run(pool, "put_off")
    assert (delay.value.delay, delay.value.run_at) == (42.0, None)
    with pytest.raises(WorkDelayError) as delay:
        await run(pool, "put_off", run_at=True)
    assert delay.value.run_at == datetime(2031, 5, 1, tzinfo=UTC)
    with pytest.raises(RetryAbort, match="card was stolen") as abort:
        await run(pool, "abort")
    assert type(abort.value.cause) is type(RetryAbort("x").cause)
    with pytest.raises(RetryAbort) as abort:
        await run(pool, "abort", cause="exception")
    cause = abort.value.cause
    assert isinstance(cause, HandlerError)
    assert (cause.error_type, cause.text, cause.kind) == ("KeyError", "'gone'", "abort")
    with pytest.raises(InvalidWorkError) as invalid:
        await run(pool, "refuse")
    assert str(invalid.value) == "work type 't': field 'a': must be even. Double it"


async def test_a_work_type_asks_the_parent_over_the_pipe(pool):
    calls = []

    async def rpc(method, args):
        calls.append((method, args))
        if args[0] == "denied":
            raise InvalidWorkError("denied")
        if args[0] == "broken":
            return threading.Lock()
        return args[0] * 2

    async def ask(text):
        return await pool.run("process_handlers:echo", text, {"attempt": 3}, rpc)

    assert await ask("ab") == "abab 8"
    assert calls == [("echo", ["ab", 2]), ("twice", [4])]
    assert await ask("info") == "3"
    with pytest.raises(InvalidWorkError, match="denied"):
        await ask("denied")
    with pytest.raises(HandlerError, match="not JSON serializable"):
        await ask("broken")
    with pytest.raises(InvalidWorkError, match="arguments of 'echo' cannot be written"):
        await ask("bad argument")
    with pytest.raises(InvalidWorkError, match="returned no text"):
        await ask("wrong")
    with pytest.raises(HandlerError, match="surrogates not allowed"):
        await ask("lone surrogate")
    assert await ask("late") == "done"
    with pytest.raises(HandlerError, match="after the handler had returned"):
        await ask("use late")
    assert await ask("ok" * 200_000)  # more than a pipe holds


async def test_a_process_that_exits_fails_its_job_and_is_replaced(pool):  # B16
    with pytest.raises(WorkerDiedError, match="worker died: exit code 9") as died:
        await run(pool, "leave", code=9)
    assert died.value.exit_code == 9
    assert await run(pool, "add", a=1, b=1) == 2
    assert pool.stats.started == 2


async def test_a_process_that_is_killed_while_it_runs_fails_its_job(pool, tmp_path):  # B16
    path = tmp_path / "pid"
    task = asyncio.create_task(run(pool, "spin", path=str(path)))
    await until(lambda: path.exists() and path.read_text())
    os.kill(int(path.read_text()), signal.SIGKILL)
    with pytest.raises(WorkerDiedError, match=r"exit code -9 \(SIGKILL\)\. .*out of memory"):
        await task


async def test_a_pipe_that_an_heir_holds_open_does_not_hide_the_death(pool, monkeypatch):
    monkeypatch.setattr("piecework.engine.executors.worker_process._LOOK_EVERY", 0.05)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        async with asyncio.timeout(2):
            await run(pool, "kill_self", with_heir=True)


async def test_a_handler_that_closes_the_pipe_fails(pool, monkeypatch):
    monkeypatch.setattr("piecework.engine.executors.worker_process._EXIT_CODE_WAIT", 0.02)
    with pytest.raises(WorkerDiedError, match="worker died: it closed its pipe"):
        await run(pool, "close_all_files")


async def test_a_timeout_kills_a_busy_loop(pool, tmp_path):  # Q10
    path = tmp_path / "pid"
    timeout = asyncio.timeout(None)

    async def spin():
        async with timeout:
            await run(pool, "spin", path=str(path))

    task = asyncio.create_task(spin())
    await until(lambda: path.exists() and path.read_text())
    timeout.reschedule(asyncio.get_running_loop().time())
    with pytest.raises(TimeoutError):
        await task
    assert not psutil.pid_exists(int(path.read_text()))
    assert pool.stats == ProcessStats(started=1, idle=0, busy=0)


async def test_a_job_cancelled_while_its_process_starts_leaves_none(pool):
    task = asyncio.create_task(run(pool, "pid"))
    await until(lambda: pool.stats.started)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert workers() == []


async def test_an_idle_process_that_died_is_replaced_unseen(pool):
    first = await run(pool, "pid")
    os.kill(first, signal.SIGKILL)
    await until(lambda: not pool._idle[0].is_alive())
    assert await run(pool, "pid") != first


async def test_jobs_reuse_their_processes_and_close_leaves_none():
    pool = ProcessExecutor(max_workers=2)
    await pool.start()
    assert pool.stats == ProcessStats(started=2, idle=2, busy=0)
    pids = await asyncio.gather(*(run(pool, "nap") for _ in range(20)))
    assert len(set(pids)) == 2
    await pool.start(1)
    assert pool.stats.started == 2
    await pool.close(1)
    assert workers() == []
    await pool.close()
    with pytest.raises(PieceworkError, match="closed"):
        await run(pool, "pid")


async def test_a_process_is_replaced_after_its_share_of_jobs():
    pool = ProcessExecutor(max_workers=1, max_tasks_per_process=2)
    pids = [await run(pool, "pid") for _ in range(3)]
    assert pids[0] == pids[1] != pids[2]
    await pool.close()
    assert workers() == []


async def test_close_waits_for_running_jobs_and_then_kills_them(tmp_path):
    pool = ProcessExecutor(max_workers=2)
    await pool.start(1)
    quick = asyncio.create_task(run(pool, "nap"))
    await until(lambda: pool.stats.busy)
    path = tmp_path / "pid"
    slow = asyncio.create_task(run(pool, "spin", path=str(path)))
    await until(path.exists)
    await pool.close(grace=0.1)
    assert await quick
    with pytest.raises(WorkerDiedError):
        await slow
    assert workers() == []


async def test_close_does_not_wait_for_an_answer_that_the_parent_owes():
    pool = ProcessExecutor(max_workers=1)
    asked, answer = asyncio.Event(), asyncio.Event()

    async def rpc(method, args):
        asked.set()
        await answer.wait()

    task = asyncio.create_task(pool.run("process_handlers:echo", "x", {}, rpc))
    await asked.wait()
    await pool.close()
    assert workers() == []
    answer.set()
    with pytest.raises(PieceworkError):
        await task


async def test_a_process_that_cannot_start_says_why(monkeypatch):
    pool = ProcessExecutor(max_workers=1)
    monkeypatch.setattr(child, "main", os._exit)  # os._exit(connection): the child fails
    with pytest.raises(WorkerDiedError, match="__main__"):
        await pool.start()
    await pool.close()


def test_an_error_of_the_parent_keeps_its_name_on_its_way_through_a_handler():
    first = HandlerError("no", error_type="OddError", traceback="tb", path="m:OddError")
    again = decode_error(encode_error(first))
    assert isinstance(again, HandlerError)
    assert (again.text, again.error_type, again.traceback) == ("no", "OddError", "tb")
    assert again.path == "m:OddError"


def test_a_worker_that_is_stopped_while_it_starts_is_killed(monkeypatch):
    worker = WorkerProcess("spawn", 1)
    original = worker_process._start_without_interrupts

    def start(process):
        worker.kill()
        original(process)

    monkeypatch.setattr(worker_process, "_start_without_interrupts", start)
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        worker.start()
    worker.put_away(0)
    worker.kill()


async def test_a_job_sent_to_a_process_that_just_died_fails(pool):
    pid = await run(pool, "pid")
    worker = pool._idle[0]
    os.kill(pid, signal.SIGKILL)
    await until(lambda: not worker.is_alive())
    with pytest.raises(WorkerDiedError, match="SIGKILL"):
        worker.exchange(b"{}", b"")


def test_a_worker_that_was_stopped_before_it_started_never_starts():
    worker = WorkerProcess("spawn", 1)
    worker.kill()
    with pytest.raises(WorkerDiedError, match="It was stopped"):
        worker.start()
    assert not worker.is_alive()
    worker.put_away(0)
    worker.put_away(0)
    assert worker.is_gone
    assert str(WorkerDiedError(-250)) == "worker died: exit code -250 (signal 250)"


SCRIPT = """
import asyncio, sys
from piecework.engine.executors import ProcessExecutor, check_target

def handler(a):
    return a + 1

async def rpc(method, args): ...

async def main():
    pool = ProcessExecutor(1)
    print(await pool.run(check_target(handler), '{"a": 1}', {}, rpc))
    if "--leave" not in sys.argv:
        await pool.close()
"""


def script(tmp_path, end, *args):
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + end)
    return subprocess.run(
        [sys.executable, str(path), *args], check=False, timeout=20, capture_output=True, text=True
    )


def test_a_handler_in_a_script_with_a_main_guard_runs_and_no_close_is_needed_to_exit(
    tmp_path,
):  # S53
    done = script(tmp_path, "if __name__ == '__main__': asyncio.run(main())", "--leave")
    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_a_script_without_a_main_guard_fails_with_the_fix(tmp_path):
    done = script(tmp_path, "asyncio.run(main())")
    assert done.returncode == 1
    assert "Put what starts it under `if __name__ == '__main__':`" in done.stderr
    assert "WorkerDiedError: worker died: exit code 1. It ended before it was ready" in done.stderr


async def test_worker_processes_end_with_their_parent(tmp_path):
    end = (
        "async def stay():\n"
        "    pool = ProcessExecutor(1)\n"
        "    await pool.start()\n"
        "    print(pool._idle[0]._process.pid, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "if __name__ == '__main__': asyncio.run(stay())\n"
    )
    path = tmp_path / "script.py"
    path.write_text(SCRIPT + end)
    with subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, text=True) as parent:  # noqa: ASYNC220 - a test may wait
        assert parent.stdout is not None
        worker = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
    await until(lambda: not worker.is_running() or worker.status() == psutil.STATUS_ZOMBIE)


def test_a_target_is_refused_if_a_worker_process_cannot_import_it(monkeypatch):
    assert check_target(json.dumps) == "json:dumps"
    assert check_target(json.JSONDecoder.decode) == "json.decoder:JSONDecoder.decode"
    for handler, fix in (
        (lambda: 1, "top level"),
        (functools.partial(int), "no name"),
        (test_a_target_is_refused_if_a_worker_process_cannot_import_it, ""),
    ):
        if fix:
            with pytest.raises(ConfigError, match=fix):
                check_target(handler)
    typed = types.FunctionType((lambda: 1).__code__, {"__name__": "__main__"}, "typed")
    typed.__qualname__ = "typed"
    monkeypatch.setitem(sys.modules, "__main__", types.ModuleType("__main__"))
    with pytest.raises(ConfigError, match="notebook"):
        check_target(typed)
    sys.modules["__main__"].__file__ = "script.py"
    assert check_target(typed) == "__main__:typed"


@pytest.mark.parametrize(
    "options",
    [{"max_workers": 0}, {"max_tasks_per_process": 0}, {"start_method": "fork"}],
)
def test_options_that_cannot_be_used_are_refused(options):
    with pytest.raises(ConfigError):
        ProcessExecutor(**options)


def test_a_process_that_imports_its_script_may_not_start_work(monkeypatch):
    monkeypatch.setattr(multiprocessing.current_process(), "_inheriting", True, raising=False)
    with pytest.raises(ConfigError, match="main"):
        check_main_guard()
    monkeypatch.delitem(sys.modules, "multiprocessing.process")
    check_main_guard()


# The rest runs the child's side in a thread of this process.


def test_a_child_serves_until_its_pipe_ends():
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=child.serve, args=(theirs,))
    thread.start()
    assert json.loads(ours.recv_bytes()) == {"is": "ready"}

    def ask(name, text="{}"):
        ours.send_bytes(json.dumps({"target": f"process_handlers:{name}", "info": {}}).encode())
        ours.send_bytes(text.encode())
        return json.loads(ours.recv_bytes())

    assert ask("pid") == {"is": "result"}
    assert int(ours.recv_bytes()) == os.getpid()
    assert ask("add_later", '{"a": 1, "b": 1}') == {"is": "result"}
    assert ours.recv_bytes() == b"2"
    assert ask("refuse")["error"]["kind"] == "invalid"
    assert ask("fail")["error"]["kind"] == "error"
    assert "cannot find" in ask("nothing")["error"]["cause"]["text"]
    assert ask("put_off")["error"] == {"kind": "delay", "delay": 42.0, "run_at": None}
    assert ask("abort", '{"cause": "exception"}')["error"]["cause"]["error_type"] == "KeyError"
    assert ask("echo", "bad argument")["error"]["kind"] == "invalid"
    assert ask("echo", "late") == {"is": "result"}
    assert ours.recv_bytes() == b"done"
    assert "after the handler" in ask("echo", "use late")["error"]["cause"]["text"]
    assert ask("echo", "wrong")["error"]["kind"] == "invalid"
    assert ask("echo", "x") == {"is": "call", "method": "echo", "args": ["x", 2]}
    ours.send_bytes(b'{"value": 5}')
    assert json.loads(ours.recv_bytes())["method"] == "twice"
    ours.send_bytes(json.dumps({"error": {"kind": "abort", "text": "no"}}).encode())
    assert json.loads(ours.recv_bytes()) == {
        "is": "failure",
        "error": {"kind": "abort", "text": "no"},
    }
    ours.close()
    thread.join(2)
    assert not thread.is_alive()


def test_a_child_whose_parent_left_before_the_answer_ends():
    ours, theirs = multiprocessing.Pipe()
    thread = threading.Thread(target=child.serve, args=(theirs,))
    thread.start()
    ours.recv_bytes()
    ours.send_bytes(b'{"target": "process_handlers:nap", "info": {}}')
    ours.send_bytes(b'{"seconds": 0.02}')
    ours.close()
    thread.join(2)
    assert not thread.is_alive()


def test_the_body_of_a_child_guards_itself_and_serves(monkeypatch):
    done, exits = threading.Event(), []
    read, write = os.pipe()
    os.close(write)  # the parent is gone at once
    monkeypatch.setattr(
        "multiprocessing.process.parent_process", lambda: types.SimpleNamespace(sentinel=read)
    )
    monkeypatch.setattr(os, "_exit", lambda code: (exits.append(code), done.set()))
    monkeypatch.setattr(child, "serve", lambda connection: done.wait(2))
    before = signal.getsignal(signal.SIGINT)
    try:
        child.main(None)
        os.kill(os.getpid(), signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)
        os.close(read)
    assert exits == [1]
    monkeypatch.setattr("multiprocessing.process.parent_process", lambda: None)
    child._exit_with_parent()


async def test_what_is_left_at_exit_is_killed(pool):
    pid = await run(pool, "pid")
    pool._kill_all()
    await until(lambda: psutil.Process(pid).status() == psutil.STATUS_ZOMBIE)
