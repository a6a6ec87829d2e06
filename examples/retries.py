"""What becomes of failures: tried again, put off, given up at once, or judged by on_failure."""

from __future__ import annotations

import asyncio

from piecework import (
    Delay,
    Retry,
    RetryAbort,
    WorkContext,
    WorkDelayError,
    WorkFailedError,
    WorkInfo,
    create_work,
    define_work,
)


def judge(error: BaseException, info: WorkInfo) -> Delay | None:
    """A busy server is not our fault: wait, and do not count it. Anything else: as usual."""
    return Delay(0.1) if isinstance(error, TimeoutError) else None


@define_work("flaky", retry=Retry(attempts=5, base=0.1))
async def flaky(ctx: WorkContext) -> str:
    if ctx.attempt < 3:
        raise ConnectionError("no answer")
    return f"done at attempt {ctx.attempt}"


@define_work("polite", on_failure=judge)
async def polite(ctx: WorkContext) -> str:
    if await ctx.claim("the server was asked"):  # true for the first one only
        raise TimeoutError("the server is busy")
    return f"done at attempt {ctx.attempt}"


@define_work("patient")
async def patient(ctx: WorkContext) -> str:
    if await ctx.claim("the file was looked for"):
        raise WorkDelayError(delay=0.1)  # not there yet; this spends no attempt
    return f"done at attempt {ctx.attempt}"


@define_work("hopeless")
async def hopeless() -> None:
    raise RetryAbort("the card was stolen")  # another attempt would not help


async def main() -> None:
    async with create_work(work=[flaky, polite, patient, hopeless]) as work:
        for one in (flaky(), polite(), patient()):
            print(f"{one.type}:", await work.run(one))
        try:
            await work.run(hopeless())
        except WorkFailedError as error:
            print("hopeless is dead:", error)


asyncio.run(main())
