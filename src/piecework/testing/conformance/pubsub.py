"""The guarantees of the pub/sub port as tests."""

# ruff: noqa: D102 - the name of a test is its sentence

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from piecework import clock
from piecework.testing.conformance.probe import Probe, hard_texts

if TYPE_CHECKING:
    from piecework.ports import PubSub


class PubSubConformance(Probe):
    """Subclass it and give a fixture ``pubsub``.

    Example::

        class TestMyPubSub(PubSubConformance):
            @pytest.fixture
            async def pubsub(self):
                pubsub = MyPubSub()
                await pubsub.open()
                yield pubsub
                await pubsub.close()
    """

    async def other_client(self, pubsub: PubSub) -> PubSub:
        """Another client of the same backend; without one, the same client."""
        return pubsub

    async def heard(self, texts: list[str], *expected: str) -> None:
        """Wait until exactly these texts arrived, in any order."""

        async def complete() -> bool:
            return len(texts) >= len(expected)

        await self.eventually(complete)
        assert sorted(texts) == sorted(expected)

    async def test_every_subscriber_hears_a_message(self, pubsub: PubSub) -> None:
        other = await self.other_client(pubsub)
        first: list[str] = []
        second: list[str] = []
        third: list[str] = []
        places = [
            await pubsub.subscribe(first.append),
            await pubsub.subscribe(second.append),
            await other.subscribe(third.append),
        ]
        await pubsub.publish("hello")
        for texts in (first, second, third):
            await self.heard(texts, "hello")
        for place in places:
            await place.close()

    async def test_a_message_of_another_client_is_heard(self, pubsub: PubSub) -> None:
        other = await self.other_client(pubsub)
        texts: list[str] = []
        place = await pubsub.subscribe(texts.append)
        await other.publish("from afar")
        await self.heard(texts, "from afar")
        await place.close()

    async def test_a_message_comes_once_to_each_subscriber(self, pubsub: PubSub) -> None:
        texts: list[str] = []
        place = await pubsub.subscribe(texts.append)
        await pubsub.publish("one")
        await self.heard(texts, "one")
        await clock.sleep(self.tick)
        assert texts == ["one"]
        await place.close()

    async def test_many_messages_arrive_in_any_order(self, pubsub: PubSub) -> None:
        texts: list[str] = []
        place = await pubsub.subscribe(texts.append)
        expected = [f"message {number}" for number in range(100)]
        await asyncio.gather(*(pubsub.publish(text) for text in expected))
        await self.heard(texts, *expected)
        await place.close()

    async def test_every_text_arrives_as_it_was_sent(self, pubsub: PubSub) -> None:
        texts: list[str] = []
        place = await pubsub.subscribe(texts.append)
        expected = [text for text in hard_texts() if text]
        for text in expected:
            await pubsub.publish(text)
        await self.heard(texts, *expected)
        await place.close()

    async def test_a_closed_subscription_hears_nothing(self, pubsub: PubSub) -> None:
        closed: list[str] = []
        open_: list[str] = []
        place = await pubsub.subscribe(closed.append)
        rest = await pubsub.subscribe(open_.append)
        await place.close()
        await pubsub.publish("late")
        await self.heard(open_, "late")
        assert closed == []
        await rest.close()

    async def test_closing_a_subscription_again_does_nothing(self, pubsub: PubSub) -> None:
        texts: list[str] = []
        place = await pubsub.subscribe(texts.append)
        rest = await pubsub.subscribe(texts.append)
        await place.close()
        await place.close()
        await pubsub.publish("once")
        await self.heard(texts, "once")
        await rest.close()

    async def test_one_listener_can_subscribe_twice(self, pubsub: PubSub) -> None:
        texts: list[str] = []
        places = [await pubsub.subscribe(texts.append) for _ in range(2)]
        await pubsub.publish("twice")
        await self.heard(texts, "twice", "twice")
        for place in places:
            await place.close()

    async def test_a_listener_that_raises_does_not_stop_the_others(self, pubsub: PubSub) -> None:
        def broken(text: str) -> None:
            raise ValueError(text)

        texts: list[str] = []
        loop = asyncio.get_running_loop()
        handler = loop.get_exception_handler()
        loop.set_exception_handler(_ignore)
        try:
            places = [await pubsub.subscribe(broken), await pubsub.subscribe(texts.append)]
            await pubsub.publish("first")
            await pubsub.publish("second")
            await self.heard(texts, "first", "second")
            for place in places:
                await place.close()
        finally:
            loop.set_exception_handler(handler)

    async def test_a_listener_may_close_its_own_subscription(self, pubsub: PubSub) -> None:
        texts: list[str] = []
        closing: list[asyncio.Task[None]] = []

        def once(text: str) -> None:
            texts.append(text)
            closing.append(asyncio.ensure_future(place.close()))

        place = await pubsub.subscribe(once)
        await pubsub.publish("first")
        await self.heard(texts, "first")
        await asyncio.gather(*closing)
        await pubsub.publish("second")
        await clock.sleep(self.tick)
        assert texts == ["first"]

    async def test_a_listener_runs_on_the_loop_of_its_subscriber(self, pubsub: PubSub) -> None:
        loops: list[asyncio.AbstractEventLoop] = []
        place = await pubsub.subscribe(lambda _: loops.append(asyncio.get_running_loop()))
        await pubsub.publish("where")

        async def called() -> bool:
            return bool(loops)

        await self.eventually(called)
        assert loops == [asyncio.get_running_loop()]
        await place.close()

    async def test_publishing_to_nobody_is_harmless(self, pubsub: PubSub) -> None:
        await pubsub.publish("anybody?")

    async def test_opening_and_closing_again_does_nothing(self, pubsub: PubSub) -> None:
        await pubsub.open()
        await pubsub.open()
        await pubsub.close()
        await pubsub.close()


def _ignore(loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
    """The listener's exception, wherever the adapter reports it."""
