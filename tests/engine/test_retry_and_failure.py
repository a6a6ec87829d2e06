"""Failures: retried, put off, classified or dead, with every step in a safe order."""

from __future__ import annotations

import asyncio
import itertools
from datetime import datetime, timedelta

import pytest
from tests.support.unreliable import (
    Journal,
    JournalQueue,
    Process,
    in_process,
    journal_backend,
)

from piecework import (
    Delay,
    MemoryStore,
    Retry,
    RetryAbort,
    RunAt,
    WorkContext,
    WorkDelayError,
    WorkExpiredError,
    WorkFailedError,
    create_work,
    define_work,
    memory_backend,
)
from piecework.clock import sleep

PLAIN = Retry(attempts=3, base=1, factor=2, max=30, jitter=0)


def kinds(events):
    return [event.kind for event in events]


# ---- retry -----------------------------------------------------------------------------------


async def test_a_retry_writes_then_pushes_then_acks(virtual_clock):
    # S73, Q1: the new message exists before the old one goes
    journal = Journal()
    events = []

    @define_work(retry=PLAIN)
    async def flaky(ctx: WorkContext) -> int:
        if ctx.attempt == 1:
            raise ValueError("first")
        return ctx.attempt

    async with create_work(
        work=[flaky], on_event=events.append, **journal_backend(journal)
    ) as work:
        handle = await work.enqueue(flaky())
        await virtual_clock.advance(0)
        assert journal.entries == ["write pending", "push", "write pending", "push", "ack"]
        state = await handle.state()
        assert (state.status, state.attempt) == ("pending", 2)
        assert state.start_at == state.queue_at + timedelta(seconds=1)
        await virtual_clock.advance(5)
        assert (await handle.state()).result == 2
    assert kinds(events) == ["queued", "started", "failed", "started", "succeeded", "group-done"]
    assert events[2].will_retry
    assert events[2].error == "ValueError: first"
    assert events[2].attempt == 1


@pytest.mark.parametrize("fails", ["push", "ack"])
async def test_a_retry_whose_push_or_ack_fails_loses_nothing_and_repeats_nothing(
    virtual_clock, fails
):
    # Q1
    ports = journal_backend()
    attempts, errors, events = [], [], []
    state = {"armed": False}

    def fail(operation):
        if state["armed"] and operation == fails:
            state["armed"] = False
            return OSError("queue away")
        return None

    ports["queue"].fail = fail

    @define_work(retry=PLAIN)
    async def flaky(ctx: WorkContext) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            state["armed"] = True
            raise ValueError("first")
        return ctx.attempt

    async with create_work(
        work=[flaky],
        on_event=events.append,
        on_error=lambda error, phase: errors.append(phase),
        **ports,
    ) as work:
        handle = await work.enqueue(flaky())
        assert await handle.result(timeout=60) == 2
        await virtual_clock.advance(120)
    assert attempts == [1, 2]
    assert errors == ["commit"]
    assert await ports["queue"].size() == 0
    assert kinds(events).count("group-done") == 1
    assert (await ports["store"].read([f"work:item:{handle.id}"]))[0].count("open") == 0


@pytest.mark.parametrize("call", ["write pending", "push", "ack"])
async def test_a_worker_that_dies_in_a_retry_loses_nothing(virtual_clock, call):
    # Q1, P1: whatever the last call was, another worker goes on
    shared = memory_backend()
    attempts = []

    def flaky_for(name, process=None):
        async def flaky(ctx: WorkContext) -> str:
            attempts.append((name, ctx.attempt))
            if ctx.attempt == 1:
                if process is not None:
                    process.dies_at = lambda step: step == call
                raise ValueError("first")
            return name

        return define_work("flaky", flaky, retry=PLAIN)

    doomed = Process()
    first = create_work(
        work=[flaky_for("first", doomed)],
        on_error=lambda *_: None,
        **in_process(shared, doomed),
    )
    producer = create_work(auto_start=False, **shared)
    handle = await producer.enqueue(flaky_for("producer")())
    await first.start()
    await virtual_clock.advance(1)
    assert doomed.dead
    async with create_work(work=[flaky_for("second")], **shared):
        assert await handle.result(timeout=300) == "second"
        await virtual_clock.advance(300)
    assert attempts[0] == ("first", 1)
    assert attempts[-1] == ("second", 2)
    assert len(attempts) == (3 if call == "write pending" else 2)
    assert await shared["queue"].size() == 0
    await first.stop(drain=0)
    await producer.stop()


