"""How many tasks run at once, and which is next."""

from __future__ import annotations

import asyncio
import gc
import random
import selectors
from collections import Counter
from contextvars import ContextVar
from typing import Any

import pytest

from piecework.clock import sleep
from piecework.doers import (
    Doer,
    OrderedDoer,
    Task,
    age_doer,
    balanced_doer,
    do_with,
    priority_doer,
    rate_limited_doer,
    unlimited_doer,
)
from piecework.errors import BackendError, ConfigError, ConflictError
from piecework.ports import Capabilities, Change, Page, Record, Store


class Bench:
    """Makes tasks that run until they are told to end, and notes the order of their starts."""

    def __init__(self, doer: Doer) -> None:
        self.doer = doer
        self.started: list[str] = []
        self.gates: dict[str, asyncio.Event] = {}
        self.most = 0

    def task(self, id: str, **fields: Any) -> Task:
        gate = self.gates[id] = asyncio.Event()

        async def run() -> None:
            self.started.append(id)
            self.most = max(self.most, self.doer.running)
            await gate.wait()

        return Task(run, id, **fields)

    def do(self, id: str, **fields: Any) -> Task:
        task = self.task(id, **fields)
        self.doer.do(task)
        return task

    async def end(self, *names: str) -> None:
        for name in names or tuple(self.gates):
            self.gates[name].set()
        await settle()


async def settle() -> None:
    """Let everything that is ready run."""
    for _ in range(8):
        await sleep(0)


async def nothing() -> None:
    pass


@pytest.fixture
async def reported(loop_errors):
    """What reached the exception handler of the event loop."""
    seen: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: seen.append(context))
    yield seen
    loop_errors.clear()


CAPPED = [balanced_doer, priority_doer, age_doer]


async def test_the_unlimited_doer_starts_all_and_has_always_room():
    # S143
    bench = Bench(unlimited_doer())
    for number in range(1000):
        bench.do(str(number))
    await settle()
    assert len(bench.started) == 1000
    assert (bench.doer.available, bench.doer.running, bench.doer.waiting) == (256, 1000, 0)
    assert bench.doer.take_back() == []
    assert len(bench.doer.tasks()) == 1000
    await bench.end()
    await bench.doer.done()
    assert (bench.doer.running, bench.doer.tasks()) == (0, [])


@pytest.mark.parametrize("make", CAPPED)
async def test_room_is_max_and_buffer_less_what_is_held(make):
    # S146
    bench = Bench(make(2, 3))
    rooms = []
    for number in range(7):
        rooms.append(bench.doer.available)
        bench.do(str(number), group=str(number))
    assert rooms == [5, 4, 3, 2, 1, 0, 0]
    assert (bench.doer.running, bench.doer.waiting) == (2, 5)
    await bench.end("0", "1")
    assert (bench.doer.running, bench.doer.waiting, bench.doer.available) == (2, 3, 0)
    await bench.end()
    await bench.doer.done()
    assert len(bench.started) == 7
    assert bench.most == 2
    assert bench.doer.available == 5


@pytest.mark.parametrize("make", CAPPED)
async def test_the_buffer_is_as_large_as_max_by_default(make):
    # S144
    assert make(7).available == 14
    assert make(7, buffer=0).available == 7


async def test_the_balanced_doer_picks_the_group_with_the_fewest_running():
    # S144
    bench = Bench(balanced_doer(3))
    for name in ("a1", "a2", "b1"):
        bench.do(name, group=name[0])
    bench.do("a3", group="a", priority=9)
    bench.do("b2", group="b")
    bench.do("c1", group="c", created_at=5.0)
    bench.do("c2", group="c", created_at=4.0)
    await bench.end("a1")  # a has 1 running, b has 1, c has none
    assert bench.started[3:] == ["c2"]
    await bench.end("a2")  # a has none
    assert bench.started[4:] == ["a3"]
    await bench.end("b1")  # b has none
    assert bench.started[5:] == ["b2"]
    await bench.end("c2")
    assert bench.started[6:] == ["c1"]
    await bench.end()
    await bench.doer.done()


async def test_equal_groups_are_ranked_by_priority_then_age_then_arrival():
    # S144
    bench = Bench(balanced_doer(1))
    bench.do("first")
    bench.do("late", group="a", created_at=2.0)
    bench.do("old", group="b", created_at=1.0)
    bench.do("same", group="c", created_at=2.0)
    bench.do("urgent", group="d", priority=1, created_at=9.0)
    bench.do("behind", group="d", priority=0, created_at=0.0)
    for name in ("first", "urgent", "behind", "old", "late", "same"):
        await bench.end(name)
    assert bench.started == ["first", "urgent", "behind", "old", "late", "same"]


