"""``dependency(on=[...])``: works that start once works which exist already have ended.

It is a work itself: it reads the states of what it waits for, remembers the terminal ones, and
puts itself off with a growing delay, so that it survives restarts and uses no place while it waits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, cast

from piecework.clock import Seconds, seconds
from piecework.definitions import Work, WorkType
from piecework.errors import InvalidWorkError, shown
from piecework.gates import DEPENDENCY_TYPE, SHORTEST_POLL, When, check_when
from piecework.options import is_name
from piecework.packing import pack_work
from piecework.retry import Retry

if TYPE_CHECKING:
    from collections.abc import Sequence


def _watch(spec: str) -> None:
    """Stands for the watcher, which is a part of the engine."""


def gate_type() -> WorkType[[str], None]:
    """The built-in work type of gates and dependencies; every system has it."""
    return WorkType(DEPENDENCY_TYPE, _watch, {"retry": _PATIENT, "executor": "loop"})


#: None of its failures is its own: a store that is away, a worker that died. What can never come
#: true ends it at once, however many attempts are left.
_PATIENT = Retry(attempts=1000, base=1.0, max=60.0)


_BUILT_IN: WorkType[[str], None] = gate_type()


def dependency(
    on: Sequence[str | Work[Any]],
    queue: Sequence[Work[Any]] | Work[Any],
    *,
    when: When = "all-success",
    poll: Seconds = 1.0,
    timeout: Seconds | None = None,
) -> Work[None]:
    """A work that queues others once the works that it depends on have ended.

    For works that are queued in one call, ``then=`` is cheaper: it needs no message and no polling.

    Args:
        on: What to wait for: ids, or works that were queued already.
        queue: What to queue then, in the dependency's own group, with the ids that it has now.
        when: ``"all-success"`` (default), ``"all-done"`` or ``{"count": n, "of": ...}``.
        poll: Seconds between the first two looks, at least 0.05; it doubles up to 60 s.
        timeout: Seconds after which the dependency is dead; ``None`` for never.

    Raises:
        InvalidWorkError: The condition, the poll or the timeout cannot be used.

    Example:
        >>> first = add(1, 2)
        >>> after = dependency([first], report())
    """
    ids = [one.id if isinstance(one, Work) else one for one in _several("on", on)]
    works: list[Any] = [queue] if isinstance(queue, Work) else _several("queue", queue)
    if not all(is_name(id) for id in ids):
        raise _unusable("on", "takes ids and works", ids)
    if not all(isinstance(work, Work) for work in works):
        raise _unusable("queue", "takes works", works)
    pause = seconds(poll)
    limit = None if timeout is None else seconds(timeout)
    if not SHORTEST_POLL <= pause < math.inf or (limit is not None and not 0 < limit < math.inf):
        raise InvalidWorkError(
            f"poll must be at least {SHORTEST_POLL:g} s and timeout above 0 s, "
            f"not {pause:g} and {limit}",
            work_type=DEPENDENCY_TYPE,
        )
    spec = {
        "on": ids,
        "queue": [pack_work(work) for work in works],
        "when": check_when(when),
        "poll": pause,
        "timeout": limit,
    }
    return Work(_BUILT_IN, json.dumps({"spec": json.dumps(spec)}))


def _several(field: str, values: Any) -> list[Any]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise _unusable(field, "takes a list", values)
    return list(cast("Iterable[Any]", values))


def _unusable(field: str, problem: str, value: object) -> InvalidWorkError:
    return InvalidWorkError(
        f"{problem}, not {shown(value)}",
        work_type=DEPENDENCY_TYPE,
        field=field,
        fix="Pass what enqueue takes and returns: dependency([handle.id, work], then()).",
    )
