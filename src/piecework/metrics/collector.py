"""What a registry of ``prometheus_client`` asks for the metrics; the one module that imports it."""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from piecework.metrics.prometheus import exposed_name

if TYPE_CHECKING:
    from collections.abc import Iterable

    from piecework.metrics.registry import Metrics
    from piecework.metrics.series import Snapshot


class MetricsCollector(Collector):
    """Turns snapshots into the families of ``prometheus_client`` at each scrape."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterable[Metric]:
        """Nothing: the names are not known when the collector is registered."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """One family per name, as it is now."""
        for _, series in groupby(self._metrics.list(), key=lambda snapshot: snapshot.name):
            yield _family(list(series))


def register(metrics: Metrics, registry: CollectorRegistry | None = None) -> CollectorRegistry:
    """Register ``metrics`` with a registry, by default with a fresh one, and return it."""
    registry = CollectorRegistry() if registry is None else registry
    registry.register(MetricsCollector(metrics))
    return registry


def _family(series: list[Snapshot]) -> Metric:
    first = series[0]
    name = exposed_name(first.name, first.kind)
    # The text format adds a counter's suffix to the name of the family by itself.
    plain = name.removesuffix("_total") if first.kind == "counter" else name
    family = Metric(plain, first.help, "histogram" if first.kind == "summary" else first.kind)
    for snapshot in series:
        labels = {exposed_name(label): value for label, value in snapshot.labels.items()}
        if snapshot.kind == "summary":
            _add_histogram(family, snapshot, labels)
        else:
            family.add_sample(name, labels, snapshot.value)
    return family


def _add_histogram(family: Metric, snapshot: Snapshot, labels: dict[str, str]) -> None:
    for bound, count in snapshot.buckets:
        family.add_sample(
            f"{family.name}_bucket",
            {**labels, "le": "+Inf" if math.isinf(bound) else str(bound)},
            count,
        )
    family.add_sample(f"{family.name}_sum", labels, snapshot.sum)
    family.add_sample(f"{family.name}_count", labels, snapshot.count)
