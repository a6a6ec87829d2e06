"""The workloads that come with the simulator: every kind of work that the library promises for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.testing.simulation.workloads.batches import Batches
from piecework.testing.simulation.workloads.control import (
    Cancelled,
    CancelledGroup,
    Deadlines,
    Redriven,
    RedrivenMember,
)
from piecework.testing.simulation.workloads.families import Families, LateChildren
from piecework.testing.simulation.workloads.gates import (
    Dependencies,
    Gates,
    GatesInHandlers,
)
from piecework.testing.simulation.workloads.lone import Delayed, Lone, Retried, Slow, Untracked
from piecework.testing.simulation.workloads.schedules import Scheduled
from piecework.testing.simulation.workloads.unique import Claims, Unique, UniqueFor

if TYPE_CHECKING:
    from random import Random

    from piecework.testing.simulation.workload import Workload

#: Every workload by its name.
WORKLOADS: dict[str, type[Workload]] = {
    kind.__name__.lower(): kind
    for kind in (
        Batches,
        Cancelled,
        CancelledGroup,
        Claims,
        Deadlines,
        Delayed,
        Dependencies,
        Families,
        Gates,
        GatesInHandlers,
        LateChildren,
        Lone,
        Redriven,
        RedrivenMember,
        Retried,
        Scheduled,
        Slow,
        Unique,
        UniqueFor,
        Untracked,
    )
}


def draw_workloads(random: Random) -> list[Workload]:
    """A few of them, as the seed says; the same one may come twice."""
    count = random.choice((1, 1, 2, 3))
    return [WORKLOADS[random.choice(list(WORKLOADS))]() for _ in range(count)]
