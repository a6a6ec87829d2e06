"""Works that are queued again and again, once per occurrence over the whole fleet."""

from __future__ import annotations

import asyncio

from piecework import create_work, define_work

beats = asyncio.Queue[int]()


@define_work
async def beat(number: int) -> None:
    print("beat", number)
    beats.put_nowait(number)


async def main() -> None:
    work = create_work(work=[beat])
    numbers = iter(range(1, 1000))
    pulse = work.schedule("pulse", lambda: beat(next(numbers)), every=1)
    work.schedule("weekly", beat(0), cron="0 8 * * mon", tz="Europe/Berlin")
    async with work:  # schedules fire while the system is started
        for _ in range(2):
            await beats.get()
        pulse.cancel()
        print("the pulse is off")


asyncio.run(main())
