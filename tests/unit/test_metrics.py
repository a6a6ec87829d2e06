"""The series, what listeners hear, the text for Prometheus, and the engine's recorder."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import subprocess
import sys
import threading

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from piecework.clock import sleep
from piecework.errors import ConfigError
from piecework.metrics import (
    DEFAULT_BUCKETS,
    WORK_METRICS,
    Metrics,
    Snapshot,
    TypeMetrics,
    WorkRecorder,
    create_metrics,
    format_prometheus,
)


@pytest.fixture
def metrics() -> Metrics:
    return create_metrics()


def snapshot_of(metrics: Metrics, name: str, **labels: str) -> Snapshot:
    snapshot = metrics.get(name, **labels)
    assert snapshot is not None, f"no series {name} {labels}"
    return snapshot


# Series


def test_a_counter_only_grows(metrics):  # S129
    counter = metrics.counter("mails", "Mails sent.", kind="bill")
    counter.inc()
    counter.inc(2)
    counter.inc(0)
    assert snapshot_of(metrics, "mails", kind="bill").value == 3
    with pytest.raises(ConfigError, match=r"'mails' cannot change by -1; use a gauge"):
        counter.inc(-1)


def test_a_gauge_goes_both_ways(metrics):  # S129
    gauge = metrics.gauge("depth")
    gauge.set(5)
    gauge.inc()
    gauge.dec(3)
    gauge.dec()
    assert snapshot_of(metrics, "depth").value == 2


def test_a_summary_keeps_count_sum_and_extremes(metrics):  # S129
    summary = metrics.summary("render")
    for value in (0.3, 0.1, 90.0):
        summary.observe(value)
    shot = snapshot_of(metrics, "render")
    assert (shot.count, shot.min, shot.max) == (3, 0.1, 90.0)
    assert shot.sum == pytest.approx(90.4)
    assert dict(shot.buckets)[0.1] == 1, "a bound belongs to its bucket"
    assert dict(shot.buckets)[60.0] == 2
    assert shot.buckets[-1] == (float("inf"), 3)


def test_an_empty_summary_reads_as_zeros(metrics):
    metrics.summary("render")
    shot = snapshot_of(metrics, "render")
    assert (shot.count, shot.sum, shot.min, shot.max) == (0, 0, 0, 0)
    assert shot.quantiles == {0.5: 0, 0.9: 0, 0.99: 0}


def test_the_same_name_and_labels_give_the_same_handle(metrics):
    assert metrics.counter("a", x="1", y="2") is metrics.counter("a", y="2", x="1")
    assert metrics.counter("a", x="1") is not metrics.counter("a", x="2")
    assert metrics.gauge("b", name="n", kind="k") is metrics.gauge("b", name="n", kind="k")
    assert metrics.summary("c") is metrics.summary("c")


@pytest.mark.parametrize("first", ["counter", "gauge", "summary"])
@pytest.mark.parametrize("second", ["counter", "gauge", "summary"])
def test_a_name_of_another_kind_is_refused(metrics, first, second):  # S129
    getattr(metrics, first)("jobs", a="1")
    if first == second:
        getattr(metrics, second)("jobs", a="2")
        return
    with pytest.raises(ConfigError, match=f"'jobs' is a {first} and cannot be used as a {second}"):
        getattr(metrics, second)("jobs", a="2")


def test_names_that_prometheus_cannot_tell_apart_are_refused(metrics):
    metrics.gauge("a.b")
    with pytest.raises(ConfigError, match=r"'a\.b' and 'a_b' are both 'a_b' in Prometheus"):
        metrics.gauge("a_b")
    metrics.counter("c")
    with pytest.raises(ConfigError, match="rename one"):
        metrics.gauge("c_total")
    with pytest.raises(ConfigError, match="needs a name"):
        metrics.counter("")


def test_list_keeps_the_series_of_a_name_together(metrics):  # S129
    metrics.counter("a", "Help of a.", x="1").inc()
    metrics.gauge("b").set(7)
    metrics.counter("a", "ignored", x="2")
    assert [(s.kind, s.name, dict(s.labels), s.value, s.help) for s in metrics.list()] == [
        ("counter", "a", {"x": "1"}, 1, "Help of a."),
        ("counter", "a", {"x": "2"}, 0, "Help of a."),
        ("gauge", "b", {}, 7, ""),
    ]


def test_get_asks_without_creating(metrics):  # S129
    assert metrics.get("a") is None
    metrics.counter("a", x="1")
    assert metrics.get("a") is None
    assert metrics.get("a", x="2") is None
    assert len(metrics.list()) == 1


def test_a_snapshot_does_not_change_later(metrics):
    counter = metrics.counter("a")
    before = snapshot_of(metrics, "a")
    counter.inc()
    assert before.value == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.value = 1


def test_total_sums_the_series_that_have_the_labels(metrics):
    assert metrics.total("a") == 0
    metrics.counter("a", type="x", zone="1").inc(2)
    metrics.counter("a", type="y", zone="1").inc(3)
    metrics.summary("s").observe(1)
    assert metrics.total("a") == 5
    assert metrics.total("a", type="x") == 2
    assert metrics.total("a", zone="1") == 5
    assert metrics.total("a", zone="2") == 0
    assert metrics.total("s") == 0


# Buckets and quantiles


def test_the_default_buckets_go_from_a_millisecond_to_a_minute():  # S130
    in_ms = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 30_000, 60_000]
    assert [round(bound * 1000) for bound in DEFAULT_BUCKETS] == in_ms


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([5.0], {0.0: 5.0, 0.5: 5.0, 1.0: 5.0}),
        ([2, 4, 6, 8], {0.25: 2.5, 0.5: 5, 1.0: 8}),
        ([12, 14, 16, 18], {0.0: 12, 0.25: 12.5, 0.5: 15, 1.0: 18}),
        ([5, 15, 15, 25], {0.0: 5, 0.25: 10, 0.5: 15, 0.75: 20, 1.0: 25}),
        ([25, 45], {0.0: 25, 0.25: 25, 0.5: 30, 0.75: 37.5, 1.0: 45}),
        ([-4, -2], {0.0: -4, 0.5: -2, 1.0: -2}),
    ],
)
def test_quantiles_interpolate_inside_the_bucket_within_min_and_max(values, expected):  # S130
    metrics = create_metrics(quantiles=tuple(expected), buckets=(10, 20, 30))
    summary = metrics.summary("x")
    for value in values:
        summary.observe(value)
    assert snapshot_of(metrics, "x").quantiles == pytest.approx(expected)


def test_a_summary_may_have_buckets_of_its_own(metrics):
    metrics.summary("size", buckets=(1, 10), a="1").observe(3)
    assert snapshot_of(metrics, "size", a="1").buckets == ((1, 0), (10, 1), (float("inf"), 1))
    metrics.summary("size", a="2").observe(3)
    assert len(snapshot_of(metrics, "size", a="2").buckets) == 3
    with pytest.raises(ConfigError, match="all series of a name share their buckets"):
        metrics.summary("size", buckets=(1, 11), a="3")


def test_a_summary_cannot_have_the_label_of_the_bound(metrics):
    with pytest.raises(ConfigError, match="'le'"):
        metrics.summary("size", le="1")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"quantiles": (0.5, 99)}, r"quantile 99 is outside 0 to 1"),
        ({"quantiles": (float("nan"),)}, "outside"),
        ({"buckets": ()}, "one or more finite"),
        ({"buckets": (1, float("inf"))}, "one or more finite"),
        ({"buckets": (2, 1)}, "must ascend"),
        ({"buckets": (1, 1)}, "must ascend"),
    ],
)
def test_bad_options_say_what_to_pass(options, problem):
    with pytest.raises(ConfigError, match=problem):
        create_metrics(**options)


# Listeners


async def test_many_changes_in_a_turn_call_a_listener_once(metrics):  # S129
    calls: list[float] = []
    counter = metrics.counter("a")
    metrics.subscribe(lambda: calls.append(counter.value))
    gauge, summary = metrics.gauge("b"), metrics.summary("c")
    for _ in range(10):
        counter.inc()
        gauge.set(1)
        gauge.inc()
        gauge.dec()
        summary.observe(1)
    assert calls == []
    await sleep(0)
    assert calls == [10]
    counter.inc()
    await sleep(0)
    await sleep(0)
    assert calls == [10, 11]


def test_without_a_loop_a_listener_is_called_at_once(metrics):
    calls: list[int] = []
    metrics.subscribe(lambda: calls.append(1))
    metrics.counter("a").inc()
    metrics.gauge("b").set(1)
    assert len(calls) == 2


def test_the_schedule_of_the_user_decides_when(metrics):  # S129
    later: list = []
    calls: list[int] = []
    metrics = create_metrics(schedule=later.append)
    metrics.subscribe(lambda: calls.append(1))
    metrics.counter("a").inc()
    metrics.counter("a").inc()
    assert (len(later), calls) == (1, [])
    later.pop()()
    assert calls == [1]
    metrics.counter("a").inc()
    assert len(later) == 1


def test_nothing_is_scheduled_when_nobody_listens():  # S129
    later: list = []
    metrics = create_metrics(schedule=later.append)
    metrics.counter("a").inc()
    end = metrics.subscribe(lambda: None)
    other = metrics.subscribe(lambda: None)
    end()
    end()
    metrics.counter("a").inc()
    assert len(later) == 1, "the other one listens still"
    later.pop()()
    other()
    metrics.counter("a").inc()
    assert later == []


def test_a_listener_that_records_does_not_call_itself(metrics):
    counter = metrics.counter("a")
    metrics.subscribe(counter.inc)
    metrics.gauge("b").set(1)
    assert counter.value == 1


def test_a_failing_listener_harms_neither_the_others_nor_the_recorder(metrics, caplog):
    calls: list[int] = []
    metrics.subscribe(lambda: 1 / 0)
    metrics.subscribe(lambda: calls.append(1))
    with caplog.at_level(logging.ERROR, "piecework.metrics"):
        metrics.counter("a").inc()
    assert calls == [1]
    assert "a listener of the metrics failed" in caplog.text


def test_a_delivery_lost_with_its_loop_does_not_silence_the_next_loop(metrics):
    calls: list[int] = []
    metrics.subscribe(lambda: calls.append(1))
    counter = metrics.counter("a")
    loop = asyncio.new_event_loop()

    async def change_and_end() -> None:
        counter.inc()
        loop.stop()  # the loop ends before the scheduled call

    loop.create_task(change_and_end())  # noqa: RUF006
    loop.run_forever()
    loop.close()
    assert calls == []

    async def change() -> None:
        counter.inc()
        await sleep(0)

    asyncio.run(change())
    assert calls == [1]


# Prometheus

GOLDEN = """\
# HELP work_queued_total Works \\\\ enqueued\\nhere.
# TYPE work_queued_total counter
work_queued_total{type="a\\"b\\\\c\\nd"} 2.0
work_queued_total{type="plain",zone="é"} 1.0
# HELP queue_depth Works that wait.
# TYPE queue_depth gauge
queue_depth -1.5
# HELP work_total_time Seconds.
# TYPE work_total_time histogram
work_total_time_bucket{le="0.5",type="x"} 1.0
work_total_time_bucket{le="2.0",type="x"} 2.0
work_total_time_bucket{le="+Inf",type="x"} 3.0
work_total_time_sum{type="x"} 11.25
work_total_time_count{type="x"} 3.0
# HELP _2xx_total Good answers.
# TYPE _2xx_total counter
_2xx_total{status_code="200"} 0.0
"""


def test_the_text_for_prometheus_is_this():  # S131
    metrics = create_metrics(buckets=(0.5, 2))
    metrics.counter("work.queued", "Works \\ enqueued\nhere.", type='a"b\\c\nd').inc(2)
    metrics.gauge("queue-depth", "Works that wait.").set(-1.5)
    metrics.counter("work.queued", type="plain", zone="é").inc()
    for value in (0.25, 1, 10):
        metrics.summary("work.total_time", "Seconds.", type="x").observe(value)
    metrics.counter("2xx_total", "Good answers.", **{"status.code": "200"})
    text = format_prometheus(metrics)
    assert text == GOLDEN
    parsed = {family.name: family for family in text_string_to_metric_families(text)}
    assert parsed["work_queued"].samples[0].labels == {"type": 'a"b\\c\nd'}
    assert parsed["work_total_time"].type == "histogram"


def test_each_metrics_object_has_a_registry_of_its_own(metrics):
    other = create_metrics()
    other.counter("a").inc()
    assert metrics.registry is metrics.registry
    assert metrics.registry is not other.registry
    assert format_prometheus(metrics) == ""


@pytest.mark.parametrize("auto_describe", [False, True])
def test_a_registry_of_the_user_collects_what_comes_later(auto_describe):
    registry = CollectorRegistry(auto_describe=auto_describe)
    metrics = create_metrics(registry=registry)
    metrics.counter("a").inc(4)
    assert metrics.registry is registry
    assert registry.get_sample_value("a_total") == 4


def test_a_scrape_in_a_thread_sees_buckets_that_agree_with_the_count(metrics):
    summary = metrics.summary("x")
    ended = threading.Event()
    wrong: list[Snapshot] = []

    def scrape() -> None:
        while not ended.is_set():
            shot = metrics.list()[0]
            if shot.count != shot.buckets[-1][1] or not 0 <= shot.max <= 1:
                wrong.append(shot)
            format_prometheus(metrics)

    thread = threading.Thread(target=scrape)
    thread.start()
    for i in range(2000):
        summary.observe(i / 2000)
        metrics.counter(f"c{i % 50}")
    ended.set()
    thread.join()
    assert wrong == []


def test_recording_imports_no_prometheus_client():
    code = (
        "import sys; from piecework.metrics import *; "
        "m = create_metrics(); WorkRecorder(m).of('x').queued(1); m.list(); "
        "assert 'prometheus_client' not in sys.modules; "
        "format_prometheus(m); assert 'prometheus_client' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


# The engine's recorder: one test per path

NOW = 1_700_000_000_000


class Recorded:
    """A recorder with the readings that the tests ask for."""

    def __init__(self) -> None:
        self.metrics = create_metrics()
        self.recorder = WorkRecorder(self.metrics)
        self.resize: TypeMetrics = self.recorder.of("resize")

    def counters(self) -> dict[str, float]:
        """The counters that are not 0, by their name without the prefix."""
        return {
            shot.name.removeprefix("work."): shot.value
            for shot in self.metrics.list()
            if shot.kind == "counter" and shot.value
        }

    def gauge(self, name: str) -> float:
        return snapshot_of(self.metrics, f"work.{name}", type="resize").value

    def held(self) -> tuple[float, float, float]:
        return self.gauge("active"), self.gauge("pending"), self.gauge("running")

    def sums(self) -> dict[str, float]:
        """The sums of the summaries that observed something."""
        return {
            shot.name.removeprefix("work."): round(shot.sum, 6)
            for shot in self.metrics.list()
            if shot.kind == "summary" and shot.count
        }

    def run_until_settled(self) -> None:
        self.resize.accepted(NOW)
        self.resize.started(NOW + 250, NOW)


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


def test_an_enqueue_is_recorded(recorded):  # S126 S127
    recorded.resize.queued(NOW)
    assert recorded.counters() == {"queued": 1}
    assert recorded.gauge("last_queued_at") == 1_700_000_000.0
    assert recorded.held() == (0, 0, 0)


def test_a_success_is_recorded_and_the_gauges_return_to_zero(recorded):  # S126 S127 S128
    recorded.resize.accepted(NOW)
    assert recorded.held() == (1, 1, 0)
    recorded.resize.started(NOW + 250, NOW)
    assert recorded.held() == (1, 0, 1)
    recorded.resize.succeeded(NOW + 1250, NOW + 250, NOW - 3000, 2)
    recorded.resize.left(running=True)
    assert recorded.held() == (0, 0, 0)
    assert recorded.counters() == {"started": 1, "succeeded": 1}
    assert recorded.gauge("last_started_at") == 1_700_000_000.25
    assert recorded.gauge("last_succeeded_at") == 1_700_000_001.25
    assert recorded.sums() == {
        "wait_time": 0.25,
        "success_time": 1.0,
        "total_time": 4.25,
        "attempts": 2,
    }


def test_a_failure_with_a_retry_is_recorded(recorded):  # S126 S128
    recorded.run_until_settled()
    recorded.resize.failed(NOW + 750, NOW + 250, NOW, 1, will_retry=True)
    recorded.resize.retried(2.5)
    recorded.resize.left(running=True)
    assert recorded.held() == (0, 0, 0)
    assert recorded.counters() == {"started": 1, "failed": 1, "retried": 1}
    assert recorded.gauge("last_failed_at") == 1_700_000_000.75
    assert recorded.sums() == {"wait_time": 0.25, "error_time": 0.5, "delay_time": 2.5}


def test_a_last_failure_ends_the_work(recorded):  # S126 S128
    recorded.run_until_settled()
    recorded.resize.failed(NOW + 750, NOW + 250, NOW, 3, will_retry=False)
    recorded.resize.left(running=True)
    assert recorded.counters() == {"started": 1, "failed": 1}
    assert recorded.sums() == {
        "wait_time": 0.25,
        "error_time": 0.5,
        "total_time": 0.75,
        "attempts": 3,
    }


def test_a_deferral_is_recorded(recorded):  # S126 S128
    recorded.run_until_settled()
    recorded.resize.deferred(60)
    recorded.resize.left(running=True)
    assert recorded.held() == (0, 0, 0)
    assert recorded.counters() == {"started": 1, "deferred": 1}
    assert recorded.sums() == {"wait_time": 0.25, "delay_time": 60}


def test_an_early_message_is_recorded(recorded):  # S126 S127 S128
    recorded.resize.accepted(NOW)
    recorded.resize.rescheduled(900)
    recorded.resize.left(running=False)
    assert recorded.held() == (0, 0, 0)
    assert recorded.counters() == {"rescheduled": 1}
    assert recorded.sums() == {"reschedule_time": 900}


@pytest.mark.parametrize("end", ["cancelled", "expired"])
def test_a_cancelled_or_expired_work_is_recorded(recorded, end):
    recorded.resize.accepted(NOW)
    getattr(recorded.resize, end)(NOW + 500, NOW)
    recorded.resize.left(running=False)
    assert recorded.held() == (0, 0, 0)
    assert recorded.counters() == {end: 1}
    assert recorded.sums() == {"total_time": 0.5}


def test_a_redrive_and_a_lost_lease_are_recorded(recorded):
    recorded.resize.redriven()
    recorded.resize.lease_lost()
    assert recorded.counters() == {"redriven": 1, "lease_lost": 1}


def test_the_peak_stays_when_works_leave(recorded):  # S127
    for _ in range(3):
        recorded.resize.accepted(NOW)
    for _ in range(3):
        recorded.resize.left(running=False)
    recorded.resize.accepted(NOW)
    assert recorded.gauge("peak_active") == 3
    assert recorded.gauge("active") == 1


def test_negative_durations_count_as_zero(recorded):  # S128
    recorded.resize.started(NOW, NOW + 5000)
    recorded.resize.succeeded(NOW, NOW + 1, NOW + 2, 1)
    recorded.resize.failed(NOW, NOW + 1, NOW + 2, 1, will_retry=False)
    recorded.resize.retried(-1)
    recorded.resize.deferred(-1)
    recorded.resize.rescheduled(-1)
    recorded.recorder.loop_lag(-0.001)
    recorded.recorder.port("store", "read").done(-1)
    times = {k: v for k, v in recorded.sums().items() if k != "attempts"}
    assert len(times) == 8
    assert set(times.values()) == {0}


def test_each_type_has_series_of_its_own(recorded):  # S125
    assert recorded.recorder.of("resize") is recorded.resize
    recorded.recorder.of("mail").queued(NOW)
    recorded.resize.queued(NOW)
    recorded.resize.queued(NOW)
    assert snapshot_of(recorded.metrics, "work.queued", type="mail").value == 1
    assert snapshot_of(recorded.metrics, "work.queued", type="resize").value == 2
    assert recorded.metrics.total("work.queued") == 3


def test_two_systems_may_share_one_metrics_object(recorded):
    other = WorkRecorder(recorded.metrics).of("resize")
    other.accepted(NOW)
    recorded.resize.accepted(NOW)
    other.left(running=False)
    assert recorded.held() == (1, 1, 0)
    assert recorded.gauge("peak_active") == 2


def test_calls_of_a_port_are_recorded(recorded):
    pop = recorded.recorder.port("queue", "pop")
    assert recorded.recorder.port("queue", "pop") is pop
    pop.done(0.25)
    pop.failed(0.5)
    labels = {"port": "queue", "operation": "pop"}
    assert snapshot_of(recorded.metrics, "port.calls", **labels).value == 2
    assert snapshot_of(recorded.metrics, "port.errors", **labels).value == 1
    assert snapshot_of(recorded.metrics, "port.time", **labels).sum == 0.75


def test_the_lag_of_the_loop_is_recorded(recorded):
    recorded.recorder.loop_lag(0.25)
    recorded.recorder.loop_lag(0.5)
    assert snapshot_of(recorded.metrics, "engine.loop_lag").sum == 0.75


STEPS = {
    "queued": lambda t: t.queued(NOW),
    "accepted": lambda t: t.accepted(NOW),
    "started": lambda t: t.started(NOW, NOW),
    "succeeded": lambda t: t.succeeded(NOW, NOW, NOW, 1),
    "failed": lambda t: t.failed(NOW, NOW, NOW, 1, will_retry=True),
    "retried": lambda t: t.retried(1),
    "deferred": lambda t: t.deferred(1),
    "rescheduled": lambda t: t.rescheduled(1),
    "cancelled": lambda t: t.cancelled(NOW, NOW),
    "expired": lambda t: t.expired(NOW, NOW),
    "redriven": lambda t: t.redriven(),
    "lease_lost": lambda t: t.lease_lost(),
    "left": lambda t: t.left(running=False),
}


@pytest.mark.parametrize("step", STEPS)
def test_listeners_hear_of_each_step_with_its_last_change_made(step):
    later: list = []
    metrics = create_metrics(schedule=later.append)
    resize = WorkRecorder(metrics).of("resize")
    metrics.subscribe(lambda: None)
    STEPS[step](resize)
    assert len(later) == 1


def test_the_table_names_every_series_of_the_engine(recorded):  # S126 S127 S128
    recorded.recorder.port("queue", "pop")
    recorded.recorder.loop_lag(0)
    shown = {
        shot.name: (shot.kind, shot.help, tuple(sorted(shot.labels)))
        for shot in recorded.metrics.list()
    }
    assert shown == {
        name: (definition.kind, definition.help, tuple(sorted(definition.labels)))
        for name, definition in WORK_METRICS.items()
    }
    counters = "queued started succeeded failed retried deferred rescheduled cancelled expired"
    for name in f"{counters} redriven lease_lost".split():
        assert WORK_METRICS[f"work.{name}"].kind == "counter"
    for name in ("active", "pending", "running", "peak_active", "last_queued_at"):
        assert WORK_METRICS[f"work.{name}"].kind == "gauge"
    for name in ("last_started_at", "last_succeeded_at", "last_failed_at"):
        assert WORK_METRICS[f"work.{name}"].unit == "seconds since 1970"
    assert all(definition.help.endswith(".") for definition in WORK_METRICS.values())


def test_the_table_cannot_be_changed():
    with pytest.raises(TypeError):
        WORK_METRICS["mine"] = WORK_METRICS["work.queued"]
    with pytest.raises(dataclasses.FrozenInstanceError):
        WORK_METRICS["work.queued"].name = "mine"


def test_the_engines_metrics_are_valid_for_prometheus(recorded):  # S131
    recorded.run_until_settled()
    recorded.recorder.port("queue", "pop").done(0.1)
    families = list(text_string_to_metric_families(format_prometheus(recorded.metrics)))
    names = {family.name for family in families}
    assert {"work_started", "work_active", "work_wait_time", "port_time"} <= names
