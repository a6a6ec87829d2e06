"""What the engine costs in memory: CPU per work, scale with what is pending, latency, memory.

python benchmarks/engine.py            all figures, in about a minute
python benchmarks/engine.py --profile  where the CPU of a work goes
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import pstats
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from piecework import WorkSystem, create_work, define_work

WORKS = 20_000


@define_work
async def nothing(number: int) -> int:
    return number


async def finish(work: WorkSystem, count: int) -> None:
    """Wait until so many works have succeeded."""
    series = work.metrics.counter("work.succeeded", type="nothing")
    while series.value < count:
        await asyncio.sleep(0.01)


async def throughput(count: int) -> float:
    """CPU seconds per work from enqueue to settled, with the worker running meanwhile."""
    work = create_work(work=[nothing])
    async with work:
        await work.run(nothing(0))
        began = time.process_time()
        for number in range(count):
            await work.enqueue(nothing(number))
            if number % 200 == 0:
                await asyncio.sleep(0)
        await finish(work, count + 1)
        return (time.process_time() - began) / count


async def backlog(pending: int, measured: int) -> float:
    """CPU seconds per work to run ``measured`` works while about ``pending`` others wait."""
    work = create_work(work=[nothing], auto_start=False)
    for number in range(pending):
        await work.enqueue(nothing(number))
    gc.collect()
    began = time.process_time()
    for number in range(measured):
        await work.enqueue(nothing(number))
    await work.start()
    await finish(work, measured)
    took = time.process_time() - began
    done = work.metrics.counter("work.succeeded", type="nothing").value
    await work.stop()
    return took / (measured + done) * 2


async def latency(rounds: int) -> tuple[float, float]:
    """Seconds from an enqueue to its awaited result when idle: median and 99th percentile."""
    work = create_work(work=[nothing])
    taken: list[float] = []
    async with work:
        for number in range(rounds + 50):
            began = time.perf_counter()
            handle = await work.enqueue(nothing(number))
            await handle.result()
            taken.append(time.perf_counter() - began)
    taken = sorted(taken[50:])
    return statistics.median(taken), taken[int(len(taken) * 0.99)]


async def memory(works: int) -> tuple[int, int]:
    """Resident bytes before and after a million works whose results have expired."""
    import psutil

    process = psutil.Process()
    work = create_work(work=[nothing], result_ttl=0.5)
    async with work:
        await chunk(work, 100_000)
        before = await settled_memory(work, process)
        for _ in range(works // 50_000):
            await chunk(work, 50_000)
        return before, await settled_memory(work, process)


async def chunk(work: WorkSystem, count: int) -> None:
    """Run so many works, a few hundred at a time."""
    for number in range(count):
        handle = await work.enqueue(nothing(number))
        if number % 200 == 199:
            await handle.result()


async def settled_memory(work: WorkSystem, process: Any) -> int:
    """Resident bytes once what has expired is gone."""
    for _ in range(3):
        await asyncio.sleep(0.6)
        await chunk(work, 20_000)
    gc.collect()
    return process.memory_info().rss


async def idle(seconds: float) -> float:
    """CPU seconds that an idle worker uses per second."""
    work = create_work(work=[nothing])
    async with work:
        await work.run(nothing(1))
        began = time.process_time()
        await asyncio.sleep(seconds)
        return (time.process_time() - began) / seconds


def run(measure: Callable[[], Awaitable[Any]]) -> Any:
    async def main() -> Any:
        return await measure()

    return asyncio.run(main())


def profile() -> None:
    profiler = cProfile.Profile()
    profiler.enable()
    run(lambda: throughput(WORKS))
    profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(45)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--million", type=int, default=1_000_000)
    options = parser.parse_args()
    if options.profile:
        profile()
        return
    only = options.only
    if only in ("", "cpu"):
        costs = [run(lambda: throughput(WORKS)) for _ in range(3)]
        print(f"CPU per work:      {min(costs) * 1e6:8.1f} us  (at most 150)")
    if only in ("", "backlog"):
        few = min(run(lambda: backlog(1_000, WORKS)) for _ in range(2))
        many = run(lambda: backlog(options.million, WORKS))
        print(
            f"per work, 1,000 pending {few * 1e6:.1f} us, {options.million:,} {many * 1e6:.1f} us"
        )
        print(f"  ratio            {many / few:8.2f}     (at most 1.3)")
    if only in ("", "latency"):
        median, high = run(lambda: latency(2_000))
        print(f"latency:           {median * 1e3:8.3f} ms median, {high * 1e3:.3f} p99 (below 1)")
    if only in ("", "idle"):
        print(f"idle CPU:          {run(lambda: idle(3.0)) * 1e3:8.3f} ms per s")
    if only in ("", "memory"):
        before, after = run(lambda: memory(options.million))
        print(
            f"memory:            {before / 1e6:8.1f} MB, after {after / 1e6:.1f} MB (within 10 %)"
        )


if __name__ == "__main__":
    main()
