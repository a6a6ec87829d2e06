from __future__ import annotations

import subprocess
import sys
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from piecework.cron import next_after, parse_cron
from piecework.errors import ConfigError


@pytest.mark.parametrize(
    ("expr", "field", "fix"),
    [
        ("", "0 fields", "it needs 5"),
        ("* * * *", "4 fields", "it needs 5"),
        ("0 * * * * *", "6 fields", "seconds are not supported"),
        ("60 * * * *", "minute", "60 is out of range; use 0 to 59"),
        ("* 24 * * *", "hour", "use 0 to 23"),
        ("* * 0 * *", "day of month", "use 1 to 31"),
        ("* * 32 * *", "day of month", "use 1 to 31"),
        ("* * * 13 *", "month", "use 1 to 12 or jan"),
        ("* * * * 8", "day of week", "use 0 to 7 or sun"),
        ("*/0 * * * *", "minute", "from 1 to 60"),
        ("*/61 * * * *", "minute", "from 1 to 60"),
        ("*/x * * * *", "minute", "step 'x'"),
        ("*/ * * * *", "minute", "step ''"),
        ("*/2/3 * * * *", "minute", "step '2/3'"),
        ("* 22-2 * * *", "hour", "write '22-23,0-2'"),
        ("1,,2 * * * *", "minute", "remove the comma"),
        ("-5 * * * *", "minute", "'' is not a value"),
        ("5- * * * *", "minute", "'' is not a value"),
        ("\u0665 * * * *", "minute", "is not a value"),
        ("jan * * * *", "minute", "'jan' is not a value"),
        ("* * L * *", "day of month", "'L' is not a value"),
        ("* * ? * *", "day of month", "'?' is not a value"),
        ("* * * * 1#2", "day of week", "'1#2' is not a value"),
        ("* * * * monday", "day of week", "mon, tue"),
        ("@reboot", "@reboot", "@daily"),
        (None, "must be a text", "'0 8 * * 1'"),
    ],
)
def test_an_unusable_expression_names_the_field_and_the_fix(expr, field, fix):
    # S109
    with pytest.raises(ConfigError) as caught:
        parse_cron(expr)
    assert field in str(caught.value)
    assert fix in str(caught.value)


def test_each_form_of_a_field_means_what_it_says():
    # S109
    cron = parse_cron(" 5,10-12  */6 1-9/4\tJan,mar fri-sun ")
    assert str(cron) == "5,10-12 */6 1-9/4 Jan,mar fri-sun"
    assert cron.minutes == (5, 10, 11, 12)
    assert cron.hours == (0, 6, 12, 18)
    assert cron.days == (1, 5, 9)
    assert cron.months == (1, 3)
    assert cron.weekdays == (0, 5, 6)
    assert parse_cron("0 0 * * 7").weekdays == (0,)
    assert parse_cron("0 0 * * 5-7").weekdays == (0, 5, 6)
    assert parse_cron("*/60 * * * *").minutes == (0,)


def test_a_value_with_a_step_counts_on_to_the_end_of_the_field():
    assert parse_cron("5/15 * * * *").minutes == (5, 20, 35, 50)


@pytest.mark.parametrize(
    ("alias", "plain"),
    [
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        ("@monthly", "0 0 1 * *"),
        ("@weekly", "0 0 * * 0"),
        ("@Daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@hourly", "0 * * * *"),
    ],
)
def test_an_alias_stands_for_its_expression(alias, plain):
    start = datetime(2024, 3, 5, 7, 7, tzinfo=UTC)
    assert next_after(alias, start) == next_after(plain, start)


def run(expr, start, tz, count):
    """The next times as text, checked to rise in real time."""
    time = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(tz))
    found = []
    for _ in range(count):
        following = next_after(expr, time, tz)
        assert following is not None
        assert following.timestamp() > time.timestamp()
        time = following
        found.append(time.isoformat(" ", "minutes"))
    return found


def test_two_set_day_fields_are_alternatives():
    # S110
    assert [t[:10] for t in run("0 0 13 * 5", "2024-09-01", "UTC", 5)] == [
        "2024-09-06",
        "2024-09-13",
        "2024-09-20",
        "2024-09-27",
        "2024-10-04",
    ]
    days = [t[8:10] for t in run("0 0 */10 * 1", "2024-09-01", "UTC", 5)]
    assert days == ["02", "09", "11", "16", "21"]
    assert [t[8:10] for t in run("0 0 1-31 * 1", "2024-09-01", "UTC", 2)] == ["02", "03"]
    assert [t[8:10] for t in run("0 0 13 * 0-7", "2024-09-01", "UTC", 2)] == ["02", "03"]


