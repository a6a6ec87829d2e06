"""Dead letters brought back: when idle, on demand, with all attempts and their group's count."""

from __future__ import annotations

from datetime import timedelta

import pytest
from tests.support.unreliable import Journal, JournalQueue, journal_backend

from piecework import (
    ConfigError,
    MemoryQueue,
    Message,
    Retry,
    WorkContext,
    WorkFailedError,
    create_work,
    define_work,
)
from piecework.clock import sleep
from piecework.ports import Capabilities, Change
from piecework.testing.virtual_clock import VirtualClock

ONCE = Retry(attempts=1)


class Switch:
    """A work type that fails until it is mended."""

    def __init__(self, attempts=1):
        self.mended = False
        self.attempts = []
        self.children = 0

        @define_work("switch", retry=Retry(attempts=attempts, base=0.1, jitter=0))
        async def switch(ctx: WorkContext, n: int = 0) -> int:
            self.attempts.append(ctx.attempt)
            for i in range(self.children):
                ctx.queue(quick(i))
            if not self.mended:
                raise ValueError("broken")
            return n

        self.type = switch


@define_work
async def quick(n: int) -> int:
    return n


def kinds(events):
    return [event.kind for event in events]


def with_letters(backend):
    """The ports, and the dead letters of the queue as the system's."""
    return {**backend, "dlq": backend["queue"].dead_letter_queue}


async def opened(store, id):
    return (await store.read([f"work:item:{id}"]))[0].count("open")


async def test_an_idle_worker_brings_dead_letters_back_with_all_their_attempts(
    virtual_clock, backend
):
    # S117, S118
    switch = Switch(attempts=3)
    events = []
    async with create_work(
        work=[switch.type], on_event=events.append, **with_letters(backend)
    ) as work:
        handle = await work.enqueue(switch.type(5))
        with pytest.raises(WorkFailedError):
            await handle.result()
        died = await handle.state()
        switch.mended = True
        await virtual_clock.advance(60)
        assert await handle.result() == 5
        state = await handle.state()
        assert state.attempt == 1
        assert state.error is None  # Q9
        assert state.queue_at > died.queue_at
        assert state.queue_at == state.start_at
        assert await work.dead_letters() == []
        assert work.stats()["switch"]["redriven"] == 1
        assert work.stats()["switch"]["queued"] == 2
    assert switch.attempts == [1, 2, 3, 1]
    assert kinds(events).count("queued") == 2


async def test_live_work_goes_first(virtual_clock, backend):
    # S117: only a round that brought nothing looks at the dead letters
    switch = Switch()
    async with create_work(
        work=[switch.type, quick], poll_interval=5, **with_letters(backend)
    ) as work:
        handle = await work.enqueue(switch.type())
        with pytest.raises(WorkFailedError):
            await handle.result()
        switch.mended = True
        for n in range(20):
            await work.enqueue(quick(n))
            await virtual_clock.advance(4)
        assert (await handle.state()).status == "dead"
        await virtual_clock.advance(10)
        assert (await handle.state()).status == "success"


async def test_a_redriven_root_opens_its_group_again_and_ends_it_again(virtual_clock, backend):
    # S118, Q9
    switch = Switch()
    switch.children = 2
    events = []
    async with create_work(work=[switch.type, quick], on_event=events.append, **backend) as work:
        handle = await work.enqueue(switch.type(5))
        assert await handle.group(timeout=10) is None
        switch.mended = True
        assert await work.redrive([handle.id]) == 1
        assert await opened(backend["store"], handle.id) == 1
        assert (await handle.state()).status == "pending"
        assert (await handle.state()).error is None
        await handle.group(timeout=10)
        assert await handle.result() == 5
        assert await opened(backend["store"], handle.id) == 0
    assert kinds(events).count("group-done") == 2


async def test_waiting_for_a_redriven_group_waits_for_the_new_run(virtual_clock, backend):
    # Q9: no old flag says that it is done
    @define_work("slow", retry=ONCE)
    async def slow(ctx: WorkContext) -> None:
        if await ctx.claim("first"):
            raise ValueError("first")
        await sleep(30)
        await ctx.set_result("second")

    async with create_work(work=[slow], **backend) as work:
        handle = await work.enqueue(slow())
        assert await handle is None
        await work.redrive([handle.id])
        began = virtual_clock.now()
        assert await handle == "second"
        assert virtual_clock.now() - began >= timedelta(seconds=30)


