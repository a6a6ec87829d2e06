"""How a handler's end travels: errors as plain text, signals as themselves.

An exception may hold a socket, need arguments to be built again or fail in ``__str__``. So none is
ever pickled: any of them comes down to its type's name, its text and its traceback.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias

from piecework.errors import InvalidWorkError, PieceworkError
from piecework.failure import message_of, name_of, storable, traceback_of
from piecework.signals import RetryAbort, WorkDelayError

Kind: TypeAlias = Literal["error", "delay", "abort", "invalid"]
"""What an exception of a handler means: a failure, one of the two signals, or invalid work."""

#: The class that stands for the text of ``RetryAbort("text")``.
_TEXT_CAUSE: Final = type(RetryAbort("").cause)


class HandlerError(PieceworkError):
    """A handler failed where its exception could not come along: in a worker process.

    ``str()`` gives the text of the original exception.

    Args:
        text: The text of the original exception.
        error_type: The name of its class.
        traceback: Its formatted traceback, or an empty string.
        kind: What it means; ``"error"`` unless it is the cause of something else.
        path: Its class as ``module:qualname``.

    Example:
        >>> error = HandlerError("no such file", error_type="FileNotFoundError")
        >>> error.error_type, str(error)
        ('FileNotFoundError', 'no such file')
    """

    def __init__(
        self,
        text: str,
        *,
        error_type: str = "Exception",
        traceback: str = "",
        kind: Kind = "error",
        path: str = "",
    ) -> None:
        self.text = text
        self.error_type = error_type
        self.traceback = traceback
        self.kind: Kind = kind
        self.path = path
        super().__init__(text)


class HandlerExitError(PieceworkError, RuntimeError):
    """A handler raised what would end a thread, a loop or a task (``SystemExit`` and its like).

    Args:
        error_type: The name of the class that it raised.
        text: The text of what it raised.
    """

    def __init__(self, error_type: str, text: str = "") -> None:
        self.error_type = error_type
        self.text = text
        super().__init__(
            f"the handler raised {error_type}"
            + (f": {text}" if text else "")
            + ". Raise an Exception to fail, or RetryAbort to give the work up."
        )


class WorkerDiedError(PieceworkError):
    """The process that ran a handler ended before the handler did; this spends an attempt.

    Args:
        exit_code: The exit code, the negative number of a signal, or ``None`` if the process was
            alive but had closed its pipe.
        hint: What to check.
    """

    def __init__(self, exit_code: int | None, hint: str = "") -> None:
        self.exit_code = exit_code
        what = "it closed its pipe" if exit_code is None else f"exit code {exit_code}"
        if exit_code is not None and exit_code < 0:
            what += f" ({_signal_name(-exit_code)})"
        super().__init__(f"worker died: {what}" + (f". {hint}" if hint else ""))


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass(frozen=True, slots=True)
class ErrorText:
    """What is kept of an exception: nothing that could fail to be stored or sent.

    Attributes:
        error_type: The name of its class.
        text: Its text.
        traceback: Its formatted traceback.
        path: Its class as ``module:qualname``.
    """

    error_type: str
    text: str
    traceback: str
    path: str


def describe(error: BaseException) -> ErrorText:
    """Bring any exception down to text. Never raises, whatever the exception's methods do.

    Example:
        >>> describe(KeyError("a")).error_type
        'KeyError'
    """
    if isinstance(error, HandlerError):
        return ErrorText(error.error_type, error.text, error.traceback, error.path)
    cls = type(error)
    return ErrorText(
        error_type=name_of(error),
        text=message_of(error),
        traceback=traceback_of(error),
        path=f"{cls.__module__}:{cls.__qualname__}",
    )


def encode_error(error: BaseException) -> dict[str, Any]:
    """An exception as values that JSON can hold; ``decode_error`` is its reverse."""
    if isinstance(error, WorkDelayError):
        run_at = error.run_at.isoformat() if error.run_at else None
        return {"kind": "delay", "delay": error.delay, "run_at": run_at}
    if isinstance(error, InvalidWorkError):
        fields = (error.problem, error.work_type, error.field, error.fix)
        return {"kind": "invalid", "fields": [storable(str(value)) for value in fields]}
    if isinstance(error, RetryAbort):
        if type(error.cause) is _TEXT_CAUSE:
            return {"kind": "abort", "text": message_of(error.cause)}
        return {"kind": "abort", "cause": _encode_text(describe(error.cause))}
    return {"kind": "error", "cause": _encode_text(describe(error))}


def _encode_text(error: ErrorText) -> dict[str, str]:
    return {
        "text": error.text,
        "error_type": error.error_type,
        "traceback": error.traceback,
        "path": error.path,
    }


def decode_error(data: dict[str, Any]) -> Exception:
    """The exception that ``encode_error`` was given, or the ``HandlerError`` that stands for it."""
    match data["kind"]:
        case "delay":
            run_at = datetime.fromisoformat(data["run_at"]) if data["run_at"] else None
            return WorkDelayError(data["delay"], run_at=run_at)
        case "invalid":
            problem, work_type, field, fix = data["fields"]
            return InvalidWorkError(problem, work_type=work_type, field=field, fix=fix)
        case "abort" if "text" in data:
            return RetryAbort(data["text"])
        case "abort":
            return RetryAbort(HandlerError(**data["cause"], kind="abort"))
        case _:
            return HandlerError(**data["cause"])


def contain(error: BaseException) -> Exception:
    """An exception that may be raised in a task: itself, or the error that stands for it.

    ``SystemExit``, ``KeyboardInterrupt`` and a ``CancelledError`` that nobody asked for would end
    more than the handler; ``StopIteration`` cannot leave a coroutine.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    contained = HandlerExitError(type(error).__name__, message_of(error))
    contained.__cause__ = error
    return contained
