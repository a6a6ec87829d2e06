"""A deterministic simulator: your works in a fleet where everything goes wrong, by a seed.

Time is virtual, the order of tasks is chosen by the seed, and so is every fault: processes die
between any two effects, answers get lost, leases lapse, messages come twice or late, clocks differ.
What the promises say is checked at every write and at the end. A seed that fails is run again with
ever fewer faults, and the shortest history that still fails is shown.

Example:
    >>> from piecework.testing.simulation import Workload, simulate
    >>> class Orders(Workload):
    ...     types = (charge, notify)
    ...
    ...     async def produce(self, stage):
    ...         await stage.enqueue(stage.once("order", lambda: charge(stage.name)))
    >>> simulate([Orders()], seeds=range(1000))
"""

from __future__ import annotations

from piecework.testing.simulation.book import Violation
from piecework.testing.simulation.campaign import SimulationFailedError, simulate
from piecework.testing.simulation.run import Outcome
from piecework.testing.simulation.workload import ENDED, SUCCESS, Stage, Workload, world

__all__ = [
    "ENDED",
    "SUCCESS",
    "Outcome",
    "SimulationFailedError",
    "Stage",
    "Violation",
    "Workload",
    "simulate",
    "world",
]
