"""Works that are queued one by one and done many at a time; each ends on its own."""

from __future__ import annotations

import asyncio

from piecework import Retry, WorkFailedError, create_work, define_batch_work


@define_batch_work("price", size=10, max_wait=0.1, retry=Retry(attempts=1))
async def price(names: list[str]) -> list[int | Exception]:
    """One request for up to ten; an exception in the list fails that work alone."""
    print(f"asked for {len(names)} prices at once")
    return [len(name) if name else ValueError("it has no name") for name in names]


async def main() -> None:
    async with create_work(work=[price]) as work:
        fruits = ["apple", "pear", "", "quince", *(f"plum {n}" for n in range(10))]
        handles = await work.enqueue_many([price(fruit) for fruit in fruits])
        for fruit, handle in zip(fruits[:4], handles, strict=False):
            try:
                print(f"{fruit}: {await handle.result()}")
            except WorkFailedError as error:
                print(f"{fruit!r} failed: {error}")


asyncio.run(main())
