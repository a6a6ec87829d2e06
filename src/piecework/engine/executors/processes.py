"""Runs handlers in worker processes, which can be killed and may die without harm to others."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from piecework.engine.executors.daemon_pool import DaemonPool
from piecework.engine.executors.outcome import decode_error, encode_error
from piecework.engine.executors.worker_process import WorkerProcess
from piecework.errors import ConfigError, PieceworkError

Rpc = Callable[[str, list[Any]], Awaitable[Any]]
"""Answers what a handler in a worker process asks for: a method's name and its arguments."""

#: Threads per worker process: one that waits for it, and some that put its predecessors away.
_THREADS_PER_WORKER: Final = 4

#: Seconds that a worker process which is no longer needed has to end by itself.
_RETIRE_GRACE: Final = 5.0


@dataclass(frozen=True, slots=True)
class ProcessStats:
    """What the worker processes of one executor are doing.

    Attributes:
        started: How many were ever started.
        idle: How many wait for a job.
        busy: How many run a job or are starting.
    """

    started: int
    idle: int
    busy: int


def check_target(fn: Callable[..., Any]) -> str:
    """Where a worker process finds a handler, as ``module:qualname``.

    Call it when a work type is defined, so that what cannot work is refused then.

    Raises:
        ConfigError: A worker process cannot import it; the text says the fix.

    Example:
        >>> import math
        >>> check_target(math.sqrt)
        'math:sqrt'
    """
    module: str | None = getattr(fn, "__module__", None)
    qualname: str | None = getattr(fn, "__qualname__", None)
    if not module or not qualname:
        raise ConfigError(
            f'executor="process" cannot use {fn!r}: it has no name to import it by. '
            f"Write a function at the top level of a module that calls it"
        )
    if "<" in qualname:
        raise ConfigError(
            f'executor="process" cannot use {qualname}: a worker process imports the handler, and '
            f"one inside a function cannot be imported. Move it to the top level of its module"
        )
    if module == "__main__" and not hasattr(sys.modules["__main__"], "__file__"):
        raise ConfigError(
            f'executor="process" cannot use {qualname}: what is typed into an interpreter or a '
            f"notebook cannot be imported by a worker process. Move it to a module"
        )
    return f"{module}:{qualname}"


def check_main_guard() -> None:
    """Refuse to go on while a worker process imports the script that started it.

    Raises:
        ConfigError: The script starts its work at import; each process would start all of it again.
    """
    multiprocessing = sys.modules.get("multiprocessing.process")
    if multiprocessing is None:
        return
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise ConfigError(
            "this script starts work while a worker process imports it. "
            "Put what starts it under `if __name__ == '__main__':`"
        )


