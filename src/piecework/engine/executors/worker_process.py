"""One worker process as its parent sees it. All methods that may block run in threads."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from piecework.engine.executors.outcome import WorkerDiedError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

#: Seconds between two looks at whether a silent process is still there. Its pipe tells at once;
#: this is for a pipe that a program started by the handler holds open.
_LOOK_EVERY: Final = 1.0

#: Seconds for the exit code of a process that has left its pipe.
_EXIT_CODE_WAIT: Final = 1.0

#: Seconds between two looks for it.
_EXIT_CODE_STEP: Final = 0.005

_START_HINT: Final = (
    "It ended before it was ready: see its output above. A script must start its work under "
    "`if __name__ == '__main__':`"
)
_KILLED_HINT: Final = "If nobody killed it, the machine or the container ran out of memory"


class WorkerProcess:
    """A process, its pipe, and what is known of it.

    ``kill`` may be called at any time and never blocks. The other methods exclude each other.
    """

    __slots__ = (
        "_connection",
        "_gone",
        "_lock",
        "_method",
        "_number",
        "_process",
        "_stopped",
        "jobs",
    )

    def __init__(self, start_method: str, number: int) -> None:
        self._method = start_method
        self._number = number
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._connection: Connection[Any, Any] | None = None
        self._stopped = False
        self._gone = False
        self.jobs = 0

    @property
    def is_ready(self) -> bool:
        """Whether it was started."""
        return self._connection is not None

    @property
    def is_gone(self) -> bool:
        """Whether it was put away."""
        return self._gone

    def is_alive(self) -> bool:
        """Whether it was started and has not ended."""
        return self._process is not None and self._process.is_alive()

    def start(self) -> None:
        """Start the process and wait until it takes jobs.

        Raises:
            WorkerDiedError: It ended before.
        """
        import multiprocessing

        from piecework.engine.executors import child

        context: Any = multiprocessing.get_context(self._method)
        with self._lock:
            ours, theirs = context.Pipe(duplex=True)
            # Daemonic: the exit of the interpreter ends it in place of waiting for it.
            process: BaseProcess = context.Process(
                target=child.main,
                args=(theirs,),
                name=f"piecework-worker-{self._number}",
                daemon=True,
            )
            try:
                if not self._stopped:
                    _start_without_interrupts(process)
                    self._process = process
                    if self._stopped:
                        process.kill()
            finally:
                # Kept open here, the pipe would not end with the process.
                theirs.close()
                self._connection = ours
            self._receive(_START_HINT)

    def exchange(self, *frames: bytes) -> tuple[dict[str, Any], bytes]:
        """Send frames and wait for the answer: its head, and the result if it is one.

        Raises:
            WorkerDiedError: The process ended.
        """
        with self._lock:
            assert self._connection is not None
            try:
                for frame in frames:
                    self._connection.send_bytes(frame)
            except OSError:
                raise self._death() from None
            head: dict[str, Any] = json.loads(self._receive())
            return head, self._receive() if head["is"] == "result" else b""

    def kill(self) -> None:
        """Kill it now, or as soon as it is started."""
        self._stopped = True
        process = self._process
        if process is not None:
            # Closed by ``put_away`` meanwhile: then it is dead.
            with contextlib.suppress(ValueError):
                process.kill()

    def put_away(self, grace: float) -> None:
        """End the process and free what belongs to it.

        Args:
            grace: Seconds that it has to end by itself; then it is killed.
        """
        if grace <= 0:
            self.kill()
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._gone = True
            process, self._process = self._process, None
            if process is None:
                return
            if grace <= 0 or _wait(process, grace) is None:
                process.kill()
            process.join()
            process.close()

    def _receive(self, hint: str = "") -> bytes:
        assert self._connection is not None
        try:
            while not self._connection.poll(_LOOK_EVERY):
                if not self.is_alive():
                    raise self._death(hint)
            return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise self._death(hint) from None

    def _death(self, hint: str = "") -> WorkerDiedError:
        process = self._process
        if process is None:
            return WorkerDiedError(-signal.SIGKILL, "It was stopped")
        code = _wait(process, _EXIT_CODE_WAIT)
        if not hint and code == -signal.SIGKILL and not self._stopped:
            hint = _KILLED_HINT
        return WorkerDiedError(code, hint)


def _wait(process: BaseProcess, timeout: float) -> int | None:
    """The exit code, once there is one, within ``timeout`` seconds.

    ``join`` would trust a pipe that a handler may have closed, and then wait without end.
    """
    left = timeout
    while (code := process.exitcode) is None and left > 0:
        time.sleep(_EXIT_CODE_STEP)
        left -= _EXIT_CODE_STEP
    return code


def _start_without_interrupts(process: BaseProcess) -> None:
    """Start a process that does not see Ctrl-C until it can deal with it."""
    if sys.platform == "win32":
        process.start()
        return
    from multiprocessing import resource_tracker

    # Its own start unblocks the signal in this thread, so it comes first.
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
