from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from piecework.clock import to_ms
from piecework.errors import ConfigError
from piecework.occurrences import recurrence

MINUTE = 60_000
HOUR = 60 * MINUTE
NOON = to_ms(datetime(2024, 5, 1, 12, tzinfo=UTC))


async def _async_next(now):
    return None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "none of them"),
        ({"cron": "* * * * *", "every": 5}, "cron and every"),
        ({"cron": "* * * *"}, "4 fields"),
        ({"cron": "0 0 30 2 *"}, "never due"),
        ({"every": 0}, "1 second or more"),
        ({"every": 0.5}, "1 second or more"),
        ({"every": float("nan")}, "1 second or more"),
        ({"every": float("inf")}, "1 second or more"),
        ({"every": "x"}, "1 second or more"),
        ({"every": timedelta(milliseconds=1)}, "1 second or more"),
        ({"next": 5}, "plain function"),
        ({"next": _async_next}, "plain function"),
        ({"every": 5, "tz": "Mars/Olympus"}, "IANA"),
        ({"every": 5, "catch_up": "some"}, "'skip', 'one' or 'all'"),
    ],
)
def test_an_unusable_option_is_refused_with_the_fix(options, text):
    # S108
    with pytest.raises(ConfigError, match=text):
        recurrence(**options)


def test_a_recurrence_tells_what_it_is():
    assert str(recurrence(cron="0 8 * * 1", tz="Europe/Paris")) == "cron 0 8 * * 1 (Europe/Paris)"
    assert str(recurrence(every=timedelta(minutes=1.5))) == "every 90 s"
    assert str(recurrence(next=lambda now: None)) == "next"


def test_every_is_aligned_so_that_all_processes_agree():
    # Q4
    rule = recurrence(every=3600)
    assert rule.following(NOON + 5) == NOON + HOUR
    assert rule.following(NOON + HOUR - 1) == NOON + HOUR
    assert rule.following(NOON + HOUR) == NOON + 2 * HOUR
    assert rule.following(-1) == 0


def test_cron_is_meant_in_its_zone():
    rule = recurrence(cron="0 8 * * *", tz="Europe/Amsterdam")
    assert rule.following(NOON) == to_ms(datetime(2024, 5, 2, 6, tzinfo=UTC))
    leap = recurrence(cron="0 5 1 1 *")
    assert leap.following(to_ms(datetime(9999, 6, 1, tzinfo=UTC))) is None
    last = to_ms(datetime(9999, 1, 1, 5, tzinfo=UTC))
    assert leap.due(last - HOUR, last + HOUR) == ([last], None)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (None, None),
        (90, NOON + 90_000),
        (1.5, NOON + 1_500),
        (timedelta(hours=1), NOON + HOUR),
        (datetime(2024, 5, 1, 13, tzinfo=UTC), NOON + HOUR),
    ],
)
def test_a_function_returns_a_time_a_wait_or_none(result, expected):
    # S112
    seen = []
    rule = recurrence(next=lambda now: seen.append(now) or result, tz="Europe/Paris")
    assert rule.following(NOON) == expected
    assert seen[0].isoformat() == "2024-05-01T14:00:00+02:00"


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (0, "1 second later"),
        (0.2, "1 second later"),
        (-5, "1 second later"),
        (datetime(2024, 5, 1, 12, tzinfo=UTC), "1 second later"),
        (datetime(2024, 5, 2), "no time zone"),
        (1_714_564_800, "seconds from the time"),
        (float("nan"), "seconds from the time"),
        (True, "a datetime, a timedelta"),
        ("soon", "a datetime, a timedelta"),
    ],
)
def test_a_function_that_returns_no_later_time_is_refused(result, text):
    with pytest.raises(ConfigError, match=text):
        recurrence(next=lambda now: result).following(NOON)


RULES = [
    {"every": 600},
    {"cron": "*/10 * * * *"},
    {"cron": "*/10 0-22,23 * * *", "tz": "Europe/Paris"},
]


@pytest.mark.parametrize("options", RULES)
def test_catch_up_decides_what_becomes_of_missed_occurrences(options):
    # S116
    ten = 10 * MINUTE
    late, now = NOON + 5 * ten, NOON + 5 * ten + 90_000
    rules = {p: recurrence(**options, catch_up=p) for p in ("skip", "one", "all")}
    assert rules["one"].due(NOON, now) == ([late], late + ten)
    assert rules["skip"].due(NOON, now) == ([], late + ten)
    assert rules["skip"].due(NOON, late + 60_000) == ([late], late + ten)
    assert rules["all"].due(NOON, now).occurrences_ms == [NOON + n * ten for n in range(1, 6)]
    assert rules["all"].due(NOON, now, 2) == ([NOON + ten, NOON + 2 * ten], NOON + 3 * ten)
    for rule in rules.values():
        assert rule.due(NOON, NOON + ten - 1) == ([], NOON + ten)
        assert rule.due(NOON, NOON + ten) == ([NOON + ten], NOON + 2 * ten)


def test_the_latest_of_a_long_span_is_found_without_living_through_it():
    rule = recurrence(cron="*/5 3 * 2-11 *", tz="America/New_York")
    now = to_ms(datetime(2034, 1, 15, tzinfo=UTC))
    last = to_ms(datetime(2033, 12, 1, 3, 55, tzinfo=UTC)) - 19 * HOUR
    assert rule.due(NOON, now).occurrences_ms == [last]
    minutes = recurrence(cron="* * * * *")
    for late in (0, 1, 30_000, 59_999):
        assert minutes.due(NOON, now + late).occurrences_ms == [now]


def test_watched_occurrences_are_all_fired_and_stand_in_for_missed_ones():
    for policy in ("skip", "one"):
        rule = recurrence(every=60, catch_up=policy)
        now = NOON + 10 * MINUTE
        due = rule.due(NOON, now, watched_from_ms=NOON + 7 * MINUTE)
        assert due == ([NOON + n * MINUTE for n in (8, 9, 10)], now + MINUTE)


def test_a_function_goes_on_from_now_unless_all_are_wanted():
    ten = 10 * MINUTE
    now = NOON + 35 * MINUTE
    rules = {p: recurrence(next=lambda _: 600, catch_up=p) for p in ("skip", "one", "all")}
    assert rules["one"].due(NOON, now) == ([NOON + ten], now + ten)
    assert rules["skip"].due(NOON, now) == ([], now + ten)
    assert rules["all"].due(NOON, now) == ([NOON + ten], NOON + 2 * ten)
    assert rules["one"].due(NOON, now, watched_from_ms=NOON) == ([NOON + ten], NOON + 2 * ten)
    assert rules["one"].due(NOON, NOON + ten) == ([NOON + ten], NOON + 2 * ten)
    assert rules["one"].due(NOON, NOON) == ([], NOON + ten)
    assert recurrence(next=lambda _: None).due(NOON, now) == ([], None)
