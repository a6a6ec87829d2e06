"""The doer that starts only so many tasks in a span of time, in this process or in the fleet."""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from piecework.clock import Now, Seconds, as_clock, seconds
from piecework.doers.ordered import OrderedDoer, whole
from piecework.doers.tracked import report
from piecework.doers.waiting import RankedWaiting, by_priority
from piecework.errors import ConfigError

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from piecework.clock import Clock
    from piecework.doers.doer import Task
    from piecework.ports.store import Store


class SlidingWindow:
    """The starts of one process: never more than ``limit`` in any span of ``window`` seconds."""

    __slots__ = ("_starts", "_window")

    def __init__(self, limit: int, window: float) -> None:
        self._starts: deque[float] = deque(maxlen=limit)
        self._window = window

    def free_at(self, now: float) -> float:
        """When the next start is allowed; ``now`` or earlier if it is allowed now."""
        starts = self._starts
        return starts[0] + self._window if len(starts) == starts.maxlen else now

    def take(self, now: float) -> None:
        """Note a start; the oldest of ``limit`` is dropped."""
        self._starts.append(now)

    def clear(self) -> None:
        """Forget the starts."""
        self._starts.clear()


class FleetWindow:
    """The starts of all processes: a counter in the store for each window of the clock.

    Windows are fixed: they begin at multiples of ``window`` since 1970. Many starts are reserved at
    once; what all processes get of one window adds up to ``limit`` at most.
    """

    __slots__ = ("_clock", "_left", "_limit", "_name", "_store", "_window_ms", "index", "spent")

    def __init__(self, store: Store, name: str, limit: int, window: float, clock: Clock) -> None:
        self._store = store
        self._name = name
        self._limit = limit
        self._window_ms = max(1, round(window * 1000))
        self._clock = clock
        self.index = -1
        self._left = 0
        self.spent = False

    def turn(self) -> int:
        """Take note of the time; returns the milliseconds to the end of the window."""
        now = self._clock.now_ms()
        index = now // self._window_ms
        if index != self.index:
            self.index, self._left, self.spent = index, 0, False
        return (index + 1) * self._window_ms - now

    def take(self) -> bool:
        """Use one of the reserved starts, if there is one."""
        if not self._left:
            return False
        self._left -= 1
        return True

    async def reserve(self, wanted: int) -> None:
        """Ask for up to ``wanted`` starts of the present window.

        They are good to its end. Where it ended before the store answered, they are used all the
        same: a store slower than the window would else let nothing start.
        """
        self.turn()
        asked_in = self.index
        ttl = 2 * self._window_ms / 1000 + 60  # outlives the window where clocks differ a little
        total = await self._store.increment(f"{self._name}:{asked_in}", wanted, ttl=ttl)
        got = min(wanted, max(0, self._limit - (total - wanted)))
        self.turn()
        self._left += got
        self.spent = got < wanted and self.index == asked_in