def test_impossible_dates_give_none_and_leap_days_are_found():
    # S111, Q5
    start = datetime(2024, 3, 1, tzinfo=UTC)
    assert next_after("0 0 30 2 *", start) is None
    assert next_after("* * 31 2,4,6 *", start) is None
    assert next_after("0 0 29 2 *", start) == datetime(2028, 2, 29, tzinfo=UTC)
    assert run("0 0 29 2 *", "2096-03-01", "UTC", 2)[0] == "2104-02-29 00:00+00:00"
    assert next_after("0 0 30 2 1", start) == datetime(2025, 2, 3, tzinfo=UTC)
    end = datetime(9999, 12, 31, 23, 59, tzinfo=UTC)
    assert next_after("0 5 1 1 *", end) is None


def test_the_next_time_is_strictly_later_and_a_whole_minute():
    # S111
    at = datetime(2024, 1, 1, 8, 0, tzinfo=UTC)
    assert next_after("0 8 * * *", at) == at + timedelta(days=1)
    assert next_after("0 8 * * *", at - timedelta(microseconds=1)) == at
    assert next_after("* * * * *", at) == at + timedelta(minutes=1)
    assert next_after("* * * * *", at + timedelta(seconds=59.5)) == at + timedelta(minutes=1)


GOLDEN = {
    "fixed over autumn": (
        "0 20 * * *",
        "2022-10-28 20:00",
        "Europe/Paris",
        [
            "2022-10-29 20:00+02:00",
            "2022-10-30 20:00+01:00",
            "2022-10-31 20:00+01:00",
            "2022-11-01 20:00+01:00",
        ],
    ),
    "weekly over autumn": (
        "0 8 * * 1",
        "2017-10-22",
        "Europe/Amsterdam",
        ["2017-10-23 08:00+02:00", "2017-10-30 08:00+01:00", "2017-11-06 08:00+01:00"],
    ),
    "hourly over half an hour's gap": (
        "0 * * * *",
        "2019-10-06 00:00",
        "Australia/Lord_Howe",
        ["2019-10-06 01:00+10:30", "2019-10-06 03:00+11:00", "2019-10-06 04:00+11:00"],
    ),
    "fixed in half an hour's gap": (
        "15 2 * * *",
        "2019-10-05 12:00",
        "Australia/Lord_Howe",
        ["2019-10-06 02:30+11:00", "2019-10-07 02:15+11:00"],
    ),
    "hourly over half an hour twice": (
        "45 * * * *",
        "2019-04-07 01:00",
        "Australia/Lord_Howe",
        ["2019-04-07 01:45+11:00", "2019-04-07 01:45+10:30", "2019-04-07 02:45+10:30"],
    ),
    "fixed in a gap": (
        "30 2 * * *",
        "2024-03-09 00:00",
        "America/New_York",
        ["2024-03-09 02:30-05:00", "2024-03-10 03:00-04:00", "2024-03-11 02:30-04:00"],
    ),
    "several in a gap": (
        "*/20 2,3 * * *",
        "2024-03-10 00:00",
        "America/New_York",
        ["2024-03-10 03:00-04:00", "2024-03-10 03:20-04:00", "2024-03-10 03:40-04:00"],
    ),
    "fixed in a repeated hour": (
        "30 1 * * *",
        "2024-11-02 00:00",
        "America/New_York",
        ["2024-11-02 01:30-04:00", "2024-11-03 01:30-04:00", "2024-11-04 01:30-05:00"],
    ),
    "quarters over spring": (
        "*/15 * * * *",
        "2024-03-10 01:30",
        "America/New_York",
        ["2024-03-10 01:45-05:00", "2024-03-10 03:00-04:00", "2024-03-10 03:15-04:00"],
    ),
    "quarters over autumn": (
        "*/15 * * * *",
        "2024-11-03 01:30",
        "America/New_York",
        ["2024-11-03 01:45-04:00", "2024-11-03 01:00-05:00", "2024-11-03 01:15-05:00"],
    ),
    "midnight left out": (
        "0 0 * * *",
        "2017-10-14 00:00",
        "America/Sao_Paulo",
        ["2017-10-15 01:00-02:00", "2017-10-16 00:00-02:00"],
    ),
    "a day left out": (
        "0 * 30 12 *",
        "2011-12-29 22:00",
        "Pacific/Apia",
        ["2012-12-30 00:00+14:00", "2012-12-30 01:00+14:00"],
    ),
    "midnight twice": (
        "0 * 7 11 *",
        "1999-11-06 00:00",
        "America/St_Johns",
        ["1999-11-07 00:00-03:30", "1999-11-07 01:00-03:30"],
    ),
    "an offset with seconds": (
        "0 * * * *",
        "1970-01-01 00:00",
        "Africa/Monrovia",
        ["1970-01-01 01:00-00:44:30", "1970-01-01 02:00-00:44:30"],
    ),
}


