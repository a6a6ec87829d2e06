"""What the parts of one engine share: the ports, the ledger, the clock and the hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from piecework.clock import from_ms
from piecework.state import WorkEvent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from piecework.clock import Clock
    from piecework.codec import Codec
    from piecework.engine.hooks import Hooks
    from piecework.engine.ports import EnginePubSub, EngineQueue, EngineStore
    from piecework.engine.registry import Entry, Registry
    from piecework.engine.settings import Settings
    from piecework.envelope import Envelope
    from piecework.ledger import Ledger
    from piecework.metrics import Metrics, WorkRecorder
    from piecework.ports.queue import Queue
    from piecework.state import EventKind


@dataclass(frozen=True, slots=True)
class Core:
    """The shared parts of one engine.

    Attributes:
        settings: The numbers.
        hooks: The user's hooks.
        clock: Where stamps come from.
        random: A number from 0 to 1.
        queue: The queue of types that name none.
        pubsub: Notifications.
        store: Records.
        ledger: The state machine over the store.
        registry: The work types.
        metrics: The registry of series.
        recorder: Records what happens to works.
        codec: Encodes values without annotations, and groups' results.
        worker_id: Names this system in records; new at each start of a process.
        dead_letters: The queue of dead letters that the system was given.
        wrap_queue: Gives the engine's view of a queue.
        queues: All queues that were ever wrapped.
    """

    settings: Settings
    hooks: Hooks
    clock: Clock
    random: Callable[[], float]
    queue: EngineQueue
    pubsub: EnginePubSub
    store: EngineStore
    ledger: Ledger
    registry: Registry
    metrics: Metrics
    recorder: WorkRecorder
    codec: Codec
    worker_id: str
    dead_letters: EngineQueue | None
    wrap_queue: Callable[[Queue], EngineQueue]
    queues: Mapping[int, EngineQueue]

    def emit(
        self,
        kind: EventKind,
        env: Envelope,
        entry: Entry | None,
        *,
        will_retry: bool = False,
        error: str | None = None,
        start_at: int | None = None,
        result: Any = None,
    ) -> None:
        """Tell the listeners of an event; costs nothing where nobody listens."""
        own = entry.on_event if entry is not None else None
        if self.hooks.on_event is None and own is None:
            return
        event = WorkEvent(
            kind=kind,
            id=env.id,
            type=env.type,
            group_id=env.group_id,
            attempt=env.attempt,
            at=from_ms(self.clock.now_ms()),
            will_retry=will_retry,
            error=error,
            start_at=None if start_at is None else from_ms(start_at),
            result=result,
        )
        self.hooks.emit(event, own)

    def dead_letters_of(self, queue: EngineQueue) -> EngineQueue | None:
        """Where the dead letters of a queue are: the queue's own, or the system's."""
        own = queue.dead_letter_queue
        return self.dead_letters if own is None else self.wrap_queue(own)
