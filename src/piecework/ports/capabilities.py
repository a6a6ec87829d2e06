"""What an adapter declares about itself; the engine asks this and never tests a type."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can and cannot do.

    Attributes:
        in_process: It lives in this process: another process never sees it, and a call to it cannot
            be half done. The engine then saves itself the overlap of its calls, and
            ``auto_start=None`` starts the worker loop at the first enqueue.
        ordered: A retry must keep its place in its group (SQS FIFO): the engine releases the
            message in place of pushing a new one.
        native_dead_letters: ``Queue.dead_letter`` keeps the message where it can be read again.
        max_delay: The longest delay of one push, in seconds; the engine makes longer ones in hops.
        max_body_bytes: The largest body of a message in bytes, or ``None`` for no limit.
        max_value_bytes: The largest value of a record in bytes, or ``None`` for no limit.
        max_changes: The most changes of one atomic write of a store.
        delivery_counts: ``Lease.deliveries`` is kept for the life of a message.

    Example:
        >>> Capabilities(max_delay=900, max_body_bytes=1_048_576)
    """

    in_process: bool = False
    ordered: bool = False
    native_dead_letters: bool = True
    max_delay: float = math.inf
    max_body_bytes: int | None = None
    max_value_bytes: int | None = None
    max_changes: int = 100
    delivery_counts: bool = True