async def test_the_backoff_is_exact_with_a_fixed_random(virtual_clock, backend):
    # S74
    events = []

    @define_work(retry=Retry(attempts=4, base=1, factor=3, max=5, jitter=0.5))
    async def failing():
        raise ValueError("no")

    async with create_work(
        work=[failing], on_event=events.append, random=lambda: 0.5, **backend
    ) as work:
        await (await work.enqueue(failing()))
    pauses = [
        (event.start_at - event.at).total_seconds()
        for event in events
        if event.kind == "failed" and event.will_retry
    ]
    assert pauses == [0.75, 2.25, 3.75]
    starts = [event.at for event in events if event.kind == "started"]
    between = [(b - a).total_seconds() for a, b in itertools.pairwise(starts)]
    assert between == pytest.approx([0.75, 2.25, 3.75], abs=0.002)


async def test_a_work_without_attempts_left_is_dead_everywhere(virtual_clock, backend):
    # S75
    events = []

    @define_work(retry=PLAIN)
    async def failing(n: int):
        raise ValueError("boom")

    async with create_work(work=[failing], on_event=events.append, **backend) as work:
        handle = await work.enqueue(failing(1))
        with pytest.raises(WorkFailedError, match=r"^ValueError: boom$") as raised:
            await handle.result()
        assert (raised.value.id, raised.value.type) == (handle.id, "failing")
        assert 'raise ValueError("boom")' in raised.value.traceback
        assert await handle.group(timeout=1) is None  # the group settles
        state = await handle.state()
        assert (state.status, state.attempt, state.error) == ("dead", 3, "ValueError: boom")
        [letter] = await work.dead_letters()
        assert (letter.id, letter.type, letter.attempt) == (handle.id, "failing", 3)
        assert letter.reason == "ValueError: boom"
        assert await backend["queue"].size() == 0
    assert [event.will_retry for event in events if event.kind == "failed"] == [True, True, False]
    assert kinds(events)[-2:] == ["failed", "group-done"]


async def test_death_is_written_before_the_message_moves_to_the_dead_letters(virtual_clock):
    # S75
    journal = Journal()

    @define_work(retry=Retry(attempts=1))
    async def failing():
        raise ValueError("boom")

    async with create_work(work=[failing], **journal_backend(journal)) as work:
        await work.enqueue(failing())
        await virtual_clock.advance(1)
    assert journal.entries == ["write pending", "push", "write dead", "dead_letter"]


async def test_a_work_whose_dead_letter_fails_is_dead_all_the_same(virtual_clock):
    # S75
    ports = journal_backend()
    failures = [OSError("queue away")]
    ports["queue"].fail = lambda op: failures.pop() if op == "dead_letter" and failures else None

    @define_work(retry=Retry(attempts=1))
    async def failing():
        raise ValueError("boom")

    async with create_work(work=[failing], on_error=lambda *_: None, **ports) as work:
        handle = await work.enqueue(failing())
        with pytest.raises(WorkFailedError, match="boom"):
            await handle.result()
        await virtual_clock.advance(120)  # the next delivery moves it
        assert [letter.id for letter in await work.dead_letters()] == [handle.id]
        assert await ports["queue"].size() == 0


# ---- putting off -----------------------------------------------------------------------------


