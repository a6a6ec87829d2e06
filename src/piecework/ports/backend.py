"""The three ports as one value, so that a backend is handed over in one piece."""

from __future__ import annotations

from typing import TypedDict

from piecework.ports.pubsub import PubSub  # noqa: TC001 - get_type_hints() needs it
from piecework.ports.queue import Queue  # noqa: TC001 - get_type_hints() needs it
from piecework.ports.store import Store  # noqa: TC001 - get_type_hints() needs it


class Backend(TypedDict):
    """What a system stands on: ``create_work(**backend)``.

    Attributes:
        queue: Where messages wait and are leased.
        store: Where records are kept.
        pubsub: How systems notify each other.

    Example:
        >>> create_work(work=[add], **memory_backend())
    """

    queue: Queue
    store: Store
    pubsub: PubSub
