"""Errors as text: what a record, a dead letter and ``WorkFailedError`` say about a failure."""

from __future__ import annotations

import re
import traceback

from piecework.signals import RetryAbort

#: The longest name, text and traceback kept, in characters: a record must stay far below the
#: smallest limit of a backend (DynamoDB: 400 KB an item, and four bytes may make one character).
MAX_NAME_CHARS = 200
MAX_TEXT_CHARS = 8_000
MAX_TRACEBACK_CHARS = 16_000

_CUT = "\n... (cut) ...\n"
_SURROGATES = re.compile("[\ud800-\udfff]")
_TEXT_ALONE = type(RetryAbort().cause)


def describe_error(error: object) -> tuple[str, str, str]:
    """The name of an error's class, its text, and its traceback; all three can be stored.

    The text is ``Name: message``, or ``Name`` where the message is empty. ``RetryAbort`` stands for
    its cause; a cause that is only a text, and a value that is no exception at all, are their own
    text. It never fails: a broken ``__str__`` is told in place of the message, a text over
    8,000 characters loses its end, a traceback over 16,000 its middle, and lone surrogates (which
    have no UTF-8) become U+FFFD.

    Args:
        error: The exception.

    Returns:
        The name, the text and the formatted traceback (empty for what was never raised as an
        exception).

    Example:
        >>> describe_error(ValueError("too long"))[:2]
        ('ValueError', 'ValueError: too long')
    """
    if isinstance(error, RetryAbort):
        error = cause_of(error)
    message = message_of(error)
    if isinstance(error, _TEXT_ALONE):
        return "RetryAbort", message or "RetryAbort", traceback_of(error)
    name = name_of(error)
    if not isinstance(error, BaseException):
        return name, message, ""
    text = f"{name}: {message}"[:MAX_TEXT_CHARS] if message else name
    return name, text, traceback_of(error)


def cause_of(abort: RetryAbort) -> BaseException:
    """What the work really dies of; an abort may be wrapped in another."""
    cause: BaseException = abort
    while isinstance(cause, RetryAbort):
        cause = cause.cause
    return cause


def name_of(error: object) -> str:
    """The name of its class, such that it can be stored."""
    return storable(type(error).__name__)[:MAX_NAME_CHARS]


def message_of(error: object) -> str:
    """Its own text without its name, such that it can be stored."""
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 - any error may come out of a user's __str__
        text = f"<no text: __str__ raised {type(broken).__name__}>"
    return storable(text[:MAX_TEXT_CHARS])


def traceback_of(error: BaseException) -> str:
    """Its formatted traceback, such that it can be stored; a long one loses its middle."""
    try:
        lines = "".join(traceback.format_exception(error))
    except Exception as broken:  # noqa: BLE001 - a strange class must not hide the failure itself
        frames = "".join(traceback.format_tb(error.__traceback__))
        text = f"{name_of(error)}: {message_of(error)}"
        lines = f"{frames}{text}\n<no traceback: formatting raised {type(broken).__name__}>\n"
    if len(lines) > MAX_TRACEBACK_CHARS:
        half = (MAX_TRACEBACK_CHARS - len(_CUT)) // 2
        lines = lines[:half] + _CUT + lines[-half:]
    return storable(lines)


def storable(text: str) -> str:
    """The text with lone surrogates, which have no UTF-8, replaced."""
    return text if text.isascii() else _SURROGATES.sub("\ufffd", text)
