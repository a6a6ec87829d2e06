"""The pub/sub port: best effort notifications."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

Listener: TypeAlias = Callable[[str], None]
"""Called on the subscriber's event loop with each message; it must not block or raise."""


class Subscription(ABC):
    """One listener's place at a ``PubSub``.

    Example:
        >>> subscription = await pubsub.subscribe(print)
        >>> await subscription.close()
    """

    @abstractmethod
    async def close(self) -> None:
        """Stop listening: the listener is not called again. Calling it again does nothing."""


class PubSub(ABC):
    """Tells every subscriber in the fleet, at most once each, in no promised order.

    Everything that it speeds up also works without it, slower; a message may be lost.

    Example:
        >>> subscription = await pubsub.subscribe(print)
        >>> await pubsub.publish("text")
    """

    async def open(self) -> None:  # noqa: B027 - nothing to open is a valid answer
        """Check that it can be used. Calling it again does nothing.

        Raises:
            BackendError: It cannot be used; the text names the resource and the fix.
        """

    async def close(self) -> None:  # noqa: B027 - nothing to close is a valid answer
        """Release connections and temporary resources. Calling it again does nothing."""

    @abstractmethod
    async def publish(self, message: str) -> None:
        """Send a text to every subscriber."""

    @abstractmethod
    async def subscribe(self, listener: Listener) -> Subscription:
        """Call ``listener`` with each message published after this returned.

        A listener that raises does not stop the others from being called.
        """
