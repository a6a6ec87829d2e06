"""Records that we did not write, under our own keys: no loop ends, and every message is kept."""

from __future__ import annotations

import contextlib
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.effort import fuzzed

from piecework import PieceworkError, Retry, WorkSystem, create_work, define_work, memory_backend
from piecework.clock import sleep
from piecework.engine.decide import stand
from piecework.envelope import NewerEnvelopeError
from piecework.errors import InvalidWorkError
from piecework.ports.store import Record
from piecework.record import read_item, read_state
from piecework.testing.fuzz import bodies, envelopes, json_values, mutated
from piecework.testing.virtual_clock import VirtualClock

STATUS = st.sampled_from(["pending", "running", "success", "dead", "cancelled", "expired", "other"])
NAMES = ["t", "a", "q", "s", "e", "w", "r", "l", "p", "g", "gid", "pid", "gate", "err", "pr", "x"]
USUAL = st.sampled_from([1, 1_767_225_600_000, "add", [1, 2, "x"]])
HEADER = st.dictionaries(st.sampled_from(NAMES), json_values(max_leaves=3) | USUAL).map(
    lambda header: json.dumps(header, ensure_ascii=False)
)
SETTLED = st.dictionaries(st.sampled_from(["p", "g", "err", "tb", "done"]), json_values()).map(
    lambda more: json.dumps({"t": "add", "a": 1, "q": 1, "s": 1, "e": 1, "w": "x", **more})
)
VALUES = (
    st.builds(
        lambda status, head, body: f"{status} {head}\n{body}",
        STATUS,
        HEADER | SETTLED | st.text(max_size=5),
        envelopes().map(json.dumps) | mutated() | st.text(max_size=5),
    )
    | bodies()
    | json_values().map(json.dumps)
)


@fuzzed(25)
@given(VALUES)
def test_any_record_is_read_or_refused(value):  # P7 S43
    record = Record("work:item:1", value, 3)
    with contextlib.suppress(InvalidWorkError):
        state = read_state("1", record)
        assert state is not None
        assert state.status in value
    with contextlib.suppress(InvalidWorkError, NewerEnvelopeError):
        item = read_item(record)
        assert item is not None
        stand(item, now_ms=1_767_225_600_000)
        if not item.terminal:
            item.second_message()


@define_work("add", retry=Retry(attempts=2, base=0))
async def add(a: int, b: int) -> int:
    await sleep(2)
    return a + b


@define_work("parent")
async def parent(ctx: Any) -> None: ...


async def look(system: WorkSystem, id: str) -> None:
    """Ask all there is to ask; each question is answered, or refused by an error of ours."""
    for question in (
        system.state(id),
        system.cancel(id),
        system.redrive([id]),
        system.list(limit=5),
        system.list("dead"),
        system.reconcile(0),
        system.handle(id).result(timeout=1),
        system.handle(id).group(timeout=1),
        first_progress(system, id),
    ):
        with contextlib.suppress(PieceworkError, TimeoutError):
            await question


async def first_progress(system: WorkSystem, id: str) -> Any:
    with contextlib.suppress(TimeoutError):
        async for progress in system.handle(id).progress():
            return progress
    return None


async def over_a_spoilt_record(value: str, when: float, start_after: float) -> None:
    ports = memory_backend()
    errors: list[BaseException] = []
    system = create_work(
        work=[add],
        **ports,
        start_after=start_after,
        on_error=lambda error, phase: errors.append(error),
        auto_start=False,
    )
    spoilt, other = await system.enqueue_many([add(1, 1), add(2, 2)])
    if not when:
        await ports["store"].set(f"work:item:{spoilt.id}", value)
    async with system:
        if when:
            await sleep(when)
            await ports["store"].set(f"work:item:{spoilt.id}", value)
        await look(system, spoilt.id)
        assert await other.result(timeout=60) == 4
        await sleep(3600)
        await look(system, spoilt.id)
        assert await system.run(add(3, 3)) == 6
        assert system.active() == []
    ours = (PieceworkError, NewerEnvelopeError)
    assert [error for error in errors if not isinstance(error, ours)] == []


@fuzzed(25)
@given(VALUES, st.sampled_from([0, 0.5, 1.5, 5]), st.sampled_from([0, 1]))
def test_a_spoilt_record_stops_nothing(value, when, start_after):  # P7
    VirtualClock().run(over_a_spoilt_record(value, when, start_after))


@fuzzed(25)
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "work:schedule:each",
                "work:cancelled",
                "work:group:g",
                "work:gate:g:0",
                "work:unique:add:key",
                "work:unique:key",
            ]
        ),
        json_values().map(json.dumps) | bodies() | st.sampled_from(["9" * 5_000, "-1", "{}"]),
        min_size=1,
    )
)
def test_other_records_that_are_not_ours_stop_nothing(values):  # P7
    VirtualClock().run(over_foreign_records(values))


async def over_foreign_records(values: dict[str, str]) -> None:
    ports = memory_backend()
    for key, value in values.items():
        await ports["store"].set(key, value)
    async with create_work(work=[add], **ports) as system:
        system.schedule("each", add(1, 2), every=60)
        with contextlib.suppress(PieceworkError):
            await system.enqueue(add(1, 1), unique="key")
        with contextlib.suppress(PieceworkError, TimeoutError):
            await system.handle("g").group(timeout=5)
        handle = await system.enqueue(add(1, 1))
        await sleep(400)
        assert await handle.result(timeout=5) == 2
        if "work:schedule:each" not in values:
            assert system.stats()["add"]["succeeded"] >= 6
