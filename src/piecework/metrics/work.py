"""The recorder that the engine calls at each step of a work and each call of a port."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.metrics.definitions import WORK_METRICS

if TYPE_CHECKING:
    from piecework.metrics.registry import Metrics
    from piecework.metrics.series import Counter, Gauge, Summary


class WorkRecorder:
    """Records what the engine of one system does; series are looked up once per type or port.

    Example:
        >>> recorder = WorkRecorder(create_metrics())
        >>> recorder.of("resize").queued(1_700_000_000_000)
    """

    __slots__ = ("_lag", "_ports", "_types", "metrics")

    def __init__(self, metrics: Metrics) -> None:
        self.metrics = metrics
        self._types: dict[str, TypeMetrics] = {}
        self._ports: dict[tuple[str, str], PortMetrics] = {}
        self._lag: Summary | None = None

    def of(self, type: str) -> TypeMetrics:
        """What records for a work type; the same object each time."""
        found = self._types.get(type)
        if found is None:
            found = self._types[type] = TypeMetrics(self.metrics, type)
        return found

    def port(self, port: str, operation: str) -> PortMetrics:
        """What records for an operation of a port, such as ``("queue", "pop")``."""
        found = self._ports.get((port, operation))
        if found is None:
            found = self._ports[port, operation] = PortMetrics(self.metrics, port, operation)
        return found

    def loop_lag(self, late: float) -> None:
        """The event loop ran a timer ``late`` seconds after it was due."""
        if self._lag is None:
            self._lag = _summary_of(self.metrics, "engine.loop_lag", {})
        self._lag.observe(late if late > 0 else 0.0)


class PortMetrics:
    """Records the calls of one operation of one port."""

    __slots__ = ("_calls", "_errors", "_time")

    def __init__(self, metrics: Metrics, port: str, operation: str) -> None:
        labels = {"port": port, "operation": operation}
        self._calls = _counter_of(metrics, "port.calls", labels)
        self._errors = _counter_of(metrics, "port.errors", labels)
        self._time = _summary_of(metrics, "port.time", labels)

    def done(self, took: float) -> None:
        """A call returned after ``took`` seconds."""
        self._calls.value += 1
        self._time.observe(took if took > 0 else 0.0)

    def failed(self, took: float) -> None:
        """A call raised after ``took`` seconds; it counts as a call, too."""
        self._errors.value += 1
        self.done(took)


class TypeMetrics:
    """Records the steps of the works of one type. Stamps are in milliseconds since 1970.

    A work that enters this worker is ``accepted``; whatever happens to it then, it ``left`` exactly
    once, and the gauges are back where they were. What happens is one of the other methods.
    """

    __slots__ = (
        "_active",
        "_attempts",
        "_cancelled",
        "_changes",
        "_deferred",
        "_delay_time",
        "_error_time",
        "_expired",
        "_failed",
        "_last_failed_at",
        "_last_queued_at",
        "_last_started_at",
        "_last_succeeded_at",
        "_lease_lost",
        "_peak_active",
        "_pending",
        "_queued",
        "_redriven",
        "_reschedule_time",
        "_rescheduled",
        "_retried",
        "_running",
        "_started",
        "_succeeded",
        "_success_time",
        "_total_time",
        "_wait_time",
    )

    def __init__(self, metrics: Metrics, type: str) -> None:
        labels = {"type": type}
        self._changes = metrics.changes
        self._queued = _counter_of(metrics, "work.queued", labels)
        self._started = _counter_of(metrics, "work.started", labels)
        self._succeeded = _counter_of(metrics, "work.succeeded", labels)
        self._failed = _counter_of(metrics, "work.failed", labels)
        self._retried = _counter_of(metrics, "work.retried", labels)
        self._deferred = _counter_of(metrics, "work.deferred", labels)
        self._rescheduled = _counter_of(metrics, "work.rescheduled", labels)
        self._cancelled = _counter_of(metrics, "work.cancelled", labels)
        self._expired = _counter_of(metrics, "work.expired", labels)
        self._redriven = _counter_of(metrics, "work.redriven", labels)
        self._lease_lost = _counter_of(metrics, "work.lease_lost", labels)
        self._active = _gauge_of(metrics, "work.active", labels)
        self._pending = _gauge_of(metrics, "work.pending", labels)
        self._running = _gauge_of(metrics, "work.running", labels)
        self._peak_active = _gauge_of(metrics, "work.peak_active", labels)
        self._last_queued_at = _gauge_of(metrics, "work.last_queued_at", labels)
        self._last_started_at = _gauge_of(metrics, "work.last_started_at", labels)
        self._last_succeeded_at = _gauge_of(metrics, "work.last_succeeded_at", labels)
        self._last_failed_at = _gauge_of(metrics, "work.last_failed_at", labels)
        self._wait_time = _summary_of(metrics, "work.wait_time", labels)
        self._total_time = _summary_of(metrics, "work.total_time", labels)
        self._success_time = _summary_of(metrics, "work.success_time", labels)
        self._error_time = _summary_of(metrics, "work.error_time", labels)
        self._delay_time = _summary_of(metrics, "work.delay_time", labels)
        self._reschedule_time = _summary_of(metrics, "work.reschedule_time", labels)
        self._attempts = _summary_of(metrics, "work.attempts", labels)

    def queued(self, now_ms: int) -> None:
        """A work was enqueued by this system."""
        self._last_queued_at.value = now_ms / 1000
        self._queued.inc()

    def accepted(self, now_ms: int) -> None:
        """A work entered this worker and waits for its start."""
        self._pending.value += 1
        active = self._active.value = self._active.value + 1
        if active > self._peak_active.value:
            self._peak_active.value = active
        if self._changes.listening:
            self._changes.changed()

    def left(self, running: bool) -> None:
        """A work left this worker, on any path; ``running`` tells whether it was ``started``."""
        self._active.value -= 1
        gauge = self._running if running else self._pending
        gauge.value -= 1
        if self._changes.listening:
            self._changes.changed()

    def started(self, now_ms: int, start_at_ms: int) -> None:
        """An accepted work started its attempt, which was due at ``start_at_ms``."""
        self._pending.value -= 1
        self._running.value += 1
        self._started.value += 1
        self._last_started_at.value = now_ms / 1000
        self._wait_time.observe(_span(start_at_ms, now_ms))

    def succeeded(self, now_ms: int, run_at_ms: int, queue_at_ms: int, attempt: int) -> None:
        """A work enqueued at ``queue_at_ms`` succeeded; this attempt started at ``run_at_ms``."""
        self._succeeded.value += 1
        self._last_succeeded_at.value = now_ms / 1000
        self._success_time.observe(_span(run_at_ms, now_ms))
        self._total_time.observe(_span(queue_at_ms, now_ms))
        self._attempts.observe(attempt)

    def failed(
        self, now_ms: int, run_at_ms: int, queue_at_ms: int, attempt: int, will_retry: bool
    ) -> None:
        """An attempt failed; the work ends with it unless ``will_retry``."""
        self._failed.value += 1
        self._last_failed_at.value = now_ms / 1000
        self._error_time.observe(_span(run_at_ms, now_ms))
        if not will_retry:
            self._total_time.observe(_span(queue_at_ms, now_ms))
            self._attempts.observe(attempt)

    def retried(self, delay: float) -> None:
        """The next attempt was queued, ``delay`` seconds ahead."""
        self._retried.value += 1
        self._delay_time.observe(delay if delay > 0 else 0.0)

    def deferred(self, delay: float) -> None:
        """A work put itself off by ``delay`` seconds, without spending its attempt."""
        self._deferred.value += 1
        self._delay_time.observe(delay if delay > 0 else 0.0)

    def rescheduled(self, delay: float) -> None:
        """A message came ``delay`` seconds too early and was queued again."""
        self._rescheduled.value += 1
        self._reschedule_time.observe(delay if delay > 0 else 0.0)

    def cancelled(self, now_ms: int, queue_at_ms: int) -> None:
        """A work was settled as cancelled."""
        self._cancelled.value += 1
        self._total_time.observe(_span(queue_at_ms, now_ms))

    def expired(self, now_ms: int, queue_at_ms: int) -> None:
        """A work was settled as expired."""
        self._expired.value += 1
        self._total_time.observe(_span(queue_at_ms, now_ms))

    def redriven(self) -> None:
        """A dead work was queued again."""
        self._redriven.inc()

    def lease_lost(self) -> None:
        """An attempt was stopped because its lease was lost."""
        self._lease_lost.inc()


def _span(start_ms: int, end_ms: int) -> float:
    """Seconds between two stamps; clocks of two machines differ, so it may be negative: then 0."""
    return (end_ms - start_ms) / 1000 if end_ms > start_ms else 0.0


def _counter_of(metrics: Metrics, name: str, labels: dict[str, str]) -> Counter:
    return metrics.counter(name, WORK_METRICS[name].help, **labels)


def _gauge_of(metrics: Metrics, name: str, labels: dict[str, str]) -> Gauge:
    return metrics.gauge(name, WORK_METRICS[name].help, **labels)


def _summary_of(metrics: Metrics, name: str, labels: dict[str, str]) -> Summary:
    definition = WORK_METRICS[name]
    return metrics.summary(name, definition.help, buckets=definition.buckets, **labels)
