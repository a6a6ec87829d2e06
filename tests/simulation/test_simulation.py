"""The simulator itself: what a crash means, what it finds, and how it tells of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from random import Random
from typing import Any

import pytest

from piecework import ConfigError, define_work
from piecework.clock import sleep
from piecework.testing.simulation import (
    SimulationFailedError,
    Stage,
    Violation,
    Workload,
    simulate,
    world,
)
from piecework.testing.simulation.__main__ import drawn, main
from piecework.testing.simulation.campaign import run_seeds
from piecework.testing.simulation.host import Host
from piecework.testing.simulation.loop import SimulationLoop, StuckError
from piecework.testing.simulation.plan import AT_ANY_CALL, AT_CALL, EVENTS, Plan
from piecework.testing.simulation.run import run
from piecework.testing.simulation.shrink import shrink
from piecework.testing.simulation.workloads import WORKLOADS


@define_work("sim test echo")
async def echo(name: str) -> str:
    world().started(name)
    await sleep(0.5)
    return name


class Echo(Workload):
    types = (echo,)

    async def produce(self, stage: Stage) -> None:
        handle = await stage.enqueue(stage.once("work", echo, stage.name), result=stage.name)
        stage.wait_for(handle)


class Liar(Echo):
    """Expects what never comes."""

    async def produce(self, stage: Stage) -> None:
        handle = await stage.enqueue(stage.once("work", echo, stage.name), result="another")
        stage.wait_for(handle)


class Checked(Echo):
    """Finds something wrong at the end."""

    def check(self, stage: Stage, book: Any) -> list[str]:
        return ["odd: it always is"]


# ---- histories -----------------------------------------------------------------------------------


def test_a_workload_of_ones_own_runs_under_many_seeds() -> None:
    totals = simulate([Echo()], seeds=range(40))
    assert totals.seeds == 40
    assert sum(totals.faults.values()) > 40
    assert totals.settled["success"] >= 40


def test_a_broken_promise_is_told_with_the_shortest_history() -> None:
    with pytest.raises(SimulationFailedError) as failed:
        simulate([Liar(), Echo()], seeds=range(50))
    text = str(failed.value)
    assert "wrong-result" in text
    assert "'liar0', not 'another'" in text
    assert "and 0 faults: none" in text  # none of the faults had a part in it
    assert "--keep 0" in text  # nor had the other workload
    assert "writes work:item:" in text


def test_what_a_workload_finds_at_the_end_is_a_broken_promise() -> None:
    totals = run_seeds(range(1), lambda _: [Checked()])
    assert totals.failed[0].broken == [Violation("odd", "checked0: it always is")]


def test_a_replay_injects_the_same_faults_and_no_others() -> None:
    seed = next(s for s in range(100) if len(run(s, drawn(s)).faults) > 4)
    whole = run(seed, drawn(seed))
    again = run(seed, drawn(seed), only=whole.faults)
    assert sorted(again.faults) == sorted(whole.faults)
    assert run(seed, drawn(seed), only=[]).faults == []


def test_shrinking_keeps_the_kind_of_the_failure() -> None:
    failed = run(3, [Checked(), Echo()])
    shrunk = shrink(failed, lambda _: [Checked(), Echo()])
    assert shrunk.workloads == [0]
    assert {v.kind for v in shrunk.outcome.broken} >= {"odd"}
    assert shrunk.outcome.faults == []


def test_every_fault_and_every_workload_comes_up() -> None:
    totals = run_seeds(range(500, 900), drawn)
    assert not totals.failed, [str(v) for o in totals.failed for v in o.broken]
    everything = {*AT_ANY_CALL, *EVENTS, *(kind for menu in AT_CALL.values() for kind in menu)}
    assert everything <= set(totals.faults), everything - set(totals.faults)
    assert {"cancel", "redrive", "slow-handler", "failure", "lost-race"} <= set(totals.faults)
    assert set(totals.workloads) == set(WORKLOADS)
    assert set(totals.settled) == {"success", "dead", "cancelled", "expired"}


# ---- hosts and the loop --------------------------------------------------------------------------


def simulated(coroutine: Any, loop: SimulationLoop) -> Any:
    try:
        return loop.run_until_complete(coroutine)
    finally:
        for task in asyncio.all_tasks(loop):
            task.cancel()
            task._log_destroy_pending = False  # type: ignore[attr-defined] - the dead never end
        loop.close()


def test_of_a_dead_process_no_line_runs() -> None:
    loop = SimulationLoop(Random(1), 0.0)
    told: list[str] = []

    async def live() -> None:
        try:
            told.append("starts")
            await sleep(10)
            told.append("goes on")
        finally:
            told.append("finally")

    async def story() -> list[str]:
        host = Host("w0", 0, loop, random=Random(1), start_ms=0)
        task = host.spawn(live())
        await sleep(5)
        host.die()
        task.cancel()  # not even this reaches it
        await sleep(60)
        return list(told)

    assert simulated(story(), loop) == ["starts"]


def test_a_frozen_process_goes_on_where_it_stood() -> None:
    loop = SimulationLoop(Random(1), 0.0)

    async def live() -> float:
        await sleep(10)
        return loop.time()

    async def story() -> float:
        host = Host("w0", 0, loop, random=Random(1), start_ms=0)
        task = host.spawn(live())
        await sleep(5)
        host.freeze()
        await sleep(60)
        host.thaw()
        return await task

    assert simulated(story(), loop) == 65


@pytest.mark.parametrize("shuffle", [0.0, 1.0])
def test_the_seed_chooses_the_order_of_tasks(shuffle: float) -> None:
    def order(seed: int) -> list[int]:
        loop = SimulationLoop(Random(seed), shuffle)
        seen: list[int] = []

        async def note(number: int) -> None:
            seen.append(number)

        async def story() -> None:
            await asyncio.gather(*(note(n) for n in range(8)))

        simulated(story(), loop)
        return seen

    orders = {tuple(order(seed)) for seed in range(10)}
    assert len(orders) == (1 if shuffle == 0 else 10)
    assert order(3) == order(3)


def test_a_loop_that_can_never_go_on_says_so() -> None:
    loop = SimulationLoop(Random(1), 0.0)

    async def forever() -> None:
        await loop.create_future()

    with pytest.raises(StuckError, match="nothing is left to wait for"):
        simulated(forever(), loop)


def test_a_loop_that_turns_without_an_end_says_so() -> None:
    loop = SimulationLoop(Random(1), 0.0)

    async def turn() -> None:
        while True:
            await sleep(0)

    with pytest.raises(StuckError, match="more than 400,000 callbacks"):
        simulated(turn(), loop)


def test_threads_are_refused() -> None:
    loop = SimulationLoop(Random(1), 0.0)
    with pytest.raises(RuntimeError, match="simulate works whose handlers are async def"):
        simulated(_in_thread(loop), loop)


async def _in_thread(loop: SimulationLoop) -> None:
    await loop.run_in_executor(None, print)


def test_the_clock_of_a_host_is_off_by_its_skew() -> None:
    loop = SimulationLoop(Random(1), 0.0)
    host = Host("w0", 2, loop, random=Random(1), start_ms=1000, skew_ms=-300)
    assert host.now_ms() == 700
    assert repr(host) == "w0.2"
    loop.close()


def test_a_plan_without_faults_injects_none() -> None:
    plan = Plan.draw(7, only=[])
    assert not plan.events
    assert plan.at_call("w0", 1, "push", 0.0) is None


# ---- the command line ----------------------------------------------------------------------------


def test_the_command_line_runs_seeds_and_counts_the_faults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--seeds", "12", "--processes", "1"]) == 0
    out = capsys.readouterr().out
    assert "0 seeds broke a promise" in out
    assert "faults:" in out
    assert "success" in out


def test_the_command_line_runs_known_seeds_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known = tmp_path / "seeds.txt"
    known.write_text("3  # a comment\n\n# nothing here\n8\n")
    assert main(["--known", str(known), "--seeds", "2", "--processes", "1", "--fresh"]) == 0
    assert "2 seeds that failed once: 0 fail" in capsys.readouterr().out


def test_the_command_line_tells_a_history(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workload", "lone", "--replay", "5", "--faults", "none", "--keep", "0"]) == 0
    out = capsys.readouterr().out
    assert "w0     starts" in out
    assert "is calm from here on" in out


def test_the_command_line_tells_of_a_failure(capsys: pytest.CaptureFixture[str]) -> None:
    workload = f"{__name__}:Checked"
    sys.modules.setdefault(__name__, sys.modules[Checked.__module__])
    assert main(["--workload", workload, "--seeds", "5", "--processes", "1"]) == 1
    assert main(["--workload", workload, "--replay", "0"]) == 1
    out = capsys.readouterr().out
    assert "odd: checked0: it always is" in out
    assert "5 seeds broke a promise" in out


def test_an_unknown_workload_is_named_with_the_known_ones() -> None:
    with pytest.raises(SystemExit, match="no workload 'nope'.*batches, cancelled"):
        main(["--workload", "nope", "--seeds", "1", "--processes", "1"])


def test_several_processes_see_the_same_as_one() -> None:
    def counted(*options: str) -> str:
        command = [sys.executable, "-m", "piecework.testing.simulation", *options]
        done = subprocess.run(
            command, check=True, capture_output=True, text=True, env={**os.environ}, timeout=120
        )
        return done.stdout.split("faults:")[1].rsplit(",", 1)[0]

    assert counted("--seeds", "60", "--processes", "2") == counted(
        "--seeds", "60", "--processes", "1"
    )


def test_a_seed_has_one_history() -> None:
    def digest() -> str:
        command = [sys.executable, "-m", "piecework.testing.simulation", "--replay", "12"]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
        return done.stdout

    assert digest() == digest()


def test_errors_of_ones_own_workload_end_the_simulation_clearly() -> None:
    class Broken(Echo):
        async def produce(self, stage: Stage) -> None:
            raise ConfigError("a mistake of the workload")

    totals = run_seeds(range(1), lambda _: [Broken()])
    assert [v.kind for v in totals.failed[0].broken] == ["producer-failed"]
