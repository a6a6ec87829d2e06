"""What the backend in this process promises beyond the contracts of the ports."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import subprocess
import sys
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from piecework.errors import ConfigError, ConflictError, PayloadTooLargeError
from piecework.memory import MemoryPubSub, MemoryQueue, MemoryStore, memory_backend
from piecework.memory.index import WriteOrder
from piecework.memory.line import Line, Waiter
from piecework.ports import Capabilities, Change, Lease, Message, Record


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_000

    def now_ms(self) -> int:
        return self.ms

    def advance(self, seconds: float) -> None:
        self.ms += round(seconds * 1000)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def queue(clock) -> MemoryQueue:
    return MemoryQueue(now=clock)


@pytest.fixture
def store(clock) -> MemoryStore:
    return MemoryStore(now=clock)


async def turns(count: int = 3) -> None:
    for _ in range(count):
        await asyncio.tasks.sleep(0)


def without_suspending(coroutine):
    """Run a coroutine that must finish in one step, outside of any loop."""
    with pytest.raises(StopIteration) as end:
        coroutine.send(None)
    return end.value.value


def bodies(leases) -> list[str]:
    return [lease.body for lease in leases]


# The queue


async def test_the_queue_declares_what_it_is(queue):
    assert queue.capabilities.in_process
    assert queue.capabilities.native_dead_letters
    assert queue.dead_letter_queue is queue.dead  # S137
    assert queue.dead.dead is not queue.dead


async def test_a_given_queue_takes_the_dead_letters(clock):
    dead = MemoryQueue(now=clock)
    queue = MemoryQueue(now=clock, dead=dead)
    await queue.push([Message("a")])
    (lease,) = await queue.pop(1, 30, 0)
    clock.advance(1)
    await queue.dead_letter(lease, "broken")
    (letter,) = await dead.pop(1, 30, 0)
    assert (letter.reason, letter.deliveries, letter.message_id) == ("broken", 1, lease.message_id)
    assert letter.sent_at_ms == lease.sent_at_ms == 1_000
    await dead.ack([lease])  # the lease of another queue
    assert (await queue.size(), await dead.size()) == (0, 1)


async def test_a_dead_letter_wakes_who_waits_at_the_dead_letters(queue):
    pop = asyncio.ensure_future(queue.dead.pop(1, 30, 5))
    await turns()
    await queue.push([Message("a")])
    await queue.dead_letter((await queue.pop(1, 30, 0))[0], "broken")
    assert bodies(await pop) == ["a"]


async def test_lapsed_and_delayed_messages_come_by_the_moment_they_became_visible(queue, clock):
    # S134
    await queue.push([Message("leased 5")])
    await queue.pop(1, 5, 0)
    await queue.push([Message("delayed 3", delay=3), Message("delayed 1", delay=1)])
    clock.advance(4)
    await queue.push([Message("pushed at 4")])
    clock.advance(4)
    await queue.push([Message("pushed at 8")])
    leases = await queue.pop(10, 30, 0)
    assert bodies(leases) == ["delayed 1", "delayed 3", "pushed at 4", "leased 5", "pushed at 8"]
    assert [lease.deliveries for lease in leases] == [1, 1, 1, 2, 1]


async def test_a_lease_that_ended_is_stale_before_anybody_else_has_it(queue, clock):
    # S135
    await queue.push([Message("a")])
    leases = await queue.pop(1, 5, 0)
    clock.advance(5)
    assert await queue.extend(leases, 30) == leases
    await queue.ack(leases)
    await queue.release(leases, 60)
    await queue.dead_letter(leases[0], "late")
    assert bodies(await queue.pop(1, 5, 0)) == ["a"]
    assert await queue.dead.size() == 0


async def test_a_lease_works_until_its_last_millisecond(queue, clock):
    await queue.push([Message("a")])
    leases = await queue.pop(1, 5, 0)
    clock.advance(4.999)
    await queue.ack(leases)
    assert await queue.size() == 0


async def test_a_lease_made_by_hand_needs_the_token(queue):
    await queue.push([Message("a")])
    (lease,) = await queue.pop(1, 5, 0)
    assert len(await queue.extend([Lease("a", "guessed")], 30)) == 1
    await queue.ack([Lease("", lease.token)])
    assert await queue.size() == 0


async def test_a_pop_of_nothing_returns_at_once(queue):
    await queue.push([Message("a")])
    assert await queue.pop(0, 30, 60) == []


async def test_infinite_durations_are_taken(queue, clock):
    await queue.push([Message("never", delay=float("inf")), Message("a")])
    (lease,) = await queue.pop(10, float("inf"), 0)
    clock.advance(1e8)
    assert await queue.pop(10, 1, 0) == []
    await queue.release([lease], float("inf"))
    assert await queue.size() == 2


async def test_a_delay_over_the_limit_is_refused_in_a_push_and_cut_in_a_release(clock):
    queue = MemoryQueue(now=clock, capabilities=Capabilities(max_delay=10))
    with pytest.raises(ConfigError, match="a delay of 11 s is over the 10 s"):
        await queue.push([Message("a"), Message("b", delay=11)])
    assert await queue.size() == 0
    await queue.push([Message("a", delay=10)])
    clock.advance(10)
    await queue.release(await queue.pop(1, 30, 0), 1_000)
    clock.advance(10)
    assert bodies(await queue.pop(1, 30, 0)) == ["a"]


async def test_a_body_over_the_limit_is_refused_with_all_of_its_push():
    queue = MemoryQueue(capabilities=Capabilities(max_body_bytes=4))
    with pytest.raises(PayloadTooLargeError, match="has 5 bytes; the backend takes 4"):
        await queue.push([Message("good"), Message("a\u00e9\u00e9")])
    assert await queue.size() == 0


async def test_an_ordered_queue_delivers_a_group_one_at_a_time(clock):
    queue = MemoryQueue(now=clock, capabilities=Capabilities(ordered=True))
    await queue.push(
        [
            Message("x1", group="x"),
            Message("x2", group="x", delay=5),
            Message("x3", group="x"),
            Message("free"),
        ]
    )
    assert await queue.size() == 4
    x1, free = await queue.pop(10, 30, 0)
    assert bodies([x1, free]) == ["x1", "free"]
    await queue.release([x1], 2)
    assert await queue.pop(10, 30, 0) == []
    clock.advance(2)
    await queue.ack([*await queue.pop(10, 30, 0), free])
    assert await queue.pop(10, 30, 0) == []  # x2 is delayed, and x3 stays behind it
    clock.advance(3)
    (x2,) = await queue.pop(10, 30, 0)
    await queue.dead_letter(x2, "broken")
    (x3,) = await queue.pop(10, 30, 0)
    assert bodies([x2, x3]) == ["x2", "x3"]
    await queue.dead_letter(x3, "broken too")
    (first,) = await queue.dead.pop(10, 30, 0)
    await queue.dead.ack([first])
    assert bodies([first, *await queue.dead.pop(10, 30, 0)]) == ["x2", "x3"]


async def test_calls_that_do_not_wait_never_suspend(queue):
    without_suspending(queue.push([Message("a"), Message("b", delay=1)]))
    leases = without_suspending(queue.pop(1, 30, 60))
    assert without_suspending(queue.extend(leases, 30)) == []
    without_suspending(queue.release(leases))
    leases = without_suspending(queue.pop(1, 30, 0))
    without_suspending(queue.dead_letter(leases[0], "broken"))
    assert without_suspending(queue.size()) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
@given(st.lists(st.text(), max_size=30))
def test_any_text_goes_through_queue_and_store(texts):
    queue, store = MemoryQueue(), MemoryStore()
    without_suspending(
        queue.push([Message(text, dedupe_key=f"{n}") for n, text in enumerate(texts)])
    )
    assert bodies(without_suspending(queue.pop(100, 30, 0))) == texts
    for text in texts:
        without_suspending(store.set(text, text))
    assert [r.value for r in without_suspending(store.read(texts))] == texts


async def test_timers_of_messages_that_left_do_not_pile_up(queue):
    for _ in range(5_000):
        await queue.push([Message("a")])
        await queue.ack(await queue.pop(1, 30, 0))
    assert len(queue._shelf._heap) <= 1_002
    assert not queue._shelf._timed
    assert not queue._shelf._leased
    await queue.push([Message("a")])
    leases = await queue.pop(1, 30, 0)
    for _ in range(5_000):
        assert await queue.extend(leases, 30) == []
    assert len(queue._shelf._heap) <= 1_002


async def test_a_message_costs_the_collector_one_object(queue):
    await queue.push([Message("warm up")])
    gc.collect()
    before = len(gc.get_objects())
    message = Message("a")
    await queue.push([message] * 1_000)
    assert len(gc.get_objects()) - before <= 1_010


async def test_an_operation_costs_the_same_at_any_length():
    def per_message(queue: MemoryQueue) -> float:
        # The best of many short runs, which is what the machine's noise leaves alone.
        messages = [Message("a")] * 25
        best = float("inf")
        for _ in range(60):
            start = time.perf_counter()
            without_suspending(queue.push(messages))
            without_suspending(queue.ack(without_suspending(queue.pop(25, 30, 0))))
            best = min(best, time.perf_counter() - start)
        return best

    short, long = MemoryQueue(), MemoryQueue()
    await short.push([Message("a")] * 100)
    await long.push([Message("a")] * 100_000)
    per_message(short)
    assert per_message(long) < 3 * per_message(short)


# Waiting pops


async def test_waiting_pops_are_served_in_turn(queue):
    pops = [asyncio.ensure_future(queue.pop(2, 30, 5)) for _ in range(3)]
    await turns()
    await queue.push([Message("1"), Message("2"), Message("3")])
    assert bodies(await pops[0]) == ["1", "2"]
    assert bodies(await pops[1]) == ["3"]
    assert not pops[2].done()
    await queue.push([Message("4")])
    assert bodies(await pops[2]) == ["4"]


async def test_a_pop_whose_message_was_taken_keeps_its_place(queue):
    first, second = (asyncio.ensure_future(queue.pop(1, 30, 5)) for _ in range(2))
    await turns()
    await queue.push([Message("1")])
    assert bodies(await queue.pop(1, 30, 0)) == ["1"]
    await turns()
    await queue.push([Message("2")])
    assert bodies(await first) == ["2"]
    await queue.push([Message("3")])
    assert bodies(await second) == ["3"]


async def test_a_cancelled_pop_passes_its_wake_on(queue):
    first, second = (asyncio.ensure_future(queue.pop(1, 30, 5)) for _ in range(2))
    await turns()
    await queue.push([Message("1")])
    first.cancel()
    assert bodies(await second) == ["1"]
    with pytest.raises(asyncio.CancelledError):
        await first
    assert not queue._line


async def test_nothing_keeps_a_timer_while_nobody_waits(queue):
    loop = asyncio.get_running_loop()
    await queue.push([Message("a", delay=0.005)])
    before = len(loop._scheduled)
    pop = asyncio.ensure_future(queue.pop(1, 30, 60))
    await turns()
    assert len(loop._scheduled) == before + 1
    pop.cancel()
    await turns()
    assert [timer for timer in loop._scheduled[before:] if not timer.cancelled()] == []


async def test_an_earlier_moment_wakes_the_one_who_watches():
    queue = MemoryQueue()
    await queue.push([Message("late", delay=60)])
    pops = [asyncio.ensure_future(queue.pop(1, 30, 30)) for _ in range(2)]
    await turns()
    await queue.push([Message("soon", delay=0.004)])
    done, rest = await asyncio.wait(pops, return_when=asyncio.FIRST_COMPLETED)
    assert [bodies(pop.result()) for pop in done] == [["soon"]]
    await queue.push([Message("next", delay=0.004)])  # the second one watches now
    assert bodies(await rest.pop()) == ["next"]


async def test_a_lease_that_ends_wakes_a_waiting_pop():
    queue = MemoryQueue()
    await queue.push([Message("a"), Message("b")])
    (lease, _) = await queue.pop(2, 60, 0)
    pop = asyncio.ensure_future(queue.pop(1, 30, 30))
    await turns()
    await queue.extend([lease], 0.004)
    assert bodies(await pop) == ["a"]


async def test_a_clock_that_stands_still_is_asked_ever_less(queue, clock):
    asked = 0
    now_ms = clock.now_ms

    def count() -> int:
        nonlocal asked
        asked += 1
        return now_ms()

    clock.now_ms = count
    await queue.push([Message("a", delay=0.001)])
    assert await queue.pop(1, 30, 0.06) == []
    assert asked < 40
    clock.advance(1)
    assert bodies(await queue.pop(1, 30, 0)) == ["a"]


async def test_a_waiting_pop_looks_at_the_clock_once_more_at_its_end(queue, clock):
    pop = asyncio.ensure_future(queue.pop(1, 30, 0.01))
    await queue.push([Message("a", delay=60)])
    await turns()
    clock.advance(60)
    assert bodies(await pop) == ["a"]


def test_a_queue_works_under_one_loop_after_another(queue):
    async def use(body: str) -> list[str]:
        pop = asyncio.ensure_future(queue.pop(1, 30, 5))
        await turns()
        await queue.push([Message(body)])
        return bodies(await pop)

    assert asyncio.run(use("1")) == ["1"]
    assert asyncio.run(use("2")) == ["2"]


@pytest.mark.parametrize("collected", [False, True])
def test_a_pop_that_was_left_behind_by_its_loop_is_forgotten(queue, collected):
    loop = asyncio.new_event_loop()
    coroutine = queue.pop(1, 30, 5)
    loop.run_until_complete(_step(coroutine))
    assert queue._line
    loop.close()
    if collected:
        coroutine.close()

    async def use() -> list[str]:
        await queue.push([Message("1")])
        (lease,) = await queue.pop(1, 30, 0)
        first = asyncio.ensure_future(queue.pop(1, 30, 5))
        await turns()
        await queue.release([lease])
        return bodies(await first)

    assert asyncio.run(use()) == ["1"]
    assert not queue._line
    coroutine.close()


async def _step(coroutine) -> None:
    coroutine.send(None)


def test_a_waiting_loop_that_stands_still_does_not_keep_others_from_a_message(queue):
    loop = asyncio.new_event_loop()
    coroutine = queue.pop(1, 30, 5)
    loop.run_until_complete(_step(coroutine))

    async def use() -> list[str]:
        pop = asyncio.ensure_future(queue.pop(1, 30, 5))
        await turns()
        await queue.push([Message("1")])
        return bodies(await pop)

    assert asyncio.run(use()) == ["1"]
    coroutine.close()
    loop.close()


def test_a_push_from_outside_of_any_loop_wakes_a_pop_that_waits_for_ever(queue):
    loop = asyncio.new_event_loop()
    pop = loop.create_task(queue.pop(1, 30, float("inf")))
    loop.run_until_complete(turns())
    without_suspending(queue.push([Message("1")]))
    assert bodies(loop.run_until_complete(pop)) == ["1"]
    loop.close()


def test_a_loop_that_closes_while_it_is_called_counts_as_gone():
    loop = asyncio.new_event_loop()
    waiter = Waiter(loop, 1)
    line = Line()
    assert not line.is_first(waiter)
    line.join(waiter)
    loop.close()
    assert waiter.gone
    assert not waiter.call(None)
    assert not line.is_first(waiter)
    assert not line


def test_several_loops_in_threads_share_a_queue():
    queue = MemoryQueue()
    taken: list[str] = []
    count = 200

    async def worker() -> None:
        while True:
            leases = await queue.pop(3, 30, 5)
            if "stop" in bodies(leases):
                await queue.release(leases)
                return
            taken.extend(bodies(leases))
            await queue.ack(leases)

    threads = [threading.Thread(target=lambda: asyncio.run(worker())) for _ in range(3)]
    for thread in threads:
        thread.start()

    async def produce() -> None:
        for number in range(count):
            await queue.push([Message(str(number), delay=0.001 * (number % 3))])
            await turns(1)
        while len(taken) < count:
            await asyncio.tasks.sleep(0.001)
        await queue.push([Message("stop")])

    asyncio.run(asyncio.wait_for(produce(), 20))
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert sorted(taken, key=int) == [str(number) for number in range(count)]


# The store


async def test_the_store_declares_what_it_is(store):
    assert store.capabilities.in_process
    assert store.capabilities.max_changes == 1000


async def test_a_write_over_the_limit_of_changes_is_refused():
    store = MemoryStore(capabilities=Capabilities(max_changes=2))
    with pytest.raises(ConfigError, match="a write of 3 changes is over the 2"):
        await store.write([Change(key, value="1") for key in "abc"])


async def test_a_value_over_the_limit_is_refused_with_its_whole_write():
    # B35
    store = MemoryStore(capabilities=Capabilities(max_value_bytes=4))
    with pytest.raises(PayloadTooLargeError, match="the value of 'b' has 5 bytes"):
        await store.write([Change("a", value="1"), Change("b", value="12345"), Change("c")])
    assert await store.get("a") is None


async def test_store_calls_never_suspend(store):
    without_suspending(store.write([Change("a", value="1"), Change("b", value="2")]))
    assert without_suspending(store.read(["a"]))[0].value == "1"
    assert without_suspending(store.list("i")).items == []


async def test_a_record_that_was_returned_does_not_change(store):
    (before,) = await store.write([Change("a", value="1", add={"n": 1})])
    add = {"n": 1}
    await store.write([Change("a", add=add)])
    add["n"] = 99
    assert before == Record("a", "1", 1, {"n": 1})
    first = {"n": 1}
    await store.write([Change("b", add=first)])
    first["n"] = 99
    assert (await store.read(["b"]))[0].count("n") == 1


async def test_a_change_that_changes_nothing_creates_nothing(store):
    assert await store.write([Change("a", ttl=60)]) == [Record("a")]
    assert not store._cells


async def test_the_version_guards_while_counters_move(store):
    await store.write([Change("a", value="1", expect=0, add={"open": 1})])
    await store.write([Change("a", add={"open": 5})])
    await store.write([Change("a", value="2", expect=1, add={"open": -1})])
    with pytest.raises(ConflictError) as conflict:
        await store.write([Change("a", value="3", expect=1)])
    assert conflict.value.records == [Record("a", "2", 2, {"open": 5})]


async def test_expired_records_free_their_memory_as_others_are_written(store, clock):
    # S92 Q6
    for number in range(1_000):
        await store.write([Change(f"a {number}", value="1", ttl=10, index="i")])
    clock.advance(10)
    for number in range(130):
        await store.write([Change(f"b {number}", value="1", ttl=10, index="j")])
    assert len(store._cells) == 130
    assert set(store._indexes) == {"j"}
    assert len(store._expiries) == 130


async def test_an_expiry_that_moved_is_looked_at_again(store, clock):
    await store.write([Change("later", value="1", ttl=10)])
    await store.write([Change("later", add={"n": 1}, ttl=20)])
    await store.write([Change("never", value="1", ttl=10)])
    await store.write([Change("never", value="2", ttl=0)])
    await store.write([Change("gone", value="1", ttl=10)])
    await store.delete("gone")
    clock.advance(15)
    await store.set("x", "1")
    assert len(store._expiries) == 1
    clock.advance(5)
    await store.set("x", "1")
    assert set(store._cells) == {"never", "x"}
    assert store._expiries == []


async def test_renewals_do_not_pile_up(store):
    await store.write([Change("keep", value="1")])
    for number in range(5_000):
        await store.write([Change("a", value="1", ttl=10_000 - number)])
    assert len(store._expiries) <= 1_005
    for number in range(5_000):
        await store.write([Change("a", value="1", ttl=10_000 + number)])
    assert len(store._expiries) <= 1_005


async def test_listing_drops_what_expired(store, clock):
    # B31
    for key in "abc":
        await store.write([Change(key, value="1", ttl=10 if key == "b" else 99, index="i")])
    clock.advance(10)
    page = await store.list("i", 1)
    assert (page.items, page.cursor is None) == (["c"], False)
    page = await store.list("i", 1, page.cursor)
    assert (page.items, page.cursor) == (["a"], None)
    assert set(store._cells) == {"a", "c"}


async def test_a_list_asks_for_sensible_pages(store):
    with pytest.raises(ConfigError, match="limit=0"):
        await store.list("i", 0)
    with pytest.raises(ConfigError, match="the cursor 'what' is not from an earlier page"):
        await store.list("i", 10, "what")


async def test_long_indexes_page_through_removals(store):
    for number in range(2_000):
        await store.write([Change(str(number), value="1", index="i")])
    for number in range(2_000):
        if number % 10:
            await store.write([Change(str(number), value="2")])
    seen, cursor = [], None
    while not seen or cursor is not None:
        page = await store.list("i", 7, cursor)
        seen += page.items
        cursor = page.cursor
    assert seen == [str(number) for number in range(1_990, -1, -10)]


@given(st.lists(st.integers(0, 30), max_size=60), st.integers(0, 70))
def test_the_write_order_is_that_of_a_plain_list(numbers, below):
    order, model = WriteOrder(), []
    for serial, number in enumerate(numbers):
        if number < len(model):
            order.remove(model.pop(number)[0])
        order.append(serial, str(number))
        model.append((serial, str(number)))
    assert list(order.newest()) == model[::-1]
    assert list(order.newest(below)) == [entry for entry in model[::-1] if entry[0] < below]
    for serial, _ in model:
        order.remove(serial)
    assert not order


def test_threads_share_a_store_exactly():
    store = MemoryStore()

    async def count() -> None:
        for _ in range(300):
            await store.increment("a")

    threads = [threading.Thread(target=lambda: asyncio.run(count())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert without_suspending(store.read(["a"]))[0].count("value") == 1_200


# Pub/sub


async def test_a_listener_is_not_called_inside_publish():
    # S139
    pubsub = MemoryPubSub()
    heard: list[str] = []
    await pubsub.subscribe(heard.append)
    await pubsub.publish("a")
    assert heard == []
    await turns()
    assert heard == ["a"]


async def test_a_listener_that_raises_is_reported_to_its_loop(loop_errors):
    def broken(text: str) -> None:
        raise ValueError(text)

    reports: list[BaseException] = []
    asyncio.get_running_loop().set_exception_handler(
        lambda _, context: reports.append(context["exception"])
    )
    pubsub = MemoryPubSub()
    await pubsub.subscribe(broken)
    await pubsub.publish("junk")  # S51
    await turns()
    assert [str(report) for report in reports] == ["junk"]
    loop_errors.clear()


async def test_what_is_on_its_way_to_a_closed_subscription_is_dropped():
    pubsub = MemoryPubSub()
    heard: list[str] = []
    place = await pubsub.subscribe(heard.append)
    await pubsub.publish("a")
    await place.close()
    await turns()
    assert heard == []
    assert not pubsub._places  # S139: nothing is left behind


async def test_a_listener_does_not_see_the_context_of_the_publisher():
    variable: contextvars.ContextVar[str] = contextvars.ContextVar("variable", default="none")
    seen: list[str] = []
    pubsub = MemoryPubSub()
    await pubsub.subscribe(lambda _: seen.append(variable.get()))
    variable.set("publisher")
    await pubsub.publish("a")
    await turns()
    assert seen == ["none"]


async def test_a_message_reaches_the_loop_of_another_thread():
    pubsub = MemoryPubSub()
    ready, heard = threading.Event(), []

    async def listen() -> None:
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def listener(text: str) -> None:
            heard.append((text, threading.get_ident()))
            done.set_result(None)

        await pubsub.subscribe(listener)
        ready.set()
        await asyncio.wait_for(done, 5)

    thread = threading.Thread(target=lambda: asyncio.run(listen()))
    thread.start()
    ready.wait(5)
    await pubsub.publish("hello")
    thread.join(5)
    assert heard == [("hello", thread.ident)]
    await pubsub.publish("to nobody")  # its loop is closed: the subscription is dropped
    assert not pubsub._places


# The three together


async def test_a_backend_has_three_ports_over_one_clock(clock):
    # S141
    backend = memory_backend(now=clock)
    assert set(backend) == {"queue", "store", "pubsub"}
    queue, store = backend["queue"], backend["store"]
    await queue.push([Message("a", delay=10)])
    await store.set("a", "1", ttl=10)
    clock.advance(10)
    assert bodies(await queue.pop(1, 30, 0)) == ["a"]
    assert await store.get("a") is None


async def test_two_systems_over_one_backend_see_each_other():
    # S44 S141
    backend = memory_backend()
    heard: list[str] = []
    await backend["pubsub"].subscribe(heard.append)
    claims = [await backend["store"].set_if_not_exists("claim", "1", 86_400) for _ in range(2)]
    assert claims == [True, False]
    await backend["pubsub"].publish("done")
    await turns()
    assert heard == ["done"]


async def test_a_backend_takes_a_queue(queue):
    assert memory_backend(queue=queue)["queue"] is queue


def test_the_suites_and_the_backend_do_not_import_pytest():
    code = """if True:
        import sys, piecework.memory, piecework.testing.conformance
        assert "pytest" not in sys.modules
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_test_kit_imports_its_suites_only_when_they_are_named():
    code = """if True:
        import sys, piecework.testing
        assert "piecework.testing.conformance" not in sys.modules
        from piecework.testing import PubSubConformance, QueueConformance, StoreConformance
        assert not hasattr(piecework.testing, "Other")
    """
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
