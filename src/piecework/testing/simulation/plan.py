"""The faults of one history: drawn from its seed, or given to replay some of them."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable

#: What can go wrong at any call of a port.
AT_ANY_CALL: Final = {
    "crash-before": "the process dies before the call has its effect",
    "crash-after": "the process dies after the effect, before the answer",
    "refused": "the call fails and has no effect: throttling, a refused connection",
    "lost-reply": "the call has its effect, and fails all the same",
    "late-reply": "the answer takes seconds, longer than a lease at worst",
    "unanswered": "no answer comes; the call fails when its adapter loses patience",
}

#: What else can go wrong at some.
AT_CALL: Final = {
    "push": {
        "partial": "a part of the batch has its effect, and the call fails",
        "doubled": "the queue delivers a message twice",
        "late-message": "the queue delivers a message late, behind later ones",
    },
    "pop": {"early-lapse": "the lease ends before its time"},
    "ack": {"partial": AT_ANY_CALL["lost-reply"]},
    "release": {"partial": AT_ANY_CALL["lost-reply"]},
    "extend": {"partial": AT_ANY_CALL["lost-reply"]},
    "write": {
        "conflict": "a transaction loses against another one and fails",
        "repeated": "the adapter repeats a write whose answer it lost, and meets its own effect",
    },
    "publish": {
        "lost-notice": "nobody hears of it",
        "doubled-notice": "everybody hears of it twice",
    },
}

#: What happens at a moment, whatever is called then.
EVENTS: Final = {
    "crash": "a process dies between two calls",
    "freeze": "a process stands still, its leases lapse, and it goes on",
    "deploy": "a process is stopped with a drain and another one takes its place",
    "cut": "a process reaches no port for a while",
    "queue-outage": "nobody reaches the queue for a while",
    "store-outage": "nobody reaches the store for a while",
    "pubsub-outage": "no notice arrives for a while",
    "clock-step": "the clock of a process is set",
}

#: What workloads do by themselves.
BY_WORKLOADS: Final = {
    "cancel": "somebody cancels a work at a random moment",
    "redrive": "somebody brings dead works back at a random moment",
    "slow-handler": "a handler takes longer than the lease",
    "failure": "a handler raises",
    "producer-repeats": "a producer that died or failed enqueues the same works again",
}

#: Latencies in seconds: the least and the most of each half of a call, by port.
_LATENCIES: Final = (
    {"queue": (0.0, 0.0), "store": (0.0, 0.0), "pubsub": (0.0, 0.0)},
    {"queue": (0.0005, 0.005), "store": (0.0005, 0.005), "pubsub": (0.001, 0.01)},
    {"queue": (0.005, 0.08), "store": (0.002, 0.02), "pubsub": (0.01, 0.2)},
    {"queue": (0.0005, 0.004), "store": (0.02, 0.2), "pubsub": (0.001, 0.01)},
    {"queue": (0.02, 0.2), "store": (0.0005, 0.004), "pubsub": (0.001, 0.01)},
    {"queue": (0.0, 1.5), "store": (0.0, 1.5), "pubsub": (0.0, 3.0)},
)


@dataclass(frozen=True, slots=True)
class Event:
    """A fault of the world at a moment.

    Attributes:
        name: What names it in a replay.
        kind: One of ``EVENTS``.
        at: When, in seconds.
        slot: A number that picks the process.
        span: How long it lasts, in seconds.
    """

    name: str
    kind: str
    at: float
    slot: int
    span: float


@dataclass(slots=True)
class Plan:
    """What the world does to the processes of one history.

    Attributes:
        seed: What all of it is drawn from.
        only: The faults to inject, by name, in a replay; ``None`` injects what the seed says.
        workers: How many workers there are.
        rate: The chance of a fault at a call.
        kinds: The kinds that this history knows: few at a time find more than all at once.
        calm_at: When the last fault has happened, in seconds.
        latency: See ``_LATENCIES``.
        shuffle: See ``SimulationLoop``.
        skew_ms: The most by which a clock differs.
        events: The faults at a moment.
        injected: The faults that happened, by name.
        counts: How many happened, by kind.
        calm: Whether nothing more goes wrong.
    """

    seed: int
    only: frozenset[str] | None = None
    workers: int = 1
    rate: float = 0.0
    kinds: frozenset[str] = frozenset()
    calm_at: float = 0.0
    latency: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    shuffle: float = 0.0
    skew_ms: int = 0
    events: list[Event] = field(default_factory=list[Event])
    injected: list[str] = field(default_factory=list[str])
    counts: Counter[str] = field(default_factory=Counter[str])
    calm: bool = False
    _menus: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    @classmethod
    def draw(cls, seed: int, only: Iterable[str] | None = None) -> Plan:
        """The plan of a seed.

        Args:
            seed: Any whole number.
            only: The faults to inject, by the names that ``injected`` gave; ``None`` for all.
        """
        random = Random(f"plan {seed}")  # noqa: S311 - repeatable on purpose
        plan = cls(seed, None if only is None else frozenset(only))
        plan.workers = random.choice((1, 2, 2, 3, 3, 4))
        plan.rate = random.choice((0.0, 0.003, 0.01, 0.01, 0.03, 0.03, 0.08))
        plan.calm_at = random.choice((15.0, 30.0, 60.0, 150.0))
        plan.latency = random.choice(_LATENCIES)
        plan.shuffle = random.choice((0.0, 0.2, 1.0))
        plan.skew_ms = random.choice((0, 0, 500, 2000, 20_000))
        everything = {*AT_ANY_CALL, *EVENTS, *(kind for menu in AT_CALL.values() for kind in menu)}
        share = random.choice((0.15, 0.4, 0.8, 1.0))
        plan.kinds = frozenset(kind for kind in sorted(everything) if random.random() < share)
        plan._draw_events(random)
        return plan

    def _draw_events(self, random: Random) -> None:
        kinds = [kind for kind in EVENTS if kind in self.kinds]
        count = random.choice((0, 1, 2, 4, 8)) if kinds and self.rate else 0
        for number in range(count):
            event = Event(
                name=f"event{number}",
                kind=random.choice(kinds),
                at=random.random() ** 2 * self.calm_at,
                slot=random.randrange(1000),
                span=random.choice((0.5, 5.0, 30.0)) * (0.2 + random.random()),
            )
            if self.only is None or f"{event.name}={event.kind}" in self.only:
                self.events.append(event)

    def random(self, name: str) -> Random:
        """A source of chance of its own for a part of the history."""
        return Random(f"{name} {self.seed}")  # noqa: S311 - repeatable on purpose

    def at_call(self, host: str, number: int, operation: str, chance: float) -> str | None:
        """The fault at a call of a host, if there is one.

        Args:
            host: The name of the host.
            number: Its how manieth call it is.
            operation: The name of the method.
            chance: A random number from 0 to 1, of the host.
        """
        if self.calm:
            return None
        if self.only is not None:
            return self._replayed(f"{host}:{number}=", operation)
        if chance >= self.rate:
            return None
        menu = self._menu(operation)
        at = int(chance / self.rate * len(menu)) if menu else 0
        if at >= len(menu):
            return None
        self.happened(f"{host}:{number}={menu[at]}", menu[at])
        return menu[at]

    def _replayed(self, start: str, operation: str) -> str | None:
        assert self.only is not None
        for kind in (*AT_ANY_CALL, *AT_CALL.get(operation, ())):
            if start + kind in self.only:
                self.happened(start + kind, kind)
                return kind
        return None

    def _menu(self, operation: str) -> list[str]:
        menu = self._menus.get(operation)
        if menu is None:
            kinds = (*AT_ANY_CALL, *AT_CALL.get(operation, ()))
            menu = self._menus[operation] = [kind for kind in kinds if kind in self.kinds]
        return menu

    def happened(self, name: str, kind: str) -> None:
        """Note a fault that was injected."""
        self.injected.append(name)
        self.counts[kind] += 1

    def by_workload(self, kind: str) -> None:
        """Count what a workload did by itself; a replay draws it from the seed again."""
        self.counts[kind] += 1
