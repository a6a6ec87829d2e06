"""What a history is about: works, who enqueues them, and what must have come of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, ParamSpec, TypeVar

from piecework.clock import sleep
from piecework.errors import BackendError, PieceworkError
from piecework.testing.simulation.book import Violation

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from random import Random

    from piecework.definitions import Work, WorkType
    from piecework.handle import WorkHandle, WorkHandles
    from piecework.system import WorkSystem
    from piecework.testing.simulation.book import Book
    from piecework.testing.simulation.host import Host
    from piecework.testing.simulation.plan import Plan

P = ParamSpec("P")
T = TypeVar("T")

#: The statuses that mean "it has ended".
ENDED = frozenset({"success", "dead", "cancelled", "expired"})
SUCCESS = frozenset({"success"})

#: How often a producer tries to enqueue a work.
_TRIES = 200


@dataclass(slots=True)
class World:
    """What the handlers of one history share; ``world()`` is that of the running one.

    It stands outside of all processes: it sees and forgets nothing when one of them dies.

    Attributes:
        plan: What goes wrong.
        runs: How often each handler has started, by a name that the handler gives.
        finished: How often each has come to its last line.
        facts: Anything else, by a name.
        broken: Promises that handlers saw broken.
    """

    plan: Plan
    runs: Counter[str] = field(default_factory=Counter[str])
    finished: Counter[str] = field(default_factory=Counter[str])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    broken: list[Violation] = field(default_factory=list[Violation])

    def started(self, name: str) -> int:
        """Count a start; return how many there were."""
        self.runs[name] += 1
        return self.runs[name]

    def wrong(self, kind: str, text: str) -> None:
        """Note a broken promise."""
        self.broken.append(Violation(kind, text))


_WORLD: ContextVar[World] = ContextVar("piecework_world")


def world() -> World:
    """The world of the history that is running; for handlers."""
    return _WORLD.get()


def set_world(new: World) -> None:
    """Make a world that of what runs from here on."""
    _WORLD.set(new)


@dataclass(slots=True)
class Expected:
    """What an accepted work may become, and its result if it succeeds."""

    statuses: frozenset[str]
    result: Any = ...
    group: Any = ...


@dataclass(slots=True)
class Stage:
    """Where a workload stands in one history: its producer, its chance, what was accepted.

    It outlives the producer's process. ``produce`` is called again in a new process when that one
    died, with the same stage.

    Attributes:
        name: A name that no other workload of the history has; for the inputs of works.
        random: Its own source of chance.
        world: What the handlers share.
        host: The process that produces now.
        accepted: The works that were accepted, with what may become of them.
        facts: What ``once`` has made.
        waits: How many results are waited for, and how many came.
    """

    name: str
    random: Random
    world: World
    host: Host
    accepted: dict[str, Expected] = field(default_factory=dict[str, Expected])
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    waits: Counter[str] = field(default_factory=Counter[str])

    @property
    def system(self) -> WorkSystem:
        """The system of the process that produces now."""
        assert self.host.system is not None
        return self.host.system

    def once(self, name: str, make: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
        """What ``make(...)`` returned the first time: who repeats has the same works."""
        if name not in self.facts:
            self.facts[name] = make(*args, **kwargs)
        return self.facts[name]

    def expect(
        self,
        id: str,
        statuses: Iterable[str] = SUCCESS,
        *,
        result: Any = ...,
        group: Any = ...,
    ) -> None:
        """Say what an accepted work may become.

        Args:
            id: The work.
            statuses: The states that it may end in.
            result: What it returns if it succeeds; ``...`` for anything.
            group: The value of its group; ``...`` for anything.
        """
        self.accepted[id] = Expected(frozenset(statuses), result, group)

    async def enqueue(
        self,
        work: Work[T],
        *,
        statuses: Iterable[str] = SUCCESS,
        result: Any = ...,
        group: Any = ...,
        **options: Any,
    ) -> WorkHandle[T]:
        """Enqueue a work until it is accepted, and say what may become of it."""
        handle = await self.insist(lambda: self.system.enqueue(work, **options))
        self.expect(handle.id, statuses, result=result, group=group)
        return handle

    async def enqueue_many(self, works: Sequence[Work[T]], **options: Any) -> WorkHandles[T]:
        """Enqueue works until they are accepted; the caller says what may become of them."""
        return await self.insist(lambda: self.system.enqueue_many(works, **options))

    async def insist(self, call: Callable[[], Any]) -> Any:
        """Make a call until it succeeds, as a producer does that must not lose anything."""
        for _ in range(_TRIES):
            try:
                return await call()
            except BackendError:
                self.world.plan.by_workload("producer-repeats")
                await sleep(1.0 + self.random.random())
        raise AssertionError("the backend never came back")

    def wait_for(self, handle: WorkHandle[Any], *, group: bool = False) -> None:
        """Have somebody in the producer's process wait for a work, or for its group."""
        self.waits["asked"] += 1
        self.host.spawn(self._wait(handle, self.host, group=group))

    async def _wait(self, handle: WorkHandle[Any], host: Host, *, group: bool) -> None:
        expected = self.accepted.get(handle.id)
        try:
            for _ in range(_TRIES):
                try:
                    value = await (handle.group() if group else handle.result())
                    break
                except BackendError:
                    await sleep(1.0)
            else:
                raise AssertionError("the store never came back")
        except PieceworkError:
            value = ...  # dead, cancelled or expired: the record says whether it may be
        wanted = ... if expected is None else (expected.group if group else expected.result)
        if value is not ... and wanted is not ... and value != wanted:
            self.world.wrong("wrong-result", f"{handle.id} gave {value!r}, not {wanted!r}")
        self.waits["answered"] += 1
        del host


class Workload(ABC):
    """Works of one kind, and a producer of them.

    Subclass it to run your own works in the simulator. Handlers must be ``async def``, must wait
    with ``asyncio.sleep`` only, and must draw nothing by chance but from ``world().plan.random``.

    Example:
        >>> class Orders(Workload):
        ...     types = (charge, notify)
        ...
        ...     async def produce(self, stage):
        ...         work = stage.once("order", lambda: charge(stage.name))
        ...         await stage.enqueue(work, result="paid")
        >>> simulate([Orders()], seeds=range(1000))
    """

    #: The work types that its works are of.
    types: ClassVar[Sequence[WorkType[..., Any]]] = ()
    #: Seconds that it takes after the last fault, at most.
    patience: ClassVar[float] = 900.0

    @property
    def name(self) -> str:
        """What it is called on the command line."""
        return type(self).__name__.lower()

    def prepare(self, system: WorkSystem, stage: Stage) -> None:  # noqa: B027 - most have none
        """Make schedules on the system of a worker, before it starts."""

    def calm(self, system: WorkSystem, stage: Stage) -> None:  # noqa: B027 - most end themselves
        """Nothing goes wrong from here on: end what would go on for ever."""

    @abstractmethod
    async def produce(self, stage: Stage) -> None:
        """Enqueue works. Called again, with the same stage, when the process has died."""

    def check(self, stage: Stage, book: Book) -> Iterable[str]:
        """What went wrong that no general rule finds; called when all is over."""
        return ()
