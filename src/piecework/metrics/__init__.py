"""Metrics: series that the engine records, and what Prometheus and backpressure make of them."""

from piecework.metrics.adaptive import BackpressureContext, adaptive_delay
from piecework.metrics.definitions import WORK_METRICS, MetricDefinition
from piecework.metrics.prometheus import format_prometheus
from piecework.metrics.registry import Metrics, create_metrics
from piecework.metrics.series import DEFAULT_BUCKETS, Counter, Gauge, Kind, Snapshot, Summary
from piecework.metrics.work import PortMetrics, TypeMetrics, WorkRecorder

__all__ = [
    "DEFAULT_BUCKETS",
    "WORK_METRICS",
    "BackpressureContext",
    "Counter",
    "Gauge",
    "Kind",
    "MetricDefinition",
    "Metrics",
    "PortMetrics",
    "Snapshot",
    "Summary",
    "TypeMetrics",
    "WorkRecorder",
    "adaptive_delay",
    "create_metrics",
    "format_prometheus",
]
