"""Many histories: seed after seed, in several processes, with a short story for what fails."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from piecework.testing.simulation.run import Outcome, run
from piecework.testing.simulation.shrink import Shrunk, shrink

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator, Sequence

    from piecework.testing.simulation.workload import Workload

Cast: TypeAlias = "Callable[[int], Sequence[Workload]]"
"""Gives the workloads of a seed; fresh ones at each call."""

_COMMAND = "python -m piecework.testing.simulation"
#: How many seeds a process runs between two reports.
_CHUNK = 25


class SimulationFailedError(AssertionError):
    """A seed broke a promise; the text has the shortest history and how to run it again."""


@dataclass(slots=True)
class Totals:
    """What a campaign has seen.

    Attributes:
        seeds: How many histories were run.
        faults: How many faults were injected, by kind.
        settled: How many works ended, by status.
        workloads: How often each workload took part.
        swept: How many works needed the sweep.
        failed: The outcomes that broke a promise.
        seconds: How long it took.
    """

    seeds: int = 0
    faults: Counter[str] = field(default_factory=Counter[str])
    settled: Counter[str] = field(default_factory=Counter[str])
    workloads: Counter[str] = field(default_factory=Counter[str])
    swept: int = 0
    failed: list[Outcome] = field(default_factory=list[Outcome])
    seconds: float = 0.0

    def add(self, other: Totals) -> None:
        """Add what a part of the campaign has seen."""
        self.seeds += other.seeds
        self.faults += other.faults
        self.settled += other.settled
        self.workloads += other.workloads
        self.swept += other.swept
        self.failed += other.failed


def simulate(workloads: Sequence[Workload], seeds: Iterable[int] = range(100)) -> Totals:
    """Run workloads under every seed; for tests of your own works.

    Args:
        workloads: What every history is about. They keep no state of their own.
        seeds: The seeds.

    Raises:
        SimulationFailedError: A promise was broken; the text says how, and how to see it again.

    Example:
        >>> def test_orders_survive_everything():
        ...     simulate([Orders()], seeds=range(500))
    """
    totals = run_seeds(seeds, lambda _: workloads, stop_at=1)
    for outcome in totals.failed:
        raise SimulationFailedError(story(shrink(outcome, lambda _: workloads)))
    return totals


def run_seeds(seeds: Iterable[int], cast: Cast, *, stop_at: int = 0) -> Totals:
    """Run seeds in this process.

    Args:
        seeds: The seeds.
        cast: Gives the workloads of a seed.
        stop_at: How many failures are enough; 0 for all.
    """
    totals = Totals()
    for seed in seeds:
        outcome = run(seed, cast(seed))
        totals.seeds += 1
        totals.faults += outcome.counts
        totals.settled += outcome.settled
        totals.workloads += Counter(outcome.workloads)
        totals.swept += outcome.swept
        if outcome.broken:
            totals.failed.append(outcome)
            if stop_at and len(totals.failed) >= stop_at:
                break
    return totals


def campaign(seeds: range, cast: Cast, *, processes: int, stop_at: int) -> Iterator[Totals]:
    """Run seeds in several processes; yield what was seen so far after each part.

    Args:
        seeds: The seeds.
        cast: Gives the workloads of a seed; a function of a module, for the other processes.
        processes: How many.
        stop_at: How many failures are enough.
    """
    began = time.perf_counter()
    totals = Totals()
    parts = [seeds[at : at + _CHUNK] for at in range(0, len(seeds), _CHUNK)]
    with _mapping(processes) as mapped:
        for part in mapped(_Part(cast), parts):
            totals.add(part)
            totals.seconds = time.perf_counter() - began
            yield totals
            if len(totals.failed) >= stop_at:
                return


@contextmanager
def _mapping(processes: int) -> Generator[Callable[..., Iterator[Totals]]]:
    """``map``, here or in other processes."""
    if processes == 1:
        yield map
        return
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield pool.imap_unordered


@dataclass(frozen=True, slots=True)
class _Part:
    cast: Cast

    def __call__(self, seeds: range) -> Totals:
        totals = run_seeds(seeds, self.cast)
        for outcome in totals.failed:
            outcome.story.clear()
        return totals


def story(shrunk: Shrunk) -> str:
    """What a failing seed comes down to, for people."""
    outcome = shrunk.outcome
    faults = ",".join(outcome.faults) or "none"
    which = ",".join(map(str, shrunk.workloads))
    lines = [
        f"seed {outcome.seed} broke a promise:",
        *(f"  {violation}" for violation in outcome.broken[:10]),
        f"with {', '.join(outcome.workloads)} and {len(outcome.faults)} faults: {faults}",
        "its history:",
        *(f"  {line}" for line in outcome.story[-120:]),
        "to see it again:",
        f"  {_COMMAND} --replay {outcome.seed} --faults {faults} --keep {which}",
    ]
    return "\n".join(lines)
