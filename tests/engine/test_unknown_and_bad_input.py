"""What cannot be read, is not known, comes too early or does not fit: nothing is dropped."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from tests.support.faults import WatchedQueue

from piecework import (
    Capabilities,
    MemoryQueue,
    Message,
    Retry,
    WorkFailedError,
    define_work,
)
from piecework.clock import sleep
from piecework.envelope import decode


@define_work("add")
async def add(a: int, b: int) -> int:
    return a + b


GOOD = {
    "v": 1,
    "id": "x",
    "type": "add",
    "input": '{"a": 1, "b": 2}',
    "group_id": "x",
    "queue_at": 0,
    "start_at": 0,
    "retry": [3, 1.0, 2.0, 30.0, 0.5],
}


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "JSON object is needed"),
        ("null", "JSON object is needed"),
        ("{}", "no envelope version"),
        (json.dumps({**GOOD, "v": 0}), "no envelope version"),
        (json.dumps({**GOOD, "id": ""}), "field 'id'"),
        (json.dumps({**GOOD, "type": 5}), "field 'type'"),
        (json.dumps({**GOOD, "queue_at": "now"}), "field 'queue_at'"),
        (json.dumps({**GOOD, "start_at": 1e300}), "field 'start_at'"),
        (json.dumps({**GOOD, "attempt": 0}), "field 'attempt'"),
        (json.dumps({**GOOD, "retry": [1]}), "field 'retry'"),
        (json.dumps({**GOOD, "retry": [0, 1, 2, 3, 4]}), "field 'retry'"),
        (json.dumps({**GOOD, "who": "knows"}), "field 'who'"),
        (json.dumps({**GOOD, "input": {}}), "field 'input'"),
    ],
)
async def test_a_body_that_cannot_be_read_is_a_dead_letter_with_its_reason(
    make, queue, body, reason
):  # S60
    work = make(add)
    await queue.inner.push([Message(body)])
    handle = await work.enqueue(add(1, 2))
    assert await handle.result() == 3  # its neighbour goes on
    (letter,) = await work.dead_letters()
    assert letter.body == body
    assert "bad message" in letter.reason
    assert reason in letter.reason
    assert (letter.id, letter.type) == ("", "")
    assert await queue.size() == 0


async def test_bad_bodies_go_to_the_systems_dlq_where_the_queue_keeps_none(make):  # S60
    dlq = MemoryQueue()
    queue = MemoryQueue(capabilities=Capabilities(in_process=True, native_dead_letters=False))
    work = make(add, queue=queue, dlq=dlq, redrive_count=0)
    await queue.push([Message("junk")])
    await work.start()
    await sleep(1)
    assert (await queue.size(), await dlq.size()) == (0, 1)
    (lease,) = await dlq.pop(1, 30, 0)
    assert (lease.body, lease.reason[:11]) == ("junk", "bad message")


async def test_a_message_of_a_newer_release_is_left_to_a_worker_that_knows_it(
    make, queue, virtual_clock
):
    work = make(add)
    await queue.inner.push([Message(json.dumps({**GOOD, "v": 2, "news": 1}))])
    await work.start()
    await virtual_clock.advance(12)
    assert await queue.size() == 1
    assert await work.dead_letters() == []


# ---- too early -----------------------------------------------------------------------------------


async def test_a_long_delay_is_made_in_hops_each_pushed_before_the_old_is_acked(
    make, virtual_clock
):  # S61
    elsewhere = WatchedQueue(MemoryQueue(capabilities=Capabilities(max_delay=10)))
    work = make(add, queue=elsewhere, auto_start=True, retry=Retry(attempts=1))
    began = virtual_clock.now()
    handle = await work.enqueue(add(1, 2), delay=205)
    assert await handle.result() == 3
    took = (virtual_clock.now() - began).total_seconds()
    assert took == pytest.approx(205, abs=1)
    pushed = [messages[0] for (messages,) in elsewhere.plan.arguments("push")]
    assert len(pushed) >= 20
    assert {message.delay <= 10 for message in pushed} == {True}
    assert {decode(message.body).attempt for message in pushed} == {1}
    order = [name for name, _ in elsewhere.plan.calls if name in ("push", "ack")]
    assert order == ["push"] + ["push", "ack"] * (len(pushed) - 1) + ["ack"]
    assert (await handle.state()).attempt == 1
    assert work.stats()["add"]["rescheduled"] == len(pushed) - 1
    assert await elsewhere.size() == 0


async def test_a_crash_between_the_two_steps_of_a_hop_loses_nothing(
    make, virtual_clock, errors
):  # S61
    inner = MemoryQueue(capabilities=Capabilities(max_delay=10))
    elsewhere = WatchedQueue(inner)
    work = make(add, queue=elsewhere, auto_start=True, on_error=errors, visibility=6)
    handle = await work.enqueue(add(1, 2), delay=25)
    elsewhere.plan.fail("push", 1)
    elsewhere.plan.fail("ack", 1)
    assert await handle.result() == 3
    await virtual_clock.advance(60)
    assert work.stats()["add"]["succeeded"] == 1
    assert await inner.size() == 0


async def test_a_hop_tells_no_event(make, events, virtual_clock):  # S61
    elsewhere = MemoryQueue(capabilities=Capabilities(max_delay=5))
    work = make(add, queue=elsewhere, auto_start=True, on_event=events)
    handle = await work.enqueue(add(1, 2), delay=30)
    await handle.result()
    assert events.kinds[:3] == ["queued", "started", "succeeded"]


async def test_a_work_may_start_a_second_early(make, queue, virtual_clock):  # S61
    """Queues round their delays, and the clocks of a fleet differ."""
    work = make(add, auto_start=False)
    handle = await work.enqueue(add(1, 2), delay=30)
    (messages,) = queue.plan.arguments("push")[-1]
    await queue.inner.push([Message(messages[0].body)])
    await virtual_clock.advance(29.2)
    await work.start()
    await virtual_clock.advance(0.1)
    assert (await handle.state()).status == "success"


# ---- unknown types -------------------------------------------------------------------------------


async def test_an_unknown_type_is_left_to_a_worker_that_knows_it(make, queue, virtual_clock):  # S62
    late = define_work("late", add.fn)
    old = make(add)
    await old.start()
    handle = await old.enqueue(late(1, 2), retry=Retry(attempts=3))
    await virtual_clock.advance(2)
    assert queue.plan.arguments("release")[0][1] == 5.0
    assert (await handle.state()).status == "pending"
    await old.stop()
    new = make(late)
    await new.start()
    assert await handle.result() == 3
    assert (await handle.state()).attempt == 1


async def test_an_unknown_type_is_dead_after_as_many_deliveries_as_attempts(
    make, queue, virtual_clock, events
):  # S62 S67 Q3
    own_queue = WatchedQueue(MemoryQueue())
    late = define_work("late", add.fn, queue=own_queue)
    own = define_work("own", add.fn, queue=own_queue)
    old = make(add, own, on_event=events)
    await old.start()
    handle = await make(late, auto_start=False).enqueue(late(1, 2), retry=Retry(attempts=2))
    with pytest.raises(WorkFailedError, match=r"unknown work type: late"):
        await handle.result()
    assert await handle is None
    letters = await old.dead_letters(queue=own_queue)
    assert [(letter.id, letter.type) for letter in letters] == [(handle.id, "late")]
    assert await own_queue.size() == 0
    assert queue.plan.count("dead_letter") == 0
    assert own_queue.plan.count("pop") < 20


# ---- bad input -----------------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["annotation", "codec"])
async def test_an_input_that_does_not_fit_any_more_is_dead_at_once(make, by):  # S63
    class Broken:
        def encode(self, value: Any) -> str:
            return json.dumps(value)

        def decode(self, text: str) -> Any:
            raise ValueError("cannot read this")

    async def older(a: str) -> None: ...

    async def newer(a: int) -> None: ...

    old = define_work("kind", older)
    new = define_work("kind", newer if by == "annotation" else older)
    if by == "codec":
        old = define_work("kind", older, codec=_Plain())
        new = define_work("kind", older, codec=Broken())
    producer, worker = make(old, auto_start=False), make(new)
    await worker.start()
    handle = await producer.enqueue(old("text"), retry=Retry(attempts=5))
    with pytest.raises(WorkFailedError, match=r"^bad input: .*'kind'"):
        await handle.result()
    state = await handle.state()
    assert (state.status, state.attempt) == ("dead", 1)
    (letter,) = await worker.dead_letters()
    assert letter.reason == state.error
    assert await handle is None


class _Plain:
    def encode(self, value: Any) -> str:
        return json.dumps(value)

    def decode(self, text: str) -> Any:
        return json.loads(text)


async def test_bad_input_of_one_work_of_a_batch_fails_that_work_alone(make):  # S63
    from piecework import define_batch_work

    async def run(items: list[int]) -> list[int]:
        return [2 * n for n in items]

    async def run_texts(items: list[str]) -> list[str]:
        return items

    new = define_batch_work("batch", size=2, max_wait=1)(run)
    old = define_batch_work("batch", size=2, max_wait=1)(run_texts)
    producer, worker = make(old, auto_start=False), make(new)
    bad = await producer.enqueue(old("text"))
    good = await worker.enqueue(new(4))
    assert await good.result() == 8
    with pytest.raises(WorkFailedError, match=r"^bad input"):
        await bad.result()


# ---- no room -------------------------------------------------------------------------------------


async def test_what_a_doer_has_no_room_for_is_put_back_unharmed(make, queue, virtual_clock):  # S64
    from piecework import balanced_doer

    @define_work("slow", doer=balanced_doer(max=1, buffer=0), retry=Retry(attempts=1))
    async def slow() -> int:
        await sleep(3)
        return 1

    work = make(slow, add)
    handles = await work.enqueue_many([slow() for _ in range(4)])
    await virtual_clock.advance(0.5)
    assert len(work.active()) == 1
    assert queue.plan.count("release") >= 1
    assert await handles.results() == [1] * 4
    assert {(await h.state()).attempt for h in handles} == {1}
    assert await work.dead_letters() == []


async def test_what_a_batcher_has_no_room_for_is_put_back_unharmed(
    make, queue, virtual_clock
):  # S64
    from piecework import balanced_doer, define_batch_work

    calls = []

    @define_batch_work("batch", size=2, max_wait=1, doer=balanced_doer(max=1, buffer=0))
    async def batch(items: list[int]) -> list[int]:
        calls.append(len(items))
        await sleep(3)
        return items

    work = make(batch, add)
    handles = await work.enqueue_many([batch(n) for n in range(6)])
    assert await handles.results() == list(range(6))
    assert sum(calls) == 6
    assert max(calls) == 2
    assert {(await h.state()).attempt for h in handles} == {1}


# ---- the queue that it came from -----------------------------------------------------------------


async def test_all_of_a_works_life_happens_on_the_queue_it_came_from(
    make, queue, virtual_clock
):  # S67
    own_queue = WatchedQueue(MemoryQueue())
    answers = [False, True, True, True]

    @define_work("own", queue=own_queue, retry=Retry(attempts=2, base=0))
    async def own() -> None:
        raise ValueError("no")

    work = make(own, add, accept=lambda info: answers.pop(0))
    handle = await work.enqueue(own())
    with pytest.raises(WorkFailedError):
        await handle.result()
    await virtual_clock.advance(timedelta(seconds=1))
    names = [name for name, _ in own_queue.plan.calls]
    assert [n for n in names if n in ("push", "release", "ack", "dead_letter")] == [
        "push",
        "release",
        "push",
        "ack",
        "dead_letter",
    ]
    assert {name for name, _ in queue.plan.calls} <= {"open", "pop"}
    assert [x.id for x in await work.dead_letters(queue=own_queue)] == [handle.id]
