"""Works in worker processes: their children, results, states, signals and deaths."""

from __future__ import annotations

import os
from datetime import timedelta

import pytest
from tests.support import work_types

from piecework import WorkFailedError, create_work


@pytest.fixture
async def work(virtual_clock, backend):
    async with create_work(work=work_types.ALL, **backend) as system:
        yield system


async def test_a_process_handler_runs_elsewhere_and_its_result_comes_back(work):
    assert await work.run(work_types.square(7)) == 49
    assert await work.run(work_types.in_child()) != os.getpid()


async def test_a_process_handler_queues_a_gate_and_children_of_its_group(work):
    handle = await work.enqueue(work_types.plan(4))
    ids = await handle.result()
    assert await handle == {"total": 0 + 1 + 4 + 9, "width": 4}
    states = await work.states(ids)
    assert [state.result for state in states] == [0, 1, 4, 9, 10_000]
    assert {state.group_id for state in states} == {handle.id}
    assert states[-1].parent_id == handle.id
    assert states[-1].priority == 3


async def test_a_replayed_process_handler_finds_its_children_again(work):
    handle = await work.enqueue(work_types.plan(3, fail_first=True))
    assert await handle == {"total": 5, "width": 3}
    assert (await handle.state()).attempt == 2
    assert len(await work.list(type="square")) == 4
    assert len(await work.list(type="collect")) == 1


async def test_a_process_handler_reads_results_as_their_types(work):
    handles = await work.enqueue_many(
        [work_types.point(1), work_types.point(2)], then=work_types.read_points()
    )
    points = await handles.then[0].result()
    assert [point.x for point in points] == [1, 2]


async def test_signals_of_a_process_handler_mean_the_same(virtual_clock, work):
    began = virtual_clock.now()
    assert await work.run(work_types.signals("defer")) == 1  # S76: no attempt was spent
    assert virtual_clock.now() - began >= timedelta(seconds=60)
    with pytest.raises(WorkFailedError, match="^enough$"):
        await work.run(work_types.signals("abort"))
    with pytest.raises(WorkFailedError, match="KeyError: 'lost'") as raised:
        await work.run(work_types.signals("fail"))
    assert raised.value.error_type == "KeyError"
    assert 'raise KeyError("lost")' in raised.value.traceback


async def test_a_process_that_dies_spends_an_attempt(work):
    handle = await work.enqueue(work_types.die())
    assert await handle.result() == 2
    assert (await handle.state()).attempt == 2
