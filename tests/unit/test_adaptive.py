"""Backpressure that follows the failures."""

from __future__ import annotations

import dataclasses
from datetime import timedelta

import pytest

from piecework.errors import ConfigError
from piecework.metrics import BackpressureContext, Metrics, adaptive_delay, create_metrics


@pytest.fixture
def metrics() -> Metrics:
    return create_metrics()


@pytest.fixture
def context(metrics) -> BackpressureContext:
    return BackpressureContext(metrics=metrics, active=0)


def record(metrics: Metrics, *, ok: int = 0, bad: int = 0, type: str = "resize") -> None:
    metrics.counter("work.succeeded", type=type).inc(ok)
    metrics.counter("work.failed", type=type).inc(bad)


def polls(metrics, context, delay, count: int, **recorded: int) -> list[float]:
    """Ask ``count`` times, each after the same works."""
    asked = []
    for _ in range(count):
        record(metrics, **recorded)
        asked.append(delay(context))
    return asked


def test_the_delay_doubles_while_works_fail_and_falls_by_steps(metrics, context):  # S132
    delay = adaptive_delay(max=1.0)
    assert polls(metrics, context, delay, 2, ok=5) == [0, 0]
    assert polls(metrics, context, delay, 6, ok=5, bad=1) == [0.1, 0.2, 0.4, 0.8, 1.0, 1.0]
    falls = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 0, 0]
    assert polls(metrics, context, delay, 11, ok=1) == falls
    assert polls(metrics, context, delay, 2, bad=1) == [0.1, 0.2]


def test_the_default_delay_ends_at_half_a_minute(metrics, context):  # S132
    delay = adaptive_delay()
    assert polls(metrics, context, delay, 10, bad=1)[-2:] == [25.6, 30.0]
    assert polls(metrics, context, delay, 1) == [29.9]


def test_a_poll_after_which_nothing_ran_is_clean(metrics, context):  # S132
    delay = adaptive_delay()
    polls(metrics, context, delay, 2, bad=1)
    assert polls(metrics, context, delay, 3) == [0.1, 0, 0]


def test_failures_up_to_the_rate_are_fine(metrics, context):  # S132
    delay = adaptive_delay(max_fail_rate=0.25)
    assert polls(metrics, context, delay, 2, ok=3, bad=1) == [0, 0]
    assert polls(metrics, context, delay, 2, ok=2, bad=1) == [0.1, 0.2]


def test_only_the_types_that_were_named_count(metrics, context):  # S132
    delay = adaptive_delay(types=["mail", "never-seen"])
    assert polls(metrics, context, delay, 2, bad=1) == [0, 0]
    record(metrics, bad=1, type="mail")
    assert delay(context) == 0.1


def test_the_delay_never_falls_below_min(metrics, context):  # S132
    delay = adaptive_delay(min=0.5, max=2, step=0.4, factor=3)
    assert delay(context) == 0.5
    assert polls(metrics, context, delay, 2, bad=1) == [1.5, 2.0]
    assert polls(metrics, context, delay, 5) == [1.6, 1.2, 0.8, 0.5, 0.5]


def test_durations_may_be_timedeltas(metrics, context):
    delay = adaptive_delay(
        min=timedelta(0),
        max=timedelta(seconds=3),
        base=timedelta(seconds=2),
        step=timedelta(seconds=1),
    )
    assert polls(metrics, context, delay, 2, bad=1) == [2, 3]
    assert polls(metrics, context, delay, 1) == [2]


def test_two_functions_do_not_share_their_delay(metrics, context):
    first, second = adaptive_delay(), adaptive_delay()
    record(metrics, bad=1)
    assert (first(context), first(context), second(context)) == (0.1, 0, 0.1)


@pytest.mark.parametrize(
    "options",
    [
        {"max_fail_rate": 1},
        {"max_fail_rate": -0.1},
        {"min": -1},
        {"min": 2, "max": 1},
        {"base": 0},
        {"factor": 1},
        {"step": 0},
    ],
)
def test_a_number_out_of_range_is_refused_with_its_name(options):
    with pytest.raises(ConfigError, match=rf"{next(iter(options))}=.*: pass "):
        adaptive_delay(**options)


def test_one_string_is_no_list_of_types():
    with pytest.raises(ConfigError, match=r"pass a list: types=\['mail'\]"):
        adaptive_delay(types="mail")


def test_the_context_is_frozen(context):
    with pytest.raises(dataclasses.FrozenInstanceError):
        context.active = 1
