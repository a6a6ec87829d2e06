"""The ledger over the store in this process does what the model of it says."""

from __future__ import annotations

import pytest

from piecework.memory import MemoryStore
from piecework.testing import LedgerConformance


class ManualClock:
    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


# P2 P3 P4 Q2 Q8 Q9
class TestLedgerOnMemory(LedgerConformance):
    tick = 0.002
    patience = 0.2

    @pytest.fixture(autouse=True)
    def _clock(self):
        self.clock = ManualClock()

    async def advance(self, seconds):
        self.clock.ms += max(1, round(seconds * 1000))

    @pytest.fixture
    def store(self):
        return MemoryStore(now=self.clock)


class TestLedgerOnMemoryInRealTime(LedgerConformance):
    """As a store whose time nobody moves."""

    examples = 20

    @pytest.fixture
    async def store(self):
        return MemoryStore()
