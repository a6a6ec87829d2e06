"""What can be known of a work: its state, and the events on its way."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

if TYPE_CHECKING:
    from datetime import datetime

Status: TypeAlias = Literal["pending", "running", "success", "dead", "cancelled", "expired"]
"""Where a work is; the last four are terminal."""

TERMINAL: frozenset[str] = frozenset({"success", "dead", "cancelled", "expired"})

EventKind: TypeAlias = Literal[
    "queued",
    "started",
    "succeeded",
    "failed",
    "deferred",
    "cancelled",
    "expired",
    "group-done",
]


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a handler says that it is.

    Attributes:
        done: Units that are done.
        total: Units in all, if known.
        message: What it is doing.

    Example:
        >>> async for progress in handle.progress():
        ...     print(progress.done, progress.total, progress.message)
    """

    done: float
    total: float | None = None
    message: str = ""


def read_progress(values: Any) -> Progress | None:
    """The progress that was sent or kept as done, total and message; ``None`` for anything else."""
    if not isinstance(values, list) or not 1 <= len(cast("list[Any]", values)) <= 3:
        return None
    parts: list[Any] = [*values, None, None]
    done, total, message = parts[:3]
    fits = (
        type(done) in _NUMBERS
        and (total is None or type(total) in _NUMBERS)
        and (message is None or isinstance(message, str))
    )
    return Progress(done, total, message or "") if fits else None


_NUMBERS = (int, float)


@dataclass(frozen=True, slots=True)
class WorkState:
    """The state of one work as the store has it.

    Attributes:
        id: The id of the work.
        type: The name of its work type.
        status: Where it is.
        attempt: Which attempt it is at, from 1.
        error: What it died of, as ``Name: message``.
        queue_at: When it was enqueued.
        start_at: When it may start.
        run_at: When its handler was started, as far as that was recorded.
        end_at: When it became terminal.
        priority: Higher goes first.
        group: The tenant.
        group_id: The id of its group's root work.
        parent_id: The work whose handler queued it.
        result: What its handler returned, once it succeeded.
        progress: What its handler last said with ``ctx.progress``.

    Example:
        >>> state = await work.state(handle.id)
        >>> state.status, state.result
        ('success', 3)
    """

    id: str
    type: str
    status: Status
    attempt: int = 1
    error: str | None = None
    queue_at: datetime | None = None
    start_at: datetime | None = None
    run_at: datetime | None = None
    end_at: datetime | None = None
    priority: int = 0
    group: str | None = None
    group_id: str = ""
    parent_id: str | None = None
    result: Any = None
    progress: Progress | None = None

    @property
    def terminal(self) -> bool:
        """Whether the work has settled."""
        return self.status in TERMINAL


@dataclass(frozen=True, slots=True)
class WorkEvent:
    """Something that happened to a work in this process.

    Attributes:
        kind: What happened.
        id: The id of the work (of the group's root work for ``group-done``).
        type: The name of its work type.
        group_id: The id of its group.
        attempt: Which attempt, from 1.
        at: When.
        will_retry: For ``failed``: whether another attempt follows.
        error: For ``failed``: what went wrong, as ``Name: message``.
        start_at: For ``queued``, ``deferred`` and a ``failed`` that is retried: when it may start.
        result: For ``succeeded`` what the handler returned, for ``group-done`` the group's result.

    Example:
        >>> def hear(event):
        ...     print(event.kind, event.type, event.id)
        >>> create_work(work=[add], on_event=hear)
    """

    kind: EventKind
    id: str
    type: str
    group_id: str
    attempt: int
    at: datetime
    will_retry: bool = False
    error: str | None = None
    start_at: datetime | None = None
    result: Any = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class WorkInfo:
    """What ``accept`` and ``on_failure`` are told of a work.

    Attributes:
        id: The id of the work.
        type: The name of its work type.
        group_id: The id of its group.
        attempt: Which attempt this is, from 1.
        attempts: How many attempts it has in all.
        input: The arguments by name, JSON-able.

    Example:
        >>> def on_failure(error, info):
        ...     return "abort" if info.attempt > 1 else "retry"
    """

    id: str
    type: str
    group_id: str
    attempt: int
    attempts: int
    input: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class GroupInfo:
    """What ``unhandled_work_group`` is told of a group that nobody waited for.

    Attributes:
        group_id: The id of the group's root work.
        last_result: What ``ctx.set_result`` was last given, or ``None``.
        states: The states of the group's works that this process settled (the latest 1,000).

    Example:
        >>> def nobody_waited(info):
        ...     print(info.group_id, info.last_result)
        >>> create_work(work=[add], unhandled_work_group=nobody_waited)
    """

    group_id: str
    last_result: Any
    states: list[WorkState]


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message in the dead letters.

    Attributes:
        id: The id of the work; empty where the body could not be read.
        type: The name of its work type; empty where the body could not be read.
        reason: Why it is there.
        attempt: The attempt that failed last.
        queue_at: When the work was enqueued.
        body: The message as it was.

    Example:
        >>> for letter in await work.dead_letters():
        ...     print(letter.id, letter.type, letter.reason)
    """

    id: str
    type: str
    reason: str
    attempt: int
    queue_at: datetime | None
    body: str = field(repr=False)
