"""The watchdog: notices a handler that blocks the event loop, and keeps its leases meanwhile.

Heartbeats run on the loop. While a handler blocks it, a thread of its own says which work type
does, and renews the leases of queues in this process, so that nobody takes the worker for dead.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING

from piecework.engine.hooks import logger

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.heart import Heart

#: Seconds between two looks while works are held, at most; a tenth of a short lease.
_LOOK_EVERY = 1.0


def watching_thread(run: Callable[[], None]) -> threading.Thread:
    """The thread of a watchdog, not started. The simulator, which has none, replaces this."""
    return threading.Thread(target=run, name="piecework-watchdog", daemon=True)


class Watchdog:
    """Measures by how much the loop is late while this process holds works.

    It sleeps without a timer while nothing is held.

    Args:
        core: The shared parts.
        heart: Knows what is held.
        monotonic: Seconds of a clock that no virtual time moves.
    """

    def __init__(self, core: Core, heart: Heart, monotonic: Callable[[], float]) -> None:
        self._core = core
        self._heart = heart
        self._monotonic = monotonic
        self._look_every = min(_LOOK_EVERY, core.settings.visibility / 10)
        self._busy = threading.Event()
        self._ended = threading.Event()
        self._answered = 0.0
        self._warned = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    def watch(self) -> None:
        """Watch from now on, until ``rest``."""
        self._answered = self._monotonic()
        if self._thread is None:
            self._busy, self._ended = threading.Event(), threading.Event()
            self._loop = asyncio.get_running_loop()
            run = partial(self._run, self._loop, self._busy, self._ended)
            self._thread = watching_thread(run)
            self._thread.start()
        self._busy.set()

    def rest(self) -> None:
        """Nothing is held any more."""
        self._busy.clear()

    def close(self) -> None:
        """End the thread; ``watch`` may start another."""
        thread, self._thread = self._thread, None
        if thread is not None:
            self._ended.set()
            self._busy.set()
            thread.join(timeout=1.0)

    def _answer(self) -> None:
        """Runs on the loop: it is not blocked."""
        now = self._monotonic()
        late = now - self._answered - self._look_every
        self._core.recorder.loop_lag(max(0.0, late))
        self._answered = now
        self._warned = False

    def _run(
        self, loop: asyncio.AbstractEventLoop, busy: threading.Event, ended: threading.Event
    ) -> None:
        limit = max(self._look_every, self._core.settings.visibility / 3)
        while True:
            busy.wait()
            if ended.wait(self._look_every):
                return
            behind = self._monotonic() - self._answered
            if behind >= limit and busy.is_set():
                self._warn(behind)
                self._renew()
                continue
            try:
                loop.call_soon_threadsafe(self._answer)
            except RuntimeError:
                return  # the loop has closed

    def _warn(self, behind: float) -> None:
        if self._warned:
            return
        self._warned = True
        running = sorted({a.env.type for a in list(self._heart.held) if self._blocks(a)})
        logger.warning(
            "the event loop has been blocked for %.1f s, probably by a handler of work type %s; "
            "make it a plain def, which runs in a thread, or give it executor='process'",
            behind,
            ", ".join(map(repr, running)) or "unknown",
        )

    def _blocks(self, active: Active) -> bool:
        """Whether the handler of a work is what the loop is running now."""
        loop = self._loop
        current = None if loop is None else asyncio.current_task(loop)
        if current is None or active.task is None:
            return active.run_at is not None and active.entry.work_type.executor == "loop"
        return active.task is current

    def _renew(self) -> None:
        """Renew the leases of queues in this process, whose calls do not need the loop."""
        held = [a for a in list(self._heart.held) if a.queue.capabilities.in_process]
        visibility = self._core.settings.visibility
        for queue in {a.queue for a in held}:
            leased = [a for a in held if a.queue is queue and a.lease is not None]
            if not leased or self._loop is None:
                continue
            sent = self._loop.time()
            leases = [a.lease for a in leased if a.lease is not None]
            lost = set(map(id, asyncio.run(queue.inner.extend(leases, visibility))))
            for active in leased:
                if id(active.lease) not in lost:
                    active.good_until = sent + visibility
