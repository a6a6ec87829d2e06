"""The text that the ledger keeps in a work's record: state and result together.

The first line is the status with a JSON header; the rest is the payload: the envelope of a work
that is not terminal (or is dead, so that it can be redriven), or the result of one that succeeded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from piecework.clock import END_MS, from_ms
from piecework.envelope import Envelope, NewerEnvelopeError, decode
from piecework.errors import InvalidWorkError, shown
from piecework.state import TERMINAL, Status, WorkState, read_progress

if TYPE_CHECKING:
    from piecework.ports.store import Record

_quote = json.encoder.encode_basestring
_to_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a work ended.

    Attributes:
        status: One of the terminal states.
        result: The result as JSON text, for ``success``.
        error: What it died of, as ``Name: message``.
        error_type: The name of the exception's class.
        traceback: The formatted traceback.
    """

    status: Status
    result: str | None = None
    error: str | None = None
    error_type: str = ""
    traceback: str = ""


@dataclass(frozen=True, slots=True)
class Item:
    """A work's record, read.

    Attributes:
        status: Where the work is.
        header: What the first line says beside the status.
        payload: The envelope or the result, as text.
        version: The version of the record: the fencing token.
        key: Where it stands.
    """

    status: Status
    header: dict[str, Any]
    payload: str
    version: int
    key: str

    @property
    def terminal(self) -> bool:
        """Whether the work has settled."""
        return self.status in TERMINAL

    @property
    def writer(self) -> str | None:
        """The token of the run that wrote this."""
        return self.header.get("w")

    def envelope(self) -> Envelope:
        """The envelope of a work that is not terminal, or is dead, at the version of the record.

        Raises:
            InvalidWorkError: There is none, or it is another work's.
            NewerEnvelopeError: A newer release has written it.
        """
        env = decode(self.payload)
        if not self.key.endswith(f":{env.id}"):
            raise _corrupt(self.key, f"it holds the work {env.id!r}")
        attempt = self.header.get("a", env.attempt) if self.status == "running" else env.attempt
        return env._replace(version=self.version, attempt=attempt)

    def second_message(self) -> Envelope:
        """The envelope for one more message of a work that is not terminal: the record decides.

        For a running work it stands at the version before, so that its delivery meets the record
        as any other does: as a duplicate, or as one that takes over, which is an attempt.
        """
        env = self.envelope()
        late = 1 if self.status == "running" else 0
        return env._replace(version=self.version - late, recheck=True)


def read_item(record: Record) -> Item | None:
    """Read a work's record; ``None`` where there is none.

    Raises:
        InvalidWorkError: It was not written by us.
    """
    value = record.value
    if value is None:
        return None
    line, _, payload = value.partition("\n")
    status, _, text = line.partition(" ")
    if status not in _STATUSES:
        raise _corrupt(record.key, "it starts with no status")
    if not text:
        text = "{}"
    try:
        header: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _corrupt(record.key, "its header is not JSON") from error
    if not isinstance(header, dict):
        raise _corrupt(record.key, "its header is not a JSON object")
    known = cast("dict[str, Any]", header)
    _check_header(record.key, status, known)
    return Item(cast("Status", status), known, payload, record.version, record.key)


def _check_header(key: str, status: str, header: dict[str, Any]) -> None:
    for name, value in header.items():
        kind = _KINDS.get(name)
        if kind is None:
            continue
        if type(value) is not kind or (kind is int and not -END_MS < value < END_MS):
            raise _corrupt(key, f"its header is not ours ({name}: {shown(value)})")
    if status in TERMINAL and not header.keys() >= _ENDED:
        raise _corrupt(key, "its header says too little")


#: What the fields of a header are; the numbers are counts and times in milliseconds.
_KINDS: dict[str, type] = {
    **dict.fromkeys(("t", "w", "g", "gid", "pid", "gate", "err", "et", "tb"), str),
    **dict.fromkeys(("a", "q", "s", "e", "r", "l", "done"), int),
    "drained": bool,
    "pr": list,
}
#: What the header of a terminal work always says: type, attempt, and when it was what.
_ENDED = frozenset({"t", "a", "q", "s", "e"})


