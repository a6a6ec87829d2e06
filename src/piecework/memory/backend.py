"""The three ports of one process over one clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.clock import as_clock
from piecework.memory.pubsub import MemoryPubSub
from piecework.memory.queue import MemoryQueue
from piecework.memory.store import MemoryStore
from piecework.ports.backend import Backend

if TYPE_CHECKING:
    from piecework.clock import Now
    from piecework.ports.queue import Queue


def memory_backend(*, now: Now | None = None, queue: Queue | None = None) -> Backend:
    """A queue, a store and a pub/sub in this process that share one clock.

    Several systems over one backend behave like several processes over a real one.

    Args:
        now: The clock of all three; ``None`` is the computer's own.
        queue: A queue to use in place of a new ``MemoryQueue``; it keeps its own clock.

    Example:
        >>> sorted(memory_backend())
        ['pubsub', 'queue', 'store']
    """
    clock = as_clock(now)
    return Backend(
        queue=MemoryQueue(now=clock) if queue is None else queue,
        store=MemoryStore(now=clock),
        pubsub=MemoryPubSub(),
    )
