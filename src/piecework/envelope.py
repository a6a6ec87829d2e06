"""The envelope: what travels in a message, with everything a worker needs to run and settle it."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, NamedTuple

from piecework.clock import EARLIEST_MS, END_MS
from piecework.errors import InvalidWorkError, PieceworkError
from piecework.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.options import Track

#: The form of the envelopes that this release writes. A reader takes this one and older ones; a
#: message of a newer one is given back, for a worker that knows it (rolling deploys).
ENVELOPE_VERSION = 1

_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_quote = json.encoder.encode_basestring
_scan = json.JSONDecoder().raw_decode


def _from_json(text: str) -> Any:
    """Parse JSON, quickest where no white space stands around it, as none does in our own texts."""
    if text[:1] != "{":
        return json.loads(text)
    value, end = _scan(text)
    return value if end == len(text) else json.loads(text)


class NewerEnvelopeError(PieceworkError):
    """The message was written by a newer release; ``work_type`` is its type, if readable."""

    def __init__(self, version: int, work_type: str) -> None:
        self.version = version
        self.work_type = work_type
        super().__init__(f"envelope version {version}; this worker reads up to {ENVELOPE_VERSION}")


class Envelope(NamedTuple):
    """One work on the wire. Times are milliseconds since 1970, durations are seconds.

    Attributes:
        id: The id of the work.
        type: The name of its work type.
        input: Its arguments as JSON text.
        group_id: The id of its group's root work.
        queue_at: When it was enqueued.
        start_at: When it may start.
        attempt: Which attempt this message is for, from 1.
        priority: Higher goes first.
        group: The tenant.
        retry: The resolved retry policy: it travels, so that every worker obeys it.
        version: The version of the work's record that this message was pushed for.
        parent_id: The work whose handler queued it.
        gate: The gate that it counts in, in place of its group.
        turn: How often the work deferred itself; children of another turn are other children.
        track: How much is recorded.
        timeout: How long one attempt may take.
        deadline: When it must no longer run.
        upstream: The gate whose works it depends on.
        unique: The key of its claim on being the only one.
        unique_until: When a claim with a fixed life ends.
        redrives: How often it came back from the dead letters.
        trace: The trace context of whoever queued it.
        recheck: Another message of this work may be about: look at the record before running it.
    """

    id: str
    type: str
    input: str
    group_id: str
    queue_at: int
    start_at: int
    attempt: int = 1
    priority: int = 0
    group: str | None = None
    retry: Retry = Retry()
    version: int = 1
    parent_id: str | None = None
    gate: str | None = None
    turn: int = 0
    track: Track = "full"
    timeout: float | None = None
    deadline: int | None = None
    upstream: str | None = None
    unique: str | None = None
    unique_until: int | None = None
    redrives: int = 0
    trace: dict[str, str] | None = None
    recheck: bool = False

    @property
    def counter(self) -> str | None:
        """The id of the record that counts this work: its gate, or its group's root.

        ``None`` for a work that is not fully tracked: nothing counts it.
        """
        if self.track != "full":
            return None
        return self.gate or self.group_id


def encode(env: Envelope) -> str:
    """The envelope as the text of a message. Fields that have their default are left out.

    Put together by hand, because every work pays for it; the strings are quoted by ``json``.
    """
    text = (
        f'{{"v":{ENVELOPE_VERSION},"id":{_quote(env.id)},"type":{_quote(env.type)},'
        f'"input":{_quote(env.input)},"queue_at":{env.queue_at},"start_at":{env.start_at},'
        f'"retry":{_retry_text(env.retry)},"version":{env.version}'
    )
    if env.group_id != env.id:
        text += f',"group_id":{_quote(env.group_id)}'
    if env[6:9] != _DEFAULTS[6:9] or env[11:] != _DEFAULTS[11:]:
        rest = zip(_FIELDS, env, _DEFAULTS, strict=True)
        more = {name: v for name, v, d in rest if v != d and name not in _ALWAYS}
        if more:
            text += "," + _to_json(more)[1:-1]
    return text + "}"


@functools.lru_cache(256)
def _retry_text(retry: Retry) -> str:
    return _to_json(retry.as_tuple())


_ALWAYS = frozenset({"id", "type", "input", "group_id", "queue_at", "start_at", "retry", "version"})
_FIELDS = Envelope._fields
_DEFAULTS = Envelope("", "", "", "", 0, 0)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_int(value: Any) -> bool:
    return type(value) is int


def is_time(value: Any) -> bool:
    """Whether a value is a time in milliseconds that a ``datetime`` can hold."""
    return type(value) is int and EARLIEST_MS <= value < END_MS


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value < END_MS


def _is_number(value: Any) -> bool:
    return type(value) in {int, float} and 0 < value < END_MS


def _is_trace(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(k, str) and isinstance(v, str)
        for k, v in value.items()  # pyright: ignore[reportUnknownVariableType] - being checked
    )


_TRACKS = frozenset({"full", "result", "none"})

_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "id": (_is_text, "a text"),
    "type": (_is_text, "a text"),
    "input": (lambda value: isinstance(value, str), "a text"),
    "group_id": (_is_text, "a text"),
    "queue_at": (is_time, "a time in milliseconds"),
    "start_at": (is_time, "a time in milliseconds"),
    "attempt": (lambda value: _is_count(value) and value > 0, "a count from 1"),
    "priority": (_is_int, "a whole number"),
    "group": (_is_text, "a text"),
    "version": (_is_count, "a count"),
    "parent_id": (_is_text, "a text"),
    "gate": (_is_text, "a text"),
    "turn": (_is_count, "a count"),
    "track": (lambda value: isinstance(value, str) and value in _TRACKS, "a tracking level"),
    "timeout": (_is_number, "seconds"),
    "deadline": (is_time, "a time in milliseconds"),
    "upstream": (_is_text, "a text"),
    "unique": (_is_text, "a text"),
    "unique_until": (is_time, "a time in milliseconds"),
    "redrives": (_is_count, "a count"),
    "trace": (_is_trace, "texts by name"),
    "recheck": (lambda value: isinstance(value, bool), "true or false"),
}
#: How many fields an envelope has that says nothing out of the ordinary, beside its version.
_PLAIN_FIELDS = 7
_REQUIRED = ("id", "type", "input", "queue_at", "start_at")


def decode(body: str) -> Envelope:
    """Read an envelope from the text of a message.

    Raises:
        InvalidWorkError: It is not an envelope; the text says what is wrong with it.
        NewerEnvelopeError: It is an envelope of a newer release.
    """
    try:
        data: Any = _from_json(body)
    except (ValueError, RecursionError) as error:
        raise InvalidWorkError(f"bad message: not JSON ({type(error).__name__})") from error
    if type(data) is not dict:
        raise InvalidWorkError(f"bad message: a JSON object is needed, not {_kind(data)}")
    fields: dict[str, Any] = data  # pyright: ignore[reportUnknownVariableType] - JSON has text keys
    if "\\u" in body or not body.isascii():
        _check_text(body, fields)
    version = fields.pop("v", None)
    if version != ENVELOPE_VERSION or type(version) is not int:
        _check_version(version, fields)
    return _plain(fields) or _checked(fields)


def _plain(fields: dict[str, Any]) -> Envelope | None:
    """The short way for a well-formed envelope without optional fields; else ``None``."""
    if len(fields) != _PLAIN_FIELDS:
        return None
    try:
        id, type_, text = fields["id"], fields["type"], fields["input"]
        queue_at, start_at, version = fields["queue_at"], fields["start_at"], fields["version"]
        retry = Retry.from_tuple(fields["retry"])
    except (KeyError, ValueError, TypeError):
        return None
    if (
        type(id) is type(type_) is type(text) is str
        and type(queue_at) is type(start_at) is type(version) is int
        and id != ""
        and type_ != ""
        and EARLIEST_MS <= queue_at < END_MS
        and EARLIEST_MS <= start_at < END_MS
        and 0 <= version < END_MS
    ):
        return Envelope(id, type_, text, id, queue_at, start_at, 1, 0, None, retry, version)
    return None


def _checked(fields: dict[str, Any]) -> Envelope:
    """Look at every field, and say what is wrong with the first bad one."""
    work_type = fields.get("type")
    shown = work_type if isinstance(work_type, str) else ""
    retry = _read_retry(fields.pop("retry", None), shown)
    for name, value in fields.items():
        check = _CHECKS.get(name)
        if check is None:
            raise InvalidWorkError("bad message: unknown field", work_type=shown, field=name)
        if not check[0](value):
            raise InvalidWorkError(
                f"bad message: {check[1]} is needed, not {_kind(value)}",
                work_type=shown,
                field=name,
            )
    for name in _REQUIRED:
        if name not in fields:
            raise InvalidWorkError("bad message: it is missing", work_type=shown, field=name)
    fields.setdefault("group_id", fields["id"])
    return Envelope(retry=retry, **fields)


def _check_text(body: str, fields: dict[str, Any]) -> None:
    """Refuse halves of surrogate pairs: no store could keep what is made of them."""
    try:
        body.encode()
        if "\\u" in body:
            json.dumps(fields, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise InvalidWorkError("bad message: it holds half of a surrogate pair") from error


def _check_version(version: Any, fields: dict[str, Any]) -> None:
    if type(version) is not int or version < 1:
        raise InvalidWorkError("bad message: it has no envelope version, so it was never ours")
    name = fields.get("type")
    raise NewerEnvelopeError(version, name if isinstance(name, str) else "")


def _read_retry(value: Any, work_type: str) -> Retry:
    try:
        return Retry.from_tuple(value)
    except (ValueError, TypeError) as error:
        raise InvalidWorkError(
            f"bad message: {error}", work_type=work_type, field="retry"
        ) from error


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
