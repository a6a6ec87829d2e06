"""A simulated process: its life, its clock, and what of its code waits to run."""

from __future__ import annotations

import contextvars
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine
    from random import Random
    from typing import Any

    from piecework.system import WorkSystem
    from piecework.testing.simulation.loop import SimulationLoop

#: The host to whose process the running code belongs; ``None`` for the world around them.
HOST: contextvars.ContextVar[Host | None] = contextvars.ContextVar("piecework_host", default=None)


class Host:
    """One process of the simulated fleet, from its start to its end.

    Attributes:
        slot: Its place in the fleet, such as ``w0``; the process after a crash has the same.
        name: The slot and how many processes the slot had before: ``w0.2``.
        dead: It crashed: nothing of it runs, and none of its calls has an effect.
        stopped: It ended in good order.
        runs: Whether its code runs: it is neither dead nor frozen.
        cut_until: Until when it reaches no port, in seconds of the loop.
        calls: How many calls to ports it has made.
        kept: Its callbacks that are kept back.
        random: Its own source of chance.
        skew_ms: By how much its clock is ahead.
        system: Its work system.
    """

    __slots__ = (
        "_loop",
        "_start_ms",
        "calls",
        "context",
        "cut_until",
        "dead",
        "kept",
        "name",
        "on_death",
        "random",
        "runs",
        "skew_ms",
        "slot",
        "stopped",
        "system",
    )

    def __init__(
        self,
        slot: str,
        number: int,
        loop: SimulationLoop,
        *,
        random: Random,
        start_ms: int,
        skew_ms: int = 0,
    ) -> None:
        self.slot = slot
        self.name = f"{slot}.{number}" if number else slot
        self.dead = False
        self.stopped = False
        self.runs = True
        self.cut_until = 0.0
        self.calls = 0
        self.kept: deque[asyncio.Handle] = deque()
        self.random = random
        self.skew_ms = skew_ms
        self.system: WorkSystem | None = None
        #: Ends what waits for it at the other end of the network.
        self.on_death: dict[object, Callable[[], None]] = {}
        self._loop = loop
        self._start_ms = start_ms
        self.context = contextvars.copy_context()
        self.context.run(HOST.set, self)

    def now_ms(self) -> int:
        """The time by its clock: it is the ``now=`` of its system."""
        return self._start_ms + int(self._loop.elapsed * 1000 + 0.001) + self.skew_ms

    @property
    def up(self) -> bool:
        """Whether it is there to do something."""
        return not self.dead and not self.stopped

    def spawn(self, coroutine: Coroutine[Any, Any, Any], name: str = "") -> asyncio.Task[Any]:
        """Start a task of this process."""
        return self._loop.create_task(coroutine, context=self.context, name=name or None)

    def die(self) -> None:
        """From now on nothing of it runs."""
        self.dead = True
        self.runs = False
        waiting, self.on_death = self.on_death, {}
        for end in waiting.values():
            end()

    def freeze(self) -> None:
        """Nothing of it runs until it thaws, as when its machine swaps or its hypervisor pauses."""
        self.runs = False

    def thaw(self) -> None:
        """It goes on where it stood; only the time is another."""
        if not self.dead:
            self.runs = True
            self._loop.thaw(self)

    def __repr__(self) -> str:
        return self.name
