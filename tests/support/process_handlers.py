"""Handlers that worker processes import in the tests of the process executor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

from piecework.clock import sleep
from piecework.errors import InvalidWorkError
from piecework.signals import RetryAbort, WorkDelayError


def add(a, b):
    return a + b


async def add_later(a, b):
    await sleep(0)
    return a + b


def pid():
    return os.getpid()


def nap(seconds=0.02):
    time.sleep(seconds)
    return os.getpid()


def spin(path):
    Path(path).write_text(str(os.getpid()))
    while True:
        pass


def leave(code):
    os._exit(code)


def kill_self(with_heir=False):
    if with_heir:
        # A program that holds the worker's pipes open after its death.
        subprocess.Popen(["sleep", "3"], close_fds=False, pass_fds=_open_pipes())
    os.kill(os.getpid(), signal.SIGKILL)


def _open_pipes():
    numbers = [int(entry.name) for entry in Path("/dev/fd").iterdir()]
    return [number for number in numbers if number > 2 and Path(f"/dev/fd/{number}").exists()]


def close_all_files():
    os.closerange(3, 256)
    time.sleep(30)


def send_interrupt():
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.01)
    return "alive"


def put_off(run_at=None):
    if run_at:
        raise WorkDelayError(run_at=datetime(2031, 5, 1, tzinfo=UTC))
    raise WorkDelayError(delay=42)


def abort(cause=None):
    raise RetryAbort(KeyError("gone") if cause == "exception" else "card was stolen")


def refuse():
    raise InvalidWorkError("must be even", work_type="t", field="a", fix="Double it")


class AwkwardError(Exception):
    """Cannot be pickled, built again or printed."""

    def __init__(self, *, needed):
        self.lock = threading.Lock()
        super().__init__(needed)

    def __str__(self):
        raise ValueError("no text")


def fail_awkwardly():
    raise AwkwardError(needed=1)


def fail():
    raise FileNotFoundError("no such file \udc80")


def quit_python():
    sys.exit(3)


def return_lock():
    return threading.Lock()


class Type:
    """Stands for a work type: it turns text into a call and back by itself."""

    @staticmethod
    def run_in_child(input, context):
        if input == "info":
            return str(context.info["attempt"])
        if input == "wrong":
            return 7
        if input == "lone surrogate":
            return "\udc80"
        if input == "bad argument":
            context.call("echo", threading.Lock())
        if input == "late":
            _late.append(context)
            return "done"
        if input == "use late":
            _late[0].call("echo", 1)
        answer = context.call("echo", input, 2)
        return f"{answer} {context.call('twice', 4)}"


_late = []
echo = Type()