_STATUSES = TERMINAL | {"pending", "running"}


def _corrupt(key: str, problem: str) -> InvalidWorkError:
    return InvalidWorkError(
        f"the record {key!r} cannot be read: {problem}",
        fix="Give every program that shares the store a prefix of its own.",
    )


def pending_value(body: str, writer: str | None = None) -> str:
    """The value of a work that waits for its turn."""
    return f"pending\n{body}" if writer is None else f"pending {_to_json({'w': writer})}\n{body}"


def running_value(
    body: str, *, attempt: int, writer: str, run_at: int, lease_until: int, progress: Any = None
) -> str:
    """The value of a work that a worker has under way until ``lease_until``."""
    header = {"a": attempt, "w": writer, "r": run_at, "l": lease_until}
    if progress is not None:
        header["pr"] = progress
    return f"running {_to_json(header)}\n{body}"


def terminal_value(
    env: Envelope,
    outcome: Outcome,
    *,
    writer: str,
    run_at: int | None,
    end_at: int,
    body: str = "",
) -> str:
    """The value of a work that has settled; ``body`` is kept for a dead one, to redrive it."""
    header = (
        f'{{"t":{_quote(env.type)},"a":{env.attempt},"q":{env.queue_at},"s":{env.start_at},'
        f'"e":{end_at},"w":{_quote(writer)}'
    )
    if run_at is not None:
        header += f',"r":{run_at}'
    rest = {
        "p": env.priority or None,
        "g": env.group,
        "gid": env.group_id if env.group_id != env.id else None,
        "pid": env.parent_id,
        "gate": env.gate,
    }
    if outcome.error is not None:
        rest |= {"err": outcome.error, "et": outcome.error_type, "tb": outcome.traceback}
    for name, value in rest.items():
        if value is not None:
            header += f',"{name}":{_to_json(value)}'
    payload = outcome.result if outcome.status == "success" else body
    return f"{outcome.status} {header}}}\n{payload or ''}"


def with_header(item: Item, **extra: Any) -> str:
    """The value of a settled work with more in its header."""
    return f"{item.status} {_to_json({**item.header, **extra})}\n{item.payload}"


def read_state(id: str, record: Record) -> WorkState | None:
    """The public state of a work, without its result; ``None`` where there is no record.

    Raises:
        InvalidWorkError: The record was not written by us, or by a newer release.
    """
    item = read_item(record)
    if item is None:
        return None
    try:
        return _state_of(id, item)
    except InvalidWorkError:
        raise
    except NewerEnvelopeError as error:
        raise _corrupt(record.key, str(error)) from error
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise _corrupt(record.key, f"its header is not ours ({error!r})") from error


def _state_of(id: str, item: Item) -> WorkState:
    header = item.header
    if item.terminal:
        return WorkState(
            id=id,
            type=header["t"],
            status=item.status,
            attempt=header["a"],
            error=header.get("err"),
            queue_at=from_ms(header["q"]),
            start_at=from_ms(header["s"]),
            run_at=from_ms(header["r"]) if "r" in header else None,
            end_at=from_ms(header["e"]),
            priority=header.get("p", 0),
            group=header.get("g"),
            group_id=header.get("gid", id),
            parent_id=header.get("pid"),
        )
    env = item.envelope()
    return WorkState(
        id=id,
        type=env.type,
        status=item.status,
        attempt=env.attempt,
        queue_at=from_ms(env.queue_at),
        start_at=from_ms(env.start_at),
        run_at=from_ms(header["r"]) if "r" in header else None,
        priority=env.priority,
        group=env.group,
        group_id=env.group_id,
        parent_id=env.parent_id,
        progress=read_progress(header.get("pr")),
    )
