"""One history: a fleet over shared ports, faults, and then calm, in which all must end."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from piecework import clock as clock_module
from piecework import ids as ids_module
from piecework.clock import sleep, to_ms
from piecework.create import create_work
from piecework.engine import watchdog as watchdog_module
from piecework.memory import MemoryPubSub, MemoryQueue
from piecework.metrics import create_metrics
from piecework.ports import Capabilities
from piecework.retry import Retry
from piecework.testing.simulation.book import BookedStore, Violation
from piecework.testing.simulation.check import check_end, check_idle, check_stopped
from piecework.testing.simulation.host import Host
from piecework.testing.simulation.loop import SimulationLoop, StuckError, host_of
from piecework.testing.simulation.network import Network
from piecework.testing.simulation.plan import Event, Plan
from piecework.testing.simulation.ports import SimulatedPubSub, SimulatedQueue, SimulatedStore
from piecework.testing.simulation.workload import Stage, World, set_world

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from piecework.metrics import Metrics
    from piecework.system import WorkSystem
    from piecework.testing.simulation.workload import Workload

_START = to_ms(datetime(2026, 1, 1, tzinfo=UTC))

#: What queues claim to be. None is in this process: a call to such a one cannot be half done.
_QUEUES = (
    Capabilities(max_delay=40),
    Capabilities(max_delay=900),
    Capabilities(max_delay=900, delivery_counts=False),
)
_STORES = (Capabilities(max_changes=100), Capabilities(max_changes=4))

#: Seconds between two looks at whether all is over.
_LOOK = 5.0
#: Seconds after which a work may count as lost for the sweep, and how often it is swept.
_SWEEP_AGE, _SWEEPS = 60.0, 6
#: Seconds within which the last answer comes.
_LAST_ANSWER = 120.0
#: Seconds within which a stop with a drain of five ends: one more, and the answers under way.
_LATEST_STOP = 9.0
#: Turns of the loop that the end of a history may take.
_LAST_TURNS = 200


@dataclass(slots=True)
class Outcome:
    """What became of one history.

    Attributes:
        seed: Its seed.
        broken: The promises that were broken.
        faults: The names of the faults that were injected.
        counts: How many, by kind.
        settled: How many works ended, by status.
        workloads: Their names.
        digest: A number that is the same for the same history.
        swept: How many works only the sweep brought on.
        story: What happened, if it was asked for.
    """

    seed: int
    broken: list[Violation]
    faults: list[str]
    counts: Counter[str]
    settled: Counter[str]
    workloads: list[str]
    digest: int
    swept: int = 0
    story: list[str] = field(default_factory=list[str])


def run(
    seed: int,
    workloads: Sequence[Workload],
    *,
    only: Iterable[str] | None = None,
    tell: bool = False,
) -> Outcome:
    """Run one history to its end.

    Args:
        seed: What all chance is drawn from.
        workloads: What it is about.
        only: The faults to inject, by name; ``None`` for those of the seed.
        tell: Whether to write down what happens.
    """
    return Simulation(Plan.draw(seed, only), workloads, tell=tell).run()


class Simulation:
    """The world of one history.

    Args:
        plan: What goes wrong.
        workloads: What it is about.
        tell: Whether to write down what happens.
    """

    _metrics: Metrics | None = None

    def __init__(self, plan: Plan, workloads: Sequence[Workload], *, tell: bool = False) -> None:
        self.plan = plan
        self.workloads = list(workloads)
        self.tell = tell
        self.story: list[str] = []
        self.world = World(plan)
        self.random = plan.random("world")
        self.loop = SimulationLoop(plan.random("order"), plan.shuffle)
        self.hosts: dict[str, Host] = {}
        self.past: list[Host] = []
        self.stages: list[Stage] = []
        self.starting: dict[str, asyncio.Task[None]] = {}
        self.producing: dict[str, asyncio.Task[None]] = {}
        self.errors: list[Violation] = []
        self.graves: list[asyncio.Task[Any]] = []
        self.swept = 0
        self._digest = 0
        self._numbers: Counter[str] = Counter()

    # ---- the world -----------------------------------------------------------------------------

    def now_ms(self) -> int:
        """The true time."""
        return _START + int(self.loop.elapsed * 1000 + 0.001)

    def note(self, host: Host | None, text: str) -> None:
        """Add a line to the story."""
        if self.tell:
            self.story.append(f"{self.loop.elapsed:10.3f} {host or 'world'!s:6} {text}")

    def run(self) -> Outcome:
        """Run it."""
        with self._patched():
            context = contextvars.Context()
            try:
                context.run(self._run)
            finally:
                self.loop.close()
        broken = [*self.errors, *self.world.broken, *self.store.book.broken]
        return Outcome(
            seed=self.plan.seed,
            broken=broken,
            faults=self.plan.injected,
            counts=self.plan.counts,
            settled=self.store.book.settled,
            workloads=[workload.name for workload in self.workloads],
            digest=hash((self._digest, round(self.loop.elapsed * 1000), self.loop.next_serial())),
            swept=self.swept,
            story=self.story,
        )

    def _run(self) -> None:
        set_world(self.world)
        self._build()
        try:
            self.loop.run_until_complete(self._live())
        except StuckError as error:
            self.errors.append(Violation("stuck", str(error)))
        except Exception as error:  # noqa: BLE001 - a broken simulation is found like a broken promise
            self.errors.append(Violation("broken-run", f"{type(error).__name__}: {error}"))
        finally:
            self._bury()
        for context in self.loop.unhandled:
            text = f"{context.get('message')}: {context.get('exception')!r}"
            self.errors.append(Violation("unhandled", text))

    def _build(self) -> None:
        draw = self.random
        self.network = Network(
            self.loop, self.plan, contextvars.copy_context(), self.crash, self.note
        )
        capabilities = draw.choice(_QUEUES)
        self.queue = MemoryQueue(now=self, capabilities=capabilities, ids=lambda: "message")
        self.store = BookedStore(now=self, capabilities=draw.choice(_STORES))
        self.pubsub = MemoryPubSub()
        self.visibility = draw.choice((8.0, 15.0, 30.0))
        self.start_after = draw.choice((1.0, 1.0, 0.0))
        self.port_retry = draw.choice((None, None, Retry(attempts=3, base=0.05, max=1.0)))
        self.drives_back = draw.random() < 0.2
        self.embedded = draw.random() < 0.3
        self.types = list(dict.fromkeys(t for w in self.workloads for t in w.types))
        if self.tell:
            self.store.book.told = self.note

    # ---- hosts ---------------------------------------------------------------------------------

    def new_host(self, slot: str) -> Host:
        """A new process in a place of the fleet; the one before is gone."""
        number = self._numbers[slot]
        self._numbers[slot] += 1
        if slot in self.hosts:
            self.past.append(self.hosts[slot])
        random = self.plan.random(f"host {slot}.{number}")
        skew = random.randint(-self.plan.skew_ms, self.plan.skew_ms)
        host = Host(slot, number, self.loop, random=random, start_ms=_START, skew_ms=skew)
        self.hosts[slot] = host
        host.system = host.context.run(self._system, host)
        return host

    def _system(self, host: Host) -> WorkSystem:
        if Simulation._metrics is None:
            # Making the series of a type takes longer than running its works.
            Simulation._metrics = create_metrics()
        queue = SimulatedQueue(self.network, host, self.queue)
        return create_work(
            work=self.types,
            queue=queue,
            store=SimulatedStore(self.network, host, self.store),
            pubsub=SimulatedPubSub(self.network, host, self.pubsub),
            dlq=queue.dead_letter_queue if self.drives_back else None,
            visibility=self.visibility,
            start_after=self.start_after,
            port_retry=self.port_retry,
            metrics=Simulation._metrics,
            now=host,
            random=host.random.random,
            auto_start=False,
            on_error=self._heard,
        )

    def _heard(self, error: BaseException, phase: str) -> None:
        """Errors of ports are what we cause; any other is a fault of the engine."""
        if not isinstance(error, (ConnectionError, TimeoutError, asyncio.CancelledError)):
            self.errors.append(Violation("engine-error", f"{phase}: {error!r}"))

    def start_worker(self, slot: str) -> None:
        """Start a worker in a place of the fleet."""
        host = self.new_host(slot)
        self.note(host, "starts")
        assert host.system is not None
        for workload, stage in zip(self.workloads, self.stages, strict=True):
            host.context.run(workload.prepare, host.system, stage)
        self.starting[slot] = host.spawn(self._start(host), "start")
        if self.embedded:
            self._produce_on(host)

    async def _start(self, host: Host) -> None:
        assert host.system is not None
        while True:
            try:
                await host.system.start()
            except ConnectionError:
                await sleep(1.0)
            else:
                return

    def _produce_on(self, host: Host) -> None:
        """Have a process produce what its place in the fleet is to produce, from the start."""
        for workload, stage in zip(self.workloads, self.stages, strict=True):
            if stage.facts.get("slot") != host.slot or stage.facts.get("produced"):
                continue
            stage.host = host
            self.producing[stage.name] = host.spawn(self._produce(workload, stage), "produce")

    async def _produce(self, workload: Workload, stage: Stage) -> None:
        await workload.produce(stage)
        stage.facts["produced"] = True

    def crash(self, host: Host) -> None:
        """End a process at once; after a while another one takes its place."""
        self.note(host, "is dead")
        host.die()
        # A task that nobody will ever wake is kept by nobody else.
        self.graves += [task for task in asyncio.all_tasks(self.loop) if host_of(task) is host]
        pause = self.random.choice((0.1, 2.0, 20.0)) * (0.5 + self.random.random())
        self.network.later(pause, self._replace, host)

    def _replace(self, host: Host) -> None:
        if self.hosts.get(host.slot) is not host or self.network.over:
            return
        if host.slot.startswith("w"):
            self.start_worker(host.slot)
        elif self.random.random() < 0.8 and not self.plan.calm:
            self.plan.by_workload("producer-repeats")
            self._produce_on(self.new_host(host.slot))

    # ---- faults at a moment --------------------------------------------------------------------

    def _happen(self, event: Event) -> None:
        if self.plan.calm:
            return
        slots = sorted(self.hosts)
        host = self.hosts[slots[event.slot % len(slots)]]
        now = self.loop.elapsed
        if event.kind.endswith("-outage"):
            self.network.out_until[event.kind.removesuffix("-outage")] = now + event.span
        elif not host.up:
            return
        elif event.kind == "crash":
            self.crash(host)
        elif event.kind == "freeze":
            host.freeze()
            self.network.later(event.span, host.thaw)
        elif event.kind == "cut":
            host.cut_until = now + event.span
        elif event.kind == "clock-step":
            host.skew_ms += round((self.random.random() - 0.5) * 2 * max(self.plan.skew_ms, 500))
        elif event.kind == "deploy":
            if not host.slot.startswith("w") or self.embedded:
                return
            self.starting[host.name] = host.spawn(self._deploy(host, event.span), "deploy")
        self.plan.happened(f"{event.name}={event.kind}", event.kind)
        self.note(host, f"{event.kind} for {event.span:.1f} s")

    async def _deploy(self, host: Host, drain: float) -> None:
        assert host.system is not None
        loop = asyncio.get_running_loop()
        began = loop.time()
        await host.system.stop(drain=drain)
        self.note(host, f"has stopped after {loop.time() - began:.1f} s")
        host.stopped = True
        self.network.later(0.1, self._replace, host)

    # ---- life ----------------------------------------------------------------------------------

    async def _live(self) -> None:
        self._set_stages()
        for number in range(self.plan.workers):
            self.start_worker(f"w{number}")
        if not self.embedded:
            for stage in self.stages:
                self._produce_on(self.new_host(stage.facts["slot"]))
        for event in self.plan.events:
            self.network.later(event.at, self._happen, event)
        await sleep(self.plan.calm_at if self.plan.rate else 1.0)
        await self._calm()
        await self._until_over()
        self._digest = len(self.store.book.lives) + sum(self.plan.counts.values())
        self.errors += check_end(self)
        if not self.errors:
            await self._stop_all()

    def _set_stages(self) -> None:
        for number, workload in enumerate(self.workloads):
            name = f"{workload.name}{number}"
            stage = Stage(name, self.plan.random(name), self.world, Host.__new__(Host))
            slot = f"w{number % self.plan.workers}" if self.embedded else f"p{number}"
            stage.facts["slot"] = slot
            self.stages.append(stage)

    async def _calm(self) -> None:
        """From here on nothing goes wrong, and every place of the fleet has a process."""
        self.note(None, "is calm from here on")
        self.plan.calm = True
        self.network.out_until.clear()
        for host in list(self.hosts.values()):
            host.cut_until = 0.0
            if host.up:
                host.thaw()
        for slot, host in list(self.hosts.items()):
            if not host.dead:
                continue
            if slot.startswith("w"):
                self.start_worker(slot)
            elif self.random.random() < 0.5:
                self._produce_on(self.new_host(slot))
        patience = max(workload.patience for workload in self.workloads)
        await self._until(self._produced, patience)
        for slot, host in self.hosts.items():
            if not host.up and slot.startswith("w"):
                self._replace(host)  # it stopped for a deploy as the calm came
        for host in self.hosts.values():
            for workload, stage in zip(self.workloads, self.stages, strict=True):
                if host.up and host.system is not None:
                    host.context.run(workload.calm, host.system, stage)

    def _produced(self) -> bool:
        return all(task.done() or not self._up(task) for task in self.producing.values())

    @staticmethod
    def _up(task: asyncio.Task[Any]) -> bool:
        host = host_of(task)
        return host is not None and host.up

    async def _until_over(self) -> None:
        patience = max(workload.patience for workload in self.workloads)
        await self._until(self.is_over, patience)
        for _ in range(_SWEEPS):
            lost = self.lost()
            if not lost:
                break
            self.errors += [v for v in map(self._inexcusable, lost) if v is not None]
            self.swept += len(lost)
            self.note(None, f"sweeps for {lost}")
            await self._sweep()
            await self._until(self.is_over, patience / 3)

    async def _sweep(self) -> None:
        host = next(host for slot, host in self.hosts.items() if slot.startswith("w") and host.up)
        assert host.system is not None
        await host.spawn(host.system.reconcile(older_than=_SWEEP_AGE), "reconcile")

    def _inexcusable(self, id: str) -> Violation | None:
        """A work must not need the sweep if whoever was to push it lived to do so.

        That is so if it was accepted, or if its parent succeeded: the run that did has pushed all
        children, also those that an earlier run had only registered. The parent of what a gate
        starts is that gate.
        """
        lives = self.store.book.lives
        life = lives[id]
        if life.reopened:
            return None
        parent = None if life.parent is None else lives.get(life.parent)
        if parent is not None and parent.status == "success":
            return Violation("lost", f"{id} ({life.type}) is {life.status}, its parent succeeded")
        if any(id in stage.accepted for stage in self.stages):
            text = f"{id} ({life.type}) was accepted and is {life.status} for ever"
            return Violation("lost", text)
        return None

    def lost(self) -> list[str]:
        """The works that are not terminal."""
        return list(self.store.book.open)

    def is_over(self) -> bool:
        """Whether nothing is left to do."""
        return (
            not self.store.book.open
            and self.messages() == 0
            and self._letters_rest()
            and all(task.done() or not self._up(task) for task in self.starting.values())
            and all(stage.waits["asked"] == self._answered(stage) for stage in self.stages)
        )

    def _letters_rest(self) -> bool:
        """Whether no idle worker is about to bring a dead letter back."""
        if not self.drives_back:
            return True
        dead: Any = self.queue.dead
        shelf = dead._shelf  # noqa: SLF001 - to wait for an hour would tell it too
        shelf.now()
        return not shelf.ready and shelf.due_ms() > self.now_ms() + 15_000

    def _answered(self, stage: Stage) -> int:
        """Those who waited in a process that died wait no more."""
        waiting = sum(
            1
            for task in asyncio.all_tasks(self.loop)
            if self._up(task) and getattr(task.get_coro(), "__name__", "") == "_wait"
        )
        return stage.waits["asked"] if waiting == 0 else -1

    def messages(self) -> int:
        """How many messages are in the queue."""
        coroutine = self.queue.size()
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        raise RuntimeError("size() waited")

    async def _until(self, condition: Callable[[], bool], patience: float) -> None:
        end = self.loop.elapsed + patience
        while not condition() and self.loop.elapsed < end:
            await sleep(_LOOK)

    # ---- the end -------------------------------------------------------------------------------

    async def _stop_all(self) -> None:
        """Stop what lives: it must end in time, and leave nothing."""
        up = [host for host in self.hosts.values() if host.up]
        await self._until(lambda: not any(map(check_idle, up)), _LAST_ANSWER)
        for host in up:
            self.errors += check_idle(host)
        began = self.loop.elapsed
        stops = [host.spawn(host.system.stop(drain=5.0), "stop") for host in up if host.system]
        await asyncio.wait(stops, timeout=60.0)
        for host, stop in zip(up, stops, strict=True):
            host.stopped = True
            if not stop.done() or self.loop.elapsed - began > _LATEST_STOP:
                took = self.loop.elapsed - began
                self.errors.append(Violation("late-stop", f"{host} took {took:.1f} s"))
            elif (error := stop.exception()) is not None:
                self.errors.append(Violation("failed-stop", f"{host}: {error!r}"))
        # A stop does not wait for a call that nobody answers; the call ends by itself.
        await self._until(lambda: not check_stopped(self), _LAST_ANSWER)
        self.errors += check_stopped(self)

    def _bury(self) -> None:
        """Let all tasks end; what they do now has no effect."""
        self.network.over = True
        for host in [*self.past, *self.hosts.values()]:
            host.runs = True
            self.loop.thaw(host)
        unhandled = list(self.loop.unhandled)
        buried: set[asyncio.Task[Any]] = set()

        async def last_turns() -> None:
            me = asyncio.current_task()
            for _ in range(_LAST_TURNS):
                # What a dead host had kept back may start tasks even now.
                left = [task for task in asyncio.all_tasks() if task is not me]
                if not left:
                    return
                for task in left:
                    if task not in buried:
                        buried.add(task)
                        task.cancel()
                await asyncio.sleep(0)  # noqa: TID251 - not a wait, a turn

        self.loop.run_until_complete(last_turns())
        for task in asyncio.all_tasks(self.loop):
            lost: Any = task
            lost._log_destroy_pending = False  # noqa: SLF001 - it is meant to be
            coroutine: Any = task.get_coro()
            if inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED:
                coroutine.close()
        self.loop.unhandled = unhandled

    @contextmanager
    def _patched(self) -> Generator[None]:
        """Time, ids and threads of the library are ours meanwhile."""
        entropy = self.plan.random("ids")
        before = clock_module.wall_ms, ids_module.entropy, watchdog_module.watching_thread
        logger = logging.getLogger("piecework")
        level = logger.level
        clock_module.wall_ms = self.now_ms
        ids_module.entropy = entropy.randbytes
        watchdog_module.watching_thread = _NoThread  # type: ignore[assignment]
        logger.setLevel(logging.CRITICAL + 1)
        try:
            yield
        finally:
            clock_module.wall_ms, ids_module.entropy, watchdog_module.watching_thread = before
            logger.setLevel(level)


class _NoThread:
    """In place of a thread: there are none in the simulation, and no handler blocks its loop."""

    def __init__(self, run: Callable[[], None]) -> None:
        """Take what would run."""

    def start(self) -> None:
        """Start nothing."""

    def join(self, timeout: float | None = None) -> None:
        """There is nothing to wait for."""
