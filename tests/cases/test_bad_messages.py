"""Messages that nobody can run: the cases B11, B12 and promise P7."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.cases.conftest import Fleet

from piecework import Message, Retry, define_work
from piecework.envelope import decode, encode
from piecework.testing.virtual_clock import VirtualClock

S3_EVENT = json.dumps(
    {"Records": [{"eventSource": "aws:s3", "s3": {"object": {"key": "a.jpg", "size": 1}}}]}
)
ENVELOPE: dict[str, Any] = {
    "v": 1,
    "id": "1",
    "type": "add",
    "input": '{"a":1,"b":2}',
    "group_id": "1",
    "queue_at": 0,
    "start_at": 0,
    "retry": [3, 1.0, 2.0, 30.0, 0.5],
}

NEVER_OURS = {
    "text": "hello",
    "empty": "",
    "empty object": "{}",
    "null": "null",
    "a list": "[1, 2]",
    "an event of S3": S3_EVENT,
    "deep nesting": '{"a":' * 5000 + "1" + "}" * 5000,
    "a megabyte of brackets": "[" * 1_000_000,
    "half of a pair": '{"v": 1, "id": "\ud800"}',
    "not a number": '{"v": NaN}',
    "a huge number": '{"v": 1e400}',
    "many digits": '{"v": 1, "queue_at": ' + "9" * 5000 + "}",
}

BROKEN = {
    "a number as the id": {"id": 7},
    "a list as the type": {"type": ["add"]},
    "a number as the input": {"input": 1},
    "input that is no JSON": {"input": "{"},
    "input of another shape": {"input": "[1]"},
    "input with a text for a number": {"input": '{"a":"x","b":2}'},
    "input with a half of a pair": {"input": '{"a":"\ud800","b":2}'},
    "deep input": {"input": "[" * 100_000},
    "a text as the time": {"start_at": "soon"},
    "a time beyond time": {"start_at": 10**30},
    "a negative attempt": {"attempt": -1},
    "true as the attempt": {"attempt": True},
    "a policy that is none": {"retry": "always"},
    "a policy of no attempts": {"retry": [0, 1, 1, 1, 0]},
    "an unknown field": {"surprise": 1},
    "a tracking level that is none": {"track": "most"},
    "a trace of numbers": {"trace": {"a": 1}},
}


def broken(**changes: Any) -> str:
    return json.dumps({**ENVELOPE, **changes})


@define_work
def add(a: int, b: int) -> int:
    return a + b


async def letters_after(fleet: Fleet, clock: VirtualClock, *bodies: str) -> list[Any]:
    """Push foreign bodies among three good works; all good ones run."""
    (system,) = await fleet.started(1, add)
    first = await system.enqueue(add(1, 1))
    await fleet.wire.queue.push([Message(body) for body in bodies])
    rest = await system.enqueue_many([add(2, 2), add(3, 3)])
    await clock.advance(3600)
    assert [await handle.result(timeout=1) for handle in [first, *rest]] == [2, 4, 6]
    assert await fleet.wire.queue.size() == 0
    return await system.dead_letters(limit=1000)


async def test_messages_that_were_never_ours_are_kept_with_a_reason(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B11
    letters = await letters_after(fleet, virtual_clock, *NEVER_OURS.values())
    assert sorted(letter.body for letter in letters) == sorted(NEVER_OURS.values())
    assert all("bad message: " in letter.reason for letter in letters)


@pytest.mark.parametrize("name", BROKEN)
async def test_a_broken_envelope_is_kept_with_a_reason(
    fleet: Fleet, virtual_clock: VirtualClock, name: str
) -> None:  # B11
    body = broken(**BROKEN[name])
    (letter,) = await letters_after(fleet, virtual_clock, body)
    assert letter.body == body
    assert "bad " in letter.reason
    if name == "input with a text for a number":
        assert "add" in letter.reason
        assert "'a'" in letter.reason


async def test_a_message_of_a_newer_release_is_given_back_and_kept_in_the_end(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B11, B12
    (letter,) = await letters_after(fleet, virtual_clock, broken(v=2))
    assert "envelope version 2" in letter.reason


async def test_bad_input_ends_the_work_with_an_error_that_names_type_and_field(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B11
    @define_work("add")
    def other(a: str, b: str) -> str:  # an earlier release's idea of it
        return a + b

    (old,) = [fleet.system(other, auto_start=False)]
    handle = await old.enqueue(other("x", "y"))
    await fleet.started(1, add)
    await virtual_clock.advance(60)
    state = await handle.state()
    assert (state.status, state.attempt) == ("dead", 1)
    assert "bad input" in state.error
    assert "'add'" in state.error
    assert "'a'" in state.error


async def test_a_work_of_an_unknown_type_is_left_to_those_who_know_it(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B12
    @define_work("new")
    def new() -> str:
        return "ran"

    (old,) = await fleet.started(1, add)
    handle = await old.enqueue(new())
    await virtual_clock.advance(1)
    assert (await handle.state()).status == "pending"
    await fleet.started(1, new)
    await virtual_clock.advance(60)
    assert await handle.result(timeout=1) == "ran"
    assert (await handle.state()).attempt == 1
    assert await fleet.wire.queue.dead.size() == 0


async def test_a_work_whose_type_nobody_knows_ends_in_the_dead_letters(
    fleet: Fleet, virtual_clock: VirtualClock
) -> None:  # B12
    @define_work("new", retry=Retry(attempts=3))
    def new() -> str:
        return "ran"

    first, _ = await fleet.started(2, add)
    handle = await first.enqueue(new())
    await virtual_clock.advance(3600)
    (letter,) = await first.dead_letters()
    assert letter.reason == "unknown work type: new"
    state = await handle.state()
    assert (state.status, state.error) == ("dead", "unknown work type: new")
    assert fleet.events.count(("failed", handle.id)) == 1


def test_an_envelope_survives_the_wire() -> None:
    body = json.dumps(ENVELOPE)
    assert decode(encode(decode(body))) == decode(body)
