"""Backpressure that follows the failures: slow down fast, speed up step by step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from piecework.clock import Seconds, seconds
from piecework.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from piecework.metrics.registry import Metrics


@dataclass(frozen=True, slots=True)
class BackpressureContext:
    """What the option ``backpressure`` of ``create_work`` is asked with, before each pull.

    Args:
        metrics: The metrics of the system.
        active: How many works this worker holds now.

    Example:
        >>> def pause(context):
        ...     return 5.0 if context.active > 1000 else 0.0
        >>> create_work(work=[add], backpressure=pause)
    """

    metrics: Metrics
    active: int


def adaptive_delay(
    *,
    max_fail_rate: float = 0.0,
    min: Seconds = 0.0,
    max: Seconds = 30.0,
    base: Seconds = 0.1,
    factor: float = 2.0,
    step: Seconds | None = None,
    types: Collection[str] | None = None,
) -> Callable[[BackpressureContext], float]:
    """Make a function for ``create_work(backpressure=...)`` that waits longer while works fail.

    It looks at what succeeded and failed since it was asked last. Where too much failed, the delay
    becomes ``base`` if it was 0, and else ``factor`` times what it was, up to ``max``. Otherwise it
    falls by ``step``, down to ``min``, also when nothing ran. The function remembers its delay, so
    make one per system.

    Args:
        max_fail_rate: The share of failed attempts that is still fine, from 0 to below 1.
        min: The shortest delay in seconds.
        max: The longest delay in seconds.
        base: The first delay after 0, in seconds, above 0.
        factor: How much the delay grows, above 1.
        step: How much it falls, in seconds, above 0; ``base`` by default.
        types: The names of the work types that count; all by default.

    Returns:
        A function from the context to seconds.

    Raises:
        ConfigError: A number is out of its range, or ``types`` is a single string.

    Example:
        >>> from piecework import create_work
        >>> work = create_work(backpressure=adaptive_delay(max_fail_rate=0.2, max=10))
    """
    if isinstance(types, str):
        raise ConfigError(f"types={types!r} is one string; pass a list: types=[{types!r}]")
    controller = _Controller(
        max_fail_rate=max_fail_rate,
        lowest=seconds(min),
        highest=seconds(max),
        base=seconds(base),
        factor=factor,
        step=seconds(base if step is None else step),
        types=None if types is None else frozenset(types),
    )
    return controller.delay


class _Controller:
    """Additive decrease, multiplicative increase of a delay."""

    __slots__ = (
        "_base",
        "_delay",
        "_factor",
        "_failed",
        "_highest",
        "_lowest",
        "_max_fail_rate",
        "_step",
        "_succeeded",
        "_types",
    )

    def __init__(
        self,
        *,
        max_fail_rate: float,
        lowest: float,
        highest: float,
        base: float,
        factor: float,
        step: float,
        types: frozenset[str] | None,
    ) -> None:
        _require(0 <= max_fail_rate < 1, f"max_fail_rate={max_fail_rate}: pass 0 to below 1")
        _require(0 <= lowest <= highest, f"min={lowest}, max={highest}: pass 0 <= min <= max")
        _require(base > 0, f"base={base}: pass seconds above 0")
        _require(factor > 1, f"factor={factor}: pass a number above 1")
        _require(step > 0, f"step={step}: pass seconds above 0")
        self._max_fail_rate = max_fail_rate
        self._lowest = lowest
        self._highest = highest
        self._base = base
        self._factor = factor
        self._step = step
        self._types = types
        self._delay = lowest
        self._succeeded = 0.0
        self._failed = 0.0

    def delay(self, context: BackpressureContext) -> float:
        """The delay in seconds before the next pull."""
        delay = self._raised() if self._too_many_failed(context.metrics) else self._lowered()
        # Whole microseconds: steps of 0.1 must come back to 0, not to a hair above it.
        self._delay = round(min(max(delay, self._lowest), self._highest), 6)
        return self._delay

    def _raised(self) -> float:
        return self._delay * self._factor if self._delay > 0 else self._base

    def _lowered(self) -> float:
        return self._delay - self._step

    def _too_many_failed(self, metrics: Metrics) -> bool:
        succeeded = self._count(metrics, "work.succeeded")
        failed = self._count(metrics, "work.failed")
        new_failed = failed - self._failed
        new = new_failed + succeeded - self._succeeded
        self._succeeded, self._failed = succeeded, failed
        return new > 0 and new_failed / new > self._max_fail_rate

    def _count(self, metrics: Metrics, metric: str) -> float:
        if self._types is None:
            return metrics.total(metric)
        return sum(metrics.total(metric, type=name) for name in self._types)


def _require(holds: bool, problem: str) -> None:
    if not holds:
        raise ConfigError(f"adaptive_delay({problem})")
