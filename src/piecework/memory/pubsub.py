"""Notifications inside this process."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import TYPE_CHECKING

from piecework.ports.pubsub import Listener, PubSub, Subscription

if TYPE_CHECKING:
    from collections.abc import Callable


class MemoryPubSub(PubSub):
    """Calls every listener in this process, each on the event loop that it subscribed on.

    A listener is never called from inside ``publish``: its loop calls it next. Closing the pub/sub
    does nothing, since several systems may share it; each closes its own subscriptions.

    Example:
        >>> import asyncio
        >>> async def main() -> list[str]:
        ...     heard: list[str] = []
        ...     pubsub = MemoryPubSub()
        ...     await pubsub.subscribe(heard.append)
        ...     await pubsub.publish("hello")
        ...     await asyncio.sleep(0)
        ...     return heard
        >>> asyncio.run(main())
        ['hello']
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._places: dict[_Place, None] = {}

    async def publish(self, message: str) -> None:
        """Have every listener called with the text; what they raise does not come here."""
        if not self._places:
            return
        with self._lock:
            places = tuple(self._places)
        here = asyncio.get_running_loop()
        for place in places:
            if not place.post(message, here):
                self._remove(place)

    async def subscribe(self, listener: Listener) -> Subscription:
        """Call ``listener`` with each message published after this returned."""
        place = _Place(listener, self._remove)
        with self._lock:
            self._places[place] = None
        return place

    def _remove(self, place: _Place) -> None:
        with self._lock:
            self._places.pop(place, None)


class _Place(Subscription):
    def __init__(self, listener: Listener, remove: Callable[[_Place], None]) -> None:
        self._listener: Listener | None = listener
        self._remove = remove
        self._loop = asyncio.get_running_loop()
        # The listener must not see the context variables of whoever publishes.
        self._context = contextvars.copy_context()

    async def close(self) -> None:
        """Stop listening; what is on its way is not delivered any more."""
        self._listener = None
        self._remove(self)

    def post(self, message: str, here: asyncio.AbstractEventLoop) -> bool:
        """Have the listener called by its loop; false if that loop is closed."""
        call = self._loop.call_soon if self._loop is here else self._loop.call_soon_threadsafe
        try:
            call(self._deliver, message, context=self._context)
        except RuntimeError:
            return False
        return True

    def _deliver(self, message: str) -> None:
        # An exception here goes to the loop's exception handler and stops no other listener.
        if self._listener is not None:
            self._listener(message)
