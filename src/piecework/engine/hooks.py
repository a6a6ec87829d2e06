"""The user's hooks, guarded: one that raises changes no outcome and is never silent."""

from __future__ import annotations

import inspect
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from piecework.definitions import OnEvent, OnFailure
    from piecework.metrics import BackpressureContext
    from piecework.state import GroupInfo, WorkEvent, WorkInfo

logger = logging.getLogger("piecework")

Phase: TypeAlias = Literal["commit", "queue"]
"""Where an error came up: settling a work, or talking to the queue."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Hooks:
    """What the user wants to hear of or decide on; see ``create_work``."""

    on_event: OnEvent | None = None
    on_error: Callable[[BaseException, Phase], None] | None = None
    on_failure: OnFailure | None = None
    on_backlog: Callable[[int], None] | None = None
    backpressure: Callable[[BackpressureContext], float | Awaitable[float | None] | None] | None = (
        None
    )
    accept: Callable[[WorkInfo], bool | Awaitable[bool]] | None = None
    unhandled_work_group: Callable[[GroupInfo], Awaitable[None] | None] | None = None
    log_with: (
        Callable[[Mapping[str, object], Callable[[], Awaitable[Any]]], Awaitable[Any]] | None
    ) = None
    log_context: Callable[[dict[str, Any], str], Mapping[str, object]] | None = None

    def report(self, error: BaseException, phase: Phase, what: str = "") -> None:
        """Tell ``on_error`` and the log of an error that nobody awaits."""
        logger.warning("%s: %s", what or phase, error, exc_info=error)
        if self.on_error is None:
            return
        try:
            self.on_error(error, phase)
        except Exception:
            logger.exception("on_error raised")

    def emit(self, event: WorkEvent, own: OnEvent | None) -> None:
        """Tell the system's listener, then the type's."""
        for listener in (self.on_event, own):
            if listener is not None:
                try:
                    listener(event)
                except Exception:
                    logger.exception("on_event raised at %s of %s", event.kind, event.id)


async def resolve(value: T | Awaitable[T]) -> T:
    """The answer of a hook that may be a plain or an async function."""
    if inspect.isawaitable(value):
        return await value
    return value