async def test_the_balanced_doer_agrees_with_a_plain_search():
    # S144
    dice = random.Random(5)
    bench = Bench(balanced_doer(4))
    waiting: list[Task] = []
    groups: dict[str, str] = {}
    for number in range(600):
        if dice.random() < 0.6:
            fields = {"group": dice.choice("abcdef"), "priority": dice.randrange(3)}
            task = bench.do(str(number), created_at=dice.randrange(4), **fields)
            groups[task.id] = fields["group"]
            await settle()
            if task.id not in bench.started:
                waiting.append(task)
        else:
            live = [name for name in bench.started if not bench.gates[name].is_set()]
            if not live:
                continue
            over = dice.choice(live)
            before = len(bench.started)
            running = Counter(groups[name] for name in live if name != over)
            await bench.end(over)
            if waiting:
                best = min(waiting, key=lambda t: (running[t.group], -t.priority, t.created_at))
                assert bench.started[before:] == [best.id]
                waiting.remove(best)
    await bench.end()
    await bench.doer.done()


async def test_the_balanced_doer_forgets_groups_and_outdated_ranks():
    # S144
    doer = balanced_doer(2)
    bench = Bench(doer)
    held: Any = doer._waiting
    for number in range(3000):
        bench.do(f"one {number}", group="one" if number % 3 else str(number), priority=number)
        if number % 2:
            await bench.end(*bench.started[-2:])
    assert len(held._ranks) <= 2 * len(held._groups) + 65
    await bench.end()
    await doer.done()
    assert (len(held._groups), len(held._ranks), len(held)) == (0, 0, 0)
    assert not doer._running


async def test_the_priority_doer_picks_the_highest_then_the_oldest():
    # S145
    bench = Bench(priority_doer(1))
    bench.do("first")
    bench.do("low", priority=-1, created_at=0.0)
    bench.do("young", priority=2, created_at=2.0)
    bench.do("old", priority=2, created_at=1.0)
    bench.do("old too", priority=2, created_at=1.0)
    for name in ("first", "old", "old too", "young", "low"):
        await bench.end(name)
    assert bench.started == ["first", "old", "old too", "young", "low"]


async def test_the_age_doer_picks_the_oldest_whatever_the_priority():
    # S145
    bench = Bench(age_doer(1))
    bench.do("first")
    bench.do("young", priority=9, created_at=2.0)
    bench.do("old", created_at=1.0)
    for name in ("first", "old", "young"):
        await bench.end(name)
    assert bench.started == ["first", "old", "young"]


async def test_a_batch_is_one_task_as_old_as_its_first_work():
    # S94
    bench = Bench(age_doer(2))
    for name, oldest in (("batch 1", 1.0), ("batch 2", 2.0), ("batch 4", 4.0), ("batch 3", 3.0)):
        bench.do(name, created_at=oldest)
    await settle()
    assert (bench.started, bench.doer.running) == (["batch 1", "batch 2"], 2)
    await bench.end("batch 1")
    assert bench.started[2:] == ["batch 3"]
    await bench.end()


@pytest.mark.parametrize("make", [unlimited_doer, lambda: priority_doer(1)])
async def test_a_task_that_raises_is_reported_and_the_doer_goes_on(make, reported):
    # S146
    async def broken() -> None:
        raise ValueError("boom")

    doer = make()
    doer.do(Task(broken, "w1"))
    doer.do(Task(nothing))
    await doer.done()
    assert [str(context["exception"]) for context in reported] == ["boom"]
    assert "w1" in reported[0]["message"]


async def test_done_returns_at_once_when_idle_and_waits_for_its_owner_only():
    # S146
    bench = Bench(priority_doer(1))
    await bench.doer.done()
    ours, theirs = object(), object()
    bench.do("theirs", owner=theirs)
    bench.do("ours", owner=ours)
    waiter = asyncio.ensure_future(bench.doer.done(ours))
    everyone = asyncio.ensure_future(bench.doer.done())
    await settle()
    assert not waiter.done()
    bench.do("theirs too", owner=theirs)
    await bench.end("theirs")
    assert not waiter.done()
    assert bench.doer.tasks(theirs) == []
    assert len(bench.doer.tasks(ours)) == 1
    await bench.end("ours")
    assert waiter.done()
    assert not everyone.done()
    await bench.end()
    await everyone


