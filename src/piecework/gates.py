"""Gates: conditions on the ends of several works, decided by pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NotRequired, TypeAlias, TypedDict, cast

from piecework.counters import FAILED, HOLD, MEMBERS, OK
from piecework.errors import InvalidWorkError, shown
from piecework.state import TERMINAL, WorkState

if TYPE_CHECKING:
    from piecework.envelope import Envelope
    from piecework.ports.store import Record

#: The built-in work type of gates and dependencies.
DEPENDENCY_TYPE = "@piecework/gate"

#: Seconds: the shortest pause between two looks of a dependency.
SHORTEST_POLL = 0.05

#: How many ids stand in one page beside a gate: below every store's limit of a value.
PAGE_SIZE = 1000


class CountOf(TypedDict):
    """A condition: at least ``count`` works ended, all of them or only well.

    Attributes:
        count: How many.
        of: ``"success"`` (default) counts those that succeeded, ``"done"`` all terminal ones.
    """

    count: int
    of: NotRequired[Literal["success", "done"]]


When: TypeAlias = Literal["all-done", "all-success"] | CountOf
"""The condition of a gate."""

Verdict: TypeAlias = Literal["wait", "fire", "fail"]


@dataclass(frozen=True, slots=True)
class GateSpec:
    """What a gate is for; it stands as the input of the gate's own work.

    Attributes:
        then: The envelopes, as message bodies, of the works that start when it fires.
        when: The condition.
        total: How many works count in it.
    """

    then: tuple[str, ...]
    when: When
    total: int

    def encode(self) -> str:
        """The spec as JSON text."""
        return json.dumps({"then": self.then, "when": self.when, "total": self.total})

    @staticmethod
    def decode(text: str) -> GateSpec:
        """Read a spec from JSON text.

        Raises:
            InvalidWorkError: It is none.
        """
        try:
            data = json.loads(text)
            then, when, total = tuple(data["then"]), check_when(data["when"]), data["total"]
            if not isinstance(total, int) or not all(isinstance(body, str) for body in then):
                raise TypeError("a value is of another kind")
        except (ValueError, TypeError, LookupError, RecursionError) as error:
            raise InvalidWorkError(
                f"its spec cannot be read ({type(error).__name__}: {error})",
                work_type=DEPENDENCY_TYPE,
            ) from error
        return GateSpec(then, when, total)


_COUNT_KEYS = {"count", "of"}


def check_when(when: Any) -> When:
    """Check a condition.

    Raises:
        InvalidWorkError: It is none of the known ones; the text lists them.
    """
    asked: object = when
    if isinstance(when, str) and when in ("all-done", "all-success"):
        return cast("When", when)
    if isinstance(when, Mapping):
        given = cast("Mapping[str, Any]", when)
        count = given.get("count")
        of = given.get("of", "success")
        if (
            type(count) is int
            and count >= 0
            and isinstance(of, str)
            and of in ("success", "done")
            and given.keys() <= _COUNT_KEYS
        ):
            return CountOf(count=count, of=of)
    raise InvalidWorkError(
        f"cannot be {shown(asked)}",
        work_type=DEPENDENCY_TYPE,
        field="when",
        fix="Use 'all-done', 'all-success' or {'count': n, 'of': 'success' or 'done'}.",
    )


def judge(when: When, *, total: int, ok: int, failed: int, drained: bool) -> Verdict:
    """Decide on a condition from how many works ended well and badly, of how many in all.

    Args:
        when: The condition.
        total: How many works there are.
        ok: How many succeeded.
        failed: How many ended otherwise.
        drained: Whether nothing more can end.

    Returns:
        ``"fire"``: it is met; ``"fail"``: it can no longer be met; ``"wait"``: neither yet.
    """
    if when == "all-done":
        return "fire" if drained else "wait"
    if when == "all-success":
        if failed > 0:
            return "fail"
        return "fire" if drained else "wait"
    count = when["count"]
    reached = ok if when.get("of", "success") == "success" else ok + failed
    if reached >= count:
        return "fire"
    lost = failed if when.get("of", "success") == "success" else 0
    return "fail" if drained or total - lost < count else "wait"


def judge_gate(spec: GateSpec, record: Record) -> Verdict:
    """Decide on a gate from the counters of its record."""
    return judge(
        spec.when,
        total=spec.total,
        ok=record.count(OK),
        failed=record.count(FAILED),
        drained=is_drained(record),
    )


def is_gate(env: Envelope) -> bool:
    """Whether this is a gate of ``then=``, which has no message, and not a dependency."""
    return env.type == DEPENDENCY_TYPE and env.input.startswith('{"then"')


def is_drained(record: Record) -> bool:
    """Whether all works of a gate are queued and terminal."""
    return record.count(HOLD) <= 0 and record.count(MEMBERS) <= 0


def condition_met(when: When, states: Sequence[WorkState | None]) -> bool:
    """Whether a condition holds for these states. A state that is not known counts as not done.

    Example:
        >>> condition_met("all-done", [])
        True
    """
    when = check_when(when)
    known = [state for state in states if state is not None and state.status in TERMINAL]
    ok = sum(1 for state in known if state.status == "success")
    failed = len(known) - ok
    drained = len(known) == len(states)
    return judge(when, total=len(states), ok=ok, failed=failed, drained=drained) == "fire"
