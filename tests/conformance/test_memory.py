"""The backend in this process fulfils the three contracts."""

from __future__ import annotations

import pytest

from piecework.memory import MemoryPubSub, MemoryQueue, MemoryStore
from piecework.ports import Capabilities
from piecework.testing import PubSubConformance, QueueConformance, StoreConformance


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class OnManualClock:
    visibility = 0.004
    ttl = 5.0
    tick = 0.002

    @pytest.fixture(autouse=True)
    def _clock(self):
        self.clock = ManualClock()

    async def advance(self, seconds):
        self.clock.ms += max(1, round(seconds * 1000))


# S133 S134 S135 S136 S137: each sentence of the queue's contract.
class TestMemoryQueue(OnManualClock, QueueConformance):
    @pytest.fixture
    def queue(self):
        return MemoryQueue(now=self.clock)


class TestOrderedMemoryQueue(OnManualClock, QueueConformance):
    @pytest.fixture
    def queue(self):
        return MemoryQueue(now=self.clock, capabilities=Capabilities(ordered=True))


class TestLimitedMemoryQueue(OnManualClock, QueueConformance):
    """As a queue with limits and without dead letters."""

    @pytest.fixture
    def queue(self):
        capabilities = Capabilities(max_body_bytes=1000, max_delay=900, native_dead_letters=False)
        return MemoryQueue(now=self.clock, capabilities=capabilities)


# S44 S92 S140 B31: each sentence of the store's contract.
class TestMemoryStore(OnManualClock, StoreConformance):
    @pytest.fixture
    def store(self):
        return MemoryStore(now=self.clock)


class TestLimitedMemoryStore(OnManualClock, StoreConformance):
    @pytest.fixture
    def store(self):
        # B35: a value over the limit fails that write alone, clearly.
        return MemoryStore(now=self.clock, capabilities=Capabilities(max_value_bytes=1000))


# S51 S139: each sentence of the pub/sub's contract.
class TestMemoryPubSub(PubSubConformance):
    tick = 0.002

    @pytest.fixture
    def pubsub(self):
        return MemoryPubSub()