async def test_a_redriven_child_counts_in_its_settled_group(virtual_clock, backend):
    # S118, P3
    switch = Switch()

    @define_work
    async def parent(ctx: WorkContext) -> str:
        return str(await ctx.queue(switch.type(3)))

    events = []
    async with create_work(work=[switch.type, parent], on_event=events.append, **backend) as work:
        handle = await work.enqueue(parent())
        await handle
        child = await handle.result()
        switch.mended = True
        await work.redrive([child])
        assert await opened(backend["store"], handle.id) == 1
        await handle.group(timeout=10)
        assert (await work.state(child)).result == 3
        assert await opened(backend["store"], handle.id) == 0
    assert kinds(events).count("group-done") == 2


async def test_redrive_writes_then_pushes_then_acks_the_letter(virtual_clock):
    # S118: a crash between leaves the letter
    journal = Journal()
    ports = journal_backend(journal)
    letters = JournalQueue(journal)
    ports["queue"] = JournalQueue(journal, dead=letters)
    switch = Switch()
    async with create_work(work=[switch.type], **ports) as work:
        handle = await work.enqueue(switch.type())
        await handle.group()
        await work.stop()
        mark = len(journal.entries)
        quiet = create_work(work=[switch.type], auto_start=False, **ports)
        assert await quiet.redrive() == 1
        assert journal.since(mark) == ["write pending", "push", "ack"]


async def test_a_redrive_whose_push_fails_is_made_good_by_the_next(virtual_clock):
    # S120: the letter stays, leased for a while, and the error is reported
    ports = journal_backend()
    switch = Switch()
    errors = []
    armed = []
    ports["queue"].fail = lambda op: OSError("away") if op == "push" and armed else None
    work = create_work(
        work=[switch.type],
        on_error=lambda error, phase: errors.append((str(error), phase)),
        **ports,
    )
    async with work:
        handle = await work.enqueue(switch.type(4))
        await handle.group()
        switch.mended = True
        armed.append(1)
        assert await work.redrive() == 0
        assert errors == [("away", "queue")]
        assert await ports["queue"].dead.size() == 1
        assert await work.redrive() == 0  # leased
        armed.clear()
        await virtual_clock.advance(31)
        await work.redrive()
        await virtual_clock.advance(5)
        assert await handle.result(timeout=60) == 4
        assert await handle.group(timeout=60) is None
        assert await ports["queue"].dead.size() == 0
        assert await opened(ports["store"], handle.id) == 0


async def test_a_letter_of_a_work_that_still_waits_is_put_back_in_the_queue(virtual_clock, backend):
    # P1: a queue may have moved the message by itself, by its receive count
    producer = create_work(work=[quick], auto_start=False, **backend)
    handle = await producer.enqueue(quick(3))
    [lease] = await backend["queue"].pop(1, 5, 0)
    await backend["queue"].dead_letter(lease, "received too often")
    async with create_work(work=[quick], **with_letters(backend)):
        assert await handle.result(timeout=60) == 3
        await virtual_clock.advance(60)
    assert await backend["queue"].size() == 0
    assert await backend["queue"].dead_letter_queue.size() == 0
    await producer.stop()


async def test_a_letter_that_cannot_be_read_is_kept_and_not_looked_at_in_a_loop(
    virtual_clock, backend
):
    # S119, P7: ours are never dropped
    letters = backend["queue"].dead_letter_queue
    await letters.push([Message("not json", reason="bad message")])
    pops = []

    class Watched(MemoryQueue):
        async def pop(self, max, visibility, wait):
            pops.append(1)
            return await letters.pop(max, visibility, wait)

        async def release(self, leases, delay=0.0):
            await letters.release(leases, delay)

    async with create_work(dlq=Watched(), **backend):
        await virtual_clock.advance(600)
    assert await letters.size() == 1
    assert len(pops) <= 35  # one look per idle wait


async def test_no_more_than_redrive_count_come_back_at_once(virtual_clock, backend):
    # S118, S121
    switch = Switch()
    async with create_work(
        work=[switch.type], poll_interval=5, redrive_count=3, **with_letters(backend)
    ) as work:
        handles = await work.enqueue_many([switch.type(n) for n in range(7)])
        for handle in handles:
            await handle.group()
        switch.mended = True
        began = virtual_clock.now()
        for handle in handles:
            while (await handle.state()).status != "success":
                await virtual_clock.advance(1)
        # three come back after each idle wait
        assert timedelta(seconds=10) <= virtual_clock.now() - began <= timedelta(seconds=21)


async def test_redrive_count_zero_leaves_the_letters_alone(virtual_clock, backend):
    # S118
    switch = Switch()
    async with create_work(work=[switch.type], redrive_count=0, **with_letters(backend)) as work:
        handle = await work.enqueue(switch.type())
        await handle.group()
        switch.mended = True
        await virtual_clock.advance(3600)
        assert (await handle.state()).status == "dead"


