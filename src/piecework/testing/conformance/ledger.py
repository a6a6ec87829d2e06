"""The ledger over a store, held against a model of it by random sequences of calls."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, cast

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from piecework.ids import random_id
from piecework.testing.conformance.ledger_machine import LedgerMachine
from piecework.testing.conformance.probe import Probe

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.clock import Clock
    from piecework.ports import Store


class LedgerConformance(Probe):
    """Subclass it and give a fixture ``store``, open; it needs hypothesis.

    Each example works under a prefix of its own, so the store need not be empty, nor is it emptied.
    The calls run in the event loop of the async fixtures, one after the other; under pytest-asyncio
    in strict mode, or where the store lives in a loop of another scope, override ``store_loop``.

    Attributes:
        clock: Where the store's time comes from, if ``advance`` moves it. Without it, nothing
            expires in the test, and no time passes.
        examples: How many sequences of calls are tried. A slow store wants fewer.
        steps: How many calls one sequence has at most.

    Example::

        class TestLedgerOnMyStore(LedgerConformance):
            examples = 20

            @pytest.fixture
            async def store(self):
                store = MyStore()
                await store.open()
                yield store
                await store.close()
    """

    clock: Clock | None = None
    examples: int = 150
    steps: int = 40

    @pytest.fixture
    async def store_loop(self) -> asyncio.AbstractEventLoop:
        """The event loop that the store is used in; it runs while the machine waits, only then."""
        return asyncio.get_running_loop()

    def run_machine(self, machine: Callable[[], RuleBasedStateMachine]) -> None:
        """Try sequences of a machine's rules, and show the shortest one that fails."""
        run_state_machine_as_test(
            cast("type[RuleBasedStateMachine]", machine),
            settings=settings(
                max_examples=self.examples,
                stateful_step_count=self.steps,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow],
            ),
        )

    def test_every_record_is_as_the_model_says(
        self, store: Store, store_loop: asyncio.AbstractEventLoop
    ) -> None:
        """One call after the other, by workers that may know an old state or repeat themselves."""
        run = random_id()
        numbers = itertools.count()
        self.run_machine(lambda: LedgerMachine(self, store, store_loop, f"{run}:{next(numbers)}:"))
