"""What travels in a message, and what is made of anything else that comes."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from piecework.envelope import ENVELOPE_VERSION, Envelope, NewerEnvelopeError, decode, encode
from piecework.errors import InvalidWorkError
from piecework.retry import Retry

TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
TIME = st.integers(-(10**13), 10**14)
COUNT = st.integers(0, 10**6)
RETRY = st.builds(
    Retry,
    attempts=st.integers(1, 50),
    base=st.floats(0, 1e6),
    factor=st.floats(1, 10),
    max=st.floats(0, 1e6),
    jitter=st.floats(0, 1),
)
ENVELOPES = st.builds(
    Envelope,
    id=TEXT,
    type=TEXT,
    input=TEXT,
    group_id=TEXT,
    queue_at=TIME,
    start_at=TIME,
    attempt=st.integers(1, 99),
    priority=st.integers(-(10**6), 10**6),
    group=st.none() | TEXT,
    retry=RETRY,
    version=COUNT,
    parent_id=st.none() | TEXT,
    gate=st.none() | TEXT,
    turn=COUNT,
    track=st.sampled_from(["full", "result", "none"]),
    timeout=st.none() | st.floats(0.001, 1e9),
    deadline=st.none() | TIME,
    upstream=st.none() | TEXT,
    unique=st.none() | TEXT,
    unique_until=st.none() | TIME,
    redrives=COUNT,
    trace=st.none() | st.dictionaries(TEXT, TEXT, min_size=1, max_size=3),
    recheck=st.booleans(),
)
PLAIN: dict[str, Any] = {
    "v": 1,
    "id": "w1",
    "type": "add",
    "input": "{}",
    "queue_at": 1,
    "start_at": 2,
    "retry": [3, 1.0, 2.0, 30.0, 0.5],
    "version": 1,
}


def body(**fields: Any) -> str:
    return json.dumps({**PLAIN, **fields})


@given(ENVELOPES)
def test_any_envelope_comes_back_the_same(env):  # S37
    again = decode(encode(env))
    assert again._replace(retry=env.retry) == env
    assert again.retry.as_tuple() == env.retry.as_tuple()


@given(ENVELOPES)
def test_an_envelope_is_one_json_object(env):  # S37
    data = json.loads(encode(env))
    assert data["v"] == ENVELOPE_VERSION
    assert (data["id"], data["type"], data["input"]) == (env.id, env.type, env.input)


def test_fields_that_say_nothing_are_left_out():
    env = Envelope("w1", "add", "{}", "w1", 1, 2)
    assert set(json.loads(encode(env))) == set(PLAIN)
    assert set(json.loads(encode(env._replace(recheck=True)))) == {*PLAIN, "recheck"}
    assert decode(encode(env)).group_id == "w1"


def check(text: str) -> None:
    with contextlib.suppress(InvalidWorkError, NewerEnvelopeError):
        assert isinstance(decode(text), Envelope)


JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=12,
)


@given(st.text() | JUNK.map(json.dumps))
def test_any_text_is_an_envelope_or_refused_with_our_error(text):  # S60 P7
    check(text)


@settings(max_examples=400)
@given(st.sampled_from([*Envelope._fields, "v", "other"]), JUNK)
def test_any_value_of_any_field_is_taken_or_refused_with_our_error(name, value):  # S60 P7
    check(body(**{name: value}))


@given(ENVELOPES, st.data())
def test_a_cut_or_garbled_envelope_is_refused_with_our_error(env, data):  # S60
    text = encode(env)
    at = data.draw(st.integers(0, len(text)))
    check(text[:at])
    check(text[:at] + data.draw(st.text(max_size=3)) + text[at:])


@pytest.mark.parametrize("text", ["", "{", "nope", "[" * 100_000, '{"v":1}x', "NaN"])
def test_what_is_not_json_is_refused(text):  # S60
    with pytest.raises(InvalidWorkError, match="bad message"):
        decode(text)


@pytest.mark.parametrize(("text", "kind"), [("null", "null"), ("[]", "list"), ("3", "int")])
def test_what_is_no_object_is_refused(text, kind):
    with pytest.raises(InvalidWorkError, match=f"not {kind}"):
        decode(text)


@pytest.mark.parametrize("version", [None, 0, -1, "1", True, 1.0, []])
def test_a_message_without_a_version_of_ours_is_refused(version):
    with pytest.raises(InvalidWorkError, match="never ours"):
        decode(body(v=version))


@pytest.mark.parametrize(("name", "shown"), [("add", "add"), (7, "")])
def test_a_message_of_a_newer_release_is_told_apart(name, shown):
    with pytest.raises(NewerEnvelopeError, match="version 2") as caught:
        decode(body(v=2, type=name, something_new=[1]))
    assert (caught.value.version, caught.value.work_type) == (2, shown)


WRONG: dict[str, list[Any]] = {
    "id": ["", 1, None],
    "type": ["", 1, None],
    "input": [1, None, {}],
    "group_id": ["", 1, None],
    "queue_at": ["1", 1.5, True, 10**15],
    "start_at": ["1", None, -(10**15)],
    "attempt": [0, -1, 1.0, True, "1"],
    "priority": ["1", 1.5, True, None],
    "group": ["", 1],
    "retry": [None, [], [3], [0, 1, 2, 3, 0], ["3", 1, 2, 3, 0], 7, {}, [3, 1, 2, 3, 5]],
    "version": [-1, 1.0, True, "1"],
    "parent_id": ["", 1],
    "gate": ["", 1],
    "turn": [-1, "1"],
    "track": ["most", 1, None, []],
    "timeout": [0, -1, "1", True],
    "deadline": ["1", 10**15],
    "upstream": ["", 1],
    "unique": ["", 1],
    "unique_until": ["1"],
    "redrives": [-1, None],
    "trace": [[], {"a": 1}, "x"],
    "recheck": [1, None, "true"],
}


def test_every_field_is_checked():
    assert set(WRONG) == set(Envelope._fields)


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in WRONG.items() for value in values]
)
@pytest.mark.parametrize("more", [{}, {"priority": 3}])
def test_a_field_of_the_wrong_kind_is_named(name, value, more):  # S63 P7
    with pytest.raises(InvalidWorkError, match="bad message") as caught:
        decode(body(**{**more, name: value}))
    assert caught.value.field == name


@pytest.mark.parametrize("name", ["id", "type", "input", "queue_at", "start_at", "retry"])
def test_a_missing_field_is_named(name):
    fields = {key: value for key, value in PLAIN.items() if key != name}
    with pytest.raises(InvalidWorkError, match="bad message") as caught:
        decode(json.dumps(fields))
    assert caught.value.field == name


def test_an_unknown_field_is_named():
    with pytest.raises(InvalidWorkError, match="unknown field") as caught:
        decode(body(colour="red"))
    assert (caught.value.field, caught.value.work_type) == ("colour", "add")


def test_white_space_around_an_envelope_is_borne():
    assert decode(f" {body()} \n") == decode(body())


@pytest.mark.parametrize(
    ("fields", "counter"),
    [
        ({}, "g1"),
        ({"gate": "gate1"}, "gate1"),
        ({"track": "result"}, None),
        ({"track": "none", "gate": "gate1"}, None),
    ],
)
def test_a_work_counts_in_its_gate_or_its_group(fields, counter):
    assert Envelope("w1", "add", "{}", "g1", 1, 2, **fields).counter == counter