@pytest.mark.parametrize("late", [False, True])
async def test_a_cancelled_wait_for_done_leaves_nothing_behind(late):
    bench = Bench(unlimited_doer())
    bench.do("a")
    waiter = asyncio.ensure_future(bench.doer.done())
    both = asyncio.ensure_future(bench.doer.done())
    await settle()
    if late:
        bench.gates["a"].set()
    waiter.cancel()
    bench.gates["a"].set()
    await both
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert bench.doer._idlers == []


async def test_a_task_taken_back_can_be_given_again():
    bench = Bench(priority_doer(1))
    bench.do("a")
    bench.do("b")
    (task,) = bench.doer.take_back()
    bench.doer.do(task)
    await bench.end("a")
    assert bench.started == ["a", "b"]
    await bench.end()


@pytest.mark.parametrize("make", CAPPED)
async def test_the_owner_takes_back_what_has_not_started(make):
    bench = Bench(make(1, 9))
    ours, theirs = object(), object()
    bench.do("running", owner=ours)
    tasks = [
        bench.do(f"{n}", owner=ours if n % 2 else theirs, group=str(n % 3), priority=n % 4)
        for n in range(8)
    ]
    waiter = asyncio.ensure_future(bench.doer.done(theirs))
    await settle()
    assert bench.doer.take_back(ours) == tasks[1::2]
    assert (bench.doer.running, bench.doer.waiting) == (1, 4)
    assert not waiter.done()
    assert bench.doer.take_back() == tasks[::2]
    assert bench.doer.take_back() == []
    await settle()
    assert waiter.done()
    await bench.end()
    assert bench.started == ["running"]


async def test_the_order_holds_among_those_that_were_not_taken_back():
    bench = Bench(balanced_doer(1))
    bench.do("first")
    other = object()
    for n in range(9):
        bench.do(str(n), owner=other if n % 3 else None, group="g", priority=n)
    bench.doer.take_back(other)
    for name in ("first", "6", "3", "0"):
        await bench.end(name)
    assert bench.started == ["first", "6", "3", "0"]


async def test_listeners_hear_when_room_appears_until_they_unsubscribe():
    # S146
    bench = Bench(priority_doer(1, 1))
    rooms: list[int] = []
    unsubscribe = bench.doer.subscribe(lambda: rooms.append(bench.doer.available))
    for name in "abc":
        bench.do(name)
    await settle()
    await bench.end("a")  # two are held: full
    assert rooms == []
    bench.doer.take_back()
    assert rooms == [1]
    await bench.end("b")
    assert rooms == [1, 2]
    unsubscribe()
    unsubscribe()
    bench.do("d")
    await settle()
    await bench.end("d")
    assert rooms == [1, 2]


async def test_a_full_doer_that_stays_full_tells_nobody():
    bench = Bench(priority_doer(1, 0))
    rooms: list[int] = []
    bench.doer.subscribe(lambda: rooms.append(bench.doer.available))
    for name in "abcd":
        bench.do(name)
    bench.doer.take_back(object())
    last = bench.do("last", owner=bench)
    assert bench.doer.take_back(bench) == [last]
    assert rooms == []
    await bench.end()


