"""A batch under way: many works, one call, an end for each of them."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from piecework.engine.invoke import BadResultError
from piecework.errors import InvalidWorkError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.heart import Heart
    from piecework.engine.runner import Runner


class BatchRunner:
    """Runs batches; each work is settled, retried or dead on its own.

    Args:
        core: The shared parts.
        heart: Keeps the leases.
        runner: What it does for one work.
    """

    def __init__(self, core: Core, heart: Heart, runner: Runner) -> None:
        self._core = core
        self._heart = heart
        self._runner = runner

    async def run(
        self, batch: list[Active], call: Callable[[list[Active]], Awaitable[list[Any]]]
    ) -> None:
        """Run works as one task; each is settled, retried or dead on its own."""
        try:
            ready = [active for active in batch if await self._ready_for_batch(active)]
            if ready:
                await self._call_batch(ready, call)
        finally:
            for active in batch:
                self._runner.end(active)

    async def _ready_for_batch(self, active: Active) -> bool:
        try:
            return await self._runner.look.ready(active)
        except Exception as error:  # noqa: BLE001 - its neighbours go on
            await self._runner.rescued(active, error)
            return False

    async def _call_batch(
        self, ready: list[Active], call: Callable[[list[Active]], Awaitable[list[Any]]]
    ) -> None:
        core = self._core
        now = core.clock.now_ms()
        for active in ready:
            active.run_at = now
            active.entry.metrics.started(now, active.env.start_at)
            core.emit("started", active.env, active.entry)
            self._heart.watch_start(active)
        limit = ready[0].env.timeout
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                outputs = await call(ready)
        except asyncio.CancelledError:
            if all(active.reason is None for active in ready):
                raise
            for active in ready:
                active.reason = active.reason or "stop"
                await self._runner.safely(active, self._runner.interrupted(active))
            return
        except Exception as error:  # noqa: BLE001 - every work of the batch has failed with it
            if isinstance(error, TimeoutError) and timer.expired():
                error = TimeoutError(f"timed out after {limit:g} s")
            outputs = [error] * len(ready)
        for active, output in zip(ready, outputs, strict=True):
            await self._runner.safely(active, self._finish_one(active, output))

    async def _finish_one(self, active: Active, output: Any) -> None:
        if isinstance(output, BaseException):
            await self._runner.failures.failed(active, output)
            return
        try:
            text = active.entry.work_type.binding.dump_result(output)
        except InvalidWorkError as error:
            await self._runner.failures.failed(active, BadResultError(str(error)))
        else:
            await self._runner.succeed(active, text, output)
