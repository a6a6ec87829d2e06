"""What a batch gives, the order in which ends are told, and results that cannot be kept."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from piecework import (
    ConfigError,
    InvalidWorkError,
    Retry,
    WorkContext,
    WorkFailedError,
    create_work,
    define_batch_work,
    define_work,
)
from piecework.testing.virtual_clock import VirtualClock

ONCE = Retry(attempts=1)


async def test_an_exception_among_a_batchs_outputs_fails_that_work_alone(
    virtual_clock: VirtualClock,
):
    @define_batch_work("price", size=3, retry=ONCE)
    async def price(names: list[str]) -> list[int | Exception]:
        return [len(name) if name else ValueError("no name") for name in names]

    async with create_work(work=[price]) as work:
        handles = await work.enqueue_many([price("pear"), price(""), price("fig")])
        assert await handles[0].result() == 4
        assert await handles[2].result() == 3
        with pytest.raises(WorkFailedError, match="ValueError: no name"):
            await handles[1].result()


async def test_a_batchs_outputs_keep_their_type_beside_exceptions(virtual_clock: VirtualClock):
    @define_batch_work("point", size=2)
    async def point(numbers: list[int]) -> list[Point | ValueError | None]:
        return [Point(number) if number else None for number in numbers]

    async with create_work(work=[point]) as work:
        handles = await work.enqueue_many([point(1), point(0)])
        assert await handles.results() == [Point(1), None]


@dataclass
class Point:
    x: int


async def test_a_plain_batch_handler_may_return_nothing(virtual_clock: VirtualClock):
    seen: list[int] = []

    @define_batch_work("note", size=2)
    def note(numbers: list[int]) -> None:
        seen.extend(numbers)

    async with create_work(work=[note]) as work:
        handles = await work.enqueue_many([note(1), note(2)])
        assert await handles.results() == [None, None]
    assert seen == [1, 2]


async def test_the_end_of_a_group_is_told_after_the_end_of_its_works(
    virtual_clock: VirtualClock,
):
    kinds: list[str] = []

    @define_work
    async def lone() -> None: ...

    async with create_work(work=[lone], on_event=lambda event: kinds.append(event.kind)) as work:
        await work.run(lone())
    assert kinds == ["queued", "started", "succeeded", "group-done"]


async def test_a_group_result_that_cannot_be_kept_says_what_to_do(virtual_clock: VirtualClock):
    @define_work(retry=ONCE)
    async def sets(ctx: WorkContext) -> None:
        await ctx.set_result(Point(1))

    async with create_work(work=[sets]) as work:
        with pytest.raises(WorkFailedError, match=r"the result of the group cannot be kept.*plain"):
            await work.run(sets())


async def test_what_is_no_work_is_refused_with_the_way_to_build_one(virtual_clock: VirtualClock):
    @define_work
    async def lone() -> None: ...

    async with create_work(work=[lone]) as work:
        for wrong in (lone, 5):
            with pytest.raises(InvalidWorkError, match=r"is not a work.*Call a work type"):
                await work.enqueue(wrong)


def test_a_plain_function_is_refused_as_a_work_type():
    with pytest.raises(ConfigError, match="define_work"):
        create_work(work=[print])
