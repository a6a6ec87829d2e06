"""The options of one work: what is accepted, and which level wins."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from piecework.clock import to_ms
from piecework.errors import InvalidWorkError
from piecework.options import NO_OPTIONS, Options, WorkOptions, parse_options
from piecework.packing import plain_options, read_options
from piecework.retry import Retry

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
VALUES: dict[str, tuple[Any, Any]] = {
    "delay": (1.5, 2.5),
    "run_at": (NOON, NOON + timedelta(1)),
    "priority": (1, -2),
    "group": ("a", "b"),
    "retry": (Retry(attempts=1), Retry(attempts=2)),
    "skip_queue": (True, False),
    "deadline": (3.0, NOON),
    "timeout": (4.0, 5.0),
    "id": ("x", "y"),
    "unique": ("k", "l"),
    "unique_for": (6.0, 7.0),
}


def test_every_option_is_known_and_tested():
    assert list(VALUES) == list(WorkOptions.__annotations__)
    assert list(VALUES) == [field.name for field in dataclasses.fields(Options)]


def test_no_options_are_no_options():
    assert parse_options({}, "add") is NO_OPTIONS
    assert parse_options(dict.fromkeys(VALUES), "add") == NO_OPTIONS


@pytest.mark.parametrize("name", VALUES)
def test_an_option_is_read(name):
    value = VALUES[name][0]
    wanted = to_ms(value) if name == "run_at" else value
    assert getattr(parse_options({name: value}, "add"), name) == wanted


@pytest.mark.parametrize("name", VALUES)
def test_the_level_above_wins_and_leaves_what_it_does_not_give(name):  # S33
    high, low = VALUES[name]
    above, below = parse_options({name: high}, "add"), parse_options({name: low}, "add")
    assert getattr(above.over(below), name) == getattr(above, name)
    assert above.over(NO_OPTIONS) == above
    assert NO_OPTIONS.over(below) == below
    other = parse_options({"priority": 9} if name != "priority" else {"group": "g"}, "add")
    assert getattr(other.over(below), name) == getattr(below, name)


def test_retries_are_merged_field_by_field():  # S34
    above = parse_options({"retry": Retry(attempts=5)}, "add")
    below = parse_options({"retry": Retry(attempts=2, base=9)}, "add")
    merged = above.over(below).retry
    assert merged is not None
    assert (merged.attempts, merged.base, merged.factor) == (5, 9, 2.0)


def test_an_unknown_option_is_named_with_the_known_ones():
    with pytest.raises(InvalidWorkError, match=r"'dealy': there is no.*delay") as caught:
        parse_options({"dealy": 5}, "add")
    assert (caught.value.work_type, caught.value.field) == ("add", "dealy")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("delay", "5"),
        ("delay", -1),
        ("delay", True),
        ("delay", float("nan")),
        ("delay", float("inf")),
        ("delay", timedelta(days=40_000)),
        ("run_at", datetime(2030, 1, 1)),
        ("run_at", 5),
        ("run_at", "2030-01-01"),
        ("priority", 1.5),
        ("priority", True),
        ("priority", "1"),
        ("group", ""),
        ("group", 1),
        ("retry", 3),
        ("retry", {"attempts": 3}),
        ("skip_queue", 1),
        ("skip_queue", "yes"),
        ("deadline", datetime(2030, 1, 1)),
        ("deadline", "5"),
        ("deadline", True),
        ("timeout", 0),
        ("timeout", -1),
        ("timeout", "5"),
        ("id", ""),
        ("id", 7),
        ("unique", ""),
        ("unique", True),
        ("unique_for", -1),
        ("unique_for", "day"),
    ],
)
def test_a_value_that_cannot_be_used_names_its_option(name, value):
    with pytest.raises(InvalidWorkError, match=r"must be|no time zone") as caught:
        parse_options({name: value}, "add")
    assert (caught.value.work_type, caught.value.field) == ("add", name)


def test_durations_may_be_timedeltas():
    read = parse_options({"delay": timedelta(minutes=1), "deadline": timedelta(hours=1)}, "add")
    assert (read.delay, read.deadline) == (60.0, 3600.0)


def test_a_deadline_counts_from_now_or_is_a_time():
    assert Options().deadline_ms(1000) is None
    assert Options(deadline=2.5).deadline_ms(1000) == 3500
    assert Options(deadline=timedelta(seconds=2)).deadline_ms(1000) == 3000
    assert Options(deadline=NOON).deadline_ms(1000) == to_ms(NOON)


LEVEL = st.builds(
    Options,
    delay=st.none() | st.floats(0, 1e6),
    run_at=st.none() | st.integers(0, 10**13),
    priority=st.none() | st.integers(),
    group=st.none() | st.text(min_size=1),
    retry=st.none() | st.builds(Retry, attempts=st.none() | st.integers(1, 9)),
    skip_queue=st.none() | st.booleans(),
    deadline=st.none()
    | st.floats(0, 1e6)
    | st.datetimes(timezones=st.just(UTC))
    | st.timedeltas(timedelta(0), timedelta(1)).map(lambda delta: delta.total_seconds()),
    id=st.none() | st.text(min_size=1),
)


@given(LEVEL)
def test_options_travel_as_plain_data(options):
    assert read_options(plain_options(options)) == options


@given(LEVEL, LEVEL, LEVEL)
def test_it_does_not_matter_in_which_order_levels_are_laid(a, b, c):  # S33
    assert a.over(b).over(c) == a.over(b.over(c))


def test_a_timedelta_travels_as_seconds():
    assert plain_options(Options(deadline=timedelta(minutes=1))) == {"deadline": 60.0}
