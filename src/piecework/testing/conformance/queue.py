"""The guarantees of the queue port as tests."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from piecework import clock
from piecework.errors import PayloadTooLargeError
from piecework.ports import Message
from piecework.testing.conformance.probe import Probe, hard_texts

if TYPE_CHECKING:
    from piecework.ports import Lease, Queue


class QueueConformance(Probe):
    """Subclass it and give a fixture ``queue``: an empty queue.

    Attributes:
        visibility: Seconds of a lease, or of a delay, that the tests let end.
        hold: Seconds of a lease that must not end during a test.
        in_order: Messages without a group come in the order of their pushes.
        dedupes: ``Message.dedupe_key`` holds as long as the message is in the queue.

    Example::

        class TestMyQueue(QueueConformance):
            @pytest.fixture
            async def queue(self):
                queue = MyQueue()
                await queue.open()
                yield queue
                await queue.close()
    """

    visibility: float = 1.0
    hold: float = 60.0
    in_order: bool = True
    dedupes: bool = True

    async def other_client(self, queue: Queue) -> Queue:
        """Another client of the same backend; without one, the same client."""
        return queue

    async def take(self, queue: Queue, count: int = 1, visibility: float = 0) -> list[Lease]:
        """Pop until ``count`` messages are leased."""
        leases: list[Lease] = []
        async with asyncio.timeout(self.patience):
            while len(leases) < count:
                most = min(10, count - len(leases))
                leases += await queue.pop(most, visibility or self.hold, self.patience)
        return leases

    async def nothing(self, queue: Queue) -> None:
        """Nothing can be popped."""
        assert await queue.pop(10, self.hold, self.tick) == []

    async def lapse(self) -> None:
        """Let ``visibility`` pass."""
        await self.advance(self.visibility + self.tick)

    def counted(self, queue: Queue, lease: Lease, deliveries: int) -> None:
        """The lease knows how often its message was delivered, where the backend does."""
        if queue.capabilities.delivery_counts:
            assert lease.deliveries == deliveries

    async def overtaken(self, queue: Queue, body: str = "a") -> tuple[Lease, Lease]:
        """A lease that ended, and the newer one of the same message."""
        await queue.push([Message(body)])
        (stale,) = await self.take(queue, visibility=self.visibility)
        await self.lapse()
        (fresh,) = await self.take(queue, visibility=self.visibility)
        return stale, fresh

    # Push and pop

    async def test_a_pushed_message_is_popped_with_what_it_carries(self, queue: Queue) -> None:
        await queue.push([Message("body", group="tenant")])
        (lease,) = await self.take(queue)
        assert (lease.body, lease.group, lease.reason) == ("body", "tenant", None)
        assert lease.token
        self.counted(queue, lease, 1)

    async def test_every_text_arrives_as_it_was_sent(self, queue: Queue) -> None:
        texts = [text for text in hard_texts() if text]
        for start in range(0, len(texts), 10):
            part = texts[start : start + 10]
            await queue.push([Message(text) for text in part])
            leases = await self.take(queue, len(part))
            assert sorted(lease.body for lease in leases) == sorted(part)
            await queue.ack(leases)

    async def test_calls_without_messages_are_harmless(self, queue: Queue) -> None:
        await queue.push([])
        await queue.ack([])
        await queue.release([])
        assert await queue.extend([], self.hold) == []
        assert await queue.pop(10, self.hold, 0) == []

    async def test_a_pop_takes_no_more_than_asked(self, queue: Queue) -> None:
        await queue.push([Message(str(number)) for number in range(5)])
        assert 1 <= len(await queue.pop(3, self.hold, self.patience)) <= 3

    async def test_batches_of_any_size_go_through_every_call(self, queue: Queue) -> None:
        bodies = [f"message {number}" for number in range(25)]
        await queue.push([Message(body) for body in bodies])
        leases = await self.take(queue, 25)
        assert sorted(lease.body for lease in leases) == sorted(bodies)
        assert await queue.extend(leases, self.hold) == []
        await queue.release(leases)
        again = await self.take(queue, 25)
        assert sorted(lease.body for lease in again) == sorted(bodies)
        await queue.ack(again)
        await self.nothing(queue)

    async def test_a_pop_may_ask_for_many(self, queue: Queue) -> None:
        await queue.push([Message(str(number)) for number in range(3)])
        leases: list[Lease] = []
        while len(leases) < 3:
            leases += await queue.pop(100, self.hold, self.patience)
        assert len(leases) == 3

    async def test_the_oldest_visible_comes_first(self, queue: Queue) -> None:
        if not self.in_order:
            return
        for number in range(5):
            await queue.push([Message(str(number))])
            await self.advance(self.tick / 10)
        assert [lease.body for lease in await self.take(queue, 5)] == list("01234")

    async def test_a_large_body_arrives_and_a_larger_one_is_refused(self, queue: Queue) -> None:
        limit = queue.capabilities.max_body_bytes
        large = "x" * min(limit or 200_000, 200_000)
        await queue.push([Message(large)])
        (lease,) = await self.take(queue)
        assert lease.body == large
        if limit is None:
            return
        await queue.ack([lease])
        try:
            await queue.push([Message("y" * (limit + 1))])
        except PayloadTooLargeError as error:
            assert error.limit == limit  # noqa: PT017
        else:
            raise AssertionError("a body over the limit was taken")
        await self.nothing(queue)

    async def test_a_delayed_message_stays_invisible_until_then(self, queue: Queue) -> None:
        await queue.push([Message("later", delay=self.visibility), Message("now")])
        (lease,) = await self.take(queue)
        assert lease.body == "now"
        await self.nothing(queue)
        await self.lapse()
        (lease,) = await self.take(queue)
        assert lease.body == "later"
        self.counted(queue, lease, 1)

    async def test_another_client_pops_what_was_pushed(self, queue: Queue) -> None:
        other = await self.other_client(queue)
        await queue.push([Message("a")])
        (lease,) = await self.take(other)
        await queue.ack([lease])
        assert lease.body == "a"

    # Leases

    async def test_a_leased_message_is_invisible(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        await self.take(queue)
        await self.nothing(queue)

    async def test_a_message_whose_lease_ended_comes_again(self, queue: Queue) -> None:
        stale, fresh = await self.overtaken(queue)
        assert fresh.body == stale.body
        assert fresh.token != stale.token
        assert fresh.message_id == stale.message_id
        assert fresh != stale
        self.counted(queue, stale, 1)
        self.counted(queue, fresh, 2)

    async def test_an_acked_message_never_comes_again(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        await queue.ack(await self.take(queue, visibility=self.visibility))
        await self.lapse()
        await self.nothing(queue)

    async def test_acking_again_is_harmless(self, queue: Queue) -> None:
        await queue.push([Message("a"), Message("b")])
        leases = await self.take(queue, 2)
        await queue.ack(leases[:1])
        await queue.ack(leases[:1])
        await queue.ack(leases)
        await self.nothing(queue)

    async def test_a_stale_token_cannot_ack(self, queue: Queue) -> None:
        stale, _ = await self.overtaken(queue)
        await queue.ack([stale])
        await self.lapse()
        (lease,) = await self.take(queue)
        self.counted(queue, lease, 3)

    async def test_a_stale_token_cannot_release(self, queue: Queue) -> None:
        stale, fresh = await self.overtaken(queue)
        await queue.extend([fresh], self.hold)
        await queue.release([stale])
        await self.nothing(queue)

    async def test_a_stale_token_cannot_dead_letter(self, queue: Queue) -> None:
        stale, _ = await self.overtaken(queue)
        await queue.dead_letter(stale, "stale")
        await self.lapse()
        await self.take(queue)
        if queue.dead_letter_queue is not None:
            await self.nothing(queue.dead_letter_queue)

    async def test_a_stale_token_cannot_extend_and_is_told(self, queue: Queue) -> None:
        stale, fresh = await self.overtaken(queue)
        assert await queue.extend([stale, fresh], self.visibility) == [stale]
        await self.lapse()
        await self.take(queue)

    async def test_extending_keeps_a_message_invisible(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        leases = await self.take(queue, visibility=self.visibility)
        assert await queue.extend(leases, self.hold) == []
        await self.lapse()
        await self.nothing(queue)
        await queue.ack(leases)
        assert await queue.size() == 0

    async def test_a_lease_can_be_extended_to_end_sooner(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        await queue.extend(await self.take(queue), self.visibility)
        await self.lapse()
        await self.take(queue)

    async def test_the_lease_of_an_acked_message_is_lost(self, queue: Queue) -> None:
        await queue.push([Message("a"), Message("b")])
        gone, kept = await self.take(queue, 2)
        await queue.ack([gone])
        assert await queue.extend([gone, kept], self.hold) == [gone]

    async def test_a_released_message_is_visible_at_once(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        await queue.release(await self.take(queue))
        (lease,) = await self.take(queue)
        self.counted(queue, lease, 2)

    async def test_a_released_message_is_visible_after_the_delay(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        leases = await self.take(queue)
        await queue.release(leases, self.visibility)
        await self.nothing(queue)
        await self.lapse()
        await self.take(queue)

    async def test_a_released_lease_is_over(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        (old,) = await self.take(queue)
        await queue.release([old])
        (new,) = await self.take(queue)
        assert await queue.extend([old, new], self.hold) == [old]
        await queue.release([old])
        await self.nothing(queue)

    async def test_poppers_never_share_a_lease(self, queue: Queue) -> None:
        other = await self.other_client(queue)
        bodies = {str(number) for number in range(60)}
        await queue.push([Message(body) for body in bodies])
        taken: list[Lease] = []

        async def popper(client: Queue) -> None:
            while len(taken) < len(bodies):
                taken.extend(await client.pop(5, self.hold, self.tick))

        async with asyncio.timeout(self.patience):
            await asyncio.gather(*(popper(client) for client in (queue, other) * 3))
        assert len(taken) == len(bodies)
        assert {lease.body for lease in taken} == bodies
        assert len({lease.token for lease in taken}) == len(bodies)

    async def test_messages_of_several_pushers_all_arrive(self, queue: Queue) -> None:
        other = await self.other_client(queue)
        await asyncio.gather(
            *((queue, other)[n % 2].push([Message(f"{n}.{m}") for m in range(3)]) for n in range(8))
        )
        bodies = {lease.body for lease in await self.take(queue, 24)}
        assert bodies == {f"{n}.{m}" for n in range(8) for m in range(3)}

    # Waiting

    async def test_a_pop_returns_at_once_when_a_message_is_there(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        async with asyncio.timeout(self.patience / 2):
            assert len(await queue.pop(10, self.hold, self.patience)) == 1

    async def test_a_pop_waits_no_longer_than_asked(self, queue: Queue) -> None:
        async with asyncio.timeout(self.patience):
            assert await queue.pop(10, self.hold, self.tick) == []

    async def test_a_push_wakes_a_waiting_pop(self, queue: Queue) -> None:
        other = await self.other_client(queue)
        pop = asyncio.ensure_future(self.take(queue))
        await clock.sleep(self.tick)
        await other.push([Message("a")])
        assert [lease.body for lease in await pop] == ["a"]

    async def test_a_release_wakes_a_waiting_pop(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        leases = await self.take(queue)
        pop = asyncio.ensure_future(self.take(queue))
        await clock.sleep(self.tick)
        await queue.release(leases)
        assert [lease.body for lease in await pop] == ["a"]

    async def test_the_end_of_a_delay_wakes_a_waiting_pop(self, queue: Queue) -> None:
        await queue.push([Message("a", delay=self.visibility)])
        pop = asyncio.ensure_future(self.take(queue))
        await clock.sleep(self.tick)
        await self.lapse()
        assert [lease.body for lease in await pop] == ["a"]

    async def test_the_end_of_a_lease_wakes_a_waiting_pop(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        await self.take(queue, visibility=self.visibility)
        pop = asyncio.ensure_future(self.take(queue))
        await clock.sleep(self.tick)
        await self.lapse()
        (lease,) = await pop
        self.counted(queue, lease, 2)

    async def test_several_waiting_pops_each_get_a_message(self, queue: Queue) -> None:
        pops = [asyncio.ensure_future(self.take(queue)) for _ in range(3)]
        await clock.sleep(self.tick)
        await queue.push([Message(body) for body in "abc"])
        leases = [lease for taken in await asyncio.gather(*pops) for lease in taken]
        assert sorted(lease.body for lease in leases) == ["a", "b", "c"]

    async def test_a_cancelled_pop_leaves_later_messages_alone(self, queue: Queue) -> None:
        pop = asyncio.ensure_future(queue.pop(10, self.hold, self.patience))
        await clock.sleep(self.tick)
        await _cancel(pop)
        await queue.push([Message("a")])
        await self.take(queue)

    async def test_a_pop_cancelled_in_flight_leaves_no_message_leased(self, queue: Queue) -> None:
        for _ in range(3):
            pop = asyncio.ensure_future(queue.pop(10, self.hold, self.patience))
            await clock.sleep(self.tick)
            await queue.push([Message("a")])
            pop.cancel()
            leases: list[Lease] = []
            with contextlib.suppress(asyncio.CancelledError):
                leases = await pop
            await queue.ack(leases or await self.take(queue))

    # Dead letters

    async def test_a_dead_letter_leaves_the_queue(self, queue: Queue) -> None:
        await queue.push([Message("a")])
        (lease,) = await self.take(queue, visibility=self.visibility)
        await queue.dead_letter(lease, "broken")
        await queue.dead_letter(lease, "again")
        await self.lapse()
        await self.nothing(queue)

    async def test_a_dead_letter_can_be_read_with_its_reason(self, queue: Queue) -> None:
        dead = queue.dead_letter_queue
        assert (dead is not None) or not queue.capabilities.native_dead_letters
        if dead is None:
            return
        await queue.push([Message("a", group="tenant")])
        (lease,) = await self.take(queue)
        await queue.dead_letter(lease, "broken: \U0001f4a5 \x00")
        (letter,) = await self.take(dead)
        assert (letter.body, letter.group) == ("a", "tenant")
        assert letter.reason == "broken: \U0001f4a5 \x00"
        await dead.ack([letter])
        await self.nothing(dead)

    # Deduplication, order, size, life

    async def test_a_message_is_dropped_while_one_with_its_key_is_there(self, queue: Queue) -> None:
        if not self.dedupes:
            return
        await queue.push([Message("1", dedupe_key="k"), Message("2", dedupe_key="k")])
        await queue.push([Message("3", dedupe_key="k"), Message("other", dedupe_key="l")])
        leases = await self.take(queue, 2)
        assert {lease.body for lease in leases} == {"1", "other"}
        await queue.push([Message("4", dedupe_key="k")])
        await self.nothing(queue)

    async def test_a_key_is_free_when_its_message_has_left(self, queue: Queue) -> None:
        if not self.dedupes:
            return
        await queue.push([Message("1", dedupe_key="k")])
        await queue.ack(await self.take(queue))
        await queue.push([Message("2", dedupe_key="k")])
        (lease,) = await self.take(queue)
        await queue.dead_letter(lease, "broken")
        await queue.push([Message("3", dedupe_key="k")])
        (lease,) = await self.take(queue)
        assert lease.body == "3"

    async def test_an_ordered_queue_keeps_the_order_of_each_group(self, queue: Queue) -> None:
        if not queue.capabilities.ordered:
            return
        await queue.push([Message(f"{group}{n}", group=group) for n in range(4) for group in "xy"])
        seen: dict[str, list[str]] = {"x": [], "y": []}
        released: set[str] = set()
        while sum(map(len, seen.values())) < 8:
            (lease,) = await self.take(queue)
            if lease.body not in released:
                released.add(lease.body)
                await queue.release([lease])
                continue
            seen[lease.group or ""].append(lease.body)
            await queue.ack([lease])
        assert seen == {group: [f"{group}{n}" for n in range(4)] for group in "xy"}

    async def test_the_size_counts_visible_delayed_and_leased(self, queue: Queue) -> None:
        async def is_size(size: int) -> None:
            async def same() -> bool:
                return await queue.size() == size

            await self.eventually(same)

        await is_size(0)
        await queue.push([Message("a"), Message("b"), Message("c", delay=self.hold)])
        await is_size(3)
        leases = await self.take(queue)
        await is_size(3)
        await queue.ack(leases)
        await is_size(2)

    async def test_opening_and_closing_again_does_nothing(self, queue: Queue) -> None:
        await queue.open()
        await queue.open()
        await queue.push([Message("a")])
        await self.take(queue)
        await queue.close()
        await queue.close()


async def _cancel(task: asyncio.Future[list[Lease]]) -> None:
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
