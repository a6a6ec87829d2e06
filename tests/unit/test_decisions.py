"""What a record means for a delivery, and what a failure leads to: tables."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from piecework.clock import to_ms
from piecework.definitions import Delay, RunAt
from piecework.engine.decide import (
    Absent,
    Adopt,
    Again,
    Die,
    Duplicate,
    Finished,
    LookAgainError,
    PutOff,
    TakeOver,
    check_fate,
    decide_failure,
    die,
    stand,
)
from piecework.engine.executors import HandlerError
from piecework.envelope import Envelope, decode, encode
from piecework.errors import ConfigError
from piecework.ports.store import Record
from piecework.record import Outcome, pending_value, read_item, running_value, terminal_value
from piecework.retry import Retry
from piecework.signals import RetryAbort, WorkDelayError

NOW = 1_000_000_000_000
ENV = decode(encode(Envelope("w1", "add", "{}", "w1", NOW, NOW, retry=Retry(jitter=0.5))))
BODY = encode(ENV)
NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)
PAST = datetime(1990, 1, 1, tzinfo=UTC)


def found(value: str | None, version: int = 3):
    return stand(read_item(Record("work:item:w1", value, version)), now_ms=NOW)


def running(lease_until: int) -> str:
    return running_value(BODY, attempt=2, writer="x", run_at=1, lease_until=lease_until)


def test_no_record_is_absent():
    assert found(None) == Absent()


@pytest.mark.parametrize("status", ["success", "dead", "cancelled", "expired"])
def test_a_terminal_record_is_finished(status):
    value = terminal_value(ENV, Outcome(status), writer="x", run_at=None, end_at=1)
    standing = found(value)
    assert isinstance(standing, Finished)
    assert standing.item.status == status


def test_a_pending_record_is_adopted_at_its_version():
    assert found(pending_value(BODY)) == Adopt(ENV._replace(version=3), BODY)


def test_a_live_lease_makes_a_duplicate_until_it_ends():
    assert found(running(NOW + 4500)) == Duplicate(4.5)


@pytest.mark.parametrize("ago", [0, 1, 10_000])
def test_a_lease_that_is_over_is_taken_over_and_counts_as_an_attempt(ago):  # Q3
    assert found(running(NOW - ago)) == TakeOver(ENV._replace(version=3, attempt=3), BODY)


def decide(
    error: BaseException, *, attempt: int = 1, fate: Any = None, asked: list[Any] | None = None
):
    def classify(given: BaseException) -> Any:
        if asked is not None:
            asked.append(given)
        return fate

    env = ENV._replace(
        attempt=attempt, retry=Retry(attempts=3, base=2, factor=3, max=10, jitter=0.5)
    )
    return decide_failure(error, env, classify=classify, now_ms=NOW, random=lambda: 0.5)


def test_a_failure_is_tried_again_with_a_growing_delay():  # S73 S74
    assert decide(ValueError("no")) == Again(1.5, "ValueError: no")
    assert decide(ValueError("no"), attempt=2) == Again(4.5, "ValueError: no")


def test_the_last_attempt_is_the_end():  # S75
    verdict = decide(ValueError("no"), attempt=3)
    assert isinstance(verdict, Die)
    assert (verdict.error, verdict.error_type) == ("ValueError: no", "ValueError")
    assert isinstance(decide(ValueError("no"), attempt=9), Die)


def test_without_a_classifier_the_default_holds():
    verdict = decide_failure(ValueError("no"), ENV, classify=None, now_ms=NOW, random=lambda: 0.0)
    assert verdict == Again(1.0, "ValueError: no")


@pytest.mark.parametrize(
    ("signal", "start_at"),
    [
        (WorkDelayError(2.5), NOW + 2500),
        (WorkDelayError(timedelta(minutes=1)), NOW + 60_000),
        (WorkDelayError(), NOW),
        (WorkDelayError(-5), NOW),
        (WorkDelayError(run_at=NOON), to_ms(NOON)),
        (WorkDelayError(5, run_at=NOON), to_ms(NOON)),
        (WorkDelayError(run_at=PAST), NOW),
    ],
)
@pytest.mark.parametrize("attempt", [1, 3, 9])
def test_a_work_puts_itself_off_for_ever_without_the_classifier(signal, start_at, attempt):
    # S76 S82
    asked: list[Any] = []
    assert decide(signal, attempt=attempt, fate="abort", asked=asked) == PutOff(start_at, turn=True)
    assert asked == []


@pytest.mark.parametrize(
    "signal", [WorkDelayError(float("inf")), WorkDelayError(run_at=datetime(2030, 1, 1))]
)
def test_a_time_that_cannot_be_used_is_a_failure(signal):
    verdict = decide(signal, attempt=3)
    assert isinstance(verdict, Die)
    assert verdict.error_type == "ConfigError"


def test_a_dependency_that_looks_again_changes_its_input():
    assert decide(LookAgainError(2, "seen")) == PutOff(NOW + 2000, turn=True, input="seen")


def test_an_abort_is_the_end_at_once_and_names_its_cause():  # S77 S82
    asked: list[Any] = []
    verdict = decide(RetryAbort(KeyError("a")), fate="retry", asked=asked)
    assert isinstance(verdict, Die)
    assert (verdict.error, verdict.error_type, asked) == ("KeyError: 'a'", "KeyError", [])
    assert decide(RetryAbort("stolen")) == die(RetryAbort("stolen"))


@pytest.mark.parametrize(
    ("fate", "start_at"),
    [
        (Delay(2), NOW + 2000),
        (Delay(timedelta(seconds=3)), NOW + 3000),
        (Delay(-3), NOW),
        (RunAt(NOON), to_ms(NOON)),
        (RunAt(PAST), NOW),
    ],
)
def test_a_classifier_puts_off_without_an_attempt_and_without_a_new_turn(fate, start_at):  # S79
    assert decide(ValueError("no"), attempt=3, fate=fate) == PutOff(start_at, turn=False)
    assert check_fate(fate, NOW) is fate


def test_a_classifier_aborts_or_leaves_it_as_usual():  # S78 S80
    assert isinstance(decide(ValueError("no"), fate="abort"), Die)
    for fate in ("retry", None):
        assert isinstance(decide(ValueError("no"), fate=fate), Again)
        assert isinstance(decide(ValueError("no"), fate=fate, attempt=3), Die)
        assert check_fate(fate, NOW) is fate


@pytest.mark.parametrize(
    "fate", [3, True, "again", {"delay": 3}, Delay(float("inf")), RunAt(datetime(2030, 1, 1))]
)
def test_a_classifiers_answer_of_no_use_is_refused(fate):  # S81
    with pytest.raises(ConfigError):
        check_fate(fate, NOW)


def test_an_error_of_a_worker_process_keeps_its_name_and_traceback():
    error = HandlerError("no such file", error_type="FileNotFoundError", traceback="tb")
    assert die(error) == Die("FileNotFoundError: no such file", "FileNotFoundError", "tb")
    assert die(HandlerError("", error_type="OddError")).error == "OddError"
    assert die(HandlerError("", error_type="OddError")).traceback