async def test_a_work_can_put_itself_off_for_ever_on_one_attempt(virtual_clock, backend):
    # S76
    events, attempts = [], []

    @define_work(retry=Retry(attempts=1))
    async def patient(ctx: WorkContext) -> str:
        attempts.append(ctx.attempt)
        if len(attempts) < 30:
            raise WorkDelayError(delay=60)
        return "at last"

    async with create_work(work=[patient], on_event=events.append, **backend) as work:
        began = virtual_clock.now()
        assert await work.run(patient()) == "at last"
        assert virtual_clock.now() - began >= timedelta(minutes=29)
    assert set(attempts) == {1}
    assert kinds(events).count("deferred") == 29
    assert "failed" not in kinds(events)
    deferred = next(event for event in events if event.kind == "deferred")
    assert deferred.start_at - deferred.at == timedelta(seconds=60)


async def test_run_at_wins_over_delay_and_the_past_means_now(virtual_clock, backend):
    # S76
    starts = []
    at = virtual_clock.now() + timedelta(hours=2)

    @define_work
    async def planned(ctx: WorkContext) -> None:
        starts.append(virtual_clock.now())
        if len(starts) == 1:
            raise WorkDelayError(5, run_at=at)
        if len(starts) == 2:
            raise WorkDelayError(run_at=at - timedelta(days=1))

    async with create_work(work=[planned], **backend) as work:
        await work.run(planned())
    assert starts[1] >= at
    assert starts[2] - starts[1] < timedelta(seconds=1)


@pytest.mark.parametrize(
    "signal",
    [WorkDelayError(run_at=datetime(2027, 1, 1)), WorkDelayError(float("inf"))],
    ids=["no time zone", "for ever"],
)
async def test_putting_off_to_no_usable_time_is_a_failure_and_no_endless_loop(
    virtual_clock, backend, signal
):
    calls = []

    @define_work(retry=PLAIN)
    async def confused():
        calls.append(1)
        raise signal

    async with create_work(work=[confused], **backend) as work:
        with pytest.raises(WorkFailedError, match="ConfigError"):
            await work.run(confused())
    assert len(calls) == 3


async def test_each_turn_of_a_work_that_puts_itself_off_has_new_children(virtual_clock, backend):
    ran = []

    @define_work
    async def child(n: int) -> None:
        ran.append(n)

    turns = []

    @define_work
    async def parent(ctx: WorkContext) -> None:
        ids = await ctx.queue([child(1), child(1)])
        turns.append(ids)
        if len(turns) < 3:
            raise WorkDelayError(delay=10)

    async with create_work(work=[parent, child], **backend) as work:
        await (await work.enqueue(parent()))
    assert len({id for ids in turns for id in ids}) == 6
    assert ran == [1] * 6


async def test_a_retried_parent_queues_the_same_children_again_which_does_nothing(
    virtual_clock, backend
):
    ran, ids = [], []

    @define_work
    async def child(n: int) -> None:
        ran.append(n)

    @define_work(retry=PLAIN)
    async def parent(ctx: WorkContext) -> None:
        ids.append(await ctx.queue([child(1), child(2), child(1)]))
        if ctx.attempt < 3:
            raise ValueError("again")

    async with create_work(work=[parent, child], **backend) as work:
        await (await work.enqueue(parent()))
    assert ids[0] == ids[1] == ids[2]
    assert sorted(ran) == [1, 1, 2]


# ---- giving up -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cause", "text", "name"),
    [
        ("stolen card", "stolen card", "RetryAbort"),
        (KeyError("gone"), "KeyError: 'gone'", "KeyError"),
    ],
)
async def test_retry_abort_kills_with_the_text_of_its_cause(
    virtual_clock, backend, cause, text, name
):
    # S77: one run of five
    calls = []

    @define_work(retry=Retry(attempts=5))
    async def hopeless():
        calls.append(1)
        raise RetryAbort(cause)

    async with create_work(work=[hopeless], **backend) as work:
        with pytest.raises(WorkFailedError) as raised:
            await work.run(hopeless())
    assert str(raised.value) == text
    assert raised.value.error_type == name
    assert calls == [1]


