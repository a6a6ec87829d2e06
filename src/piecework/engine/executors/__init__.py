"""The ways to run a handler that are not the event loop: threads and worker processes."""

from piecework.engine.executors.outcome import (
    ErrorText,
    HandlerError,
    HandlerExitError,
    WorkerDiedError,
    contain,
    describe,
)
from piecework.engine.executors.processes import ProcessExecutor, check_main_guard, check_target
from piecework.engine.executors.threads import ThreadExecutor, ThreadInterrupted

__all__ = [
    "ErrorText",
    "HandlerError",
    "HandlerExitError",
    "ProcessExecutor",
    "ThreadExecutor",
    "ThreadInterrupted",
    "WorkerDiedError",
    "check_main_guard",
    "check_target",
    "contain",
    "describe",
]