class ProcessExecutor:
    """Runs handlers in worker processes of its own, one job at a time in each.

    Processes are started when they are needed and kept warm. A job that is cancelled has its
    process killed; a process that dies fails its job with ``WorkerDiedError``; both are replaced
    when the next job needs one. Inputs, results and errors travel as JSON text.

    A worker process imports the module of the handler. If that is the script itself, the script
    must start its work under ``if __name__ == "__main__":``. Worker processes ignore Ctrl-C, end
    with their parent, and cannot start processes with ``multiprocessing`` (they can with
    ``subprocess``).

    Args:
        max_workers: The most processes; by default one per CPU. Further jobs wait, so let
            it be the number of jobs that run at a time.
        start_method: ``"spawn"`` or ``"forkserver"``. A fork of a process with threads can hang.
        max_tasks_per_process: Jobs after which a process is replaced; ``None`` for never.

    Raises:
        ConfigError: An option cannot be used, or the script lacks its main guard.
    """

    def __init__(
        self,
        max_workers: int | None = None,
        start_method: str = "spawn",
        max_tasks_per_process: int | None = None,
    ) -> None:
        self._max_workers = max_workers if max_workers is not None else os.cpu_count() or 1
        if self._max_workers < 1:
            raise ConfigError(f"max_workers is {max_workers}; a process executor needs at least 1")
        if max_tasks_per_process is not None and max_tasks_per_process < 1:
            raise ConfigError(
                f"max_tasks_per_process is {max_tasks_per_process}; pass 1 or more, or None"
            )
        if start_method not in ("spawn", "forkserver"):
            raise ConfigError(
                f"start_method {start_method!r} cannot be used; pass 'spawn' or 'forkserver'"
            )
        check_main_guard()
        self._start_method = start_method
        self._max_tasks = max_tasks_per_process
        self._slots = asyncio.Semaphore(self._max_workers)
        self._threads = DaemonPool(
            "piecework-process-reader", self._max_workers * _THREADS_PER_WORKER
        )
        self._started = 0
        self._idle: list[WorkerProcess] = []
        self._busy: set[WorkerProcess] = set()
        self._leaving: dict[asyncio.Future[None], WorkerProcess] = {}
        self._quiet = asyncio.Event()
        self._quiet.set()
        self._closed = False

    @property
    def stats(self) -> ProcessStats:
        """What the worker processes are doing now."""
        return ProcessStats(self._started, len(self._idle), len(self._busy))

    async def start(self, workers: int | None = None) -> None:
        """Start processes ahead of the first job.

        Args:
            workers: How many are wanted, up to ``max_workers``, which is the default.

        Raises:
            WorkerDiedError: A process did not come up.
        """
        wanted = self._max_workers if workers is None else min(workers, self._max_workers)
        missing = wanted - len(self._idle) - len(self._busy)
        # At the same time, and before the first is given back to serve the next start.
        ends = await asyncio.gather(
            *(self._start_one() for _ in range(missing)), return_exceptions=True
        )
        for end in ends:
            if end is not None:
                raise end

    async def run(self, target: str, input: str, context: Mapping[str, Any], rpc: Rpc) -> str:
        """Run one job in a worker process.

        If the awaiting task is cancelled, the process is killed before ``CancelledError`` goes on.

        Args:
            target: ``module:qualname`` of the handler or of its work type; see ``check_target``.
            input: The input as text.
            context: Plain data that the handler's context shows as ``info``.
            rpc: Answers the calls of the handler's context, on this loop.

        Returns:
            The result as text.

        Raises:
            HandlerError: The handler raised an exception.
            WorkDelayError: The handler put its work off.
            RetryAbort: The handler gave its work up.
            InvalidWorkError: The input or the result is not what it should be.
            WorkerDiedError: The process ended first.
            PieceworkError: The executor is closed.
        """
        job = json.dumps({"target": target, "info": dict(context)}).encode()
        async with self._slots:
            worker = self._take()
            try:
                answer = await self._converse(worker, rpc, job, input.encode())
            except BaseException:
                # The process is dead, or busy with what nobody wants any more.
                await self._drop(worker)
                raise
            self._keep(worker)
        if isinstance(answer, str):
            return answer
        try:
            raise answer
        finally:
            # The traceback holds this frame, which must not hold the error.
            del answer

    async def close(self, grace: float = 0.0) -> None:
        """End all processes. A second call does nothing more.

        Args:
            grace: Seconds that running jobs have to end, and idle processes to leave. What is left
                then is killed, and its job fails with ``WorkerDiedError``.
        """
        if self._closed:
            return
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            self._put_away(worker, max(grace, 1.0))
        if self._busy and grace > 0:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(grace):
                    await self._quiet.wait()
        for worker in self._busy:
            worker.kill()
            self._put_away(worker, 0.0)
        while self._leaving:
            await asyncio.wait(set(self._leaving))
        self._threads.shutdown(wait=False)
        atexit.unregister(self._kill_all)

    async def _start_one(self) -> None:
        async with self._slots:
            worker = self._take()
            try:
                await self._in_thread(worker.start)
            except BaseException:
                await self._drop(worker)
                raise
            self._keep(worker)

    def _take(self) -> WorkerProcess:
        if self._closed:
            raise PieceworkError("the process executor is closed; nothing new runs")
        worker = None
        while worker is None and self._idle:
            worker = self._idle.pop()
            if not worker.is_alive():
                self._put_away(worker, 0.0)
                worker = None
        if worker is None:
            check_main_guard()
            if not self._started:
                # Else the exit of the interpreter would wait for processes that ignore SIGTERM.
                atexit.register(self._kill_all)
            self._started += 1
            worker = WorkerProcess(self._start_method, self._started)
        self._busy.add(worker)
        self._quiet.clear()
        return worker

    async def _converse(self, worker: WorkerProcess, rpc: Rpc, *job: bytes) -> str | Exception:
        """Send the job, answer its calls, and return its result or what its handler raised."""
        if not worker.is_ready:
            await self._in_thread(worker.start)
        frame, result = await self._in_thread(worker.exchange, *job)
        while frame["is"] == "call":
            reply = await _reply(rpc, frame["method"], frame["args"])
            frame, result = await self._in_thread(worker.exchange, reply)
        worker.jobs += 1
        return decode_error(frame["error"]) if frame["is"] == "failure" else result.decode()

    async def _in_thread(self, fn: Callable[..., Any], *args: Any) -> Any:
        """Run ``fn`` in a thread; if this is cancelled, it goes on and its end is not looked at."""
        waiter = asyncio.get_running_loop().run_in_executor(self._threads, _attempt, fn, args)
        result = await asyncio.shield(waiter)
        if isinstance(result, BaseException):
            raise result
        return result

    def _keep(self, worker: WorkerProcess) -> None:
        self._release(worker)
        if self._closed or (self._max_tasks is not None and worker.jobs >= self._max_tasks):
            self._put_away(worker, _RETIRE_GRACE)
        else:
            self._idle.append(worker)

    async def _drop(self, worker: WorkerProcess) -> None:
        try:
            if not worker.is_gone:
                worker.kill()
                await asyncio.shield(self._put_away(worker, 0.0))
        finally:
            self._release(worker)

    def _release(self, worker: WorkerProcess) -> None:
        self._busy.discard(worker)
        if not self._busy:
            self._quiet.set()

    def _put_away(self, worker: WorkerProcess, grace: float) -> asyncio.Future[None]:
        loop = asyncio.get_running_loop()
        leaving = loop.run_in_executor(self._threads, worker.put_away, grace)
        self._leaving[leaving] = worker
        leaving.add_done_callback(self._leaving.pop)
        return leaving

    def _kill_all(self) -> None:
        for worker in [*self._idle, *self._busy, *self._leaving.values()]:
            worker.kill()


def _attempt(fn: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        return fn(*args)
    except Exception as error:  # noqa: BLE001 - raised again by whoever still waits
        return error


async def _reply(rpc: Rpc, method: str, args: list[Any]) -> bytes:
    """What the handler gets for its call: a value, or the error in words."""
    try:
        return json.dumps({"value": await rpc(method, args)}, allow_nan=False).encode()
    except Exception as error:  # noqa: BLE001 - it is the handler's to judge
        return json.dumps({"error": encode_error(error)}).encode()
