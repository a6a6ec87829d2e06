"""Work types whose handlers worker processes import."""

from __future__ import annotations

import os
from datetime import UTC, datetime

from pydantic import BaseModel

from piecework import Retry, RetryAbort, WorkContext, WorkDelayError, define_work


@define_work("square", executor="process")
def square(n: int) -> int:
    return n * n


@define_work("in_child", executor="process")
def in_child() -> int:
    return os.getpid()


@define_work("plan", executor="process", retry=Retry(attempts=2, base=0.1, jitter=0))
def plan(ctx: WorkContext, n: int, fail_first: bool = False) -> list[str]:
    ids = ctx.queue([square(i) for i in range(n)], then=[collect()], when="all-success")
    one = ctx.queue(square(100), priority=3)
    ctx.progress(1, 2, "planned")
    states = ctx.states([*ids, one, "nobody"]).wait()
    assert [state.type if state else None for state in states] == ["square"] * (n + 1) + [None]
    if fail_first and ctx.attempt == 1:
        raise ValueError("after queueing")
    assert ctx.claim("plan").wait()
    assert not ctx.claim("plan").wait()
    return [*ids, str(one)]


@define_work("collect", executor="process")
def collect(ctx: WorkContext) -> int:
    total = sum(ctx.results(ctx.upstream).wait())
    ctx.set_result({"total": total, "width": len(ctx.upstream)})
    return total


class Point(BaseModel):
    """A result with a type of its own."""

    x: int
    at: datetime


@define_work("point")
async def point(x: int) -> Point:
    return Point(x=x, at=datetime(2026, 1, 1, tzinfo=UTC))


@define_work("read_points", executor="process")
def read_points(ctx: WorkContext) -> list[Point]:
    points = ctx.results(ctx.upstream).wait()
    assert all(isinstance(one, Point) for one in points)
    [state] = ctx.states([ctx.upstream[0]]).wait()
    assert state.result == points[0]
    assert state.end_at is not None
    return points


@define_work("signals", executor="process", retry=Retry(attempts=3, base=0.1, jitter=0))
def signals(ctx: WorkContext, what: str) -> int:
    if what == "defer" and ctx.claim("deferred").wait():
        raise WorkDelayError(60)
    if what == "abort":
        raise RetryAbort("enough")
    if what == "fail":
        raise KeyError("lost")
    return ctx.attempt


@define_work("die", executor="process", retry=Retry(attempts=2, base=0.1, jitter=0))
def die(ctx: WorkContext) -> int:
    if ctx.attempt == 1:
        os._exit(3)
    return ctx.attempt


ALL = [square, in_child, plan, collect, point, read_points, signals, die]
