"""Writing what became of a work: settled, put off, given back; or yielding to who was first."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Any, assert_never

from piecework.clock import sleep
from piecework.engine.decide import (
    Absent,
    Adopt,
    Die,
    Duplicate,
    Finished,
    Standing,
    TakeOver,
    stand,
)
from piecework.envelope import encode
from piecework.errors import InvalidWorkError, PayloadTooLargeError
from piecework.ledger import WriteConflictError
from piecework.record import Outcome

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.follow import FollowUps
    from piecework.engine.heart import Heart
    from piecework.engine.messages import Messages
    from piecework.envelope import Envelope


class Settler:
    """Writes outcomes through the ledger, then does what follows, then lets go of the message.

    Args:
        core: The shared parts.
        heart: Keeps the leases meanwhile.
        follow: What follows a settle.
        messages: Lets go of messages.
    """

    def __init__(self, core: Core, heart: Heart, follow: FollowUps, messages: Messages) -> None:
        self._core = core
        self._heart = heart
        self._follow = follow
        self._messages = messages

    async def settle(self, active: Active, outcome: Outcome, value: Any = None) -> bool:
        """Write the terminal state, do what follows, and let go of the message, in this order."""
        if (writing := self._heart.end_writes(active)) is not None:
            await asyncio.wait([writing])
        core = self._core
        env = active.env
        if env.track == "none":
            await self._messages.finish(active, outcome.error, dead=outcome.status == "dead")
            self._tell(active, outcome, value)  # before what follows, so before "group-done"
            return True
        body = active.body if outcome.status == "dead" else ""

        async def write() -> Any:
            return await core.ledger.settle(
                active.env,
                outcome,
                writer=active.writer,
                run_at=active.run_at,
                body=body,
                counted=active.counted,
                parent=active.parent,
            )

        try:
            settled = await self._commit(active, write)
        except PayloadTooLargeError as error:
            if outcome.status != "success":
                raise
            await self.die(active, Die(f"bad result: {error}", type(error).__name__, ""))
            return False
        if settled is None:
            return False
        self._tell(active, outcome, value)  # before what follows, so before "group-done"
        quiet = not active.repeated and self._follow.nothing_follows(env, settled, outcome)
        if not quiet:
            await self._follow.settled(
                active.env, settled, outcome, again=active.repeated, parent=active.parent
            )
        await self._messages.finish(active, outcome.error, dead=outcome.status == "dead")
        return True

    async def die(self, active: Active, verdict: Die) -> None:
        """Settle a work as dead."""
        await self.settle(
            active,
            Outcome(
                "dead",
                error=verdict.error,
                error_type=verdict.error_type,
                traceback=verdict.traceback,
            ),
        )

    def _tell(self, active: Active, outcome: Outcome, value: Any) -> None:
        """Count and report how a work ended."""
        env = active.env
        entry = active.entry
        metrics = entry.metrics
        now = self._core.clock.now_ms()
        run_at = active.run_at if active.run_at is not None else now
        if outcome.status == "success":
            metrics.succeeded(now, run_at, env.queue_at, env.attempt)
            self._core.emit("succeeded", env, entry, result=value)
        elif outcome.status == "dead":
            self.count_failure(active, will_retry=False)
            self._core.emit("failed", env, entry, error=outcome.error)
        elif outcome.status == "cancelled":
            metrics.cancelled(now, env.queue_at)
            self._core.emit("cancelled", env, entry)
        else:
            metrics.expired(now, env.queue_at)
            self._core.emit("expired", env, entry)

    def count_failure(self, active: Active, *, will_retry: bool) -> None:
        """Count a failed attempt."""
        env = active.env
        now = self._core.clock.now_ms()
        run_at = active.run_at if active.run_at is not None else now
        active.entry.metrics.failed(now, run_at, env.queue_at, env.attempt, will_retry)

    async def put_off(self, active: Active, new: Envelope) -> bool:
        """Write the work as pending, push it, then let go of the old message."""
        if (writing := self._heart.end_writes(active)) is not None:
            await asyncio.wait([writing])
        old = active.env
        new = new._replace(version=old.version + 1 if old.track == "full" else 0, recheck=False)
        body = encode(new)

        async def write() -> Envelope:
            return await self._core.ledger.put_off(old, new, body, writer=active.writer)

        written = await self._commit(active, write)
        if written is None:
            return False
        if active.lease is not None and active.queue.capabilities.ordered and old.track == "full":
            delay = max(0.0, (written.start_at - self._core.clock.now_ms()) / 1000)
            await self._messages.give_back(active, delay)
            return True
        await self._messages.push(active, written)
        await self._messages.ack(active)
        return True

    async def withdraw(self, active: Active) -> None:
        """Leave a work to whoever has its message now: to be run, and not taken for a crash."""
        if (writing := self._heart.end_writes(active)) is not None:
            await asyncio.wait([writing])
        await self._heart.leave(active)
        if active.traced:
            new = active.env._replace(version=active.env.version + 1)
            with contextlib.suppress(WriteConflictError):  # somebody else has it already
                await self._core.ledger.put_off(active.env, new, encode(new), writer=active.writer)

    async def interrupt(self, active: Active) -> None:
        """Give a work back that the drain has cut short; that spends no attempt."""
        if (writing := self._heart.end_writes(active)) is not None:
            await asyncio.wait([writing])
        if active.traced or active.lease is None:
            try:
                new = active.env._replace(version=active.env.version + 1)
                new = await self._core.ledger.put_off(
                    active.env, new, encode(new), writer=active.writer
                )
            except WriteConflictError:
                pass  # somebody else has it
            else:
                if active.lease is None:
                    await self._messages.push(active, new)
        await self._messages.give_back(active, 0.0)

    async def _commit(self, active: Active, write: Callable[[], Awaitable[Any]]) -> Any:
        """Make a write of a work whose handler has ended, for as long as its lease holds.

        The outcome is kept while the store is away; nothing runs the handler again here. ``None``
        means that the record belongs to somebody else by now, and that this was dealt with.
        """
        pause = 0.1
        while True:
            try:
                return await write()
            except WriteConflictError as conflict:
                item = conflict.item
                if item is None:
                    await self.register(active)
                    continue
                if item.version == active.env.version and not item.terminal:
                    self._recount(active, item.envelope())
                    continue
                standing = stand(item, now_ms=self._core.clock.now_ms())
                await self._yield_to(active, standing)
                return None
            except PayloadTooLargeError:
                raise
            except InvalidWorkError as error:
                await self.bury_unreadable(active, error)
                return None
            except Exception as error:
                self._core.hooks.report(error, "commit", f"settling work {active.env.id} failed")
                if active.reason in ("lost", "stop"):
                    raise
                await sleep(pause)
                pause = min(pause * 2, 5.0)

    async def bury_unreadable(self, active: Active, error: InvalidWorkError) -> None:
        """The record of a work is not one of ours: nothing can be written over it, nor decided.

        Its message goes to the dead letters with what is wrong with the record.
        """
        self._core.hooks.report(error, "commit", f"the record of work {active.env.id}")
        await self._messages.finish(active, f"bad record: {error}", dead=True)

    @staticmethod
    def _recount(active: Active, kept: Envelope) -> None:
        """The version was right, so what counts the work did not accept it.

        Either the work has come too late for its group and stands in the record as a root of its
        own, or the record of its group is gone.
        """
        env = active.env
        if (kept.group_id, kept.gate) != (env.group_id, env.gate):
            active.env = env._replace(group_id=kept.group_id, gate=kept.gate)
        else:
            active.counted = False

    async def register(self, active: Active) -> None:
        """Register a work whose producer has not, or has died before it could."""
        await sleep(self._core.settings.producer_grace)
        env = active.env._replace(version=1)
        registered = await self._core.ledger.register(env, encode(env))
        active.env = registered.env._replace(version=1)
        active.body = encode(active.env)

    async def _yield_to(self, active: Active, standing: Standing) -> None:
        """This run is void: somebody else has moved the work on."""
        match standing:
            case Finished(item):
                await self._follow.repeat(active.env, item)
                await self._messages.finish(
                    active, item.header.get("err"), dead=item.status == "dead"
                )
            case Adopt(env, _):
                await self._messages.push(active, env._replace(recheck=True))
                await self._messages.ack(active)
            case Duplicate(delay):
                await self._messages.give_back(active, delay)
            case TakeOver() | Absent():
                await self._messages.give_back(active, 0.0)
            case _:
                assert_never(standing)
