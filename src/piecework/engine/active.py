"""A work that this process holds: from its receive to its settle."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Literal, TypeAlias

from piecework.clock import from_ms
from piecework.state import WorkState

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.engine.ports import EngineQueue
    from piecework.engine.registry import Entry
    from piecework.envelope import Envelope
    from piecework.ports.queue import Lease

Reason: TypeAlias = Literal["timeout", "deadline", "cancel", "lost", "stop"]
"""Why a handler was interrupted."""


class Active:
    """One delivery that this process works on.

    Attributes:
        env: The envelope, at the version of the record that this worker knows.
        body: The envelope as text, for the record.
        entry: The work type.
        queue: The queue that the message came from.
        lease: The lease; ``None`` for a first attempt that skipped the queue.
        writer: The token of this run in the record.
        run_at: When the handler started, in milliseconds; ``None`` before.
        traced: Whether the record says that it is running.
        repeated: Whether a worker may have had it before: records are looked at first then.
        good_until: The loop's time until which the lease is known to hold.
        reason: Why the handler was interrupted, if it was.
        task: The task that runs the handler.
        abandoned: The handler did not end after it was cancelled, and was given up.
        settling: The handler has ended; only the lease is renewed from here on.
        parent: Whether its handler has queued children in this run.
        counted: Whether the record that counts the work is still there.
        progress: What the handler last said of its progress.
    """

    __slots__ = (
        "abandoned",
        "body",
        "counted",
        "ended",
        "entry",
        "env",
        "finished",
        "good_until",
        "lease",
        "on_abandon",
        "parent",
        "progress",
        "queue",
        "reason",
        "repeated",
        "run_at",
        "settled",
        "settling",
        "task",
        "traced",
        "writer",
        "writing",
    )

    def __init__(
        self,
        env: Envelope,
        body: str,
        entry: Entry,
        queue: EngineQueue,
        lease: Lease | None,
        writer: str,
    ) -> None:
        self.env = env
        self.body = body
        self.entry = entry
        self.queue = queue
        self.lease = lease
        self.writer = writer
        self.run_at: int | None = None
        self.traced = False
        self.counted = True
        self.parent = False
        self.repeated = env.recheck or (lease is not None and lease.deliveries > 1)
        self.good_until = 0.0
        self.reason: Reason | None = None
        self.task: asyncio.Task[object] | None = None
        self.abandoned = False
        self.settling = False
        self.settled = False
        self.progress: tuple[float, float | None, str] | None = None
        self.writing: asyncio.Future[None] | None = None
        self.finished: Callable[[Active], None] | None = None
        self.ended: asyncio.Future[None] | None = None
        self.on_abandon: Callable[[], None] | None = None

    @property
    def root(self) -> Envelope | None:
        """The envelope to register it with, if it is the root of a group that may have no record.

        That is so where its message came before its record did.
        """
        env = self.env
        if env.group_id != env.id or env.track != "full" or self.traced:
            return None
        return env._replace(version=1)

    def interrupt(self, reason: Reason, grace: float) -> None:
        """Cancel the handler; give it up if it has not ended after ``grace`` seconds."""
        if self.reason is not None or self.settling or self.task is None:
            return
        self.reason = reason
        self.task.cancel()
        if self.on_abandon is not None:
            asyncio.get_running_loop().call_later(grace, self._give_up)

    def _give_up(self) -> None:
        if not self.settling and self.on_abandon is not None:
            self.abandoned = True
            self.on_abandon()

    def state(self) -> WorkState:
        """A copy of what this process knows of the work."""
        env = self.env
        return WorkState(
            id=env.id,
            type=env.type,
            status="pending" if self.run_at is None else "running",
            attempt=env.attempt,
            queue_at=from_ms(env.queue_at),
            start_at=from_ms(env.start_at),
            run_at=None if self.run_at is None else from_ms(self.run_at),
            priority=env.priority,
            group=env.group,
            group_id=env.group_id,
            parent_id=env.parent_id,
        )