class RateLimitedDoer(OrderedDoer):
    """Starts so many tasks in a span of time; see ``rate_limited_doer``."""

    __slots__ = (
        "_alone_in",
        "_capped",
        "_fleet",
        "_limit",
        "_local",
        "_on_error",
        "_reserving",
        "_timer",
    )

    def __init__(
        self,
        limit: int,
        local: SlidingWindow,
        fleet: FleetWindow | None,
        max: int | None,
        buffer: int,
        on_backlog: Callable[[int], None] | None,
        on_error: Callable[[Exception], None] | None,
    ) -> None:
        if max is None:
            whole("buffer (without max)", buffer, 1)
        super().__init__(RankedWaiting(by_priority), 1 if max is None else max, buffer, on_backlog)
        self._capped = max is not None
        self._limit = limit
        self._local = local
        self._fleet = fleet
        self._on_error = on_error
        self._alone_in = -1  # the window in which the store failed and the local limit counts
        self._reserving: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    @property
    def available(self) -> int:
        """``max + buffer`` less what it holds; without a ``max``, ``buffer`` less what waits."""
        if self._capped:
            return super().available
        return max(self._buffer - self.waiting, 0)

    def take_back(self, owner: object = None) -> list[Task]:
        """Remove and return the owner's tasks that have not started, in the order they came."""
        taken = super().take_back(owner)
        if not self._waiting:
            self._rest()
        return taken

    def _may_start(self, loop: asyncio.AbstractEventLoop) -> bool:
        """Whether a task may start now, which uses up one start; if not, sees to it later."""
        if self._capped and not super()._may_start(loop):
            return False
        fleet = self._fleet
        if fleet is not None:
            ends_in_ms = fleet.turn()
            if fleet.index != self._alone_in:
                return self._may_start_in_fleet(loop, fleet, ends_in_ms)
        now = loop.time()
        free_at = self._local.free_at(now)
        if free_at > now:
            self._wake_at(loop, free_at)
            return False
        self._local.take(now)
        return True

    def _may_start_in_fleet(
        self, loop: asyncio.AbstractEventLoop, fleet: FleetWindow, ends_in_ms: int
    ) -> bool:
        if fleet.take():
            self._local.take(loop.time())
            return True
        if fleet.spent:
            self._wake_at(loop, loop.time() + ends_in_ms / 1000)
        elif self._reserving is None or self._reserving.done():
            self._reserving = loop.create_task(self._reserve(loop, fleet))
        return False

    async def _reserve(self, loop: asyncio.AbstractEventLoop, fleet: FleetWindow) -> None:
        wanted = min(len(self._waiting), self._limit)
        if self._capped:
            wanted = min(wanted, self._max - len(self._running))
        try:
            await fleet.reserve(max(wanted, 1))
        except Exception as error:  # noqa: BLE001 - any store, any error: work goes on locally
            fleet.turn()
            self._alone_in = fleet.index
            if self._on_error is None:
                report(loop, "a rate limit could not ask its store and goes on alone", error)
            else:
                self._call(self._on_error, error)
        self._reserving = None
        self._start_what_may(loop)

    def _wake_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is None:
            self._timer = loop.call_at(when, self._wake, loop)

    def _wake(self, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = None
        self._start_what_may(loop)

    def _start_what_may(self, loop: asyncio.AbstractEventLoop) -> None:
        self._pump(loop)
        if self.available:
            self._tell_room()

    def _rest(self) -> None:
        """Leave no timer and no request behind: nothing waits for them."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._reserving is not None:
            self._reserving.cancel()
            self._reserving = None

    def _forget(self) -> None:
        super()._forget()
        self._local.clear()
        self._timer = None
        self._reserving = None


def rate_limited_doer(
    limit: int,
    window: Seconds,
    *,
    store: Store | None = None,
    name: str = "rate",
    max: int | None = None,
    buffer: int | None = None,
    on_backlog: Callable[[int], None] | None = None,
    on_error: Callable[[Exception], None] | None = None,
    now: Now | None = None,
) -> RateLimitedDoer:
    """A doer that starts at most ``limit`` tasks in ``window`` seconds.

    Without a store the limit is that of this process, and the window slides: no span of that length
    ever sees more starts. With a store it is that of all processes that use the same store and
    name, and windows are fixed (they begin at multiples of ``window`` since 1970), so that two
    full windows can meet at their border. Next is the higher priority, then the older. When the
    store fails, the process keeps to ``limit`` alone for the rest of the window, and tells.

    Args:
        limit: The most starts in a window, from 1.
        window: Its length in seconds, or a ``timedelta``; from 0.001.
        store: Where the fleet counts: about one write per start when starts are rare, one per
            hundreds when many wait.
        name: Names the limit in the store.
        max: The most tasks that run at once; ``None`` for any number.
        buffer: How many it takes to wait; ``None`` is ``max``, or ``limit`` without a ``max``.
        on_backlog: Is called with the number that wait when it rises over the buffer.
        on_error: Is told why the store failed; ``None`` tells the event loop's exception handler.
        now: The clock of the fixed windows.

    Raises:
        ConfigError: A number is out of its range.

    Example:
        >>> create_work(work=[send_mail], doer=rate_limited_doer(14, 1.0, store=store))
    """
    whole("limit", limit, 1)
    length = seconds(window)
    if not 0.001 <= length < math.inf:
        raise ConfigError(f"doer: window must be from 0.001 seconds, not {window!r}")
    fleet = None if store is None else FleetWindow(store, name, limit, length, as_clock(now))
    if buffer is None:
        buffer = limit if max is None else max
    local = SlidingWindow(limit, length)
    return RateLimitedDoer(limit, local, fleet, max, buffer, on_backlog, on_error)
