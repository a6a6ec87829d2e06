"""What ``piecework.testing`` gives to the tests of others."""

from __future__ import annotations

import inspect
import subprocess
import sys
import typing

import pytest

import piecework.testing
from piecework import MemoryPubSub, MemoryQueue, MemoryStore, create_work, define_work
from piecework.clock import SystemClock
from piecework.testing import plugin
from piecework.testing.virtual_clock import VirtualClock


@define_work
def add(a: int, b: int) -> int:
    return a + b


def test_the_kit_exports_a_suite_for_each_port():
    assert set(piecework.testing.__all__) >= {
        "LedgerConformance",
        "PubSubConformance",
        "QueueConformance",
        "StoreConformance",
    }
    for name in piecework.testing.__all__:
        assert inspect.getdoc(getattr(piecework.testing, name))
    with pytest.raises(AttributeError, match="no attribute 'Other'"):
        piecework.testing.Other  # noqa: B018 - reading it is the test


def test_only_the_suite_of_the_ledger_needs_hypothesis():
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from piecework.testing import StoreConformance\n"
        "import piecework.testing.conformance\n"
        "try: from piecework.testing import LedgerConformance\n"
        "except ImportError: print('needs it')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout == "needs it\n"


def test_the_memory_fixture_gives_three_ports(piecework_memory):
    assert isinstance(piecework_memory["queue"], MemoryQueue)
    assert isinstance(piecework_memory["pubsub"], MemoryPubSub)
    assert isinstance(piecework_memory["store"], MemoryStore)
    assert set(piecework_memory) == {"queue", "pubsub", "store"}


async def test_the_memory_fixture_carries_a_system(piecework_memory):
    async with create_work(work=[add], **piecework_memory) as work:
        assert await work.run(add(1, 2)) == 3


async def test_several_systems_on_the_memory_fixture_are_a_fleet(piecework_memory):  # S141
    producer = create_work(work=[add], auto_start=False, **piecework_memory)
    async with create_work(work=[add], **piecework_memory):
        handle = await producer.enqueue(add(1, 2))
        assert await handle.result(5) == 3
    await producer.stop()


async def test_the_clock_fixture_owns_time(virtual_clock):
    assert isinstance(virtual_clock, VirtualClock)
    clock = SystemClock()
    before = clock.now_ms()
    await virtual_clock.advance(3600)
    assert clock.now_ms() - before == 3_600_000


@pytest.mark.parametrize("name", ["piecework_memory", "virtual_clock"])
def test_the_fixtures_are_typed_and_described(name):
    fixture = getattr(plugin, name)
    call = inspect.unwrap(getattr(fixture, "_fixture_function", None) or fixture.__wrapped__)
    assert typing.cast("str", inspect.getdoc(call))
    assert call.__annotations__["return"]
