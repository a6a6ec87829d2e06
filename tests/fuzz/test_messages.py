"""Any text on the queue of a running system: kept with a reason, or run; its neighbours succeed."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.effort import fuzzed

from piecework.gates import DEPENDENCY_TYPE
from piecework.testing.fuzz import (
    FOREIGN,
    Entrance,
    bodies,
    envelopes,
    inputs,
    json_values,
    mutated,
    push,
)

TYPES = ["add", "loose", "batch", "neighbour", "nobody knows it"]


@fuzzed(25)
@given(st.lists(bodies(envelopes(TYPES)), max_size=6))
def test_any_text_on_the_queue_is_kept_or_run(texts):  # P7 S60
    Entrance(push).run(texts)


@fuzzed(25)
@given(st.lists(mutated(envelopes(TYPES)), max_size=6))
def test_any_envelope_that_something_happened_to_is_kept_or_run(texts):  # P7 S60 S63
    Entrance(push).run(texts)


@fuzzed(20)
@given(st.lists(envelopes(TYPES).map(json.dumps), max_size=6), st.booleans())
def test_any_envelope_ends_also_where_hooks_look_at_its_input(texts, at_once):  # P7 S63
    """The hooks are told the input, which may be none."""
    options: dict[str, Any] = {
        "accept": lambda info: info.attempt > 0,
        "log_context": lambda arguments, work_type: {"arguments": len(arguments)},
        "on_failure": lambda error, info: None,
        "start_after": 0 if at_once else 1,
    }
    Entrance(push, **options).run(texts)


@fuzzed(20)
@given(
    st.lists(
        envelopes(
            [DEPENDENCY_TYPE],
            inputs()
            | st.dictionaries(
                st.sampled_from(["on", "queue", "when", "poll", "timeout", "then", "total"]),
                json_values(max_leaves=4),
            ).map(lambda spec: json.dumps({"spec": json.dumps(spec)})),
        ).map(json.dumps),
        max_size=4,
    )
)
def test_any_input_of_the_built_in_type_ends(texts):  # P7
    Entrance(push).run(texts)


@pytest.mark.parametrize("name", FOREIGN)
def test_a_message_of_another_program_is_a_dead_letter(name):  # P7 B11
    (fate,) = Entrance(push).run([FOREIGN[name]])
    assert fate.kind == "dead"
    assert fate.reason.startswith("bad message: ")
