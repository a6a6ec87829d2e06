"""Reading what has become of works: states, results, the result of a group."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from piecework.counters import GROUP_WAITERS, OPEN, WAITERS
from piecework.engine.notices import encode_notice
from piecework.errors import (
    InvalidWorkError,
    ResultGoneError,
    WorkCancelledError,
    WorkExpiredError,
    WorkFailedError,
)
from piecework.record import Item, read_item, read_state

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.heart import Heart
    from piecework.engine.waiters import Waiters
    from piecework.ports.store import Record
    from piecework.state import Progress, WorkState


class Results:
    """Reads and waits for states and results.

    Args:
        core: The shared parts.
        waiters: Where waiting happens.
        local: What this process itself knows of the works that it holds.
    """

    def __init__(
        self, core: Core, waiters: Waiters, heart: Heart, local: Callable[[str], WorkState | None]
    ) -> None:
        self._core = core
        self._waiters = waiters
        self._heart = heart
        self._local = local

    # ---- states --------------------------------------------------------------------------------

    async def states(self, ids: Sequence[str]) -> list[WorkState | None]:
        """The states of works in the order of the ids, with results; ``None`` if not known."""
        if not ids:
            return []
        records = await self._core.ledger.read(ids)
        return [self.state_of(id, record) for id, record in zip(ids, records, strict=True)]

    def state_of(self, id: str, record: Record) -> WorkState | None:
        """The state that a record tells, with the result; what this process knows as a fallback."""
        try:
            state = read_state(id, record)
            if state is None:
                return self._local(id)
            if state.status != "success":
                held = self._local(id)
                return held if held is not None and not state.terminal else state
            item = read_item(record)
            result = None if item is None else self.value_of(state.type, item.payload)
        except (InvalidWorkError, ValueError, KeyError, TypeError):
            return self._local(id)  # not one of our records
        return _with_result(state, result)

    def value_of(self, work_type: str, payload: str) -> Any:
        """A stored result as the type's annotation says, or as the codec reads it."""
        entry = self._core.registry.known(work_type)
        if entry is not None:
            return entry.work_type.binding.load_result(payload)
        return self._core.codec.decode(payload)

    async def values(self, ids: Sequence[str]) -> list[Any]:
        """The results of works; ``None`` for one that has none."""
        return [None if state is None else state.result for state in await self.states(ids)]

    # ---- one work ------------------------------------------------------------------------------

    async def result(
        self,
        id: str,
        load: Callable[[str], Any] | None,
        timeout: float | None,
        *,
        recorded: bool = True,
        after: str | None = None,
    ) -> Any:
        """Wait for a work's result.

        Args:
            id: The work.
            load: Reads the stored result.
            timeout: Seconds to wait at most.
            recorded: Whether the work has a record from the start, and not only at its end.
            after: The gate that starts the work: before it has ended there is no record of it.

        Raises:
            WorkFailedError, WorkCancelledError, WorkExpiredError: It ended otherwise.
            ResultGoneError: There is no record of it.
            TimeoutError: It took longer than ``timeout`` seconds.
        """
        async with asyncio.timeout(timeout):
            if after is not None:
                await self.ended(after)
            record = await self.ended(id, _is_over if recorded else _has_ended)
        item = read_item(record)
        if item is None:
            raise ResultGoneError(id)
        return self._open(id, item, load)

    async def ended(self, id: str, ready: Callable[[Record], bool] | None = None) -> Record:
        """Wait until a work is terminal, or its record gone (``ready`` may say otherwise)."""
        return await self._waiters.wait(
            "done",
            id,
            first=lambda: self._core.ledger.wait_mark(id, WAITERS),
            again=lambda: self._read_one(id),
            ready=ready or _is_over,
        )

    def _open(self, id: str, item: Item, load: Callable[[str], Any] | None) -> Any:
        header = item.header
        if item.status == "success":
            return (
                load(item.payload) if load is not None else self.value_of(header["t"], item.payload)
            )
        if item.status == "cancelled":
            raise WorkCancelledError(id, header.get("err") or "")
        if item.status == "expired":
            raise WorkExpiredError(id)
        raise WorkFailedError(
            header.get("err") or "failed",
            id=id,
            type=header["t"],
            error_type=header.get("et", ""),
            traceback=header.get("tb", ""),
        )

    async def _read_one(self, id: str) -> Record:
        return (await self._core.ledger.read([id]))[0]

    # ---- groups --------------------------------------------------------------------------------

    def _group_key(self, group_id: str) -> str:
        return f"{self._core.settings.prefix}group:{group_id}"

    async def set_group(self, group_id: str, value: Any) -> None:
        """Write the result of a group; the last one wins.

        Raises:
            InvalidWorkError: The codec cannot keep it.
        """
        try:
            text = self._core.codec.encode(value)
        except InvalidWorkError as error:
            raise InvalidWorkError(
                f"the result of the group cannot be kept: {error.problem}",
                fix="Give ctx.set_result plain data, such as model.model_dump().",
            ) from error
        await self._core.store.set(self._group_key(group_id), text, _GROUP_TTL)

    async def group_value(self, group_id: str) -> Any:
        """The result of a group, or ``None``."""
        text = await self._core.store.get(self._group_key(group_id))
        return None if text is None else self._core.codec.decode(text)

    async def group(self, group_id: str, timeout: float | None, *, recorded: bool = True) -> Any:
        """Wait until all works of a group are terminal, and read its result. Never rejects.

        Args:
            group_id: The group.
            timeout: Seconds to wait at most.
            recorded: Whether its root has a record from the start; else there is one at its end.
        """
        counter = GROUP_WAITERS if recorded else WAITERS
        async with asyncio.timeout(timeout):
            await self._waiters.wait(
                "group" if recorded else "done",  # nothing counts a group without a record
                group_id,
                first=lambda: self._core.ledger.wait_mark(group_id, counter),
                again=lambda: self._read_one(group_id),
                ready=_is_group_over if recorded else _has_ended,
            )
        return await self.group_value(group_id)

    # ---- progress ------------------------------------------------------------------------------

    async def progress(self, id: str) -> AsyncIterator[Progress]:
        """What a work says of its progress, until it has ended."""
        last: Progress | None = None
        async with self._waiters.watching(id):
            record = await self._core.ledger.wait_mark(id, WAITERS)
            while True:
                state = None if _is_over(record) else read_state(id, record)
                progress = self._waiters.heard(id) or (state.progress if state else None)
                if progress is not None and progress != last:
                    last = progress
                    yield progress
                if _is_over(record):
                    return
                await self._waiters.next_progress(id)
                record = await self._read_one(id)

    async def publish_progress(self, active: Active) -> None:
        """Tell those who watch, and the record of a work that is written down as running."""
        notice = encode_notice("progress", active.env.id, active.progress)
        try:
            await self._core.pubsub.publish(notice)
        except Exception as error:  # noqa: BLE001 - progress is best effort
            self._core.hooks.report(error, "queue", "publishing progress failed")
        await self._heart.note(active)


#: Seconds that a group's result outlives its last change: as long as a pending work may wait.
_GROUP_TTL = 16 * 86400.0


def _is_over(record: Record) -> bool:
    """Whether a work has settled, or is gone altogether."""
    value = record.value
    return value is None or not value.startswith(("pending", "running"))


def _has_ended(record: Record) -> bool:
    """Whether a work whose only record is its result has settled."""
    return record.value is not None


def _is_group_over(record: Record) -> bool:
    if record.value is None:
        return True
    return record.count(OPEN) <= 0 and _is_over(record)


def _with_result(state: WorkState, result: Any) -> WorkState:
    return replace(state, result=result)
