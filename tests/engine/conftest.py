"""Systems for the tests of the engine, over a backend that can be exchanged."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from tests.support.faults import WatchedPubSub, WatchedQueue, WatchedStore

from piecework import WorkSystem, create_work, memory_backend
from piecework.ports import Backend
from piecework.testing.virtual_clock import VirtualClock

Make = Callable[..., WorkSystem]


@pytest.fixture
def backend(virtual_clock: VirtualClock) -> Backend:
    """The three ports, each of which notes its calls and can be told to fail.

    Another ring of tests runs this folder over other backends by giving another fixture here.
    """
    ports = memory_backend()
    return Backend(
        queue=WatchedQueue(ports["queue"]),
        store=WatchedStore(ports["store"]),
        pubsub=WatchedPubSub(ports["pubsub"]),
    )


@pytest.fixture
def queue(backend: Backend) -> Any:
    return backend["queue"]


@pytest.fixture
def store(backend: Backend) -> Any:
    return backend["store"]


@pytest.fixture
def pubsub(backend: Backend) -> Any:
    return backend["pubsub"]


@pytest.fixture
async def make(backend: Backend) -> AsyncGenerator[Make]:
    """Makes systems over the backend and stops them after the test; options win over its ports."""
    made: list[WorkSystem] = []

    def create(*work: Any, **options: Any) -> WorkSystem:
        system = create_work(work=work, **{**backend, **options})
        made.append(system)
        return system

    yield create
    for system in made:
        await system.stop()


class Noted(list[Any]):
    """A hook that keeps what it was called with."""

    def __call__(self, *args: Any) -> None:
        self.append(args[0] if len(args) == 1 else args)

    @property
    def kinds(self) -> list[str]:
        return [event.kind for event in self]


@pytest.fixture
def events() -> Noted:
    """For ``on_event=``."""
    return Noted()


@pytest.fixture
def errors() -> Noted:
    """For ``on_error=``: pairs of error and phase."""
    return Noted()
