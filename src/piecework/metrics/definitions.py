"""The table of the metrics that the engine keeps."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from piecework.metrics.series import Kind

#: Attempts are small whole numbers, so that each common one has a bucket of its own.
ATTEMPT_BUCKETS: tuple[float, ...] = (1, 2, 3, 4, 5, 7, 10, 15, 20, 50, 100)


@dataclass(frozen=True, slots=True)
class MetricDefinition:
    """One metric of the engine.

    Args:
        name: Its name; Prometheus shows the dots as ``_``.
        kind: ``"counter"``, ``"gauge"`` or ``"summary"``.
        help: What it counts, in a sentence.
        unit: The unit of its values.
        labels: The names of its labels.
        buckets: The bounds of a summary's buckets, where they are not those of the durations.
    """

    name: str
    kind: Kind
    help: str
    unit: str
    labels: tuple[str, ...] = ("type",)
    buckets: tuple[float, ...] | None = None


def _counter(name: str, help: str) -> MetricDefinition:
    return MetricDefinition(name, "counter", help, "works")


def _gauge(name: str, help: str) -> MetricDefinition:
    return MetricDefinition(name, "gauge", help, "works")


def _stamp(name: str, help: str) -> MetricDefinition:
    return MetricDefinition(name, "gauge", f"{help}, in seconds since 1970.", "seconds since 1970")


def _duration(name: str, help: str, labels: tuple[str, ...] = ("type",)) -> MetricDefinition:
    return MetricDefinition(name, "summary", f"{help}, in seconds.", "seconds", labels)


_PORT = ("port", "operation")

_DEFINITIONS = (
    _counter("work.queued", "Works enqueued here."),
    _counter("work.started", "Attempts that started."),
    _counter("work.succeeded", "Works that succeeded."),
    _counter("work.failed", "Attempts that failed, whether retried or not."),
    _counter("work.retried", "Attempts queued again after a failure."),
    _counter("work.deferred", "Works that put themselves off without spending an attempt."),
    _counter("work.rescheduled", "Messages that came too early and were queued again."),
    _counter("work.cancelled", "Works that were cancelled."),
    _counter("work.expired", "Works that passed their deadline."),
    _counter("work.redriven", "Dead works that were queued again."),
    _counter("work.lease_lost", "Attempts stopped because another worker may have the work."),
    _gauge("work.active", "Works that this worker holds: pending and running."),
    _gauge("work.pending", "Works that this worker holds and has not started."),
    _gauge("work.running", "Works that run in this worker."),
    _gauge("work.peak_active", "The most works that this worker held at once."),
    _stamp("work.last_queued_at", "When a work was last enqueued here"),
    _stamp("work.last_started_at", "When an attempt last started"),
    _stamp("work.last_succeeded_at", "When a work last succeeded"),
    _stamp("work.last_failed_at", "When an attempt last failed"),
    _duration("work.wait_time", "From when an attempt was due to its start"),
    _duration("work.total_time", "From the enqueueing of a work to its end, whatever the end"),
    _duration("work.success_time", "The run of an attempt that succeeded"),
    _duration("work.error_time", "The run of an attempt that failed"),
    _duration("work.delay_time", "How long a retry or a work that put itself off has to wait"),
    _duration("work.reschedule_time", "How much too early a message came"),
    MetricDefinition(
        "work.attempts",
        "summary",
        "Attempts that a work had when it succeeded or died.",
        "attempts",
        buckets=ATTEMPT_BUCKETS,
    ),
    MetricDefinition("port.calls", "counter", "Calls of a backend.", "calls", _PORT),
    MetricDefinition("port.errors", "counter", "Calls of a backend that failed.", "calls", _PORT),
    _duration("port.time", "A call of a backend", _PORT),
    _duration("engine.loop_lag", "How late the event loop ran a timer", ()),
)

#: Every metric of the engine by name.
WORK_METRICS: Mapping[str, MetricDefinition] = MappingProxyType(
    {definition.name: definition for definition in _DEFINITIONS}
)