async def test_on_failure_abort_kills_at_once(virtual_clock, backend):
    # S78
    calls = []

    @define_work(retry=Retry(attempts=5), on_failure=lambda error, info: "abort")
    async def failing():
        calls.append(1)
        raise ValueError("boom")

    async with create_work(work=[failing], **backend) as work:
        with pytest.raises(WorkFailedError, match="ValueError: boom"):
            await work.run(failing())
    assert calls == [1]


async def test_on_failure_puts_off_without_spending_an_attempt(virtual_clock, backend):
    # S79: the rate-limit pattern
    class TooMany(Exception):
        pass

    attempts, events = [], []
    at = virtual_clock.now() + timedelta(hours=1)
    fates = [Delay(30), Delay(timedelta(minutes=1)), RunAt(at), RunAt(at)]

    def classify(error, info):
        assert isinstance(error, TooMany)
        return fates.pop(0)

    @define_work(retry=Retry(attempts=1))
    async def limited(ctx: WorkContext) -> str:
        attempts.append((ctx.attempt, virtual_clock.now()))
        if len(attempts) < 5:
            raise TooMany
        return "through"

    async with create_work(
        work=[limited], on_failure=classify, on_event=events.append, **backend
    ) as work:
        assert await work.run(limited()) == "through"
    assert [attempt for attempt, _ in attempts] == [1] * 5
    times = [time for _, time in attempts]
    assert times[1] - times[0] == timedelta(seconds=30)
    assert times[2] - times[1] == timedelta(seconds=60)
    assert times[3] >= at
    assert times[4] - times[3] < timedelta(seconds=1)  # past means now
    assert kinds(events).count("deferred") == 4


async def test_a_replay_after_on_failure_put_it_off_has_the_same_children(virtual_clock, backend):
    # S79: the work did not ask for it itself, so this is no new turn
    ran = []

    @define_work
    async def child() -> None:
        ran.append(1)

    @define_work(on_failure=lambda error, info: Delay(5))
    async def parent(ctx: WorkContext) -> None:
        await ctx.queue(child())
        if not (await ctx.claim("once")):
            return
        raise ValueError("limit")

    async with create_work(work=[parent, child], **backend) as work:
        await (await work.enqueue(parent()))
    assert ran == [1]


@pytest.mark.parametrize("fate", ["retry", None])
async def test_on_failure_retry_or_nothing_is_a_counted_retry(virtual_clock, backend, fate):
    # S80
    infos, attempts = [], []

    @define_work(retry=PLAIN)
    async def failing(ctx: WorkContext, n: int):
        attempts.append(ctx.attempt)
        raise ValueError("boom")

    def classify(error, info):
        infos.append(info)
        return fate

    async with create_work(work=[failing], on_failure=classify, **backend) as work:
        handle = await work.enqueue(failing(4))
        with pytest.raises(WorkFailedError):
            await handle.result()
    assert attempts == [1, 2, 3]
    assert [(i.attempt, i.attempts) for i in infos] == [(1, 3), (2, 3), (3, 3)]
    assert infos[0].input == {"n": 4}
    assert (infos[0].id, infos[0].type, infos[0].group_id) == (handle.id, "failing", handle.id)


@pytest.mark.parametrize(
    "answer",
    [
        RuntimeError("broken hook"),
        RunAt(datetime(2026, 1, 1)),  # without a time zone
        Delay("soon"),
        Delay(float("inf")),
        "abrot",
    ],
)
async def test_a_broken_classifier_is_reported_and_the_default_used(virtual_clock, backend, answer):
    # S81
    errors, attempts = [], []

    def classify(error, info):
        if isinstance(answer, RuntimeError):
            raise answer
        return answer

    @define_work(retry=PLAIN)
    async def failing(ctx: WorkContext) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("boom")
        return ctx.attempt

    async with create_work(
        work=[failing],
        on_failure=classify,
        on_error=lambda error, phase: errors.append((type(error).__name__, phase)),
        **backend,
    ) as work:
        assert await work.run(failing()) == 2
    assert attempts == [1, 2]
    assert [phase for _, phase in errors] == ["commit"]


