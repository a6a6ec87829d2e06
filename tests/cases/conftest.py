"""Fleets for the cases from the field: several systems over shared ports, each with a switch."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from tests.support.crash import REMOTE_QUEUE, Switch, Wire

from piecework import WorkSystem, create_work
from piecework.ports import Capabilities
from piecework.testing.virtual_clock import VirtualClock


class Fleet:
    """Systems over one backend in memory.

    Attributes:
        wire: The shared ports.
        systems: The systems, in the order in which they were made.
        switches: The lives of their processes.
        errors: What ``on_error`` of all heard.
        events: Kinds and ids of what ``on_event`` of all heard.
    """

    def __init__(self) -> None:
        self.wire = Wire()
        self.systems: list[WorkSystem] = []
        self.switches: list[Switch] = []
        self.errors: list[tuple[BaseException, str]] = []
        self.events: list[tuple[str, str]] = []

    def shared(self, capabilities: Capabilities = REMOTE_QUEUE) -> None:
        """Use ports with other capabilities of the queue."""
        self.wire = Wire(capabilities)

    def system(self, *work: Any, **options: Any) -> WorkSystem:
        """One more system."""
        switch = Switch(str(len(self.systems)))
        ports = self.wire.ports(switch)
        system = create_work(
            work=work,
            **{
                **ports,
                "random": lambda: 0.5,
                "on_error": lambda error, phase: self.errors.append((error, phase)),
                "on_event": lambda event: self.events.append((event.kind, event.id)),
                **options,
            },
        )
        self.systems.append(system)
        self.switches.append(switch)
        return system

    async def started(self, count: int, *work: Any, **options: Any) -> list[WorkSystem]:
        """So many systems of the same types, started."""
        made = [self.system(*work, **options) for _ in range(count)]
        for system in made:
            await system.start()
        return made

    def kill(self, system: WorkSystem) -> None:
        """Take all effect from what a system does from now on."""
        self.switches[self.systems.index(system)].kill()

    async def stop(self) -> None:
        for system, switch in zip(self.systems, self.switches, strict=True):
            if switch.dead:
                switch.revive()  # only to let go of its tasks; nobody looks any more
            await system.stop(0)


@pytest.fixture
async def fleet(virtual_clock: VirtualClock) -> AsyncGenerator[Fleet]:
    made = Fleet()
    yield made
    await made.stop()