@pytest.mark.parametrize("name", list(GOLDEN))
def test_the_wall_clock_is_kept_where_the_clock_changes(name):
    # B42, Q5
    expr, start, tz, expected = GOLDEN[name]
    assert run(expr, start, tz, len(expected)) == expected


def test_from_within_the_second_pass_of_a_repeated_hour_a_fixed_time_waits_for_tomorrow():
    after = datetime(2024, 11, 3, 1, 10, fold=1, tzinfo=ZoneInfo("America/New_York"))
    following = next_after("*/20 1 * * *", after, "America/New_York")
    assert following.isoformat() == "2024-11-04T01:00:00-05:00"


@pytest.mark.parametrize("tz", ["Mars/Olympus", "", "../etc/passwd", "America", None, 3])
def test_an_unknown_zone_is_refused(tz):
    with pytest.raises(ConfigError, match="tz: there is no time zone"):
        next_after("* * * * *", datetime(2024, 1, 1, tzinfo=UTC), tz)


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(ConfigError, match="no time zone"):
        next_after("* * * * *", datetime(2024, 1, 1))


def test_croniter_is_imported_when_first_needed():
    code = "import sys, piecework.cron; sys.exit('croniter' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def _field(low, high):
    value = st.integers(low, high)
    pair = st.tuples(value, value).map(sorted)
    one = st.one_of(
        value.map(str),
        pair.map(lambda p: f"{p[0]}-{p[1]}"),
        st.tuples(pair, st.integers(1, 9)).map(lambda t: f"{t[0][0]}-{t[0][1]}/{min(t[1], 7)}"),
        st.integers(1, 7).map(lambda n: f"*/{n}"),
    )
    return st.one_of(st.just("*"), st.lists(one, min_size=1, max_size=3).map(",".join))


EXPRESSIONS = st.tuples(
    _field(0, 59), _field(0, 23), _field(1, 28), _field(1, 12), _field(0, 7)
).map(" ".join)
TIMES = st.datetimes(datetime(1975, 1, 1), datetime(2040, 1, 1)).map(
    lambda t: t.replace(tzinfo=UTC)
)
ZONES = st.sampled_from(
    ["UTC", "Europe/Paris", "America/New_York", "Australia/Lord_Howe", "Pacific/Apia",
     "America/Havana", "America/St_Johns", "Africa/Casablanca", "Asia/Kathmandu"]
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, TIMES, ZONES)
def test_times_rise_without_an_end(expr, start, tz):
    # B42
    cron = parse_cron(expr)
    time = start
    for _ in range(4):
        following = next_after(cron, time, tz)
        assert following is not None
        assert following.timestamp() > time.timestamp()
        time = following


def _plain_values(part, low, high):
    found = set()
    for item in part.split(","):
        body, _, step = item.partition("/")
        ends = (low, high) if body == "*" else tuple(int(x) for x in body.split("-"))
        found |= set(range(ends[0], ends[-1] + 1, int(step or 1)))
    return found


def _fits(parts, time):
    minute, hour, day, month, weekday = (
        _plain_values(p, low, high)
        for p, (low, high) in zip(parts, [(0, 59), (0, 23), (1, 31), (1, 12), (0, 6)], strict=True)
    )
    by_day, by_weekday = time.day in day, bool({time.isoweekday(), time.isoweekday() % 7} & weekday)
    both = parts[2] != "*" and parts[4] != "*"
    on_date = (by_day or by_weekday) if both else (by_day and by_weekday)
    return time.minute in minute and time.hour in hour and time.month in month and on_date


@settings(max_examples=60, deadline=None)
@given(EXPRESSIONS, TIMES)
def test_in_utc_it_is_what_a_scan_of_all_minutes_finds(expr, start):
    parts = expr.split()
    minute = start.replace(second=0, microsecond=0)
    scan = (minute + timedelta(minutes=n) for n in range(1, 4000))
    first = next((time for time in scan if _fits(parts, time)), None)
    found = next_after(expr, start)
    assert found == first if first else found > minute + timedelta(minutes=3999)
