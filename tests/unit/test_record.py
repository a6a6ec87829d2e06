"""What stands in a work's record, and what is made of anything else that stands there."""

from __future__ import annotations

import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from piecework.clock import from_ms
from piecework.envelope import Envelope, encode
from piecework.errors import InvalidWorkError
from piecework.ports.store import Record
from piecework.record import (
    Outcome,
    pending_value,
    read_item,
    read_state,
    running_value,
    terminal_value,
    with_header,
)
from piecework.state import Progress

ENV = Envelope("w1", "add", '{"a":1}', "g1", 1000, 2000, attempt=2, priority=3, group="t")
BODY = encode(ENV)


def record(value: str | None, version: int = 1) -> Record:
    return Record("work:item:w1", value, version if value is not None else 0)


def test_a_work_that_waits_is_read_from_its_envelope():
    item = read_item(record(pending_value(BODY), 4))
    assert item is not None
    assert (item.status, item.terminal, item.writer, item.version) == ("pending", False, None, 4)
    assert item.envelope() == ENV._replace(version=4, retry=item.envelope().retry)
    state = read_state("w1", record(pending_value(BODY)))
    assert state is not None
    assert (state.status, state.type, state.attempt) == ("pending", "add", 2)
    assert (state.priority, state.group, state.group_id) == (3, "t", "g1")
    assert (state.queue_at, state.start_at) == (from_ms(1000), from_ms(2000))  # S35
    assert (state.run_at, state.end_at, state.progress, state.terminal) == (None, None, None, False)


def test_a_work_that_was_put_off_names_its_writer():
    item = read_item(record(pending_value(BODY, "run 7")))
    assert item is not None
    assert item.writer == "run 7"


@pytest.mark.parametrize("progress", [None, [1, 2, "half"]])
def test_a_running_work_tells_its_attempt_its_start_and_its_progress(progress):
    value = running_value(
        BODY, attempt=5, writer="x", run_at=3000, lease_until=9000, progress=progress
    )
    item = read_item(record(value, 2))
    assert item is not None
    assert (item.status, item.writer, item.header["l"]) == ("running", "x", 9000)
    assert (item.envelope().attempt, item.envelope().version) == (5, 2)
    state = read_state("w1", record(value))
    assert state is not None
    assert state.run_at == datetime(1970, 1, 1, 0, 0, 3, tzinfo=UTC)
    assert state.progress == (Progress(1, 2, "half") if progress else None)


def test_a_settled_work_says_how_it_ended():  # S46 S71
    value = terminal_value(
        ENV._replace(parent_id="p", gate="gate"),
        Outcome("dead", error="E: 'no'\n", error_type="E", traceback='tb "\n'),
        writer="x",
        run_at=3000,
        end_at=4000,
        body=BODY,
    )
    state = read_state("w1", record(value))
    assert state is not None
    assert (state.status, state.error, state.terminal) == ("dead", "E: 'no'\n", True)
    assert (state.run_at, state.end_at) == (from_ms(3000), from_ms(4000))
    assert (state.priority, state.group, state.group_id, state.parent_id) == (3, "t", "g1", "p")
    item = read_item(record(value, 7))
    assert item is not None
    assert (item.header["tb"], item.header["gate"], item.payload) == ('tb "\n', "gate", BODY)
    assert item.envelope().version == 7


def test_a_result_stands_behind_the_header_and_may_hold_anything():
    env = Envelope("w1", "add", "{}", "w1", 1, 2)
    result = '"a\nb {} \u2028"'
    value = terminal_value(env, Outcome("success", result), writer="x", run_at=None, end_at=4)
    item = read_item(record(value))
    assert item is not None
    assert item.payload == result
    state = read_state("w1", record(value))
    assert state is not None
    assert (state.group_id, state.group, state.priority, state.run_at) == ("w1", None, 0, None)
    again = read_item(record(with_header(item, done=3)))
    assert again is not None
    assert (again.header["done"], again.payload, again.header["t"]) == (3, result, "add")


@pytest.mark.parametrize("status", ["cancelled", "expired"])
def test_a_work_that_never_ran_has_no_payload(status):
    value = terminal_value(ENV, Outcome(status), writer="x", run_at=None, end_at=4)
    item = read_item(record(value))
    assert item is not None
    assert (item.status, item.payload) == (status, "")


def test_where_there_is_no_record_there_is_no_state():  # S43
    assert read_item(record(None)) is None
    assert read_state("w1", record(None)) is None


CORRUPT = [
    "",
    "1",
    "junk",
    "success",
    "pending",
    "pending\nnot an envelope",
    "running {}\n{}",
    "pending {\n",
    "pending []\n",
    "dead 7\n",
    "success nonsense\n1",
    "success {}\n1",
    'success {"t":"a"}\n1',
    'success {"t":1,"a":1,"q":1,"s":1,"e":1}\n1',
    'success {"t":"a","a":"1","q":1,"s":1,"e":1}\n1',
    'success {"t":"a","a":1,"q":"x","s":1,"e":1}\n1',
    f'success {{"t":"a","a":1,"q":{10**30},"s":1,"e":1}}\n1',
    'dead {"t":"a","a":1,"q":null,"s":1,"e":1}\n',
    f'running {{"pr":7}}\n{BODY}',
    f'running {{"r":"x"}}\n{BODY}',
    "success " + "[" * 100_000 + "\n1",
]


@pytest.mark.parametrize("value", CORRUPT)
def test_a_corrupt_record_is_refused_by_its_key(value):  # S43
    with pytest.raises(InvalidWorkError):
        read_state("w1", record(value))


@given(st.text(), st.sampled_from(["", "pending ", "running ", "success ", "dead "]), st.text())
def test_any_value_is_read_or_refused_with_our_error(head, status, payload):  # S43
    with contextlib.suppress(InvalidWorkError):
        read_state("w1", record(f"{status}{head}\n{payload}"))


def test_a_record_of_a_newer_release_is_refused():  # S43
    newer = json.dumps({**json.loads(BODY), "v": 2})
    with pytest.raises(InvalidWorkError, match="version 2"):
        read_state("w1", record(pending_value(newer)))
