"""What a handler raises on purpose to steer its own work. None of these is an error."""

from __future__ import annotations

from datetime import datetime, timedelta


class WorkSignal(Exception):  # noqa: N818 - it steers, it is not an error
    """The root of the signals; it is not a ``PieceworkError``, so catching those lets it pass."""


class WorkDelayError(WorkSignal):
    """Put this work off without spending an attempt.

    Args:
        delay: Seconds (or a ``timedelta``) from now.
        run_at: An aware time; it wins over ``delay``. A time in the past means now.

    Example:
        >>> raise WorkDelayError(delay=30)
        Traceback (most recent call last):
        piecework.signals.WorkDelayError: put off for 30 s
    """

    def __init__(
        self, delay: float | timedelta | None = None, *, run_at: datetime | None = None
    ) -> None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        self.delay = None if seconds is None else max(0.0, float(seconds))
        self.run_at = run_at
        until = f"until {run_at.isoformat()}" if run_at else f"for {self.delay or 0:g} s"
        super().__init__(f"put off {until}")


class RetryAbort(WorkSignal):
    """Give this work up now: it becomes dead, whatever attempts are left.

    Args:
        cause: The exception, or the text, that the work dies of.

    Example:
        >>> raise RetryAbort("card was stolen")
        Traceback (most recent call last):
        piecework.signals.RetryAbort: card was stolen
    """

    def __init__(self, cause: BaseException | str = "aborted") -> None:
        self.cause: BaseException = cause if isinstance(cause, BaseException) else _Aborted(cause)
        super().__init__(str(cause))


class _Aborted(Exception):  # noqa: N818 - stands for the text given to RetryAbort
    """Carries the text of ``RetryAbort("text")``."""
