"""The queue port: messages with leases."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from piecework.ports.capabilities import Capabilities


class Message(NamedTuple):
    """What is pushed onto a queue.

    Attributes:
        body: The text. Every Unicode text arrives as it was sent.
        delay: Seconds before it can be popped, from 0 to ``Capabilities.max_delay``.
        group: The tenant, for fairness between tenants and for the order on ordered queues.
        dedupe_key: While a message with this key is in the queue, another push of it is dropped.
        reason: Why it died; set on the messages of a dead-letter queue.

    Example:
        >>> await queue.push([Message("text", delay=5)])
    """

    body: str
    delay: float = 0.0
    group: str | None = None
    dedupe_key: str | None = None
    reason: str | None = None


@dataclass(slots=True, eq=False)
class Lease:
    """The right to work on one message until the visibility ends.

    An adapter may subclass it to carry more. Two leases are never equal: each delivery has its own.

    Attributes:
        body: The message's text.
        token: Proves the holder: a newer delivery of the same message has another token.
        deliveries: How often the message was delivered, this time included (1 on the first).
        message_id: The same for all deliveries of one message.
        group: The message's group.
        reason: Why it died, on the messages of a dead-letter queue.
        sent_at_ms: When the message was pushed, in milliseconds since 1970; 0 if not known.

    Example:
        >>> leases = await queue.pop(10, visibility=30, wait=20)
        >>> await queue.ack(leases)
    """

    body: str
    token: str
    deliveries: int = 1
    message_id: str = ""
    group: str | None = None
    reason: str | None = None
    sent_at_ms: int = 0


class Queue(ABC):
    """Messages with leases, at least once. Every call is safe to repeat.

    A popped message is invisible until its lease is acked, released, or ends. All calls take many
    at once, because the cost of a cloud queue is its requests; an adapter splits what is too large
    for its backend.

    Example:
        >>> await queue.push([Message("text")])
        >>> for lease in await queue.pop(10, visibility=30, wait=20):
        ...     await queue.ack([lease])
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this queue can do."""

    @property
    def dead_letter_queue(self) -> Queue | None:
        """The queue that ``dead_letter`` moves messages to, if they can be read again."""
        return None

    async def open(self) -> None:  # noqa: B027 - nothing to open is a valid answer
        """Connect and check. Called once before first use; calling it again does nothing.

        Raises:
            BackendError: The queue cannot be used; the text names it and the fix.
        """

    async def close(self) -> None:  # noqa: B027 - nothing to close is a valid answer
        """Release connections. Calling it again, or before ``open``, does nothing."""

    @abstractmethod
    async def push(self, messages: Sequence[Message]) -> None:
        """Add messages; when it returns, all of them are kept as safely as the backend can.

        Raises:
            PayloadTooLargeError: A body is over ``Capabilities.max_body_bytes``.
            BackendError: Some or all were not confirmed. Pushing all again is safe: work runs at
                least once.
        """

    @abstractmethod
    async def pop(self, max: int, visibility: float, wait: float) -> list[Lease]:
        """Lease up to ``max`` messages for ``visibility`` seconds.

        Returns at once when a message is there, else waits up to ``wait`` seconds for the first
        one and returns what there is then, or an empty list. It never polls on a fixed sleep
        shorter than a second. A cancelled pop leaves no message leased without an owner: what it
        took becomes visible again. A message whose lease ended counts as there, with
        ``deliveries`` one higher. Oldest visible first; on ordered queues strictly so per group.
        """

    @abstractmethod
    async def extend(self, leases: Sequence[Lease], visibility: float) -> list[Lease]:
        """Let the leases end ``visibility`` seconds from now.

        Returns:
            The leases that are lost: their message was acked, or has a newer lease, or is visible
            again and no longer theirs. Those stay untouched.

        Raises:
            BackendError: It is not known whether the leases were extended; ask again.
        """

    @abstractmethod
    async def ack(self, leases: Sequence[Lease]) -> None:
        """Remove the messages for good. A stale token changes nothing; repeating is harmless."""

    @abstractmethod
    async def release(self, leases: Sequence[Lease], delay: float = 0.0) -> None:
        """Give the messages back, to be visible after ``delay`` seconds.

        A stale token changes nothing. ``delay`` over what the backend takes is cut to that.
        """

    @abstractmethod
    async def dead_letter(self, lease: Lease, reason: str) -> None:
        """Move the message to the dead letters with its reason, in one step or copy before ack.

        A stale token changes nothing. Where there is no dead-letter queue, the message is removed.
        """

    @abstractmethod
    async def size(self) -> int:
        """How many messages are in the queue: visible, delayed and leased (may be approximate)."""
