"""Schedules as the user holds them."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from piecework.definitions import Work
from piecework.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


class ScheduleHandle:
    """A schedule of this process.

    Attributes:
        name: Its name.

    Example:
        >>> nightly = work.schedule("report", report(), cron="0 3 * * *")
        >>> nightly.cancel()
    """

    __slots__ = ("_cancel", "name")

    def __init__(self, name: str, cancel: Callable[[], None]) -> None:
        self.name = name
        self._cancel = cancel

    def cancel(self) -> None:
        """Fire it no more in this process. Doing it again does nothing."""
        self._cancel()

    def __repr__(self) -> str:
        return f"<ScheduleHandle {self.name}>"


async def make_work(make: Any) -> Work[Any] | None:
    """The work of an occurrence: the one that was given, or what the function returns.

    Raises:
        ConfigError: The function returned something else.
    """
    if isinstance(make, Work):
        return make  # pyright: ignore[reportUnknownVariableType] - a work of any result
    answer = make()
    if inspect.isawaitable(answer):
        answer = await answer
    if answer is None or isinstance(answer, Work):
        return answer  # pyright: ignore[reportUnknownVariableType] - a work of any result
    raise ConfigError(
        f"the function of a schedule must return a work or None, not {type(answer).__name__}"
    )
