"""Records that are not ours, under the key of a work."""

from __future__ import annotations

import pytest

from piecework import MemoryStore, create_work, define_work, memory_backend
from piecework.clock import sleep


@define_work
async def long(seconds: float) -> str:
    await sleep(seconds)
    return "done"


async def _spoil(store: MemoryStore, id: str) -> None:
    await store.set(f"work:item:{id}", "neither pending nor anything else {")


@pytest.mark.parametrize("start_after", [0, 1])
async def test_a_work_whose_record_cannot_be_read_goes_to_the_dead_letters(
    virtual_clock, start_after
):
    # P7: nothing is dropped, and nothing is tried for ever
    ports = memory_backend()
    store = ports["store"]
    assert isinstance(store, MemoryStore)
    errors: list[str] = []
    work = create_work(
        work=[long],
        **ports,
        auto_start=False,
        start_after=start_after,
        on_error=lambda error, phase: errors.append(f"{phase}: {error}"),
    )
    handle = await work.enqueue(long(0.5))
    await _spoil(store, handle.id)
    async with work:
        await virtual_clock.advance(5)
        (letter,) = await work.dead_letters()
        assert letter.id == handle.id
        assert letter.reason.startswith("bad record: ")
        assert handle.id in letter.reason
        assert await ports["queue"].size() == 0
        assert work.active() == []
    assert len(errors) == 1
    assert errors[0].startswith("commit: ")


async def test_a_record_that_was_spoilt_while_the_handler_ran_ends_the_same_way(virtual_clock):
    # P7
    ports = memory_backend()
    store = ports["store"]
    assert isinstance(store, MemoryStore)
    async with create_work(work=[long], **ports) as work:
        handle = await work.enqueue(long(3))
        await virtual_clock.advance(2)
        await _spoil(store, handle.id)
        await virtual_clock.advance(5)
        (letter,) = await work.dead_letters()
        assert letter.reason.startswith("bad record: ")
        assert await ports["queue"].size() == 0
