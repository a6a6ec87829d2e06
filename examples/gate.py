"""Fan-out and fan-in: an order is charged and packed at the same time, then shipped."""

from __future__ import annotations

import asyncio

from piecework import WorkContext, create_work, define_work


@define_work
async def charge(order: int) -> str:
    await asyncio.sleep(0.2)
    return f"order {order} is paid"


@define_work
async def pack(order: int) -> str:
    await asyncio.sleep(0.1)
    return f"order {order} is packed"


@define_work
async def ship(ctx: WorkContext, order: int) -> None:
    for line in await ctx.results(ctx.upstream):  # what the gate has waited for
        print(line)
    await ctx.set_result(f"order {order} is on its way")  # the result of the whole group


@define_work
async def buy(ctx: WorkContext, order: int) -> None:
    await ctx.queue([charge(order), pack(order)], then=ship(order), when="all-success")
    print(f"order {order} is accepted")


async def main() -> None:
    async with create_work(work=[buy, charge, pack, ship]) as work:
        handle = await work.enqueue(buy(7))
        await handle.result()  # buy itself has ended
        print(await handle)  # and everything that it queued


asyncio.run(main())