async def test_a_broken_listener_is_reported_and_the_others_hear(reported):
    doer = priority_doer(1)
    heard: list[int] = []
    doer.subscribe(lambda: 1 // 0)
    doer.subscribe(lambda: heard.append(1))
    doer.do(Task(nothing))
    await doer.done()
    assert heard == [1]
    assert isinstance(reported[0]["exception"], ZeroDivisionError)


@pytest.mark.parametrize(("options", "expected"), [({}, [3]), ({"backlog_over": 0}, [1])])
async def test_a_backlog_is_told_when_it_rises_over_the_threshold(options, expected):
    told: list[int] = []
    bench = Bench(balanced_doer(1, 2, told.append, **options))
    for n in range(6):
        bench.do(str(n))
    assert told == expected
    bench.doer.take_back()
    for n in range(6):
        bench.do(f"again {n}")
    assert told == expected * 2
    await bench.end()


@pytest.mark.parametrize("make", [unlimited_doer, lambda: balanced_doer(1)])
async def test_a_task_cancelled_ahead_of_its_first_step_gives_its_place_back(make):
    bench = Bench(make())
    bench.do("a")
    bench.do("b")
    bench.doer.tasks()[0].cancel()
    await settle()
    assert bench.started == ["b"]
    await bench.end()
    await asyncio.wait_for(bench.doer.done(), 1)


async def test_a_cancelled_task_makes_place_for_the_next():
    bench = Bench(priority_doer(1))
    bench.do("a")
    bench.do("b")
    await settle()
    (handle,) = bench.doer.tasks()
    handle.cancel()
    await settle()
    assert handle.cancelled()
    assert bench.started == ["a", "b"]
    await bench.end()


async def test_ten_thousand_waiting_tasks_start_without_recursion():
    doer = age_doer(1)
    count = 0

    async def run() -> None:
        nonlocal count
        count += 1

    for _ in range(10_000):
        doer.do(Task(run))
    await doer.done()
    assert count == 10_000


def at_once(loop: asyncio.AbstractEventLoop, coro: Any, **_: Any) -> Any:
    """What ``asyncio.eager_task_factory`` of Python 3.12 does, for coroutines that never wait."""
    future = loop.create_future()
    try:
        coro.send(None)
    except StopIteration as stop:
        future.set_result(stop.value)
    return future


@pytest.mark.parametrize("make", [unlimited_doer, lambda: balanced_doer(1)])
async def test_an_eager_loop_neither_recurses_nor_leaks(make):
    doer, gate = make(), asyncio.Event()
    loop = asyncio.get_running_loop()
    doer.do(Task(gate.wait))
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", at_once))
    for _ in range(5_000):
        doer.do(Task(nothing))
    loop.set_task_factory(None)  # the fixtures' tasks do wait
    gate.set()
    await doer.done()
    assert (doer.running, doer.tasks()) == (0, [])


async def test_a_task_runs_in_the_context_of_its_do():
    who: ContextVar[str] = ContextVar("who")
    seen: list[str] = []
    gate = asyncio.Event()

    async def run() -> None:
        seen.append(who.get())
        await gate.wait()

    doer = priority_doer(1)
    for name in ("a", "b", "c"):
        who.set(name)
        doer.do(Task(run))
    who.set("d")
    gate.set()
    await doer.done()
    assert seen == ["a", "b", "c"]


@pytest.mark.parametrize(
    "make", [unlimited_doer, lambda: balanced_doer(1), lambda: rate_limited_doer(2, 5.0)]
)
def test_a_doer_serves_one_event_loop_after_another(make, loop_errors):
    doer = make()

    async def leave_behind() -> None:
        bench = Bench(doer)
        for name in "abc":
            bench.do(name)
        waiter = asyncio.ensure_future(doer.done())
        await settle()
        del waiter

    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)  # it complains of what it leaves behind
    loop.run_until_complete(leave_behind())
    loop.close()
    assert (doer.running, doer.waiting, doer.tasks()) == (0, 0, [])
    gc.collect()
    loop_errors.clear()  # a loop that is closed around tasks complains

    async def use() -> None:
        await asyncio.wait_for(doer.done(), 1)
        bench = Bench(doer)
        bench.do("x")
        await settle()
        assert bench.started == ["x"]
        await bench.end()
        await doer.done()

    asyncio.run(use())
    asyncio.run(use())


def test_a_loop_closed_around_a_task_leaves_no_noise(loop_errors):
    doer = balanced_doer(1)
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda *_: None)

    async def leave_behind() -> None:
        bench = Bench(doer)
        bench.do("a")
        bench.do("b")
        await settle()

    loop.run_until_complete(leave_behind())
    loop.close()
    held = next(iter(doer._running.values()))
    assert held is not None
    held.get_coro().close()
    assert doer.running == 0
    del held
    gc.collect()
    assert all("destroyed" in error for error in loop_errors)
    loop_errors.clear()


@pytest.mark.parametrize("make", CAPPED)
@pytest.mark.parametrize(
    "options", [{"max": 0}, {"max": 1.5}, {"max": True}, {"max": 1, "buffer": -1},
                {"max": 1, "backlog_over": -1}],
)  # fmt: skip
def test_numbers_out_of_range_are_refused(make, options):
    with pytest.raises(ConfigError, match="must be a whole number"):
        make(**options)


# --- rate limits ---------------------------------------------------------------------------------


