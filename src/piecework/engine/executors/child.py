"""What a worker process does: take a job from the pipe, run it, answer; until the pipe ends.

Frames are JSON, except that the input and the result of a job travel as the text they are, in a
frame of their own. Nothing is ever unpickled.

==========  ==================================================================================
to child    ``{"target", "info"}`` and the input; ``{"value"}`` or ``{"error"}`` answers a call
to parent   ``{"is": "ready"}``; ``{"is": "call", "method", "args"}``; ``{"is": "result"}`` and
            the result; ``{"is": "failure", "error"}``
==========  ==================================================================================
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

from piecework.definitions import WorkType
from piecework.engine.child_calls import run_handler
from piecework.engine.executors.outcome import decode_error, encode_error
from piecework.errors import ConfigError, InvalidWorkError, PieceworkError

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

#: Exit code of a worker process whose parent is gone.
_ORPHANED: Final = 1


class ChildContext:
    """What a handler in a worker process knows and can ask for.

    Attributes:
        info: What the parent tells about this attempt: ``id``, ``group_id``, ``attempt``, ...
    """

    __slots__ = ("_connection", "_lock", "_open", "info")

    def __init__(self, connection: Connection[Any, Any], info: dict[str, Any]) -> None:
        self.info = info
        self._connection = connection
        self._lock = threading.Lock()
        self._open = True

    def call(self, method: str, *args: Any) -> Any:
        """Ask the parent process and wait for the answer. Threads may call it, one at a time.

        Args:
            method: What is asked for.
            args: Plain data, as JSON can hold it.

        Returns:
            The parent's answer, as JSON holds it.

        Raises:
            InvalidWorkError: An argument is not plain data, or the parent refused the work.
            HandlerError: The parent's side failed.
            PieceworkError: The attempt is over.
        """
        frame = _dump(
            {"is": "call", "method": method, "args": args}, f"the arguments of {method!r}"
        ).encode()
        with self._lock:
            if not self._open:
                raise PieceworkError(
                    f"{method!r} was called after the handler had returned; "
                    f"let the handler wait for the threads that it starts"
                )
            self._connection.send_bytes(frame)
            answer = json.loads(self._connection.recv_bytes())
        if "error" in answer:
            raise decode_error(answer["error"])
        return answer["value"]

    def close(self) -> None:
        """Let no more calls through: the pipe is about to serve the next job."""
        with self._lock:
            self._open = False


def _dump(value: Any, what: str) -> str:
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidWorkError(
            f"{what} cannot be written as JSON: {error}", fix="Pass plain data."
        ) from error


def find_target(target: str) -> Any:
    """The object at ``module:qualname``; its module is imported.

    Raises:
        ConfigError: There is none.
    """
    module_name, _, qualname = target.partition(":")
    try:
        value: Any = importlib.import_module(module_name)
        for part in qualname.split("."):
            value = getattr(value, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"a worker process cannot find {target!r}: {error}. Define the handler at the top "
            f"level of a module that can be imported (in a script: above its "
            f"`if __name__ == '__main__':`)"
        ) from error
    return value


def run_job(target: str, input: str, context: ChildContext) -> str:
    """Run the handler at ``target``.

    A work type, or what has a method ``run_in_child(input, context)``, reads its input and writes
    its result itself. A plain function is bound like the handler of a work type.

    Args:
        target: ``module:qualname``.
        input: The input as text.
        context: The handler's way to the parent process.

    Returns:
        The result as text.

    Raises:
        InvalidWorkError: The result cannot be written as text.
        BaseException: What the handler raised.
    """
    handler = find_target(target)
    if isinstance(handler, WorkType):
        return run_handler(handler, input, context)  # pyright: ignore[reportUnknownArgumentType] - of any handler
    run_in_child = getattr(handler, "run_in_child", None)
    if run_in_child is not None:
        result = run_in_child(input, context)
        if not isinstance(result, str):
            raise InvalidWorkError(f"run_in_child of {target} returned no text")
        return result
    # Defined by the functional form, or bound to another name: the same binding, made here.
    name: str = context.info.get("type", target)
    made: WorkType[..., Any] = WorkType(name, handler, {"executor": "process"})
    return run_handler(made, input, context)


def serve(connection: Connection[Any, Any]) -> None:
    """Run job after job until the parent closes the pipe."""
    _send(connection, {"is": "ready"})
    while True:
        try:
            job = json.loads(connection.recv_bytes())
            text = connection.recv_bytes().decode()
        except (EOFError, OSError):
            return
        frames = _answer(job, text, connection)
        for stream in (sys.stdout, sys.stderr):
            # A later kill would lose what still sits in a buffer.
            with contextlib.suppress(Exception):
                stream.flush()
        try:
            for frame in frames:
                connection.send_bytes(frame)
        except OSError:
            return


def _answer(job: dict[str, Any], input: str, connection: Connection[Any, Any]) -> list[bytes]:
    context = ChildContext(connection, job["info"])
    try:
        result = run_job(job["target"], input, context).encode()
    except BaseException as error:  # noqa: BLE001 - whatever it raises is the parent's to judge
        failure = {"is": "failure", "error": encode_error(error)}
        return [json.dumps(failure).encode()]
    finally:
        context.close()
    return [b'{"is": "result"}', result]


def _send(connection: Connection[Any, Any], frame: dict[str, Any]) -> None:
    connection.send_bytes(json.dumps(frame).encode())


def main(connection: Connection[Any, Any]) -> None:
    """The body of a worker process: serve, and never outlive the parent."""
    ignore_interrupts()
    threading.Thread(target=_exit_with_parent, name="piecework-parent", daemon=True).start()
    serve(connection)


def ignore_interrupts() -> None:
    """Leave Ctrl-C, which a terminal sends to all processes at once, to the parent.

    The signal gets a handler that does nothing instead of being ignored: programs that a work
    starts would inherit the latter.
    """
    signal.signal(signal.SIGINT, _do_nothing)
    if sys.platform != "win32":
        # The parent starts processes with the signal blocked, so that it cannot strike earlier.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


def _do_nothing(signum: int, frame: object) -> None: ...


def _exit_with_parent() -> None:
    from multiprocessing import connection as connections
    from multiprocessing import process

    parent = process.parent_process()
    if parent is not None:
        connections.wait([parent.sentinel])
        # No clean-up: a handler may be in the midst of work that nobody waits for any more.
        os._exit(_ORPHANED)
