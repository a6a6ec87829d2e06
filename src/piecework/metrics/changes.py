"""Tells listeners that some metric changed, once for many changes."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger("piecework.metrics")


class Changes:
    """The listeners of one ``Metrics`` object.

    A series asks ``listening`` (a plain attribute) at each change and calls ``changed`` only when
    it is true, so that nobody listening costs next to nothing.
    """

    __slots__ = ("_listeners", "_loop", "_schedule", "_waiting", "listening")

    def __init__(self, schedule: Callable[[Callable[[], None]], object] | None = None) -> None:
        self.listening = False
        self._schedule = schedule
        self._listeners: dict[object, Callable[[], None]] = {}
        self._waiting = False
        self._loop: asyncio.AbstractEventLoop | None = None

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after changes; returns what ends that (again and again is fine)."""
        token = object()
        self._listeners[token] = listener
        self.listening = True

        def unsubscribe() -> None:
            self._listeners.pop(token, None)
            self.listening = bool(self._listeners)

        return unsubscribe

    def changed(self) -> None:
        """Note a change: one delivery is scheduled, unless one waits already."""
        loop = _running_loop() if self._schedule is None else None
        # A delivery that waits on another loop may never come, since that loop may have ended.
        if self._waiting and self._loop is loop:
            return
        self._waiting, self._loop = True, loop
        if self._schedule is not None:
            self._schedule(self._deliver)
        elif loop is not None:
            loop.call_soon(self._deliver)
        else:
            self._deliver()

    def _deliver(self) -> None:
        # `_waiting` stays true meanwhile: a listener that records must not call itself for ever.
        try:
            for listener in list(self._listeners.values()):
                _call(listener)
        finally:
            self._waiting = False


def _call(listener: Callable[[], None]) -> None:
    """Run one listener; its error must reach neither the others nor the code that records."""
    try:
        listener()
    except Exception:
        _logger.exception("a listener of the metrics failed; the others were called")


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None