async def test_an_explicit_signal_beats_the_classifier(virtual_clock, backend):
    # S82
    asked = []

    def classify(error, info):
        asked.append(error)
        return "retry"

    @define_work(retry=PLAIN)
    async def aborting():
        raise RetryAbort("now")

    @define_work(retry=PLAIN)
    async def deferring(ctx: WorkContext) -> int:
        if await ctx.claim("first"):
            raise WorkDelayError(1)
        return 1

    async with create_work(work=[aborting, deferring], on_failure=classify, **backend) as work:
        with pytest.raises(WorkFailedError, match="now"):
            await work.run(aborting())
        assert await work.run(deferring()) == 1
    assert asked == []


async def test_the_classifier_of_a_type_wins_over_the_systems(virtual_clock, backend):
    # S78
    @define_work(retry=PLAIN, on_failure=lambda error, info: "abort")
    async def own(ctx: WorkContext):
        calls.append(ctx.attempt)
        raise ValueError("boom")

    calls = []
    async with create_work(work=[own], on_failure=lambda error, info: "retry", **backend) as work:
        with pytest.raises(WorkFailedError):
            await work.run(own())
    assert calls == [1]


# ---- timeouts --------------------------------------------------------------------------------


async def test_a_timeout_is_a_failure_that_is_retried(virtual_clock, backend):
    attempts, seen = [], []

    @define_work(retry=PLAIN, timeout=5, on_failure=lambda error, info: seen.append(error))
    async def slow(ctx: WorkContext) -> int:
        attempts.append(ctx.attempt)
        if ctx.attempt < 3:
            await sleep(60)
        return ctx.attempt

    async with create_work(work=[slow], **backend) as work:
        assert await work.run(slow()) == 3
    assert attempts == [1, 2, 3]
    assert [type(error) for error in seen] == [TimeoutError] * 2


async def test_a_work_that_always_times_out_is_dead_and_says_so(virtual_clock, backend):
    @define_work(retry=Retry(attempts=1), timeout=0.5)
    async def slow():
        await sleep(60)

    async with create_work(work=[slow], **backend) as work:
        with pytest.raises(WorkFailedError, match=r"TimeoutError: timed out after 0\.5 s"):
            await work.run(slow())


async def test_a_timeout_of_its_own_inside_the_handler_is_its_own_failure(virtual_clock, backend):
    @define_work(retry=Retry(attempts=1), timeout=50)
    async def impatient():
        async with asyncio.timeout(1):
            await sleep(10)

    async with create_work(work=[impatient], **backend) as work:
        with pytest.raises(WorkFailedError, match="^TimeoutError"):
            await work.run(impatient())


async def test_a_retry_after_the_deadline_expires_in_place_of_running(virtual_clock, backend):
    calls, events = [], []

    @define_work(retry=Retry(attempts=5, base=10, jitter=0))
    async def failing():
        calls.append(1)
        raise ValueError("boom")

    async with create_work(work=[failing], on_event=events.append, **backend) as work:
        handle = await work.enqueue(failing(), deadline=5)
        with pytest.raises(WorkExpiredError):
            await handle.result()
        assert await handle.group(timeout=1) is None
    assert calls == [1]
    assert kinds(events)[-2:] == ["expired", "group-done"]


# ---- children --------------------------------------------------------------------------------


async def test_a_child_that_cannot_be_queued_fails_the_parent_also_when_nobody_awaits(
    virtual_clock,
):
    # S85 of the children: nothing is lost in silence
    ports = journal_backend()
    failures = [OSError("store away")] * 2

    def fail(changes):
        is_child = any("open+1" in f"{n}{b:+d}" for c in changes[1:] for n, b in c.add.items())
        return failures.pop() if is_child and failures else None

    ports["store"].fail = fail
    attempts, ran = [], []

    @define_work
    async def child() -> None:
        ran.append(1)

    @define_work(retry=PLAIN)
    async def parent(ctx: WorkContext) -> None:
        attempts.append(ctx.attempt)
        ctx.queue(child())

    async with create_work(work=[parent, child], **ports) as work:
        handle = await work.enqueue(parent())
        await handle.result(timeout=60)
        await handle.group(timeout=60)
    assert attempts == [1, 2, 3]
    assert ran == [1]


