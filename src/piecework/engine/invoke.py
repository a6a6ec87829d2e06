"""Calling a handler: on the loop, in a thread or in a worker process, stopped by its timeout."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from piecework.engine.child_calls import answer_child
from piecework.engine.executors import ProcessExecutor, ThreadExecutor, check_target
from piecework.engine.log import log_fields
from piecework.engine.scope import RunScope
from piecework.engine.watch import Watcher, read_spec
from piecework.errors import InvalidWorkError
from piecework.gates import DEPENDENCY_TYPE
from piecework.running import Run, current_run

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from piecework.context import WorkContext
    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.gates import GateKeeper
    from piecework.engine.heart import Heart
    from piecework.engine.results import Results
    from piecework.engine.submit import Submitter


class BadInputError(Exception):
    """The input of a work is not what its type declares; no attempt will change that."""


class BadResultError(Exception):
    """The result of a handler cannot be kept; running it again would only repeat its effects."""


class Invoker:
    """Runs handlers and encodes their results.

    Args:
        core: The shared parts.
        submitter: Queues children.
        gates: Opens gates.
        results: Reads states and results.
        heart: Hears when a handler starts.
    """

    def __init__(
        self,
        core: Core,
        submitter: Submitter,
        gates: GateKeeper,
        results: Results,
        heart: Heart,
    ) -> None:
        self._core = core
        self._submitter = submitter
        self._gates = gates
        self._results = results
        self._heart = heart
        self._watcher = Watcher(core, submitter, gates)
        self._threads: ThreadExecutor | None = None
        self._processes: ProcessExecutor | None = None

    async def call(self, active: Active) -> tuple[str, Any]:
        """Run the handler of a work once.

        Returns:
            The result as text, and as the handler returned it (``None`` from a worker process).

        Raises:
            BadInputError: The input cannot be read.
            BadResultError: The result cannot be written.
            BaseException: What the handler raised.
        """
        env = active.env
        if env.type == DEPENDENCY_TYPE:
            try:
                spec = read_spec(env.input)
            except InvalidWorkError as error:
                raise BadInputError(str(error)) from error
            await self._watcher.run(active, spec)
            return "null", None
        work_type = active.entry.work_type
        run = Run(env.id, env.type, env.group_id, env.attempt, env.turn)
        current_run.set(run)
        binding = work_type.binding
        in_process = work_type.executor == "process"
        scope: RunScope | None = None
        context: WorkContext | None = None
        if in_process or binding.takes_context:
            scope = self._scope(active, run)
            upstream: Sequence[str] = ()
            if env.upstream is not None:
                upstream = await self._gates.upstream(env.upstream)
            context = scope.context(upstream)
        stop = self._limit(active)
        try:
            if in_process:
                assert scope is not None
                assert context is not None
                return await self._in_process(active, scope, context), None
            value = await self._in_this_process(active, run, context)
        finally:
            if stop is not None:
                stop.cancel()
            if scope is not None and (active.reason is None or scope.has_pending):
                await scope.drain()
        try:
            return binding.dump_result(value), value
        except InvalidWorkError as error:
            raise BadResultError(str(error)) from error

    async def _in_this_process(self, active: Active, run: Run, context: WorkContext | None) -> Any:
        work_type = active.entry.work_type
        try:
            if work_type.batch is None:
                args, kwargs = work_type.binding.unbind(active.env.input, context)
            else:
                args, kwargs = ([work_type.binding.unbind_item(active.env.input)],), {}
        except InvalidWorkError as error:
            raise BadInputError(str(error)) from error
        fn = work_type.fn
        if work_type.executor == "thread":
            inner = lambda: self.threads.run(lambda: fn(*args, **kwargs), name=work_type.type)  # noqa: E731
        elif work_type.is_async:
            inner = lambda: fn(*args, **kwargs)  # noqa: E731
        else:

            async def inner() -> Any:
                return fn(*args, **kwargs)

        hooks = self._core.hooks
        if hooks.log_context or work_type.options.get("log_context") or hooks.log_with:
            value = await self._logged(active, run, inner)
        else:
            value = await inner()
        if work_type.batch is not None:
            outputs = check_outputs(active.entry.name, value, 1)
            if isinstance(outputs[0], BaseException):
                raise outputs[0]
            return outputs[0]
        return value

    async def _logged(self, active: Active, run: Run, inner: Callable[[], Any]) -> Any:
        work_type = active.entry.work_type
        run.log = log_fields(self._core.hooks, work_type, active.env.input)
        if self._core.hooks.log_with is None or work_type.batch is not None:
            return await inner()
        fields = {
            "work_id": run.id,
            "work_type": run.type,
            "group_id": run.group_id,
            "attempt": run.attempt,
            **run.log,
        }
        return await self._core.hooks.log_with(fields, inner)

    def _scope(self, active: Active, run: Run) -> RunScope:
        loop = asyncio.get_running_loop()
        return RunScope(
            self._core,
            active,
            run,
            self._submitter,
            self._gates,
            self._results,
            loop,
        )

    async def _in_process(self, active: Active, scope: RunScope, context: WorkContext) -> str:
        info = {
            "id": context.id,
            "type": context.type,
            "group_id": context.group_id,
            "attempt": context.attempt,
            "parent_id": context.parent_id,
            "upstream": list(context.upstream),
            "turn": active.env.turn,
            "remaining": scope.remaining(),
        }
        work_type = active.entry.work_type

        async def rpc(method: str, args: list[Any]) -> Any:
            return await answer_child(self._core.registry, scope, method, args)

        return await self.processes.run(check_target(work_type.fn), active.env.input, info, rpc)

    def _limit(self, active: Active) -> asyncio.TimerHandle | None:
        """Interrupt the handler at its timeout or its deadline, whichever comes first."""
        env = active.env
        if env.timeout is None and env.deadline is None:
            return None
        loop = asyncio.get_running_loop()
        grace = self._core.settings.cancel_grace
        seconds, reason = env.timeout, "timeout"
        if env.deadline is not None:
            left = (env.deadline - self._core.clock.now_ms()) / 1000
            if seconds is None or left < seconds:
                seconds, reason = left, "deadline"
        assert seconds is not None
        if reason == "timeout":
            return loop.call_later(seconds, active.interrupt, "timeout", grace)
        return loop.call_later(max(0.0, seconds), active.interrupt, "deadline", grace)

    # ---- executors -----------------------------------------------------------------------------

    @property
    def threads(self) -> ThreadExecutor:
        """The threads of ``def`` handlers, started with the first."""
        if self._threads is None:
            self._threads = ThreadExecutor(grace=self._core.settings.cancel_grace)
        return self._threads

    @property
    def processes(self) -> ProcessExecutor:
        """The worker processes, started with the first handler that wants one."""
        if self._processes is None:
            self._processes = ProcessExecutor()
        return self._processes

    async def close(self) -> None:
        """End threads and worker processes."""
        threads, self._threads = self._threads, None
        processes, self._processes = self._processes, None
        if threads is not None:
            await threads.close()
        if processes is not None:
            await processes.close()


def check_outputs(name: str, outputs: Any, inputs: int) -> list[Any]:
    """The outputs of a batch, one per input.

    Raises:
        BatchLengthError: They are not a list, or not as many as the inputs.
    """
    if outputs is None:
        return [None] * inputs
    if isinstance(outputs, (list, tuple)) and len(outputs) == inputs:  # pyright: ignore[reportUnknownArgumentType] - being checked
        return list(outputs)  # pyright: ignore[reportUnknownArgumentType] - a user's values
    count = len(outputs) if isinstance(outputs, (list, tuple)) else "no list of"  # pyright: ignore[reportUnknownArgumentType] - being checked
    raise BatchLengthError(f'batch "{name}" returned {count} outputs for {inputs} inputs')


class BatchLengthError(Exception):
    """A batch handler did not return one output per input."""
