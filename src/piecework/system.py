"""The system: works are defined, enqueued, run and watched through it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast, overload

from piecework.clock import Now, Seconds, as_clock, seconds
from piecework.definitions import Work, WorkType, check_distinct
from piecework.dependency import gate_type
from piecework.engine.core import Core
from piecework.engine.ports import EnginePubSub, EngineQueue, EngineStore, PortCalls
from piecework.engine.registry import Registry
from piecework.errors import ConfigError, InvalidWorkError, shown
from piecework.gates import When, check_when
from piecework.handle import WorkHandle, WorkHandles
from piecework.ids import random_id
from piecework.ledger import Ledger
from piecework.metrics import Metrics, WorkRecorder
from piecework.occurrences import CatchUp, NextFunction, recurrence
from piecework.options import WorkOptions, is_name, parse_options
from piecework.schedules import ScheduleHandle, make_work

if TYPE_CHECKING:
    import builtins
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from piecework.codec import Codec
    from piecework.doers import Doer
    from piecework.engine.engine import Engine
    from piecework.engine.hooks import Hooks
    from piecework.engine.schedule_run import ScheduleEntry
    from piecework.engine.settings import Settings
    from piecework.options import Track
    from piecework.ports.pubsub import PubSub
    from piecework.ports.queue import Lease, Queue
    from piecework.ports.store import Store
    from piecework.retry import Retry
    from piecework.state import (
        DeadLetter,
        Progress,
        Status,
        WorkState,
    )

R = TypeVar("R")


class WorkSystem:
    """Works, the ports that carry them, and the engine that runs them. See ``create_work``.

    Attributes:
        queue: The queue of types that name none.
        pubsub: Notifications.
        store: Records.
        metrics: The series; ``format_prometheus`` shows them.
        settings: The numbers.

    Example:
        >>> work = create_work(work=[add])
        >>> async with work:
        ...     handle = await work.enqueue(add(1, 2))
    """

    def __init__(
        self,
        *,
        work: Iterable[WorkType[..., Any]],
        queue: Queue,
        pubsub: PubSub,
        store: Store,
        settings: Settings,
        hooks: Hooks,
        retry: Retry | None,
        port_retry: Retry | None,
        doer: Doer,
        codec: Codec,
        dlq: Queue | None,
        metrics: Metrics,
        auto_start: bool | None,
        now: Now | None,
        random: Callable[[], float],
        adopt: bool = False,
    ) -> None:
        self.queue = queue
        self.pubsub = pubsub
        self.store = store
        self.metrics = metrics
        self.settings = settings
        self._hooks = hooks
        self._codec = codec
        self._random = random
        self._port_retry = port_retry
        self._clock = as_clock(now)
        self._recorder = WorkRecorder(metrics)
        self._queues: dict[int, EngineQueue] = {}
        self._auto_start = queue.capabilities.in_process if auto_start is None else auto_start
        self._adopt = adopt
        self._dlq = dlq
        self._engine: Engine | None = None
        self._schedules: dict[str, tuple[Any, Any]] = {}
        own_queue = self._wrap_queue(queue)
        self._registry = Registry(
            wrap_queue=self._wrap_queue,
            queue=own_queue,
            doer=doer,
            retry=retry,
            recorder=self._recorder,
        )
        self._registry.register([gate_type(), *_checked_types(work)])
        wrapped = EngineStore(store, self._calls("store"))
        self._core = Core(
            settings=settings,
            hooks=hooks,
            clock=self._clock,
            random=random,
            queue=own_queue,
            pubsub=EnginePubSub(pubsub, self._calls("pubsub")),
            store=wrapped,
            ledger=Ledger(
                wrapped, self._clock, prefix=settings.prefix, result_ttl=settings.result_ttl
            ),
            registry=self._registry,
            metrics=metrics,
            recorder=self._recorder,
            codec=codec,
            worker_id=random_id(),
            dead_letters=None if dlq is None else self._wrap_queue(dlq),
            wrap_queue=self._wrap_queue,
            queues=self._queues,
        )

    def _calls(self, port: str) -> PortCalls:
        return PortCalls(port, self._recorder, self._port_retry, self._random)

    def _wrap_queue(self, queue: Queue) -> EngineQueue:
        wrapped = self._queues.get(id(queue))
        if wrapped is None:
            wrapped = self._queues[id(queue)] = EngineQueue(queue, self._calls("queue"))
        return wrapped

    # ---- life ----------------------------------------------------------------------------------

    def _here(self) -> Engine:
        """The engine of the running loop; one of a loop that has closed is replaced."""
        engine = self._engine
        loop = asyncio.get_running_loop()
        if engine is not None and engine.loop is loop:
            return engine
        if engine is not None and not engine.loop.is_closed():
            raise ConfigError(
                "this system runs on another event loop; make a second one with create_work "
                "over the same ports"
            )
        from piecework.engine.engine import Engine  # not needed by who only defines works

        engine = self._engine = Engine(self._core, self._fire)
        for name, (when, make) in self._schedules.items():
            engine.scheduler.add(name, when, make)
        return engine

    async def _ready(self) -> Engine:
        """The engine with its ports open, started if ``auto_start`` says so.

        Once it was stopped, only ``start`` starts it again.
        """
        engine = self._here()
        if engine.started:
            return engine
        if self._auto_start and not engine.stopped:
            await engine.start()
        else:
            await engine.open()
        return engine

    async def start(self) -> None:
        """Pull and run works, and fire schedules, until ``stop``. Starting twice does nothing.

        Raises:
            BackendError: A port cannot be used; the text names it and the fix.

        Example:
            >>> await work.start()
        """
        await self._here().start()

    async def stop(self, drain: Seconds = 5.0) -> None:
        """Stop: what has not started is given back at once, the rest may finish.

        Leases are renewed meanwhile. What still runs when the drain has ended is cancelled and
        given back without spending an attempt. Takes at most a second longer than ``drain``.
        Stopping twice, or before ``start``, does nothing.

        Args:
            drain: Seconds that running works may take.

        Example:
            >>> await work.stop(drain=30)
        """
        engine = self._engine
        if engine is None or engine.loop is not asyncio.get_running_loop():
            return
        await engine.stop(seconds(drain))

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    def register(self, *work_types: WorkType[..., Any]) -> None:
        """Add work types; one of a known name takes its place."""
        self._registry.register(_checked_types(work_types))
        if self._engine is not None and not self._engine.loop.is_closed():
            self._engine.refresh()

    # ---- enqueue -------------------------------------------------------------------------------

    @overload
    async def enqueue(self, work: Work[R], /, **options: Unpack[WorkOptions]) -> WorkHandle[R]: ...
    @overload
    async def enqueue(
        self, work: str, input: Mapping[str, Any] | None = None, /, **options: Unpack[WorkOptions]
    ) -> WorkHandle[Any]: ...
    async def enqueue(
        self,
        work: Work[Any] | str,
        input: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[WorkOptions],
    ) -> WorkHandle[Any]:
        """Queue a work. When this returns, the work is accepted: it will reach a terminal state.

        Args:
            work: A built work, or the name of a registered type.
            input: With a name: the arguments by the handler's parameter names.
            **options: See ``WorkOptions``; they win over all other levels.

        Returns:
            A handle on the work; with ``unique=`` perhaps on the one that was there first.

        Raises:
            InvalidWorkError: The input or an option is wrong; the text names it.
            UnknownWorkError: There is no registered type of that name.
            PayloadTooLargeError: The message is larger than the queue takes.
            BackendError: It is not known whether the work was accepted; enqueueing the same
                ``Work`` again is safe.

        Example:
            >>> handle = await work.enqueue(add(1, 2), delay=5)
            >>> handle = await work.enqueue("add", {"a": 1, "b": 2})
        """
        built = self._built(work, input)
        engine = await self._ready()
        prepared = engine.submitter.prepare(built, parse_options(options, built.type))
        env = await engine.submitter.send(prepared)
        return self._handle(built, env.id, env.group_id, env.track)

    def _built(self, work: Work[Any] | str, input: Mapping[str, Any] | None) -> Work[Any]:
        if isinstance(work, str):
            return self._registry.named(work).work_type.from_mapping(input or {})
        if not isinstance(work, Work):  # pyright: ignore[reportUnnecessaryIsInstance] - not all programs are type-checked
            raise InvalidWorkError(
                f"{shown(work)} is not a work",
                fix="Call a work type with the handler's arguments: enqueue(add(1, 2)).",
            )
        if input is not None:
            raise InvalidWorkError(
                "a built work has its input already", work_type=work.type, field="input"
            )
        if self._adopt and self._registry.get(work.type) is None:
            self.register(work.work_type)
        return work

    def _handle(
        self,
        work: Work[Any],
        id: str,
        group_id: str,
        track: Track = "full",
        after: str | None = None,
    ) -> WorkHandle[Any]:
        return WorkHandle(self, id, group_id, work.work_type.binding.load_result, track, after)

    async def enqueue_many(
        self,
        works: Iterable[Work[R]],
        *,
        then: Sequence[Work[Any]] | Work[Any] | None = None,
        when: When = "all-done",
        **options: Unpack[WorkOptions],
    ) -> WorkHandles[R]:
        """Queue many works, in as few requests as can be.

        Args:
            works: The works. Without ``then`` each is the root of its own group.
            then: Works that start once the others have met ``when``; all are one group then.
            when: ``"all-done"`` (default), ``"all-success"``, or ``{"count": n, "of": "success"}``.
            **options: Options of all works.

        Raises:
            InvalidWorkError: An option or the condition is wrong, or a work was given twice.
            BackendError: Not all were accepted; doing it again is safe.

        Example:
            >>> await work.enqueue_many([add(1, 2), add(3, 4)], then=[report()], when="all-success")
        """
        built = [self._built(one, None) for one in works]
        after = [then] if isinstance(then, Work) else list(then or ())
        check_distinct([*built, *after])
        when = check_when(when)
        given = parse_options(options, built[0].type if built else "")
        engine = await self._ready()
        handles: WorkHandles[Any] = WorkHandles()
        if then is None:
            prepared = [engine.submitter.prepare(one, given) for one in built]
            envs = await engine.submitter.send_roots(prepared)
            handles.extend(
                self._handle(one, env.id, env.group_id, env.track)
                for one, env in zip(built, envs, strict=True)
            )
            return handles
        gate = engine.gates.prepare(built, after, when, given)
        await engine.gates.open(gate)
        group_id = gate.env.group_id
        ids = zip(built, gate.ids, strict=True)
        handles.extend(self._handle(one, id, group_id) for one, id in ids)
        handles.then = [self._handle(one, one.id, group_id, after=gate.env.id) for one in after]
        handles.gate = WorkHandle(self, gate.env.id, group_id)
        return handles

    @overload
    async def run(self, work: Work[R], /, **options: Unpack[WorkOptions]) -> R: ...
    @overload
    async def run(
        self, work: str, input: Mapping[str, Any] | None = None, /, **options: Unpack[WorkOptions]
    ) -> Any: ...
    async def run(
        self,
        work: Any,
        input: Mapping[str, Any] | None = None,
        /,
        **options: Unpack[WorkOptions],
    ) -> Any:
        """Queue a work and wait for its result; raises what ``enqueue`` and ``result`` raise."""
        handle = await self.enqueue(work, input, **options)
        return await handle.result()

    def handle(self, id: str, group_id: str | None = None) -> WorkHandle[Any]:
        """A handle on a work that was enqueued elsewhere."""
        return WorkHandle(self, id, group_id or id)

    # ---- waiting -------------------------------------------------------------------------------

    async def wait_result(
        self,
        id: str,
        load: Callable[[str], Any] | None,
        timeout: Seconds | None,
        track: Track = "full",
        *,
        after: str | None = None,
    ) -> Any:
        """Wait for a result; see ``WorkHandle.result``."""
        self._check_tracked(id, track)
        engine = await self._opened()
        limit = None if timeout is None else seconds(timeout)
        recorded = track == "full"
        return await engine.results.result(id, load, limit, recorded=recorded, after=after)

    async def wait_group(
        self, group_id: str, timeout: Seconds | None, track: Track = "full"
    ) -> Any:
        """Wait for a group; see ``WorkHandle.group``."""
        self._check_tracked(group_id, track)
        engine = await self._opened()
        limit = None if timeout is None else seconds(timeout)
        return await engine.results.group(group_id, limit, recorded=track == "full")

    @staticmethod
    def _check_tracked(id: str, track: Track) -> None:
        if track == "none":
            raise ConfigError(
                f"work {id} cannot be waited for: its type has track='none', which keeps no "
                f"record; use track='result' or 'full'"
            )

    async def _opened(self) -> Engine:
        engine = self._here()
        await engine.open()
        return engine

    async def watch_progress(self, id: str, *, after: str | None = None) -> AsyncIterator[Progress]:
        """The progress of a work until it has ended; see ``WorkHandle.progress``."""
        engine = await self._opened()
        if after is not None:
            await engine.results.ended(after)
        async for progress in engine.results.progress(id):
            yield progress

    # ---- schedules -----------------------------------------------------------------------------

    def schedule(
        self,
        name: str,
        work: Work[Any] | Callable[[], Any],
        *,
        cron: str | None = None,
        every: Seconds | None = None,
        next: NextFunction | None = None,
        tz: str = "UTC",
        catch_up: CatchUp = "one",
    ) -> ScheduleHandle:
        """Enqueue a work again and again; once per occurrence over the whole fleet.

        Every process of the fleet makes the same schedule; a name that is used again replaces the
        schedule of that name. Schedules fire while the system is started.

        Args:
            name: The name, the same in the whole fleet.
            work: The work, enqueued anew each time, or a function (plain or async) that returns
                the work of an occurrence, or ``None`` where it did what is needed itself.
            cron: Five fields; see ``parse_cron``.
            every: Seconds between two occurrences, 1 or more, counted from 1970.
            next: A function of the last occurrence that gives the next one, or ``None`` to end.
            tz: The time zone of ``cron``.
            catch_up: What happens to occurrences that nobody was there for: ``"one"`` fires the
                latest, ``"all"`` all of them, ``"skip"`` none.

        Returns:
            A handle with ``cancel()``.

        Raises:
            ConfigError: The expression, the zone or the combination cannot be used.

        Example:
            >>> work.schedule("report", report(), cron="0 8 * * mon", tz="Europe/Berlin")
        """
        makes: Any = work
        if not is_name(name) or not (isinstance(makes, Work) or callable(makes)):
            raise ConfigError(
                f"a schedule takes a name and a work, or a function that makes one, not "
                f"{shown(name)} and {shown(makes)}"
            )
        when = recurrence(cron=cron, every=every, next=next, tz=tz, catch_up=catch_up)
        self._schedules[name] = (when, work)
        engine = self._engine
        if engine is not None and not engine.loop.is_closed():
            engine.scheduler.add(name, when, work)
        return ScheduleHandle(name, lambda: self._unschedule(name, when))

    def _unschedule(self, name: str, when: Any) -> None:
        if self._schedules.get(name, (None,))[0] is when:
            del self._schedules[name]
            if self._engine is not None and not self._engine.loop.is_closed():
                self._engine.scheduler.remove(name)

    async def _fire(self, entry: ScheduleEntry, occurrence_ms: int, id: str) -> None:
        engine = self._here()
        work = await make_work(entry.make)
        if work is None:
            return
        if self._adopt:
            self._built(work, None)
        fresh: Work[Any] = Work(work.work_type, work.encoded, id=id, options=work.options)
        await engine.submitter.send(
            engine.submitter.prepare(fresh, parse_options({"id": id}, work.type))
        )

    # ---- looking -------------------------------------------------------------------------------

    async def state(self, id: str) -> WorkState | None:
        """What is known of a work; ``None`` if nothing is."""
        return (await self.states([id]))[0]

    async def states(self, ids: Sequence[str]) -> builtins.list[WorkState | None]:
        """The states of works, in the order of the ids."""
        engine = await self._opened()
        return await engine.results.states(ids)

    def active(self) -> builtins.list[WorkState]:
        """Copies of the states of the works that this process holds."""
        return [] if self._engine is None else self._engine.intake.states()

    def stats(self) -> dict[str, dict[str, float]]:
        """The counters and gauges of works by type."""
        table: dict[str, dict[str, float]] = {}
        for snapshot in self.metrics.list():
            work_type = snapshot.labels.get("type")
            if work_type is not None and snapshot.kind != "summary":
                name = snapshot.name.removeprefix("work.")
                table.setdefault(work_type, {})[name] = snapshot.value
        return table

    async def cancel(self, id: str) -> bool:
        """Cancel a work: at once if it waits for its turn, else by cancelling its handler.

        Returns:
            Whether it was cancelled or asked to stop; ``False`` for one that is terminal or not
            known, and for the gate of a ``then=``: cancel the works that it waits for.
        """
        engine = await self._opened()
        return await engine.canceller.cancel(id)

    # ---- dead letters --------------------------------------------------------------------------

    async def dead_letters(
        self, limit: int = 100, *, queue: Queue | None = None
    ) -> builtins.list[DeadLetter]:
        """Look at dead letters, and leave them where they are.

        Raises:
            ConfigError: There are none that can be read.
        """
        engine = await self._opened()
        wrapped = None if queue is None else self._wrap_queue(queue)
        return await engine.redriver.letters(engine.letters(wrapped), limit)

    async def redrive(
        self, ids: Sequence[str] | None = None, *, limit: int = 100, queue: Queue | None = None
    ) -> int:
        """Bring dead works back with all their attempts; return how many came.

        Args:
            ids: Which; ``None`` for up to ``limit`` from the dead letters.
            limit: The most letters to look at.
            queue: The queue whose dead letters are meant; the system's without it.
        """
        engine = await self._ready()
        if ids is not None:
            return await engine.redriver.by_ids(ids)
        wrapped = None if queue is None else self._wrap_queue(queue)
        moved = 0
        letters = engine.letters(wrapped)
        while moved < limit:
            some = await engine.redriver.move(letters, min(limit - moved, 10))
            if not some:
                break
            moved += some
        return moved

    async def reconcile(self, older_than: Seconds = 3600.0) -> int:
        """Push works again whose message was lost; return how many.

        Args:
            older_than: Seconds that a work must be late to count as lost.
        """
        engine = await self._ready()
        return await engine.reconciler.sweep(seconds(older_than))

    async def process(self, leases: Sequence[Lease], *, queue: Queue | None = None) -> None:
        """Run given leases to the end: each is settled, put off or given back when this returns.

        Args:
            leases: Messages that somebody else has received, from ``queue``.
            queue: Where they came from; the system's queue without it.
        """
        engine = await self._opened()
        await engine.intake.process(self._wrap_queue(queue or self.queue), leases)

    # ``list`` stands last: within the class, the name means this method from here on.
    async def list(
        self, status: Status | None = None, *, type: str | None = None, limit: int = 100
    ) -> builtins.list[WorkState]:
        """The states of works in the whole fleet, the latest first.

        Args:
            status: Only those; ``None`` for all that the store indexes.
            type: Only works of this type.
            limit: The most to return.

        Example:
            >>> for state in await work.list("dead", limit=10):
            ...     print(state.id, state.error)
        """
        engine = await self._opened()
        return await engine.listing.list(status, type, limit)


def _checked_types(work: Any) -> list[WorkType[..., Any]]:
    """The work types that were given.

    Raises:
        ConfigError: Something else was given.
    """
    types: builtins.list[Any] = []
    if isinstance(work, Iterable) and not isinstance(work, WorkType):
        types.extend(cast("Iterable[Any]", work))
    else:
        types.append(work)
    for one in types:
        if not isinstance(one, WorkType):
            raise ConfigError(
                f"work= takes work types, not {shown(one)}; make the handler one with define_work"
            )
    return types
