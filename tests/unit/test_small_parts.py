"""Time, ids, runs, notices, settings, hooks, the log, schedules' works, errors and signals."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from piecework import define_work
from piecework.clock import (
    Clock,
    FunctionClock,
    SystemClock,
    as_clock,
    from_ms,
    seconds,
    sleep,
    to_ms,
    wall_ms,
)
from piecework.engine.hooks import Hooks, resolve
from piecework.engine.log import WorkLogFilter, log_fields
from piecework.engine.notices import Notice, decode_notice, encode_notice
from piecework.engine.settings import Settings
from piecework.errors import (
    BackendError,
    ConfigError,
    InvalidWorkError,
    LeaseLostError,
    PayloadTooLargeError,
    PieceworkError,
    ResultGoneError,
    UnknownWorkError,
    WorkCancelledError,
    WorkExpiredError,
    WorkFailedError,
)
from piecework.ids import chance, derived_id, random_id
from piecework.running import Run, current_run, gate_id, new_id
from piecework.schedules import ScheduleHandle, make_work
from piecework.signals import RetryAbort, WorkDelayError, WorkSignal
from piecework.state import WorkEvent

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


# ---- time -----------------------------------------------------------------------------------


def test_a_clock_is_the_computers_a_function_or_ones_own():  # S30
    class Fixed:
        def now_ms(self) -> int:
            return 7

    fixed = Fixed()
    assert as_clock(fixed) is fixed
    assert as_clock(lambda: 1.5).now_ms() == 1500
    assert as_clock(lambda: NOON).now_ms() == to_ms(NOON)
    assert isinstance(as_clock(None), SystemClock)
    assert abs(as_clock(None).now_ms() - wall_ms()) < 5000
    assert all(isinstance(clock, Clock) for clock in (SystemClock(), FunctionClock(lambda: 1.0)))


@given(st.integers(-60_000_000_000_000, 250_000_000_000_000))
def test_milliseconds_and_times_are_each_others_reverse(value):
    assert to_ms(from_ms(value)) == value
    assert to_ms(from_ms(value).astimezone(timezone(timedelta(hours=5)))) == value


def test_a_time_without_a_zone_is_refused_with_the_fix():
    with pytest.raises(ConfigError, match="has no time zone; pass an aware datetime"):
        to_ms(datetime(2030, 1, 1))


async def test_durations_are_seconds_or_timedeltas(virtual_clock):
    assert [seconds(2), seconds(2.5), seconds(timedelta(minutes=1))] == [2.0, 2.5, 60.0]
    began = asyncio.get_running_loop().time()
    await sleep(30)
    assert asyncio.get_running_loop().time() - began == pytest.approx(30)


# ---- ids ------------------------------------------------------------------------------------


def test_random_ids_are_uuids_of_version_4():  # S02
    ids = {random_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(UUID.fullmatch(id) and id[14] == "4" and id[19] in "89ab" for id in ids)
    assert 0 <= chance() < 1


@given(st.lists(st.text() | st.integers(), min_size=1), st.lists(st.text() | st.integers()))
def test_derived_ids_differ_where_their_parts_do(one, other):
    assert UUID.fullmatch(derived_id(*one))
    same = [str(part) for part in one] == [str(part) for part in other]
    assert (derived_id(*one) == derived_id(*other)) is same


def test_parts_of_an_id_do_not_run_together():
    assert derived_id("ab", "c") != derived_id("a", "bc")


# ---- runs -----------------------------------------------------------------------------------


def test_children_of_a_replayed_run_have_the_same_ids():
    def children(turn: int = 0) -> list[str]:
        run = Run("w1", "add", "g1", 1, turn)
        ids = [run.child_id("add", "1"), run.child_id("add", "1"), run.child_id("add", "2")]
        return [*ids, run.gate_id(), run.gate_id()]

    assert children() == children()
    assert len(set(children())) == 5
    assert not set(children()) & set(children(turn=1))
    assert children()[3:] == [gate_id("w1", 0, 0), gate_id("w1", 0, 1)]


def test_a_work_built_in_a_handler_has_an_id_that_follows_from_it():
    def inside() -> list[str]:
        current_run.set(Run("w1", "add", "g1", 1))
        return [new_id("add", "1"), new_id("add", "1")]

    first, second = (contextvars.copy_context().run(inside) for _ in range(2))
    assert first == second
    assert new_id("add", "1") != new_id("add", "1")


# ---- notices --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["done", "group", "cancel", "progress"])
@pytest.mark.parametrize("data", [None, [1, 2.5, "half"]])
def test_a_notice_comes_back_the_same(kind, data):
    assert decode_notice(encode_notice(kind, "w1", data)) == Notice(kind, "w1", data)


@pytest.mark.parametrize(
    "text",
    ["", "junk", "{}", "[]", "3", "null", '["done"]', '["done",1]', '[1,"w1"]', '["other","w1"]',
     '["done","w1",1,2]', "[" * 100_000, '"done"', '[["done"],"w1"]'],
)  # fmt: skip
def test_junk_is_no_notice(text):  # S51
    assert decode_notice(text) is None


@given(st.text())
def test_any_text_is_a_notice_or_none(text):  # S51
    assert decode_notice(text) is None or decode_notice(text)


# ---- settings -------------------------------------------------------------------------------


def test_the_defaults_of_the_settings():  # S150
    settings = Settings()
    settings.check()
    assert (settings.poll_cap, settings.result_ttl, settings.group_grace) == (512, 86400, 0.1)
    assert (settings.unknown_delay, settings.early, settings.claim_ttl) == (5.0, 1.0, 90.0)
    assert (settings.visibility, settings.heartbeat, settings.poll_interval) == (30, 10, 20)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"poll_interval": 0}, "poll_interval must be above 0"),
        ({"visibility": 0, "heartbeat": 0}, "visibility must be above 0"),
        ({"heartbeat": 0}, "heartbeat must be above 0"),
        ({"result_ttl": 0}, "result_ttl must be above 0"),
        ({"start_after": -1}, "start_after must be at least 0, not -1"),
        ({"redrive_count": -1}, "redrive_count must be at least 0"),
        ({"redrive_count": 1.5}, r"redrive_count must be a whole number, not 1\.5"),
        ({"max_redrives": True}, "max_redrives must be a whole number, not True"),
        ({"heartbeat": 16}, r"heartbeat \(16 s\) must be at most half of visibility \(30 s\)"),
        ({"visibility": float("nan")}, "visibility"),
        ({"heartbeat": float("nan")}, "heartbeat"),
        ({"result_ttl": float("inf")}, "result_ttl"),
        ({"poll_interval": float("inf")}, "poll_interval"),
    ],
)
def test_a_setting_out_of_its_range_is_named(options, said):
    with pytest.raises(ConfigError, match=said):
        Settings(**options).check()


# ---- hooks ----------------------------------------------------------------------------------

EVENT = WorkEvent("queued", "w1", "add", "w1", 1, NOON)


def test_errors_that_nobody_awaits_are_told_and_logged(caplog):  # S20
    told: list[Any] = []
    error = ValueError("no")
    Hooks(on_error=lambda *args: told.append(args)).report(error, "queue", "pop failed")
    assert told == [(error, "queue")]
    assert "pop failed: no" in caplog.text
    Hooks().report(error, "commit")
    assert "commit: no" in caplog.text


def test_a_hook_that_raises_is_logged_and_changes_nothing(caplog):  # S20 S21
    def broken(*_: Any) -> None:
        raise RuntimeError("hook")

    heard: list[Any] = []
    Hooks(on_error=broken).report(ValueError("no"), "commit")
    assert "on_error raised" in caplog.text
    Hooks(on_event=broken).emit(EVENT, heard.append)
    assert heard == [EVENT]
    assert "on_event raised at queued of w1" in caplog.text
    Hooks().emit(EVENT, None)


def test_the_systems_listener_hears_first():  # S21
    heard: list[str] = []
    Hooks(on_event=lambda _: heard.append("system")).emit(EVENT, lambda _: heard.append("type"))
    assert heard == ["system", "type"]


async def test_hooks_may_be_plain_or_async():
    async def later() -> int:
        return 3

    assert (await resolve(3), await resolve(later())) == (3, 3)


# ---- the log --------------------------------------------------------------------------------


def filtered(run: Run | None) -> logging.LogRecord:
    record = logging.makeLogRecord({"msg": "hello"})

    def inside() -> None:
        current_run.set(run)
        assert WorkLogFilter().filter(record)

    contextvars.copy_context().run(inside)
    return record


def test_records_in_a_handler_say_which_work_they_belong_to():
    record = filtered(Run("w1", "add", "g1", 2, log={"tenant": "t", "msg": "not mine"}))
    fields = vars(record)
    assert (fields["work_id"], fields["work_type"], fields["group_id"]) == ("w1", "add", "g1")
    assert (fields["attempt"], fields["tenant"], fields["msg"]) == (2, "t", "hello")


def test_records_outside_of_a_handler_have_the_fields_too():
    fields = vars(filtered(None))
    assert (fields["work_id"], fields["work_type"], fields["group_id"]) == ("", "", "")
    assert fields["attempt"] == 0


def test_the_types_log_context_lies_over_the_systems():  # S22
    typed = define_work("t", lambda a: a, log_context=lambda given: {"a": given["a"], "who": "t"})
    hooks = Hooks(log_context=lambda given, name: {"who": "system", "name": name})
    assert log_fields(hooks, typed, typed(3).encoded) == {"a": 3, "who": "t", "name": "t"}
    plain = define_work("p", lambda a: a)
    assert log_fields(Hooks(), plain, plain(3).encoded) == {}


def test_a_log_context_that_raises_is_logged_and_left_out(caplog):
    typed = define_work("t", lambda a: a, log_context=lambda given: {"a": 1 / 0})
    hooks = Hooks(log_context=lambda *_: {"who": "system"})
    assert log_fields(hooks, typed, typed(3).encoded) == {"who": "system"}
    assert "log_context of t raised" in caplog.text


# ---- schedules ------------------------------------------------------------------------------


@define_work
def add(a: int, b: int) -> int:
    return a + b


async def test_a_schedules_work_is_given_or_made():  # S115
    built = add(1, 2)

    async def later():
        return built

    assert await make_work(built) is built
    assert await make_work(lambda: built) is built
    assert await make_work(later) is built
    assert await make_work(lambda: None) is None
    with pytest.raises(ConfigError, match="must return a work or None, not int"):
        await make_work(lambda: 3)


def test_a_schedules_handle_cancels_it():
    calls: list[int] = []
    handle = ScheduleHandle("report", lambda: calls.append(1))
    assert repr(handle) == "<ScheduleHandle report>"
    handle.cancel()
    assert calls == [1]


# ---- errors and signals ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (InvalidWorkError("is missing"), "is missing"),
        (
            InvalidWorkError("is missing", work_type="add", field="a", fix="Give it."),
            "work type 'add': field 'a': is missing. Give it.",
        ),
        (UnknownWorkError("add"), "unknown work type: add. Registered here: none. "),
        (UnknownWorkError("add", ["c", "b"]), "unknown work type: add. Registered here: b, c. "),
        (WorkFailedError("E: no", id="w1"), "E: no"),
        (WorkCancelledError("w1"), "work w1 was cancelled"),
        (WorkCancelledError("w1", "why"), "work w1 was cancelled: why"),
        (WorkExpiredError("w1"), "work w1 passed its deadline"),
        (ResultGoneError("w1"), "there is no record of work w1"),
        (PayloadTooLargeError("the message", size=2000, limit=1000), "has 2,000 bytes; the"),
        (LeaseLostError("w1"), "the lease of work w1 was lost"),
        (BackendError("table", "write", "throttled"), "write on table failed: throttled"),
        (BackendError("t", "w", "no", fix="Ask."), "w on t failed: no. Ask."),
    ],
)
def test_an_errors_text_says_what_happened_and_what_to_do(error, text):
    assert text in str(error)
    assert isinstance(error, PieceworkError)


def test_errors_carry_what_they_are_about():
    error = WorkFailedError("E: no", id="w1", type="add", error_type="E", traceback="tb")
    assert (error.id, error.type, error.error_type, error.traceback) == ("w1", "add", "E", "tb")
    unknown = UnknownWorkError("add", ["b"])
    assert (unknown.work_type, unknown.known) == ("add", ("b",))


def test_signals_are_no_errors_of_ours():  # S76 S77
    for signal in (WorkDelayError(3), RetryAbort("x")):
        assert isinstance(signal, WorkSignal)
        assert not isinstance(signal, PieceworkError)


@pytest.mark.parametrize(
    ("signal", "delay", "text"),
    [
        (WorkDelayError(), None, "put off for 0 s"),
        (WorkDelayError(delay=30), 30.0, "put off for 30 s"),
        (WorkDelayError(timedelta(minutes=1)), 60.0, "put off for 60 s"),
        (WorkDelayError(-3), 0.0, "put off for 0 s"),
        (WorkDelayError(float("nan")), 0.0, "put off"),
        (WorkDelayError(run_at=NOON), None, "put off until 2030-01-01T12:00:00+00:00"),
    ],
)
def test_a_delay_is_in_seconds_and_never_below_zero(signal, delay, text):  # S76
    assert signal.delay == delay
    assert str(signal).startswith(text)


def test_an_abort_keeps_its_cause():  # S77
    cause = ValueError("no")
    assert RetryAbort(cause).cause is cause
    assert str(RetryAbort(cause)) == "no"
    assert str(RetryAbort("stolen").cause) == "stolen"
    assert str(RetryAbort()) == "aborted"
