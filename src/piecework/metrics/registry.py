"""All series of one system, found by name and labels."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from piecework.errors import ConfigError
from piecework.metrics.changes import Changes
from piecework.metrics.prometheus import exposed_name
from piecework.metrics.series import DEFAULT_BUCKETS, Counter, Gauge, Series, Snapshot, Summary

if TYPE_CHECKING:
    import builtins
    from collections.abc import Callable, Mapping, Sequence

    from prometheus_client import CollectorRegistry

    from piecework.metrics.series import Kind

_Labels: TypeAlias = tuple[tuple[str, str], ...]
_S = TypeVar("_S", bound=Series)


@dataclass(slots=True)
class _Family:
    kind: Kind
    help: str
    bounds: tuple[float, ...]
    series: dict[_Labels, Series] = field(default_factory=dict[_Labels, Series])


class Metrics:
    """Counters, gauges and summaries by name and labels. ``create_metrics`` makes one.

    Handles are cached: the same name with the same labels gives the same object, so keep the handle
    where you record often. The event loop of the system records; any thread may read. Recording
    from several threads at once may lose counts, for there is no lock.

    Example:
        >>> metrics = create_metrics()
        >>> work = create_work(work=[add], metrics=metrics)
        >>> print(format_prometheus(metrics))
    """

    def __init__(
        self,
        *,
        quantiles: Sequence[float] = (0.5, 0.9, 0.99),
        buckets: Sequence[float] = DEFAULT_BUCKETS,
        schedule: Callable[[Callable[[], None]], object] | None = None,
        registry: CollectorRegistry | None = None,
    ) -> None:
        self._quantiles = _checked_quantiles(quantiles)
        self._bounds = _checked_bounds(buckets)
        self._changes = Changes(schedule)
        self._families: dict[str, _Family] = {}
        self._exposed: dict[str, str] = {}
        self._registry: CollectorRegistry | None = None
        if registry is not None:
            self._register(registry)

    def counter(self, name: str, /, help: str = "", **labels: str) -> Counter:
        """The counter of that name and those labels.

        Args:
            name: Words with dots between, such as ``"mails.sent"``.
            help: What it counts, in a sentence; the first one given for a name is kept.
            labels: The labels of this series. Each set of values is a series of its own, so use
                values that are few.

        Raises:
            ConfigError: The name is used by another kind of metric.

        Example:
            >>> create_metrics().counter("mails.sent", "Mails sent.", kind="welcome").inc()
        """
        family = self._family("counter", name, help, ())
        return _handle(
            family, Counter, labels, lambda own: Counter(name, family.help, own, self._changes)
        )

    def gauge(self, name: str, /, help: str = "", **labels: str) -> Gauge:
        """The gauge of that name and those labels; see ``counter``.

        Raises:
            ConfigError: The name is used by another kind of metric.
        """
        family = self._family("gauge", name, help, ())
        return _handle(
            family, Gauge, labels, lambda own: Gauge(name, family.help, own, self._changes)
        )

    def summary(
        self, name: str, /, help: str = "", *, buckets: Sequence[float] | None = None, **labels: str
    ) -> Summary:
        """The summary of that name and those labels; see ``counter``.

        Args:
            name: Words with dots between.
            help: What it observes, in a sentence.
            buckets: Upper bounds, ascending, for values that are no durations; by default those of
                ``create_metrics``. All series of a name share them.
            labels: The labels of this series.

        Raises:
            ConfigError: The name is used by another kind of metric or with other buckets, or the
                buckets do not ascend.
        """
        bounds = None if buckets is None else _checked_bounds(buckets)
        family = self._family("summary", name, help, bounds or self._bounds)
        if bounds is not None and bounds != family.bounds:
            raise ConfigError(
                f"summary {name!r} has the buckets {family.bounds}, not {bounds}; "
                f"all series of a name share their buckets"
            )
        if "le" in labels:
            raise ConfigError(
                f"summary {name!r} cannot have the label 'le': it is a bucket's bound. Rename it"
            )
        return _handle(
            family,
            Summary,
            labels,
            lambda own: Summary(
                name,
                family.help,
                own,
                self._changes,
                bounds=family.bounds,
                quantiles=self._quantiles,
            ),
        )

    def get(self, name: str, /, **labels: str) -> Snapshot | None:
        """The series of that name and exactly those labels as it is now; ``None`` if there is none.

        Nothing is created by asking.
        """
        family = self._families.get(name)
        series = None if family is None else family.series.get(_key(labels))
        return None if series is None else series.snapshot()

    def total(self, name: str, /, **labels: str) -> float:
        """The sum of all counters or gauges of that name that have those labels; 0 without any.

        Example:
            >>> metrics = create_metrics()
            >>> metrics.counter("mails.sent", kind="welcome").inc(2)
            >>> metrics.counter("mails.sent", kind="bill").inc()
            >>> metrics.total("mails.sent")
            3
        """
        family = self._families.get(name)
        if family is None:
            return 0
        wanted = set(_key(labels))
        return sum(
            series.value
            for key, series in tuple(family.series.items())
            if isinstance(series, (Counter, Gauge)) and wanted.issubset(key)
        )

    def subscribe(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call ``listener`` after changes, once for the many that one turn of the loop brings.

        A change that a listener makes itself is not reported. An error of a listener is logged.

        Args:
            listener: Called without arguments; it reads what it wants by ``list`` or ``get``.

        Returns:
            The function that ends the subscription; it may be called again.
        """
        return self._changes.subscribe(listener)

    @property
    def registry(self) -> CollectorRegistry:
        """The registry of ``prometheus_client`` that collects these metrics.

        It is made at the first use, unless ``create_metrics`` was given one. Serve it with
        ``prometheus_client.start_http_server(port, registry=work.metrics.registry)``.
        """
        return self._registry or self._register(None)

    def list(self) -> builtins.list[Snapshot]:
        """Every series as it is now, those of one name together, in the order of first use."""
        return [
            series.snapshot()
            for family in tuple(self._families.values())
            for series in tuple(family.series.values())
        ]

    @property
    def changes(self) -> Changes:
        """Who hears of changes; for the engine, which updates several series in one step."""
        return self._changes

    def _register(self, registry: CollectorRegistry | None) -> CollectorRegistry:
        from piecework.metrics.collector import register

        self._registry = register(self, registry)
        return self._registry

    def _family(self, kind: Kind, name: str, help: str, bounds: tuple[float, ...]) -> _Family:
        family = self._families.get(name)
        if family is None:
            self._claim_exposed_name(name, kind)
            family = self._families[name] = _Family(kind, help, bounds)
        elif family.kind != kind:
            raise ConfigError(
                f"metric {name!r} is a {family.kind} and cannot be used as a {kind}; "
                f"give the {kind} a name of its own"
            )
        return family

    def _claim_exposed_name(self, name: str, kind: Kind) -> None:
        if not name:
            raise ConfigError("a metric needs a name, such as 'mails.sent'")
        exposed = exposed_name(name, kind)
        other = self._exposed.setdefault(exposed, name)
        if other != name:
            raise ConfigError(
                f"metrics {other!r} and {name!r} are both {exposed!r} in Prometheus; rename one"
            )


