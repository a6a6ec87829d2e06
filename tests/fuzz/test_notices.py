"""Any text on the system's channel is ignored, or wakes somebody who looks and waits on."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.effort import fuzzed

from piecework import WorkContext, create_work, define_work, memory_backend
from piecework.clock import sleep
from piecework.testing.fuzz import bodies, json_values
from piecework.testing.virtual_clock import VirtualClock

KINDS = st.sampled_from(["done", "group", "cancel", "progress", "other"])


@define_work("slow")
async def slow(ctx: WorkContext, n: int) -> int:
    await sleep(1)
    ctx.progress(1, 2, "half")
    await sleep(2)
    return n


async def under_noise(texts: list[str], about: list[tuple[str, object]]) -> None:
    ports = memory_backend()
    errors: list[object] = []
    async with create_work(
        work=[slow], **ports, on_error=lambda error, phase: errors.append(error)
    ) as system:
        handle = await system.enqueue(slow(7))
        other = await system.enqueue(slow(8))
        seen = []

        async def watch() -> None:
            seen.extend([progress async for progress in handle.progress()])

        noise = [*texts, *(json.dumps([kind, handle.id, data]) for kind, data in about)]

        async def disturb() -> None:
            await sleep(0.5)
            for text in noise:
                await ports["pubsub"].publish(text)
            await sleep(1.5)
            for text in noise:
                await ports["pubsub"].publish(text)

        import asyncio

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(watch())
            tasks.create_task(disturb())
            results = tasks.create_task(handle.result(timeout=60))
            group = tasks.create_task(other.group(timeout=60))
            others = tasks.create_task(other.result(timeout=60))
        assert (results.result(), group.result(), others.result()) == (7, None, 8)
        for progress in seen:
            assert isinstance(progress.done, int | float)
            assert progress.total is None or isinstance(progress.total, int | float)
            assert isinstance(progress.message, str)
    assert errors == []


@fuzzed(25)
@given(
    st.lists(bodies() | json_values(max_leaves=4).map(json.dumps), max_size=4),
    st.lists(
        st.tuples(KINDS.filter(lambda kind: kind != "cancel"), json_values(max_leaves=4)),
        max_size=4,
    ),
)
def test_any_text_on_the_channel_leaves_waiters_unharmed(texts, about):  # P7 S51
    VirtualClock().run(under_noise(texts, about))
