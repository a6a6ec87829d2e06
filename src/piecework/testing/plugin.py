"""The pytest plugin: fixtures for tests of your own handlers and workflows.

Every pytest run on a machine with Piecework loads this module, so it imports nothing but pytest;
each fixture imports what it needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

    from piecework.ports import Backend
    from piecework.testing.virtual_clock import VirtualClock


@pytest.fixture
def virtual_clock() -> Generator[VirtualClock]:
    """A ``VirtualClock`` that owns the test's event loop: waiting takes no real time.

    Name it before fixtures that start a system.

    Example:
        async def test_the_reminder_is_sent_a_day_later(virtual_clock):
            await work.enqueue(remind("ada"), delay=86_400)
            await virtual_clock.advance(86_400)
            assert sent == ["ada"]
    """
    from piecework.testing.virtual_clock import VirtualClock

    with VirtualClock().patched() as clock:
        yield clock


@pytest.fixture
def piecework_memory() -> Backend:
    """The three ports in memory, fresh for the test: ``create_work(**piecework_memory)``.

    Example:
        async def test_a_thumbnail_is_made(piecework_memory):
            async with create_work(work=[resize], **piecework_memory) as work:
                assert await work.run(resize(image)) == thumbnail
    """
    from piecework.memory import memory_backend

    return memory_backend()
