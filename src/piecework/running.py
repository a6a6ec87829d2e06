"""Which work's handler is running here: what makes the ids of its children safe to replay."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field

from piecework.ids import derived_id, random_id


@dataclass(slots=True)
class Run:
    """One run of a handler.

    Attributes:
        id: The id of the work.
        type: The name of its work type.
        group_id: The id of its group.
        attempt: Which attempt this is.
        turn: How often the work deferred itself.
        log: What the log filter adds to records besides.
    """

    id: str
    type: str
    group_id: str
    attempt: int
    turn: int = 0
    log: dict[str, object] = field(default_factory=dict[str, object])
    _built: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _gates: int = 0

    def child_id(self, work_type: str, input: str) -> str:
        """The id of the next child of this type and input: the same one in a replay of this run."""
        place = (work_type, input)
        nth = self._built.get(place, 0)
        self._built[place] = nth + 1
        return derived_id("child", self.id, self.turn, work_type, input, nth)

    def gate_id(self) -> str:
        """The id of the next gate of this run: the same one in a replay of it."""
        self._gates += 1
        return gate_id(self.id, self.turn, self._gates - 1)


def gate_id(parent_id: str, turn: int, nth: int) -> str:
    """The id of the nth gate that a work opens in a turn: anybody can find it."""
    return derived_id("gate", parent_id, turn, nth)


current_run: ContextVar[Run | None] = ContextVar("piecework_run", default=None)


def new_id(work_type: str, input: str) -> str:
    """The id for a work that is built here and now."""
    run = current_run.get()
    return random_id() if run is None else run.child_id(work_type, input)