class _Selector(selectors.DefaultSelector):
    """Does not wait for time: it lets time pass."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready and timeout:
            self.now += timeout
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._virtual = _Selector()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def in_virtual_time(main: Any) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(asyncio.wait_for(main(), 3600))


def loop_time() -> float:
    return asyncio.get_running_loop().time()


class Counters(Store):
    """A store of counters alone, as slow or as broken as a test wants it."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.ttls: list[float | None] = []
        self.delay = 0.0
        self.broken = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    async def read(self, keys: Any) -> list[Record]:
        raise ConflictError([])

    async def list(self, index: str, limit: int = 100, cursor: str | None = None) -> Page[str]:
        return Page([])

    async def write(self, changes: Any) -> list[Record]:
        (change,) = changes
        assert isinstance(change, Change)
        await sleep(self.delay)
        if self.broken:
            raise BackendError("table", "increment", "throttled")
        self.counts[change.key] += change.add["value"]
        self.ttls.append(change.ttl)
        return [Record(change.key, counters={"value": self.counts[change.key]})]


class Starts:
    """Tasks that note when they started and end at once."""

    def __init__(self) -> None:
        self.times: list[float] = []

    async def run(self) -> None:
        self.times.append(round(loop_time(), 3))


def test_no_span_of_the_window_sees_more_starts_than_the_limit():
    async def main() -> None:
        doer, starts = rate_limited_doer(3, 1.0), Starts()
        doer.do(Task(starts.run))
        await sleep(0.9)
        for _ in range(7):
            doer.do(Task(starts.run))
        await doer.done()
        assert starts.times == [0.0, 0.9, 0.9, 1.0, 1.9, 1.9, 2.0, 2.9]
        assert doer._timer is None

    in_virtual_time(main)


def test_a_rate_limited_doer_picks_by_priority_and_keeps_to_its_max():
    async def main() -> None:
        bench = Bench(rate_limited_doer(10, 1.0, max=1))
        assert bench.doer.available == 2
        bench.do("a")
        bench.do("b")
        bench.do("c", priority=1)
        await settle()
        assert bench.started == ["a"]
        assert bench.doer.available == 0
        await bench.end("a")
        assert bench.started == ["a", "c"]
        await bench.end()
        await bench.doer.done()
        assert bench.most == 1

    in_virtual_time(main)


def test_without_a_max_the_buffer_says_what_it_takes():
    async def main() -> None:
        bench = Bench(rate_limited_doer(2, 1.0, buffer=3))
        rooms: list[int] = []
        bench.doer.subscribe(lambda: rooms.append(bench.doer.available))
        for name in "abcdef":
            bench.do(name)
        assert (bench.doer.running, bench.doer.waiting, bench.doer.available) == (2, 4, 0)
        await sleep(1.0)
        assert (bench.doer.running, bench.doer.waiting, rooms) == (4, 2, [1])
        await bench.end()
        await sleep(1.0)
        await bench.end()
        await bench.doer.done()

    in_virtual_time(main)


def test_the_fleet_shares_one_limit_through_the_store():
    async def main() -> None:
        store, starts = Counters(), Starts()
        options: dict[str, Any] = {"store": store, "name": "mail", "now": loop_time}
        fleet = [rate_limited_doer(10, 1.0, **options) for _ in range(3)]
        for number in range(45):
            fleet[number % 3].do(Task(starts.run))
        for doer in fleet:
            await doer.done()
        per_window = Counter(int(time) for time in starts.times)
        assert max(per_window.values()) == 10
        assert per_window[0] == 10
        assert len(starts.times) == 45
        assert set(store.ttls) == {62.0}
        assert all(key.startswith("mail:") for key in store.counts)

    in_virtual_time(main)


def test_many_starts_are_reserved_at_once():
    async def main() -> None:
        store, starts = Counters(), Starts()
        doer = rate_limited_doer(1000, 1.0, store=store, max=200, now=loop_time)
        for _ in range(200):
            doer.do(Task(starts.run))
        await doer.done()
        assert len(store.ttls) <= 3
        assert starts.times == [0.0] * 200

    in_virtual_time(main)


def test_a_store_slower_than_the_window_lets_tasks_start_all_the_same():
    async def main() -> None:
        store, starts = Counters(), Starts()
        store.delay = 2.5
        doer = rate_limited_doer(4, 1.0, store=store, now=loop_time)
        for _ in range(6):
            doer.do(Task(starts.run))
        await doer.done()
        assert starts.times == [2.5] * 4 + [5.0] * 2

    in_virtual_time(main)


