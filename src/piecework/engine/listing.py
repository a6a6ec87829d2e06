"""Listing works of the whole fleet by the store's index."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import builtins

    from piecework.engine.core import Core
    from piecework.engine.results import Results
    from piecework.state import Status, WorkState

_ALL: tuple[Status, ...] = ("running", "pending", "success", "dead", "cancelled", "expired")


class Listing:
    """Reads the index and the records behind it.

    Args:
        core: The shared parts.
        results: Reads states.
    """

    def __init__(self, core: Core, results: Results) -> None:
        self._core = core
        self._results = results

    async def list(
        self, status: Status | None, type: str | None, limit: int
    ) -> builtins.list[WorkState]:
        """The states of works, the latest first."""
        found: list[WorkState] = []
        for one in _ALL if status is None else (status,):
            found += await self._of(one, type, limit)
        found.sort(key=_latest, reverse=True)
        return found[:limit]

    async def _of(self, status: Status, type: str | None, limit: int) -> builtins.list[WorkState]:
        ledger = self._core.ledger
        found: list[WorkState] = []
        cursor: str | None = None
        while len(found) < limit:
            page = await self._core.store.list(ledger.index(status), 100, cursor)
            ids = [ledger.id_of(key) for key in page.items]
            states = await self._results.states(ids)
            found += [s for s in states if s is not None and type in (None, s.type)]
            cursor = page.cursor
            if cursor is None:
                break
        return found[:limit]


def _latest(state: WorkState) -> float:
    moments = (state.end_at, state.run_at, state.queue_at)
    return max((moment.timestamp() for moment in moments if moment is not None), default=0.0)