async def test_a_group_result_that_cannot_be_written_fails_the_work(virtual_clock, backend):
    @define_work(retry=Retry(attempts=1))
    async def parent(ctx: WorkContext) -> None:
        ctx.set_result(asyncio.Lock())

    async with create_work(work=[parent], **backend) as work:
        with pytest.raises(WorkFailedError):
            await work.run(parent())


async def test_a_handler_that_catches_its_own_failed_queue_still_fails(virtual_clock):
    ports = journal_backend()
    ports["store"].fail = lambda changes: (
        OSError("away") if len(changes) > 1 and changes[1].add.get("open") == 1 else None
    )

    @define_work
    async def child() -> None: ...

    @define_work(retry=Retry(attempts=1))
    async def parent(ctx: WorkContext) -> None:
        try:
            await ctx.queue(child())
        except OSError:
            return

    async with create_work(work=[parent, child], **ports) as work:
        with pytest.raises(WorkFailedError, match="OSError: away"):
            await work.run(parent())


async def test_children_of_children_hold_the_group_open(virtual_clock, backend):
    order = []

    @define_work
    async def leaf(n: int) -> None:
        await sleep(n)
        order.append(n)

    @define_work
    async def middle(ctx: WorkContext, n: int) -> None:
        ctx.queue([leaf(n), leaf(n + 1)])

    @define_work
    async def root(ctx: WorkContext) -> str:
        ctx.queue([middle(10), middle(20)])
        return ctx.group_id

    async with create_work(work=[root, middle, leaf], **backend) as work:
        handle = await work.enqueue(root())
        await handle
        assert sorted(order) == [10, 11, 20, 21]
        states = await work.list()
        assert {state.group_id for state in states} == {handle.id}
        parents = {state.id: state.parent_id for state in states}
        leaves = [state for state in states if state.type == "leaf"]
        assert all(parents[state.parent_id] == handle.id for state in leaves)


async def test_a_group_with_a_failing_child_settles_after_its_last_attempt(virtual_clock, backend):
    @define_work(retry=Retry(attempts=3, base=100, factor=1, max=100, jitter=0))
    async def failing():
        raise ValueError("boom")

    @define_work
    async def root(ctx: WorkContext) -> None:
        ctx.queue(failing())
        await ctx.set_result("set")

    async with create_work(work=[root, failing], **backend) as work:
        handle = await work.enqueue(root())
        await handle.result()
        began = virtual_clock.now()
        assert await handle == "set"
        assert virtual_clock.now() - began >= timedelta(seconds=200)


async def test_a_store_that_is_away_for_a_minute_holds_up_works_and_loses_none(virtual_clock):
    class Away(MemoryStore):
        away = False

        async def write(self, changes):
            if self.away:
                raise OSError("store away")
            return await super().write(changes)

        async def read(self, keys):
            if self.away:
                raise OSError("store away")
            return await super().read(keys)

    store = Away()
    calls = []

    @define_work(retry=PLAIN)
    async def steady(ctx: WorkContext, n: int) -> int:
        calls.append(n)
        await sleep(1)
        return n

    async with create_work(
        work=[steady], on_error=lambda *_: None, store=store, queue=JournalQueue()
    ) as work:
        handles = await work.enqueue_many([steady(n) for n in range(20)])
        await virtual_clock.advance(0.5)
        store.away = True
        await virtual_clock.advance(60)
        store.away = False
        assert await asyncio.wait_for(handles.results(), 300) == list(range(20))
    assert sorted(calls) == list(range(20))
