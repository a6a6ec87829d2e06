"""From a history that fails to the shortest one that fails in the same way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from piecework.testing.simulation.run import Outcome, run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from piecework.testing.simulation.workload import Workload

#: How many histories are tried, at most.
_TRIES = 300


@dataclass(frozen=True, slots=True)
class Shrunk:
    """The shortest failing history that was found.

    Attributes:
        outcome: What became of it, with its story.
        workloads: Which workloads of the seed take part, by their places.
    """

    outcome: Outcome
    workloads: list[int]


class _Shrinker:
    def __init__(self, outcome: Outcome, cast: Callable[[int], Sequence[Workload]]) -> None:
        self.seed = outcome.seed
        self.kinds = {violation.kind for violation in outcome.broken}
        self.cast = cast
        self.tries = 0

    def fails(self, workloads: list[int], faults: list[str]) -> bool:
        """Whether it still fails in one of the same ways."""
        if self.tries >= _TRIES:
            return False
        self.tries += 1
        found = run(self.seed, self._some(workloads), only=faults)
        return any(violation.kind in self.kinds for violation in found.broken)

    def _some(self, workloads: list[int]) -> list[Workload]:
        everything = self.cast(self.seed)
        return [everything[at] for at in workloads]

    def shrink(self, outcome: Outcome) -> Shrunk:
        workloads, faults = list(range(len(self.cast(self.seed)))), list(outcome.faults)
        if self.fails(workloads, faults):
            for at in list(workloads):
                fewer = [other for other in workloads if other != at]
                if fewer and self.fails(fewer, faults):
                    workloads = fewer
            faults = self._fewer(workloads, faults)
            told = run(self.seed, self._some(workloads), only=faults, tell=True)
        else:
            told = run(self.seed, self.cast(self.seed), tell=True)
        return Shrunk(told, workloads)

    def _fewer(self, workloads: list[int], faults: list[str]) -> list[str]:
        """Leave out parts of the faults, ever smaller ones, while it still fails."""
        size = len(faults)
        while size:
            at = 0
            while at < len(faults):
                fewer = faults[:at] + faults[at + size :]
                if self.fails(workloads, fewer):
                    faults = fewer
                else:
                    at += size
            size //= 2
        return faults


def shrink(outcome: Outcome, cast: Callable[[int], Sequence[Workload]]) -> Shrunk:
    """Find the shortest history that fails as this one did.

    Args:
        outcome: What failed.
        cast: Gives the workloads of its seed.
    """
    return _Shrinker(outcome, cast).shrink(outcome)
