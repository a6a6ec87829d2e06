"""The three kinds of series, and what can be read of one.

Recording is a handful of attribute updates without a lock, for it happens several times per work.
The loop of the system records; any thread may read (a scrape sees each number whole, and at worst
one observation in part). Handlers that run in threads do not record.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, ClassVar, Literal, TypeAlias

from piecework.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from piecework.metrics.changes import Changes

Kind: TypeAlias = Literal["counter", "gauge", "summary"]
"""What a metric is: a sum that only grows, a value of now, or a distribution."""

#: Upper bounds, in seconds, of the buckets of a summary: from a millisecond to a minute.
DEFAULT_BUCKETS: tuple[float, ...] = (
    0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """One series at the moment when it was read.

    Args:
        kind: ``"counter"``, ``"gauge"`` or ``"summary"``.
        name: The name of the metric.
        help: What it counts, in a sentence.
        labels: The labels of this series.
        value: The value of a counter or a gauge (0 for a summary).
        count: How many values a summary observed.
        sum: Their sum.
        min: The smallest of them, 0 when there is none.
        max: The largest of them, 0 when there is none.
        quantiles: For each quantile asked for, its estimate (0 when nothing was observed).
        buckets: Pairs of an upper bound and how many values are at or below it; the last bound is
            infinite.
    """

    kind: Kind
    name: str
    help: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    value: float = 0.0
    count: int = 0
    sum: float = 0.0
    min: float = 0.0
    max: float = 0.0
    quantiles: Mapping[float, float] = field(default_factory=dict[float, float])
    buckets: tuple[tuple[float, int], ...] = ()


class Series(ABC):
    """What the kinds share: a name, a sentence of help, labels, and who hears of changes."""

    __slots__ = ("changes", "help", "labels", "name")

    kind: ClassVar[Kind]

    def __init__(self, name: str, help: str, labels: Mapping[str, str], changes: Changes) -> None:
        self.name = name
        self.help = help
        self.labels = labels
        self.changes = changes

    @abstractmethod
    def snapshot(self) -> Snapshot:
        """The series as it is now."""


class Counter(Series):
    """A sum that only grows."""

    __slots__ = ("value",)

    kind = "counter"

    def __init__(self, name: str, help: str, labels: Mapping[str, str], changes: Changes) -> None:
        super().__init__(name, help, labels, changes)
        self.value: float = 0

    def inc(self, by: float = 1) -> None:
        """Add ``by`` (0 or more).

        Raises:
            ConfigError: ``by`` is negative.
        """
        if by < 0:
            raise ConfigError(
                f"counter {self.name!r} cannot change by {by}; use a gauge for what goes both ways"
            )
        self.value += by
        if self.changes.listening:
            self.changes.changed()

    def snapshot(self) -> Snapshot:
        """The counter as it is now."""
        return Snapshot(
            kind="counter", name=self.name, help=self.help, labels=self.labels, value=self.value
        )


class Gauge(Series):
    """A value that goes up and down."""

    __slots__ = ("value",)

    kind = "gauge"

    def __init__(self, name: str, help: str, labels: Mapping[str, str], changes: Changes) -> None:
        super().__init__(name, help, labels, changes)
        self.value: float = 0

    def set(self, value: float) -> None:
        """Make it ``value``."""
        self.value = value
        if self.changes.listening:
            self.changes.changed()

    def inc(self, by: float = 1) -> None:
        """Add ``by``."""
        self.value += by
        if self.changes.listening:
            self.changes.changed()

    def dec(self, by: float = 1) -> None:
        """Subtract ``by``."""
        self.value -= by
        if self.changes.listening:
            self.changes.changed()

    def snapshot(self) -> Snapshot:
        """The gauge as it is now."""
        return Snapshot(
            kind="gauge", name=self.name, help=self.help, labels=self.labels, value=self.value
        )


class Summary(Series):
    """A distribution: count, sum, smallest, largest, and how many values fell into each bucket."""

    __slots__ = ("bounds", "counts", "max", "min", "quantiles", "sum")

    kind = "summary"

    def __init__(
        self,
        name: str,
        help: str,
        labels: Mapping[str, str],
        changes: Changes,
        *,
        bounds: tuple[float, ...],
        quantiles: tuple[float, ...],
    ) -> None:
        super().__init__(name, help, labels, changes)
        self.bounds = bounds
        self.quantiles = quantiles
        #: One more than the bounds: the last one counts what is above them all.
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.min = math.inf
        self.max = -math.inf

    def observe(self, value: float) -> None:
        """Record one value; a duration is in seconds."""
        # The extremes come first: a reader that sees the count must never see infinity.
        if value < self.min:
            self.min = value
        if value > self.max:
            self.max = value
        self.sum += value
        self.counts[bisect_left(self.bounds, value)] += 1
        if self.changes.listening:
            self.changes.changed()

    def snapshot(self) -> Snapshot:
        """The summary as it is now; the count is the sum of the buckets, also while it changes."""
        upto = list(accumulate(self.counts))
        low, high = (self.min, self.max) if upto[-1] else (0.0, 0.0)
        return Snapshot(
            kind="summary",
            name=self.name,
            help=self.help,
            labels=self.labels,
            count=upto[-1],
            sum=self.sum,
            min=low,
            max=high,
            quantiles={q: quantile(q, upto, self.bounds, low, high) for q in self.quantiles},
            buckets=tuple(zip((*self.bounds, math.inf), upto, strict=True)),
        )


def quantile(
    q: float, upto: Sequence[int], bounds: Sequence[float], low: float, high: float
) -> float:
    """Estimate a quantile from counts per bucket, as if values lay evenly inside theirs.

    Args:
        q: Which one, 0 to 1.
        upto: For each bucket, how many values are in it or in one before; one more than ``bounds``.
        bounds: The upper bounds of the buckets, ascending.
        low: The smallest value observed; the estimate is never below.
        high: The largest value observed; the estimate is never above.
    """
    rank = q * upto[-1]
    if rank <= 0:
        return low
    index = bisect_left(upto, rank)
    before = upto[index - 1] if index else 0
    lower = bounds[index - 1] if index else min(0.0, low)
    upper = bounds[index] if index < len(bounds) else high
    estimate = lower + (upper - lower) * (rank - before) / (upto[index] - before)
    return min(max(estimate, low), high)
