"""Work types, works, and the registry of a system."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from tests.support.faults import WatchedQueue

import piecework
from piecework import (
    DEPENDENCY_TYPE,
    Delay,
    MemoryQueue,
    Retry,
    UnknownWorkError,
    WorkContext,
    WorkFailedError,
    balanced_doer,
    create_work,
    define_batch_work,
    define_work,
    dependency,
)


@define_work("add")
async def add(a: int, b: int) -> int:
    return a + b


async def test_calling_a_work_type_builds_a_work_and_runs_nothing():  # S01
    ran = []

    async def handler(a: int) -> None:
        ran.append(a)

    kind = define_work("note", handler)
    built = kind(1)
    assert kind.type == "note"
    assert kind.fn is handler
    assert (built.type, built.input) == ("note", {"a": 1})
    assert ran == []


async def test_each_work_has_an_id_of_its_own_that_its_handle_keeps(make):  # S02
    first, second = add(1, 2), add(1, 2)
    assert first.id != second.id
    work = make(add)
    handle = await work.enqueue(first)
    assert handle.id == first.id
    assert (await work.state(first.id)).id == first.id


async def test_works_of_a_batch_type_are_queued_one_by_one_and_run_together(make, queue):  # S03
    calls = []

    @define_batch_work("double", size=3, max_wait=1)
    async def double(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return [2 * number for number in numbers]

    assert double.batch.size == 3
    work = make(double)
    handles = [await work.enqueue(double(number)) for number in (1, 2, 3)]
    assert [await handle.result() for handle in handles] == [2, 4, 6]
    assert calls == [[1, 2, 3]]
    assert queue.plan.count("push") == 3


async def test_a_batch_work_that_skips_the_queue_runs_alone(make, queue):  # S04
    calls = []

    @define_batch_work("double", size=3, max_wait=1)
    async def double(numbers: list[int]) -> list[int]:
        calls.append(numbers)
        return [2 * number for number in numbers]

    work = make(double)
    assert await work.run(double(21), skip_queue=True) == 42
    assert calls == [[21]]
    assert queue.plan.count("push") == 0


async def test_works_reach_their_handler_as_instances_and_by_name(make):  # S05
    work = make(add)
    assert await work.run(add(1, 2)) == 3
    assert await work.run("add", {"a": 3, "b": 4}) == 7


async def test_of_two_types_of_one_name_the_last_runs(make):  # S05
    async def other(a: int, b: int) -> int:
        return a * b

    work = make(add, define_work("add", other))
    assert await work.run("add", {"a": 3, "b": 4}) == 12


async def test_an_unknown_name_is_refused_with_the_known_ones(make):
    work = make(add)
    with pytest.raises(UnknownWorkError, match=r"unknown work type: sub\. Registered here: add\."):
        await work.enqueue("sub", {})


async def test_a_system_without_any_option_runs_works(virtual_clock):  # S06
    work = create_work()
    work.register(add)
    handle = await work.enqueue(add(1, 2))
    assert await handle.result() == 3
    await work.stop()


async def test_a_system_with_a_queue_alone_gets_the_other_ports_in_memory(virtual_clock):  # S07
    queue = MemoryQueue()
    work = create_work(work=[add], queue=queue)
    assert work.queue is queue
    assert await work.run(add(1, 2)) == 3
    await work.stop()


def test_importing_the_package_starts_nothing():  # S08
    code = (
        "import asyncio, threading, piecework\n"
        "assert threading.active_count() == 1, threading.enumerate()\n"
        "async def main():\n"
        "    assert len(asyncio.all_tasks()) == 1\n"
        "asyncio.run(main())\n"
        "assert piecework.work.active() == []\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=30)


async def test_the_default_instance_runs_nothing_until_it_is_started(virtual_clock):  # S08
    handle = await piecework.enqueue(add(20, 22))
    await virtual_clock.advance(60)
    assert (await handle.state()).status == "pending"
    await piecework.start()
    assert await handle.result() == 42
    assert handle.id in {state.id for state in await piecework.list("success")}
    await piecework.stop()


async def test_the_default_instance_has_schedules(virtual_clock):  # S08
    fired = []

    @define_work("tick")
    async def tick() -> None:
        fired.append(virtual_clock.now())

    handle = piecework.schedule("each-minute", tick(), every=60)
    await piecework.start()
    await virtual_clock.advance(125)
    handle.cancel()
    await piecework.stop()
    assert len(fired) == 2


async def test_dependencies_run_with_nothing_registered_for_them(make):  # S09
    work = make(add)
    first, after = add(1, 2), add(3, 4)
    await work.enqueue(first)
    gate = await work.enqueue(dependency([first], after))
    assert (await gate.state()).type == DEPENDENCY_TYPE
    await gate.result()
    assert await work.handle(after.id).result() == 7


async def test_a_dependency_has_one_attempt(make, events):  # S09
    work = make(add, on_event=events)
    never = await work.enqueue(add(1, 2), delay=3600)
    handle = await work.enqueue(dependency([never.id], add(3, 4), timeout=5))
    with pytest.raises(WorkFailedError):
        await handle.result()
    failed = [event for event in events if event.kind == "failed"]
    assert [(event.attempt, event.will_retry) for event in failed] == [(1, False)]


# ---- S10: each option of a type wins over the system's, for that type alone ----------------------


async def _failing() -> None:
    raise ValueError("no")


async def test_a_types_retry_wins_for_that_type(make):  # S10
    own = define_work("own", _failing, retry=Retry(attempts=1))
    other = define_work("other", _failing)
    work = make(own, other, retry=Retry(attempts=2, base=0))
    for kind, attempts in ((own, 1), (other, 2)):
        handle = await work.enqueue(kind())
        with pytest.raises(WorkFailedError, match="ValueError: no"):
            await handle.result()
        assert (await handle.state()).attempt == attempts


async def test_a_types_priority_and_group_are_those_of_its_works(make):  # S10
    async def handler() -> None: ...

    work = make(define_work("own", handler, priority=7, group="tenant"), auto_start=False)
    own = await work.enqueue("own")
    other = await work.enqueue(define_work("other", handler)())
    assert ((await own.state()).priority, (await own.state()).group) == (7, "tenant")
    assert ((await other.state()).priority, (await other.state()).group) == (0, None)


class Concurrency:
    """Knows how many ran at once."""

    def __init__(self) -> None:
        self.now = 0
        self.peak = 0

    async def __call__(self) -> None:
        self.now += 1
        self.peak = max(self.peak, self.now)
        await asyncio.sleep(0.1)  # noqa: TID251 - virtual
        self.now -= 1


async def test_a_types_doer_caps_that_type_alone(make):  # S10 S16
    mine, others = Concurrency(), Concurrency()
    own = define_work("own", mine.__call__, doer=balanced_doer(max=2))
    other = define_work("other", others.__call__)
    work = make(own, other)
    handles = await work.enqueue_many([*[own() for _ in range(8)], *[other() for _ in range(8)]])
    await handles.results()
    assert (mine.peak, others.peak) == (2, 8)


async def test_a_types_queue_carries_its_works_alone(make, queue):  # S10
    own_queue = WatchedQueue(MemoryQueue())

    async def handler() -> int:
        return 1

    own = define_work("own", handler, queue=own_queue)
    work = make(own, add)
    assert await work.run(own()) == 1
    assert await work.run(add(1, 2)) == 3
    assert own_queue.plan.count("push") == queue.plan.count("push") == 1


async def test_a_types_options_function_sees_the_arguments(make):  # S10
    async def handler(tenant: str, size: int = 1) -> None: ...

    kind = define_work(
        "own", handler, options=lambda tenant, size=1: {"group": tenant, "priority": size}
    )
    work = make(kind, auto_start=False)
    state = await (await work.enqueue(kind("ada", 5))).state()
    assert (state.group, state.priority) == ("ada", 5)
    state = await (await work.enqueue("own", {"tenant": "bob"})).state()
    assert (state.group, state.priority) == ("bob", 1)


async def test_a_types_event_hook_hears_of_that_type_after_the_systems(make):  # S10 S21
    heard = []
    own = define_work("own", _nothing, on_event=lambda e: heard.append(("type", e.type, e.kind)))
    other = define_work("other", _nothing)
    work = make(own, other, on_event=lambda e: heard.append(("system", e.type, e.kind)))
    await work.run(own())
    await work.run(other())
    await work.stop()
    assert [h for h in heard if h[2] == "succeeded"] == [
        ("system", "own", "succeeded"),
        ("type", "own", "succeeded"),
        ("system", "other", "succeeded"),
    ]
    assert {h[1] for h in heard if h[0] == "type"} == {"own"}


async def _nothing() -> None: ...


async def test_a_types_failure_classifier_wins_for_that_type(make):  # S10 S28
    asked = []

    def mine(error: BaseException, info: Any) -> str:
        asked.append(("type", info.type))
        return "abort"

    def systems(error: BaseException, info: Any) -> Any:
        asked.append(("system", info.type))
        return Delay(1) if len(asked) < 3 else "abort"

    own = define_work("own", _failing, on_failure=mine)
    other = define_work("other", _failing)
    work = make(own, other, on_failure=systems)
    for kind in (own, other):
        with pytest.raises(WorkFailedError):
            await work.run(kind())
    assert asked == [("type", "own"), ("system", "other"), ("system", "other")]


async def test_a_types_log_context_is_merged_over_the_systems(make):  # S10 S22
    seen = []

    async def log_with(fields, call):
        seen.append(dict(fields))
        return await call()

    own = define_work("own", _nothing, log_context=lambda given: {"who": "type", "own": 1})
    other = define_work("other", _nothing)
    work = make(
        own,
        other,
        log_with=log_with,
        log_context=lambda given, kind: {"who": "system", "kind": kind},
    )
    await work.run(own())
    await work.run(other())
    picked = [{k: f.get(k) for k in ("work_type", "who", "own", "kind")} for f in seen]
    assert picked == [
        {"work_type": "own", "who": "type", "own": 1, "kind": "own"},
        {"work_type": "other", "who": "system", "own": None, "kind": "other"},
    ]


async def test_a_types_skip_queue_is_for_that_type(make, queue):  # S10
    own = define_work("own", _nothing, skip_queue=True)
    work = make(own, add)
    await work.run(own())
    assert queue.plan.count("push") == 0
    await work.run(add(1, 2))
    assert queue.plan.count("push") == 1


class Shouting:
    """A codec that marks what went through it."""

    def __init__(self) -> None:
        self.encoded: list[Any] = []

    def encode(self, value: Any) -> str:
        self.encoded.append(value)
        return piecework.default_codec.encode({"shouted": value})

    def decode(self, text: str) -> Any:
        return piecework.default_codec.decode(text)["shouted"]


async def test_a_types_codec_sees_input_and_result_but_not_the_groups_result(make):  # S10 S15
    mine, systems = Shouting(), Shouting()

    async def handler(ctx: WorkContext, a: Any) -> Any:
        ctx.set_result("of the group")
        return [a]

    own = define_work("own", handler, codec=mine)
    work = make(own, codec=systems)
    handle = await work.enqueue(own(5))
    assert await handle.result() == [5]
    assert await handle == "of the group"
    assert [5] in mine.encoded
    assert any(5 in v.values() if isinstance(v, dict) else v == 5 for v in mine.encoded)
    assert "of the group" not in mine.encoded
    assert systems.encoded == ["of the group"]


async def test_a_type_registered_while_running_is_run(make, virtual_clock):
    work = make(add)
    await work.start()
    own_queue = WatchedQueue(MemoryQueue())

    async def handler() -> str:
        return "late"

    late = define_work("late", handler, queue=own_queue, doer=balanced_doer(max=1))
    work.register(late)
    assert await work.run(late()) == "late"
    assert own_queue.plan.calls[0][0] == "open"
    assert await work.run("late") == "late"


async def test_a_type_registered_again_while_running_takes_the_place(make):
    work = make(add)
    assert await work.run(add(2, 5)) == 7

    async def multiply(a: int, b: int) -> int:
        return a * b

    work.register(define_work("add", multiply))
    assert await work.run("add", {"a": 2, "b": 5}) == 10
