"""What stands behind a handler's ``ctx`` in this process: children, results, claims, progress."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from piecework.context import Reply, Scope, WorkContext, in_loop_thread
from piecework.engine.submit import Place
from piecework.gates import check_when
from piecework.options import parse_options

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from piecework.definitions import Work
    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.gates import GateKeeper, PreparedGate
    from piecework.engine.results import Results
    from piecework.engine.submit import Submitter
    from piecework.gates import When
    from piecework.options import WorkOptions
    from piecework.running import Run
    from piecework.state import WorkState

T = TypeVar("T")


class RunScope(Scope):
    """The children and requests of one run of a handler.

    What was asked for is awaited before the work settles, also where the handler did not wait.

    Args:
        core: The shared parts.
        active: The work.
        run: Its run, which names its children.
        submitter: Queues children.
        gates: Opens gates.
        results: Reads states and results.
        loop: The loop of the engine.
    """

    def __init__(
        self,
        core: Core,
        active: Active,
        run: Run,
        submitter: Submitter,
        gates: GateKeeper,
        results: Results,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._core = core
        self._active = active
        self._run = run
        self._submitter = submitter
        self._gates = gates
        self._results = results
        self._loop = loop
        self._pending: set[asyncio.Future[Any]] = set()
        self._failed: BaseException | None = None
        self._gate_order: asyncio.Lock | None = None
        self._gate_failed: BaseException | None = None
        self._progress_at = -1e9

    def context(self, upstream: Sequence[str] = ()) -> WorkContext:
        """The handler's ``ctx``."""
        env = self._active.env
        return WorkContext(
            self,
            id=env.id,
            type=env.type,
            group_id=env.group_id,
            attempt=env.attempt,
            parent_id=env.parent_id,
            upstream=upstream,
        )

    @property
    def has_pending(self) -> bool:
        """Whether something that was asked for is under way, or has failed."""
        return bool(self._pending) or self._failed is not None

    async def drain(self) -> None:
        """Wait for everything that was asked for.

        Raises:
            BaseException: The first error of queueing a child or writing a result.
        """
        while self._pending:
            await asyncio.wait(list(self._pending))
        if self._failed is not None:
            raise self._failed

    def _do(self, coroutine: Coroutine[Any, Any, T], *, must: bool) -> Reply[T]:
        if in_loop_thread(self._loop):
            task = self._loop.create_task(coroutine)
            self._track(task, must=must)
            return Reply(task)

        async def tracked() -> T:
            task = asyncio.ensure_future(coroutine)
            self._track(task, must=must)
            return await task

        return Reply(asyncio.run_coroutine_threadsafe(tracked(), self._loop))

    def _track(self, task: asyncio.Future[Any], *, must: bool) -> None:
        def ended(task: asyncio.Future[Any]) -> None:
            self._pending.discard(task)
            if task.cancelled():
                return
            error = task.exception()
            if error is not None and must and self._failed is None:
                self._failed = error

        self._pending.add(task)
        task.add_done_callback(ended)

    # ---- children ------------------------------------------------------------------------------

    def queue(
        self,
        works: Sequence[Work[Any]],
        then: Sequence[Work[Any]] | None,
        when: When,
        options: WorkOptions,
    ) -> tuple[list[str], Reply[None]]:
        """Queue children; return their ids at once and the acceptance as a reply."""
        name = works[0].type if works else ""
        given = parse_options(options, name)
        when = check_when(when)
        self._active.parent = True
        if then is None:
            place = Place(self._run.group_id, self._run.id, root=self._active.root)
            prepared = [self._submitter.prepare(work, given, place) for work in works]
            ids = [p.env.id for p in prepared]

            async def send() -> None:
                await self._submitter.send_children(prepared)

        else:
            gate = self._gates.prepare(
                works, then, when, given, run=self._run, root=self._active.root
            )
            ids = gate.ids

            async def send() -> None:
                await self._gates.fill(await self._registered(gate))

        return ids, self._do(send(), must=True)

    async def _registered(self, gate: PreparedGate) -> PreparedGate:
        """Register a gate once those before it are.

        The ids of gates are numbered; without a gap in them, whoever looks for the gates that a
        dead parent left open finds them all.
        """
        if self._gate_order is None:
            self._gate_order = asyncio.Lock()
        async with self._gate_order:
            if self._gate_failed is not None:
                raise self._gate_failed
            try:
                return await self._gates.register(gate)
            except BaseException as error:
                self._gate_failed = error
                raise

    # ---- the rest ------------------------------------------------------------------------------

    def set_result(self, value: Any) -> Reply[None]:
        """Write the group's result."""
        return self._do(self._results.set_group(self._active.env.group_id, value), must=True)

    def states(self, ids: Sequence[str]) -> Reply[list[WorkState | None]]:
        """Read states."""
        return self._do(self._results.states(list(ids)), must=False)

    def results(self, ids: Sequence[str]) -> Reply[list[Any]]:
        """Read results."""
        return self._do(self._results.values(list(ids)), must=False)

    def claim(self, key: str) -> Reply[bool]:
        """Be the first to claim a key."""
        settings = self._core.settings
        full = f"{settings.prefix}claim:{key}"
        owner = self._active.env.id
        claim = self._core.store.set_if_not_exists(full, owner, settings.result_ttl)
        return self._do(claim, must=False)

    def progress(self, done: float, total: float | None, message: str) -> None:
        """Note how far the work is; it is written at most once in ``progress_every`` seconds."""
        if in_loop_thread(self._loop):
            self._note_progress(done, total, message)
        else:
            self._loop.call_soon_threadsafe(self._note_progress, done, total, message)

    def _note_progress(self, done: float, total: float | None, message: str) -> None:
        self._active.progress = (done, total, message)
        now = self._loop.time()
        if now - self._progress_at < self._core.settings.progress_every:
            return
        self._progress_at = now
        self._do(self._results.publish_progress(self._active), must=False)

    def remaining(self) -> float | None:
        """Seconds until the attempt is stopped."""
        env = self._active.env
        now = self._core.clock.now_ms()
        ends: list[float] = []
        if env.timeout is not None and self._active.run_at is not None:
            ends.append(env.timeout - (now - self._active.run_at) / 1000)
        if env.deadline is not None:
            ends.append((env.deadline - now) / 1000)
        return max(0.0, min(ends)) if ends else None

    @property
    def cancelled(self) -> bool:
        """Whether the work was asked to stop."""
        return self._active.reason is not None
