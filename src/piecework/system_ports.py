"""The ports of a system: those that were given, and ones in memory for the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from piecework.memory import memory_backend

if TYPE_CHECKING:
    from piecework.clock import Now
    from piecework.ports.pubsub import PubSub
    from piecework.ports.queue import Queue
    from piecework.ports.store import Store


class Ports(TypedDict):
    """The three ports of a system."""

    queue: Queue
    pubsub: PubSub
    store: Store


def complete_ports(
    queue: Queue | None, pubsub: PubSub | None, store: Store | None, now: Now | None
) -> Ports:
    """Put one backend in memory, shared by them, in place of the ports that are missing."""
    memory = memory_backend(now=now)
    return Ports(
        queue=queue or memory["queue"],
        pubsub=pubsub or memory["pubsub"],
        store=store or memory["store"],
    )
