"""Who is next: a busy tenant does not delay the others, and what is urgent goes first."""

from __future__ import annotations

import asyncio

from piecework import Doer, balanced_doer, create_work, define_work, priority_doer

order: list[str] = []


@define_work
async def job(name: str) -> None:
    order.append(name)
    await asyncio.sleep(0.01)


async def show(title: str, doer: Doer, works: list[tuple[str, str, int]]) -> None:
    order.clear()
    async with create_work(work=[job], doer=doer) as work:
        built = [job(name).with_options(group=group, priority=n) for name, group, n in works]
        await (await work.enqueue_many(built)).results()
    print(f"{title}: {' '.join(order)}")


async def main() -> None:
    # A worker chooses among what it holds: `max` that run and `buffer` that wait.
    tenants = [("big", "big", 0)] * 8 + [("small", "small", 0)] * 2
    await show("as they come", priority_doer(max=1, buffer=20), tenants)
    await show("fair", balanced_doer(max=2, buffer=20), tenants)
    mixed = [("later", "all", 0)] * 4 + [("urgent", "all", 10)] * 2
    await show("urgent first", priority_doer(max=1, buffer=20), mixed)


asyncio.run(main())
