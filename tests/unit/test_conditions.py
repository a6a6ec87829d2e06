"""Conditions on the ends of works, dependencies, and works as plain data."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from piecework import define_work
from piecework.dependency import dependency
from piecework.envelope import Envelope
from piecework.errors import InvalidWorkError
from piecework.gates import (
    DEPENDENCY_TYPE,
    GateSpec,
    check_when,
    condition_met,
    is_drained,
    is_gate,
    judge,
    judge_gate,
)
from piecework.ledger import FAILED, HOLD, MEMBERS, OK
from piecework.packing import pack_work, unpack_work
from piecework.ports.store import Record
from piecework.retry import Retry
from piecework.state import WorkState

LETTERS = {
    "s": "success",
    "d": "dead",
    "c": "cancelled",
    "e": "expired",
    "p": "pending",
    "r": "running",
}


def states(letters: str) -> list[WorkState | None]:
    return [None if letter == "-" else WorkState("w", "add", LETTERS[letter]) for letter in letters]


def count(number: int, of: str | None = None) -> Any:
    return {"count": number} if of is None else {"count": number, "of": of}


@pytest.mark.parametrize(
    ("when", "letters", "met"),
    [
        ("all-done", "", True),
        ("all-done", "s", True),
        ("all-done", "sdce", True),
        ("all-done", "sp", False),
        ("all-done", "sr", False),
        ("all-done", "s-", False),
        ("all-success", "", True),
        ("all-success", "ss", True),
        ("all-success", "sd", False),
        ("all-success", "sc", False),
        ("all-success", "se", False),
        ("all-success", "sp", False),
        ("all-success", "s-", False),
        (count(0), "", True),
        (count(0), "p", True),
        (count(1), "", False),
        (count(1), "d", False),
        (count(1), "ps", True),
        (count(2), "ssd", True),
        (count(2), "sd-", False),
        (count(2, "success"), "sdd", False),
        (count(2, "success"), "sds", True),
        (count(2, "done"), "sdp", True),
        (count(2, "done"), "ce", True),
        (count(2, "done"), "srp", False),
        (count(3, "done"), "sd", False),
    ],
)
def test_whether_a_condition_is_met(when, letters, met):  # S106
    assert condition_met(when, states(letters)) is met


@pytest.mark.parametrize(
    ("when", "ok", "failed", "drained", "verdict"),
    [
        ("all-done", 1, 1, False, "wait"),
        ("all-done", 1, 2, True, "fire"),
        ("all-success", 1, 0, False, "wait"),
        ("all-success", 0, 1, False, "fail"),
        ("all-success", 3, 0, True, "fire"),
        (count(2), 1, 1, False, "wait"),
        (count(2), 1, 2, False, "fail"),
        (count(2), 2, 0, False, "fire"),
        (count(2), 1, 2, True, "fail"),
        (count(2, "done"), 1, 0, False, "wait"),
        (count(2, "done"), 0, 2, False, "fire"),
        (count(4, "done"), 1, 2, True, "fail"),
        (count(4, "done"), 0, 0, False, "fail"),
    ],
)
def test_a_gate_of_three_fires_fails_or_waits(when, ok, failed, drained, verdict):  # S106
    assert judge(when, total=3, ok=ok, failed=failed, drained=drained) == verdict


@given(
    st.sampled_from(["all-done", "all-success"])
    | st.builds(count, st.integers(0, 5), st.sampled_from(["success", "done", None])),
    st.integers(0, 4),
    st.lists(st.booleans(), max_size=4),
)
def test_a_verdict_once_given_holds_to_the_end(when, more, ends):  # P4
    total = len(ends) + more
    ends = [*ends, *[True] * more]
    seen: list[str] = []
    for done in range(total + 1):
        ok = sum(ends[:done])
        seen.append(judge(when, total=total, ok=ok, failed=done - ok, drained=done == total))
    assert seen[-1] != "wait"
    decided = [verdict for verdict in seen if verdict != "wait"]
    assert set(decided) == {decided[0]}
    assert seen == ["wait"] * (len(seen) - len(decided)) + decided


@pytest.mark.parametrize(
    ("counters", "drained", "verdict"),
    [
        ({HOLD: 1}, False, "wait"),
        ({MEMBERS: 1, OK: 1}, False, "wait"),
        ({HOLD: 1, OK: 2}, False, "wait"),
        ({OK: 2}, True, "fire"),
        ({OK: 1, FAILED: 1}, True, "fire"),
    ],
)
def test_a_gate_is_drained_when_all_its_works_are_queued_and_ended(counters, drained, verdict):
    record = Record("gate", "", 1, counters)
    assert is_drained(record) is drained
    assert judge_gate(GateSpec((), "all-done", 2), record) == verdict


def test_a_gates_spec_comes_back_the_same():
    spec = GateSpec(("a", "b"), {"count": 2, "of": "done"}, 5)
    assert GateSpec.decode(spec.encode()) == spec
    env = Envelope("g", DEPENDENCY_TYPE, spec.encode(), "g", 1, 1)
    assert is_gate(env)
    assert not is_gate(env._replace(type="add"))
    assert not is_gate(env._replace(input='{"spec":"{}"}'))


@pytest.mark.parametrize(
    "when",
    [
        "all",
        "",
        None,
        3,
        [],
        {},
        {"count": -1},
        {"count": 1.5},
        {"count": True},
        {"count": "2"},
        {"count": 1, "of": "dead"},
        {"of": "done"},
        {"count": 1, "of": "done", "x": 1},
        {"count": 1, "off": "done"},
        {"count": 1, "of": []},
    ],
)
def test_an_unknown_condition_is_refused_with_the_known_ones(when):
    with pytest.raises(InvalidWorkError, match="all-success") as caught:
        check_when(when)
    assert caught.value.field == "when"


def test_a_count_is_of_successes_unless_told():
    assert check_when({"count": 2}) == {"count": 2, "of": "success"}
    assert check_when("all-done") == "all-done"


# ---- dependencies ---------------------------------------------------------------------------


@define_work
def add(a: int, b: int) -> int:
    return a + b


def spec_of(work: Any) -> dict[str, Any]:
    return json.loads(work.input["spec"])


def test_a_dependency_is_a_work_that_holds_all_it_needs():  # S101 S107
    first, then = add(1, 2), add(3, 4).with_options(priority=3)
    work = dependency([first, "other"], then, poll=timedelta(seconds=2), timeout=60)
    assert work.type == DEPENDENCY_TYPE
    spec = spec_of(work)
    assert spec == {
        "on": [first.id, "other"],
        "queue": [
            {"type": "add", "id": then.id, "input": then.encoded, "options": {"priority": 3}}
        ],
        "when": "all-success",
        "poll": 2.0,
        "timeout": 60.0,
    }


def test_a_dependency_waits_for_ever_unless_told():  # S101
    spec = spec_of(dependency(["a"], [add(1, 2), add(3, 4)], when={"count": 1}))
    assert (spec["poll"], spec["timeout"]) == (1.0, None)
    assert spec["when"] == {"count": 1, "of": "success"}
    assert len(spec["queue"]) == 2


@pytest.mark.parametrize(
    "options", [{"poll": 0}, {"poll": -1}, {"poll": 0.01}, {"timeout": 0}, {"timeout": -1}]
)
def test_times_of_a_dependency_that_cannot_be_used_are_refused(options):
    with pytest.raises(InvalidWorkError, match=r"poll must be at least 0\.05 s"):
        dependency(["a"], add(1, 2), **options)


def test_a_condition_of_a_dependency_that_cannot_be_used_is_refused():
    with pytest.raises(InvalidWorkError, match="'when'"):
        dependency(["a"], add(1, 2), when="most")


def test_a_work_travels_as_plain_data():
    work = add(1, 2).with_options(retry=Retry(attempts=2), delay=3)
    packed = json.loads(json.dumps(pack_work(work)))
    again = unpack_work({"add": add}.__getitem__, packed)
    assert (again.id, again.type, again.input) == (work.id, "add", {"a": 1, "b": 2})
    assert again.options == work.options
