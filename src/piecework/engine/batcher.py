"""Batches: works of one type collected up to a size or a time, and run as one task."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from piecework.doers import Task
from piecework.engine.invoke import BadInputError, check_outputs
from piecework.errors import InvalidWorkError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from piecework.engine.active import Active
    from piecework.engine.batch_run import BatchRunner
    from piecework.engine.core import Core
    from piecework.engine.registry import Entry
    from piecework.engine.runner import Runner


@dataclass(slots=True, eq=False)
class WorkTask(Task):
    """A doer's task that knows its works, so that they can be given back unstarted.

    Attributes:
        actives: The works.
    """

    actives: list[Active] = field(default_factory=list["Active"])


class Batcher:
    """Collects the works of one batch type; their leases are renewed meanwhile.

    Args:
        core: The shared parts.
        entry: The batch type.
        runner: Has the threads of ``def`` handlers.
        batches: Runs what was collected.
        owner: Whose tasks its batches are.
        refused: Gives back the works of a batch that the doer did not take.
    """

    def __init__(
        self,
        core: Core,
        entry: Entry,
        runner: Runner,
        batches: BatchRunner,
        *,
        owner: object,
        refused: Callable[[Sequence[Active], Exception], None],
    ) -> None:
        policy = entry.work_type.batch
        assert policy is not None
        self.entry = entry
        self._core = core
        self._runner = runner
        self._batches = batches
        self._owner = owner
        self._refused = refused
        self._size = policy.size
        self._max_wait = policy.max_wait
        self._buffer: list[Active] = []
        self._timer: asyncio.TimerHandle | None = None

    @property
    def available(self) -> int:
        """How many more works it takes now; 0 while its doer is full."""
        if self.entry.doer.available <= 0:
            return 0
        return self._size - len(self._buffer)

    def add(self, active: Active) -> None:
        """Take a work; a full batch is run at once, the first work waits ``max_wait`` at most."""
        self._buffer.append(active)
        if len(self._buffer) >= self._size:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._max_wait, self.flush)

    def flush(self) -> None:
        """Run what was collected."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._buffer = self._buffer, []
        if not batch:
            return
        first = batch[0].env
        task = WorkTask(
            lambda: self._run(batch),
            actives=batch,
            id=first.id,
            group=first.group,
            priority=max(active.env.priority for active in batch),
            created_at=first.queue_at,
            owner=self._owner,
        )
        try:
            self.entry.doer.do(task)
        except Exception as error:  # noqa: BLE001 - a user's doer
            self._refused(batch, error)

    async def _run(self, batch: list[Active]) -> None:
        await self._batches.run(batch, self._call)

    async def _call(self, actives: list[Active]) -> list[Any]:
        """Call the handler with the inputs of works; give one output or exception for each."""
        work_type = self.entry.work_type
        inputs: list[Any] = []
        bad: dict[int, BaseException] = {}
        for place, active in enumerate(actives):
            try:
                inputs.append(work_type.binding.unbind_item(active.env.input))
            except InvalidWorkError as error:
                bad[place] = BadInputError(str(error))
        if not inputs:
            return [bad[place] for place in range(len(actives))]
        fn = work_type.fn
        if work_type.executor == "thread":
            outputs = await self._runner.threads.run(lambda: fn(inputs), name=work_type.type)
        elif work_type.is_async:
            outputs = await fn(inputs)
        else:
            outputs = fn(inputs)
        good = iter(check_outputs(self.entry.name, outputs, len(inputs)))
        return [bad[p] if p in bad else next(good) for p in range(len(actives))]
