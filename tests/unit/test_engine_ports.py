"""The ports as the engine sees them: what is repeated, what is counted, what is passed on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tests.support.faults import WatchedPubSub, WatchedQueue, WatchedStore

from piecework import (
    BackendError,
    Change,
    ConflictError,
    MemoryPubSub,
    MemoryQueue,
    MemoryStore,
    Message,
    PayloadTooLargeError,
    Retry,
    create_metrics,
)
from piecework.engine.ports import EnginePubSub, EngineQueue, EngineStore, PortCalls
from piecework.metrics import WorkRecorder

POLICY = Retry(attempts=3, base=1, factor=1, jitter=0)


class Bench:
    def __init__(self, policy: Retry | None) -> None:
        self.metrics = create_metrics()
        recorder = WorkRecorder(self.metrics)

        def calls(port: str) -> PortCalls:
            return PortCalls(port, recorder, policy, lambda: 0.0)

        self.queue_faults = WatchedQueue(MemoryQueue())
        self.store_faults = WatchedStore(MemoryStore())
        self.pubsub_faults = WatchedPubSub(MemoryPubSub())
        self.queue = EngineQueue(self.queue_faults, calls("queue"))
        self.store = EngineStore(self.store_faults, calls("store"))
        self.pubsub = EnginePubSub(self.pubsub_faults, calls("pubsub"))

    async def leases(self) -> list[Any]:
        await self.queue.push([Message("a")])
        return await self.queue.pop(1, 30, 0)


QUEUE: dict[str, Callable[[Bench, Any], Any]] = {
    "push": lambda bench, _: bench.queue.push([Message("b")]),
    "pop": lambda bench, _: bench.queue.pop(1, 30, 0),
    "extend": lambda bench, leases: bench.queue.extend(leases, 30),
    "ack": lambda bench, leases: bench.queue.ack(leases),
    "release": lambda bench, leases: bench.queue.release(leases, 1.0),
    "dead_letter": lambda bench, leases: bench.queue.dead_letter(leases[0], "why"),
}
STORE: dict[str, Callable[[Bench], Any]] = {
    "read": lambda bench: bench.store.read(["a"]),
    "write": lambda bench: bench.store.write([Change("a", value="1")]),
    "list": lambda bench: bench.store.list("index"),
}
REPEATED = {"push", "ack", "write"}


@pytest.mark.parametrize("operation", [*QUEUE, *STORE, "publish"])
async def test_writes_are_repeated_and_the_rest_is_not(operation, virtual_clock):  # S18 S19
    bench = Bench(POLICY)
    leases = await bench.leases()
    faults = (
        bench.queue_faults
        if operation in QUEUE
        else bench.pubsub_faults
        if operation == "publish"
        else bench.store_faults
    )
    before = faults.plan.count(operation)
    faults.plan.fail(operation, 2)
    if operation in QUEUE:
        call = QUEUE[operation](bench, leases)
    elif operation in STORE:
        call = STORE[operation](bench)
    else:
        call = bench.pubsub.publish("a")
    if operation in REPEATED:
        await call
        assert faults.plan.count(operation) - before == 3
    else:
        with pytest.raises(BackendError):
            await call
        assert faults.plan.count(operation) - before == 1


async def test_without_a_policy_nothing_is_repeated():  # S18
    bench = Bench(None)
    bench.store_faults.plan.fail("write")
    with pytest.raises(BackendError):
        await bench.store.write([Change("a", value="1")])
    assert bench.store_faults.plan.count("write") == 1


async def test_a_failure_that_lasts_is_the_callers_in_the_end(virtual_clock):
    bench = Bench(POLICY)
    bench.store_faults.plan.fail("write", 9)
    with pytest.raises(BackendError):
        await bench.store.write([Change("a", value="1")])
    assert bench.store_faults.plan.count("write") == 3


@pytest.mark.parametrize("error", [ConflictError([]), PayloadTooLargeError("it", size=2, limit=1)])
async def test_what_cannot_get_better_is_not_repeated(error, virtual_clock):
    bench = Bench(POLICY)
    bench.store_faults.plan.fail("write", error=lambda: error)
    with pytest.raises(type(error)):
        await bench.store.write([Change("a", value="1")])
    assert bench.store_faults.plan.count("write") == 1


async def test_calls_are_counted_and_a_conflict_is_no_failure():
    bench = Bench(None)
    await bench.store.write([Change("a", value="1")])
    with pytest.raises(ConflictError):
        await bench.store.write([Change("a", value="1", expect=0)])
    bench.store_faults.plan.fail("write")
    with pytest.raises(BackendError):
        await bench.store.write([Change("a", value="1")])
    failures = {
        one.labels["operation"]: one.value
        for one in bench.metrics.list()
        if one.labels.get("port") == "store" and ("error" in one.name or "fail" in one.name)
    }
    assert failures["write"] == 1
    assert sum(failures.values()) == 1


async def test_the_rest_is_passed_on():
    bench = Bench(None)
    await bench.store.open()
    await bench.pubsub.open()
    await bench.queue.open()
    heard: list[str] = []
    subscription = await bench.pubsub.subscribe(heard.append)
    await bench.pubsub.publish("a")
    for _ in range(5):
        await asyncio.wait([asyncio.ensure_future(bench.queue.size())])
    assert heard == ["a"]
    await subscription.close()
    leases = await bench.leases()
    assert await bench.queue.size() == 1
    assert await bench.queue.extend(leases, 30) == []
    await bench.queue.dead_letter(leases[0], "why")
    assert bench.queue.dead_letter_queue is bench.queue_faults.dead_letter_queue
    assert bench.queue.capabilities == bench.queue_faults.capabilities
    assert bench.store.capabilities == bench.store_faults.capabilities
    assert (await bench.store.read(["a"]))[0].value is None
    await bench.store.close()
    await bench.pubsub.close()
    await bench.queue.close()
    assert not bench.queue.is_open


@pytest.mark.parametrize("operation", ["push", "pop"])
async def test_a_queue_that_became_known_late_is_opened_once_at_its_first_use(operation):
    bench = Bench(None)
    calls = [QUEUE[operation](bench, None) for _ in range(3)]
    await asyncio.gather(*calls)
    assert bench.queue_faults.plan.count("open") == 1
    assert bench.queue.is_open


async def test_a_queue_that_could_not_be_opened_is_tried_again():
    bench = Bench(None)
    bench.queue_faults.plan.fail("open")
    with pytest.raises(BackendError):
        await bench.queue.push([Message("a")])
    await bench.queue.push([Message("a")])
    assert await bench.queue.size() == 1