@pytest.mark.parametrize("told", [True, False])
def test_a_broken_store_is_told_and_the_local_limit_holds(told, loop_errors):
    async def main() -> None:
        errors: list[object] = []
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
        store, starts = Counters(), Starts()
        store.broken = True
        on_error = errors.append if told else None
        doer = rate_limited_doer(2, 1.0, store=store, on_error=on_error, now=loop_time)
        for _ in range(5):
            doer.do(Task(starts.run))
        await sleep(1.5)
        store.broken = False
        await doer.done()
        assert starts.times == [0.0, 0.0, 1.0, 1.0, 2.0]
        assert all(isinstance(error, BackendError) for error in errors)
        assert len(errors) == 2

    in_virtual_time(main)
    assert len(loop_errors) == (0 if told else 2)
    loop_errors.clear()


def test_what_was_taken_back_leaves_no_timer_and_no_request():
    async def main() -> None:
        store, starts = Counters(), Starts()
        store.delay = 5.0
        local, fleet = rate_limited_doer(1, 60.0), rate_limited_doer(1, 60.0, store=store)
        for doer in (local, fleet):
            for _ in range(3):
                doer.do(Task(starts.run))
            doer.take_back(object())
            await settle()
            assert len(doer.take_back()) >= 2
            await asyncio.wait_for(doer.done(), 1)
        assert len(asyncio.all_tasks()) <= 2  # this one, and its wait_for
        store.delay = 0.0
        fleet.do(Task(starts.run))
        await fleet.done()
        assert len(starts.times) == 2

    in_virtual_time(main)


@pytest.mark.parametrize(
    "options", [{"limit": 0}, {"window": 0}, {"window": float("inf")}, {"max": 0},
                {"buffer": 0}, {"buffer": -1, "max": 1}],
)  # fmt: skip
def test_a_rate_out_of_range_is_refused(options):
    with pytest.raises(ConfigError, match="doer"):
        rate_limited_doer(**({"limit": 1, "window": 1.0} | options))


# --- calls through a doer ------------------------------------------------------------------------


async def test_results_and_errors_come_back_to_the_caller():
    async def divide(a: int, b: int = 1) -> float:
        return a / b

    through = do_with(priority_doer(1), divide)
    assert through.__name__ == "divide"
    assert await asyncio.gather(through(4, b=2), through(3)) == [2.0, 3.0]
    with pytest.raises(ZeroDivisionError):
        await through(1, 0)


async def test_a_plain_function_goes_through_a_doer_too():
    assert await do_with(unlimited_doer(), len)("abc") == 3

    def stop() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError):
        await do_with(unlimited_doer(), stop)()


async def test_calls_share_the_places_of_the_doer():
    doer = balanced_doer(2)
    most = 0

    async def call() -> None:
        nonlocal most
        most = max(most, doer.running)
        await sleep(0)

    through = do_with(doer, call, group="calls", priority=1)
    await asyncio.gather(*(through() for _ in range(10)))
    assert most == 2


async def test_a_cancelled_caller_takes_its_call_with_it():
    doer: OrderedDoer = priority_doer(1)
    entered, ended = asyncio.Event(), asyncio.Event()

    async def call() -> None:
        entered.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    through = do_with(doer, call)
    running = asyncio.ensure_future(through())
    await entered.wait()
    waiting = asyncio.ensure_future(through())
    await settle()
    waiting.cancel()
    await asyncio.wait([waiting])
    assert doer.waiting == 0
    assert not ended.is_set()
    running.cancel()
    await asyncio.wait([running])
    assert ended.is_set()
    assert doer.running == 0


@pytest.mark.parametrize("outcome", ["result", "error"])
async def test_a_call_that_ends_in_spite_of_the_cancel_is_harmless(outcome, reported):
    entered = asyncio.Event()

    async def stubborn() -> str:
        entered.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if outcome == "error":
                raise ValueError("on the way out") from None
        return "late"

    doer = unlimited_doer()
    caller = asyncio.ensure_future(do_with(doer, stubborn)())
    await entered.wait()
    caller.cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert (doer.running, reported) == (0, [])


async def test_a_call_cancelled_in_the_doer_cancels_its_caller():
    doer = unlimited_doer()
    caller = asyncio.ensure_future(do_with(doer, asyncio.Event().wait)())
    await settle()
    doer.tasks()[0].cancel()
    with pytest.raises(asyncio.CancelledError):
        await caller


def test_an_exit_reaches_the_caller_and_the_loop(loop_errors):
    seen: list[str] = []

    async def leave() -> None:
        raise SystemExit(3)

    async def main() -> None:
        try:
            await do_with(unlimited_doer(), leave)()
        except (SystemExit, asyncio.CancelledError) as error:
            seen.append(type(error).__name__)
            raise

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert seen
    gc.collect()
    assert all("SystemExit" in error for error in loop_errors)
    loop_errors.clear()
