"""``python -m piecework.testing.simulation``: run seeds, or one of them again."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from piecework.testing.simulation.campaign import Cast, Totals, campaign, run_seeds, story
from piecework.testing.simulation.cast import Only, drawn
from piecework.testing.simulation.run import run
from piecework.testing.simulation.shrink import shrink
from piecework.testing.simulation.workloads import WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Sequence

#: Seconds between two lines of progress.
_PROGRESS = 15.0


def _arguments(given: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m piecework.testing.simulation",
        description="Runs works in a simulated fleet where everything goes wrong, by seeds.",
    )
    add = parser.add_argument
    add("--seeds", type=int, default=1000, metavar="N", help="how many seeds (1000)")
    add("--first", type=int, default=0, metavar="SEED", help="the first seed (0)")
    add("--fresh", action="store_true", help="begin at a seed that nobody has run")
    add("--known", metavar="FILE", help="first run the seeds in this file, one per line")
    add("--processes", type=int, default=os.cpu_count() or 1, metavar="N")
    add("--failures", type=int, default=1, metavar="N", help="stop after so many failures (1)")
    add("--workload", metavar="NAME", help=f"only this: {', '.join(WORKLOADS)}, or MODULE:CLASS")
    add("--replay", type=int, metavar="SEED", help="run one seed and tell its history")
    add("--faults", metavar="LIST", help="with --replay: only these faults, or 'none'")
    add("--keep", metavar="LIST", help="with --replay: only these workloads of the seed, by place")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run what the command line says; 1 if a promise was broken."""
    options = _arguments(sys.argv[1:] if given is None else given)
    cast: Cast = drawn if options.workload is None else Only(options.workload)
    if options.replay is not None:
        return _replay(options, cast)
    if options.known:
        seeds = [
            int(line.split("#")[0])
            for line in Path(options.known).read_text().splitlines()
            if line.split("#")[0].strip()
        ]
        totals = run_seeds(seeds, cast)
        _say(f"{totals.seeds} seeds that failed once: {len(totals.failed)} fail")
        if totals.failed:
            return _report(totals, cast)
    first = time.time_ns() // 1000 if options.fresh else options.first
    _say(f"seeds {first} to {first + options.seeds - 1}")
    totals = _run(range(first, first + options.seeds), cast, options)
    return _report(totals, cast)


def _run(seeds: range, cast: Cast, options: argparse.Namespace) -> Totals:
    told = 0.0
    totals = Totals()
    for totals in campaign(
        seeds, cast, processes=options.processes, stop_at=max(1, options.failures)
    ):
        if totals.seconds - told > _PROGRESS:
            told = totals.seconds
            _say(f"{totals.seeds:,} seeds, {len(totals.failed)} failed, {told:.0f} s")
    return totals


def _replay(options: argparse.Namespace, cast: Cast) -> int:
    workloads = list(cast(options.replay))
    keep = list(range(len(workloads)))
    if options.keep:
        keep = [int(at) for at in options.keep.split(",")]
    only: list[str] | None = None
    if options.faults is not None:
        only = [] if options.faults == "none" else str(options.faults).split(",")
    outcome = run(options.replay, [workloads[at] for at in keep], only=only, tell=True)
    for line in outcome.story:
        _say(line)
    _say(f"digest {outcome.digest:x}")
    for violation in outcome.broken:
        _say(str(violation))
    return 1 if outcome.broken else 0


def _report(totals: Totals, cast: Cast) -> int:
    for outcome in totals.failed:
        _say(f"{outcome.seed}: {'; '.join(map(str, outcome.broken[:3]))}")
    for outcome in totals.failed[:1]:
        _say(story(shrink(outcome, cast)))
    _say("")
    for title, counts in (
        ("faults", totals.faults),
        ("works", totals.settled),
        ("workloads", totals.workloads),
    ):
        _say(f"{title}:")
        for name, count in sorted(counts.items()):
            _say(f"  {name:18} {count:>12,}")
    _say(
        f"{totals.seeds:,} seeds, {sum(totals.faults.values()):,} faults, "
        f"{sum(totals.settled.values()):,} works settled, {totals.swept:,} swept, "
        f"{len(totals.failed)} seeds broke a promise, {totals.seconds:.0f} s"
    )
    return 1 if totals.failed else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if os.environ.get("PYTHONHASHSEED") != "0":
        # The same history in every process: sets of texts must have the same order.
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(  # noqa: S606 - the same program once more
            sys.executable, [sys.executable, "-m", "piecework.testing.simulation", *sys.argv[1:]]
        )
    sys.exit(main())