def create_metrics(
    *,
    quantiles: Sequence[float] = (0.5, 0.9, 0.99),
    buckets: Sequence[float] = DEFAULT_BUCKETS,
    schedule: Callable[[Callable[[], None]], object] | None = None,
    registry: CollectorRegistry | None = None,
) -> Metrics:
    """Make an empty set of metrics, for ``create_work(metrics=...)`` or for uses of your own.

    Args:
        quantiles: What a snapshot of a summary estimates, each 0 to 1.
        buckets: Upper bounds of the summaries' buckets, ascending; seconds for durations.
        schedule: How a call to the listeners is put off, such as ``loop.call_soon``; it must not
            raise. By default it is the running loop's ``call_soon``, or at once where no loop runs.
        registry: A registry of ``prometheus_client`` to collect these metrics; by default they have
            one of their own. Give one registry to one ``Metrics`` only; several systems may share
            the ``Metrics``.

    Raises:
        ConfigError: A quantile is outside 0 to 1, or the buckets do not ascend.

    Example:
        >>> metrics = create_metrics(quantiles=(0.5,))
        >>> metrics.summary("render.time", "Seconds per page.").observe(0.2)
        >>> metrics.get("render.time").quantiles
        {0.5: 0.2}
    """
    return Metrics(quantiles=quantiles, buckets=buckets, schedule=schedule, registry=registry)


def _handle(
    family: _Family,
    kind: type[_S],
    labels: Mapping[str, str],
    build: Callable[[Mapping[str, str]], _S],
) -> _S:
    key = _key(labels)
    series = family.series.get(key)
    if series is None:
        series = family.series.setdefault(key, build(dict(key)))
    assert isinstance(series, kind)
    return series


def _key(labels: Mapping[str, object]) -> _Labels:
    return tuple(sorted((label, str(value)) for label, value in labels.items()))


def _checked_quantiles(quantiles: Sequence[float]) -> tuple[float, ...]:
    for q in quantiles:
        if not 0 <= q <= 1:
            raise ConfigError(f"quantile {q} is outside 0 to 1; the 99th percentile is 0.99")
    return tuple(quantiles)


def _checked_bounds(buckets: Sequence[float]) -> tuple[float, ...]:
    bounds = tuple(map(float, buckets))
    if not bounds or not all(map(math.isfinite, bounds)):
        raise ConfigError(
            f"buckets {bounds} must be one or more finite upper bounds; "
            f"what is above the last one is counted anyway"
        )
    if any(a >= b for a, b in pairwise(bounds)):
        raise ConfigError(f"buckets {bounds} must ascend without repeats; sort them")
    return bounds
