"""Every error that Piecework raises, under one root.

Control flow that a handler raises on purpose (``WorkDelayError``, ``RetryAbort``) is not here: it
has a root of its own in ``signals.py``, so that ``except PieceworkError`` cannot swallow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.ports.store import Record


#: The most characters of a value that an error shows.
_MOST_SHOWN = 200


def shown(value: object) -> str:
    """A value as an error shows it: short, and whatever its ``repr`` does."""
    try:
        text = repr(value)
        text = text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."
        return text if text.isascii() else text.encode(errors="replace").decode()
    except Exception:  # noqa: BLE001 - any error may come out of a value's own __repr__
        return f"a {type(value).__name__}"


class PieceworkError(Exception):
    """The root of all errors of this library."""


class ConfigError(PieceworkError, ValueError):
    """An option of a system, a type, a doer or a schedule cannot be used; the text says the fix."""


class InvalidWorkError(PieceworkError, ValueError):
    """The input, an option or the result of a work is not what its type declares.

    Args:
        problem: What is wrong, in a sentence.
        work_type: The name of the work type.
        field: The parameter or option at fault, if it is a single one.
        fix: What to do about it.

    Example:
        >>> raise InvalidWorkError("must be an integer", work_type="add", field="a")
        Traceback (most recent call last):
        piecework.errors.InvalidWorkError: work type 'add': field 'a': must be an integer
    """

    def __init__(
        self, problem: str, *, work_type: str = "", field: str = "", fix: str = ""
    ) -> None:
        self.problem = problem
        self.work_type = work_type
        self.field = field
        self.fix = fix
        where = [f"work type {work_type!r}"] if work_type else []
        where += [f"field {field!r}"] if field else []
        text = ": ".join([*where, problem])
        super().__init__(f"{text}. {fix}" if fix else text)


class UnknownWorkError(PieceworkError, LookupError):
    """No work type of that name is registered with this system.

    Args:
        work_type: The name that was asked for.
        known: The names that are registered.
    """

    def __init__(self, work_type: str, known: Sequence[str] = ()) -> None:
        self.work_type = work_type
        self.known = tuple(known)
        names = ", ".join(sorted(self.known)) or "none"
        super().__init__(
            f"unknown work type: {work_type}. Registered here: {names}. "
            f"Pass it to create_work(work=[...]) or call register()."
        )


class WorkFailedError(PieceworkError):
    """The work that was waited for is dead: it failed for good.

    Args:
        text: The error as ``Name: message``.
        id: The id of the work.
        type: The name of its work type.
        error_type: The name of the exception's class.
        traceback: The formatted traceback, or an empty string.

    Example:
        >>> try:
        ...     await handle.result()
        ... except WorkFailedError as error:
        ...     print(error.id, error.error_type, error.traceback)
    """

    def __init__(
        self, text: str, *, id: str = "", type: str = "", error_type: str = "", traceback: str = ""
    ) -> None:
        self.id = id
        self.type = type
        self.error_type = error_type
        self.traceback = traceback
        super().__init__(text)


class WorkCancelledError(PieceworkError):
    """The work that was waited for was cancelled before it settled otherwise."""

    def __init__(self, id: str, reason: str = "") -> None:
        self.id = id
        self.reason = reason
        super().__init__(f"work {id} was cancelled" + (f": {reason}" if reason else ""))


class WorkExpiredError(PieceworkError, TimeoutError):
    """The work that was waited for passed its deadline before it settled otherwise."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"work {id} passed its deadline")


class ResultGoneError(PieceworkError, LookupError):
    """There is no record of the work: its result was kept for ``result_ttl`` and is gone.

    Args:
        id: The id of the work.
    """

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(
            f"there is no record of work {id}: results are kept for result_ttl "
            f"(24 h by default) after a work has ended"
        )


class PayloadTooLargeError(PieceworkError, ValueError):
    """A message or a record is larger than its backend takes.

    Args:
        what: What is too large ("the message of work 'x'").
        size: Its size in bytes.
        limit: The largest size in bytes.
    """

    def __init__(self, what: str, *, size: int, limit: int) -> None:
        self.size = size
        self.limit = limit
        super().__init__(
            f"{what} has {size:,} bytes; the backend takes {limit:,}. "
            f"Pass a reference to the data in place of the data."
        )


class ConflictError(PieceworkError):
    """A conditional write did not hold; nothing of it was written.

    Args:
        records: The current records, one per change of the write, in its order.
    """

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = list(records)
        keys = ", ".join(f"{r.key} (version {r.version})" for r in self.records)
        super().__init__(f"the records changed meanwhile: {keys}")


class LeaseLostError(PieceworkError):
    """The lease of a message ended before its work was settled; another worker may have it."""

    def __init__(self, id: str) -> None:
        self.id = id
        super().__init__(f"the lease of work {id} was lost; another worker may run it")


class BackendError(PieceworkError, ConnectionError):
    """A backend could not do what it was asked.

    Args:
        resource: What was used (a queue's URL, a table's name).
        operation: The operation that failed.
        problem: What the backend answered.
        fix: What to check or to do.

    Example:
        >>> try:
        ...     await work.enqueue(built)
        ... except BackendError as error:
        ...     await work.enqueue(built)  # the same work: safe, whether it was accepted or not
    """

    def __init__(self, resource: str, operation: str, problem: str, *, fix: str = "") -> None:
        self.resource = resource
        self.operation = operation
        self.problem = problem
        self.fix = fix
        text = f"{operation} on {resource} failed: {problem}"
        super().__init__(f"{text}. {fix}" if fix else text)