async def test_a_work_comes_back_by_itself_max_redrives_times_and_on_demand_for_ever(
    virtual_clock, backend
):
    # S117
    switch = Switch()
    async with create_work(
        work=[switch.type], max_redrives=2, poll_interval=1, **with_letters(backend)
    ) as work:
        handle = await work.enqueue(switch.type(9))
        await virtual_clock.advance(300)
        assert len(switch.attempts) == 3
        assert (await handle.state()).status == "dead"
        switch.mended = True
        assert await work.redrive([handle.id]) == 1
        assert await handle.result(timeout=10) == 9


async def test_the_letter_of_a_work_that_came_back_by_its_id_is_only_acked(virtual_clock, backend):
    # S118: nothing runs twice
    switch = Switch()
    async with create_work(work=[switch.type], **with_letters(backend)) as work:
        handle = await work.enqueue(switch.type())
        await handle.group()
        switch.mended = True
        await work.redrive([handle.id])
        await handle.result()
        await virtual_clock.advance(120)
        assert await work.dead_letters() == []
    assert switch.attempts == [1, 1]


async def test_redriving_what_is_not_dead_does_nothing(virtual_clock, backend):
    # S118
    async with create_work(work=[quick], **backend) as work:
        handle = await work.enqueue(quick(1))
        await handle.result()
        assert await work.redrive([handle.id, "nobody"]) == 0
        assert (await handle.state()).status == "success"


async def test_a_letter_whose_record_is_gone_starts_anew_as_a_root(virtual_clock, backend):
    # S118
    switch = Switch()
    async with create_work(work=[switch.type], poll_interval=3600, **backend) as work:
        handle = await work.enqueue(switch.type(6))
        await handle.group()
        await virtual_clock.advance(timedelta(days=2))
        assert await handle.state() is None
        switch.mended = True
        assert await work.redrive() == 1
        assert await handle.result(timeout=60) == 6
        assert await handle.group(timeout=60) is None


async def test_dead_letters_are_shown_and_stay(virtual_clock, backend):
    # S117
    switch = Switch()
    async with create_work(work=[switch.type], **backend) as work:
        for n in range(3):
            await (await work.enqueue(switch.type(n))).group()
        for _ in range(2):
            letters = await work.dead_letters()
            assert [letter.reason for letter in letters] == ["ValueError: broken"] * 3
            assert [letter.type for letter in letters] == ["switch"] * 3
        assert len(await work.dead_letters(2)) == 2


async def test_a_system_without_letters_says_so(virtual_clock, backend):
    # S117
    queue = MemoryQueue(capabilities=Capabilities(in_process=True, native_dead_letters=False))
    async with create_work(**{**backend, "queue": queue}) as work:
        with pytest.raises(ConfigError, match="dlq="):
            await work.redrive()


async def test_a_dlq_of_the_system_receives_what_the_queue_cannot_keep(virtual_clock, backend):
    # S117
    queue = MemoryQueue(capabilities=Capabilities(in_process=True, native_dead_letters=False))
    letters = MemoryQueue()
    switch = Switch()
    async with create_work(work=[switch.type], dlq=letters, **{**backend, "queue": queue}) as work:
        handle = await work.enqueue(switch.type(1))
        await handle.group()
        [letter] = await work.dead_letters()
        assert (letter.id, letter.reason) == (handle.id, "ValueError: broken")
        switch.mended = True
        await virtual_clock.advance(60)
        assert await handle.result() == 1
    assert await letters.size() == 0


async def test_a_work_that_comes_back_is_not_stopped_for_an_old_request(virtual_clock, backend):
    # S118
    switch = Switch()
    async with create_work(work=[switch.type], start_after=0, **with_letters(backend)) as work:
        handle = await work.enqueue(switch.type(5))
        with pytest.raises(WorkFailedError):
            await handle.result()
        # It was asked from another process, and died before it heard of it.
        await backend["store"].write([Change(f"work:item:{handle.id}", add={"cancel": 1})])
        switch.mended = True
        await virtual_clock.advance(60)
        assert await handle.result() == 5


async def test_the_letter_of_an_earlier_life_does_not_make_a_work_younger(
    virtual_clock: VirtualClock,
):
    runs = 0

    @define_work("dying", retry=Retry(attempts=1))
    async def dying() -> None:
        nonlocal runs
        runs += 1
        raise ValueError("always")

    queue = MemoryQueue()
    work = create_work(work=[dying], queue=queue, dlq=queue.dead, max_redrives=2, poll_interval=5)
    async with work:
        await work.enqueue(dying())
        while await queue.dead.size() == 0:
            await virtual_clock.advance(0.1)
        (letter,) = await queue.dead.pop(1, visibility=1, wait=0)
        for _ in range(6):
            await queue.dead.push([Message(letter.body, reason="a copy of the first letter")])
            await virtual_clock.advance(30)
    assert runs <= 1 + 2
