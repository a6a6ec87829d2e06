"""One work from lease to settle: look, run, decide, settle, follow up, ack."""

from __future__ import annotations

import asyncio
import contextlib
import math
from typing import TYPE_CHECKING, Any, assert_never

from piecework.clock import sleep
from piecework.engine.decide import (
    Absent,
    Adopt,
    Again,
    Die,
    Duplicate,
    Finished,
    PutOff,
    Standing,
    TakeOver,
    check_fate,
    decide_failure,
    die,
    stand,
)
from piecework.engine.hooks import logger
from piecework.engine.invoke import BadInputError, BadResultError
from piecework.envelope import encode
from piecework.errors import InvalidWorkError, PayloadTooLargeError
from piecework.ledger import CANCEL, WriteConflictError
from piecework.ports.queue import Message
from piecework.record import Outcome, read_item
from piecework.signals import RetryAbort, WorkSignal
from piecework.state import WorkInfo

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from piecework.definitions import Fate
    from piecework.engine.active import Active
    from piecework.engine.cancel import CancelNote
    from piecework.engine.core import Core
    from piecework.engine.executors import ThreadExecutor
    from piecework.engine.follow import FollowUps
    from piecework.engine.heart import Heart
    from piecework.engine.invoke import Invoker
    from piecework.engine.submit import Submitter
    from piecework.envelope import Envelope


#: Milliseconds that a work may wait in its queue until its record is read before it runs.
_LOOK_AFTER_MS = 5_000


class WorkerLostError(Exception):
    """The worker that ran the work died, as often as it may."""


class Runner:
    """Runs one work at a time through its life; every outcome is written by the ledger.

    Args:
        core: The shared parts.
        heart: Keeps the leases.
        invoker: Calls handlers.
        follow: What follows a settle.
        submitter: Makes the messages of retries.
        cancels: Tells whether works that waited may have been cancelled.
    """

    def __init__(
        self,
        core: Core,
        heart: Heart,
        invoker: Invoker,
        follow: FollowUps,
        submitter: Submitter,
        cancels: CancelNote,
    ) -> None:
        self._core = core
        self._heart = heart
        self._invoker = invoker
        self._follow = follow
        self._submitter = submitter
        self._rescue: set[asyncio.Task[None]] = set()
        self._cancels = cancels
        self.listening_since = math.inf

    # ---- the life of a work --------------------------------------------------------------------

    async def run(self, active: Active) -> None:
        """Run a work to its end in this process. Never raises, but for a loop that is closing."""
        active.task = asyncio.current_task()
        active.on_abandon = lambda: self._abandon(active)
        await self._guarded(active, self._attempt(active))

    async def _guarded(self, active: Active, life: Awaitable[None]) -> None:
        try:
            await life
        except asyncio.CancelledError:
            if active.reason is None or active.abandoned:
                self._end(active)
                raise  # the loop is closing; nothing more can be awaited
            await self._safely(active, self._interrupted(active))
        except Exception as error:  # noqa: BLE001 - the last line of defence
            await self._rescued(active, error)
        if not active.abandoned:
            self._end(active)

    async def _safely(self, active: Active, step: Awaitable[None]) -> None:
        try:
            await step
        except Exception as error:  # noqa: BLE001 - the last line of defence
            await self._rescued(active, error)

    async def _rescued(self, active: Active, error: Exception) -> None:
        """Give a work back that could not be settled: another delivery will."""
        self._core.hooks.report(error, "commit", f"work {active.env.id} could not be settled")
        await self.give_back(active, self._core.settings.put_back)

    async def _attempt(self, active: Active) -> None:
        if self._needs_look(active) and not await self._ready(active):
            return
        env = active.env
        core = self._core
        now = core.clock.now_ms()
        active.run_at = now
        active.entry.metrics.started(now, env.start_at)
        core.emit("started", env, active.entry)
        self._heart.watch_start(active)
        try:
            text, value = await self._invoker.call(active)
        except asyncio.CancelledError:
            if active.abandoned:
                return
            if active.reason is None and not _is_cancelling():
                await self._failed(active, RuntimeError("the handler raised CancelledError"))
                return
            raise
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a handler raises is its failure
            if active.abandoned:
                return
            if active.reason is not None:
                await self._interrupted(active, error)
            else:
                await self._failed(active, error)
            return
        if active.abandoned:
            return
        if active.reason in ("timeout", "deadline", "cancel"):
            await self._interrupted(active)
        else:
            _clear_cancel()
            await self.succeed(active, text, value)

    def _abandon(self, active: Active) -> None:
        """A handler swallowed its cancellation: settle the work without it."""
        logger.warning(
            "the handler of work type %r goes on %s s after it was cancelled (work %s); "
            "it was given up and still takes a place",
            active.env.type,
            self._core.settings.cancel_grace,
            active.env.id,
        )
        task = asyncio.get_running_loop().create_task(self._finish_abandoned(active))
        self._rescue.add(task)
        task.add_done_callback(self._rescue.discard)

    async def _finish_abandoned(self, active: Active) -> None:
        active.task = None
        await self._safely(active, self._interrupted(active))
        self._end(active)

    async def close(self) -> None:
        """Wait for works that are settled without their handlers."""
        if self._rescue:
            await asyncio.wait(list(self._rescue))

    def _end(self, active: Active) -> None:
        if active.settled:
            return
        active.settled = True
        active.entry.metrics.left(active.run_at is not None)
        if active.finished is not None:
            active.finished(active)

    # ---- a batch -------------------------------------------------------------------------------

    @property
    def threads(self) -> ThreadExecutor:
        """The threads of ``def`` handlers."""
        return self._invoker.threads

    async def run_batch(
        self, batch: list[Active], call: Callable[[list[Active]], Awaitable[list[Any]]]
    ) -> None:
        """Run works as one task; each is settled, retried or dead on its own."""
        try:
            ready = [active for active in batch if await self._ready_for_batch(active)]
            if ready:
                await self._call_batch(ready, call)
        finally:
            for active in batch:
                self._end(active)

    async def _ready_for_batch(self, active: Active) -> bool:
        try:
            return await self._ready(active)
        except Exception as error:  # noqa: BLE001 - its neighbours go on
            await self._rescued(active, error)
            return False

    async def _call_batch(
        self, ready: list[Active], call: Callable[[list[Active]], Awaitable[list[Any]]]
    ) -> None:
        core = self._core
        now = core.clock.now_ms()
        for active in ready:
            active.run_at = now
            active.entry.metrics.started(now, active.env.start_at)
            core.emit("started", active.env, active.entry)
            self._heart.watch_start(active)
        limit = ready[0].env.timeout
        timer = asyncio.timeout(limit)
        try:
            async with timer:
                outputs = await call(ready)
        except asyncio.CancelledError:
            if all(active.reason is None for active in ready):
                raise
            for active in ready:
                active.reason = active.reason or "stop"
                await self._safely(active, self._interrupted(active))
            return
        except Exception as error:  # noqa: BLE001 - every work of the batch has failed with it
            if isinstance(error, TimeoutError) and timer.expired():
                error = TimeoutError(f"timed out after {limit:g} s")
            outputs = [error] * len(ready)
        for active, output in zip(ready, outputs, strict=True):
            await self._safely(active, self._finish_one(active, output))

    async def _finish_one(self, active: Active, output: Any) -> None:
        if isinstance(output, BaseException):
            await self._failed(active, output)
            return
        try:
            text = active.entry.work_type.binding.dump_result(output)
        except InvalidWorkError as error:
            await self._failed(active, BadResultError(str(error)))
        else:
            await self.succeed(active, text, output)

    # ---- without the handler -------------------------------------------------------------------

    async def return_unstarted(self, active: Active, delay: float) -> None:
        """Give back a work that has not started; one that skipped the queue enters it now."""
        if active.lease is None:
            try:
                await self._push(active, active.env)
            except Exception as error:  # noqa: BLE001 - reconcile() finds it
                self._core.hooks.report(error, "queue", f"pushing work {active.env.id} failed")
        if self._looks_deadly(active):
            await self._push_back(active, delay)
        else:
            await self.give_back(active, delay)
        self._end(active)

    @staticmethod
    def _looks_deadly(active: Active) -> bool:
        """Whether its deliveries are all that tells of crashes: then put-backs must not add up."""
        lease = active.lease
        if lease is None or lease.deliveries <= 1 or active.queue.capabilities.ordered:
            return False
        return active.env.track != "full"

    async def _push_back(self, active: Active, delay: float) -> None:
        """Put a message back as a new one, whose deliveries count from 1."""
        pause = min(delay, active.queue.capabilities.max_delay)
        try:
            await active.queue.push([Message(active.body, pause, active.env.group)])
            await self._ack(active)
        except Exception as error:  # noqa: BLE001 - its lease ends by itself
            self._core.hooks.report(error, "queue", f"putting work {active.env.id} back failed")
            await self._heart.leave(active)

    async def give_up(self, active: Active, text: str, error_type: str) -> None:
        """Settle a work as dead that cannot run here."""
        if await self._start_unless_untracked(active):
            await self._safely(active, self._die(active, Die(text, error_type, "")))
        self._end(active)

    async def _start_unless_untracked(self, active: Active) -> bool:
        if active.env.track != "full":
            return True
        try:
            return await self._start(active)
        except Exception as error:  # noqa: BLE001 - another delivery will
            await self._rescued(active, error)
            return False

    # ---- before the handler --------------------------------------------------------------------

    def _needs_look(self, active: Active) -> bool:
        """Whether anything but a first delivery of a plain work is before us."""
        return (
            active.repeated
            or active.env.deadline is not None
            or active.env.track != "full"
            or self._core.settings.start_after <= 0
            or self._may_be_cancelled(active)
        )

    def _may_be_cancelled(self, active: Active) -> bool:
        """Whether it has waited for long enough to have been cancelled meanwhile.

        In one process a notice is not lost, once this worker listens.
        """
        env = active.env
        if env.start_at != env.queue_at:
            return True
        if active.queue.capabilities.in_process:
            return env.queue_at < self.listening_since and active.lease is not None
        return self._core.clock.now_ms() - env.queue_at > _LOOK_AFTER_MS

    async def _ready(self, active: Active) -> bool:
        """Whether the handler may run; else the work was dealt with."""
        env = active.env
        core = self._core
        if env.deadline is not None and env.deadline <= core.clock.now_ms():
            await self.settle(active, Outcome("expired", error="passed its deadline"))
            return False
        if env.track != "full":
            return await self._ready_untracked(active)
        if active.repeated or core.settings.start_after <= 0:
            return await self._start(active)
        if self._may_be_cancelled(active) and await self._cancels.covers(env.queue_at):
            item = read_item((await core.ledger.read([env.id]))[0])
            if item is not None and item.terminal:
                return await self._stand(active, Finished(item))
        return True

    async def _ready_untracked(self, active: Active) -> bool:
        lease = active.lease
        if lease is None or lease.deliveries <= self._core.settings.untracked_deliveries:
            return True
        await self._die(active, die(WorkerLostError("worker died")))
        return False

    async def _start(self, active: Active) -> bool:
        """Write the work down as running before it runs, and look at what is there."""
        for _ in range(8):
            try:
                record = await self._heart.write_running(active)
            except WriteConflictError as conflict:
                standing = stand(conflict.item, now_ms=self._core.clock.now_ms())
                if not await self._stand(active, standing):
                    return False
                continue
            if record.count(CANCEL) > 0:
                await self.settle(active, Outcome("cancelled", error="cancelled"))
                return False
            return True
        await self.give_back(active, self._core.settings.put_back)
        return False

    async def _stand(self, active: Active, standing: Standing) -> bool:
        """Act on what the record says; tell whether to try again with the envelope it gave."""
        match standing:
            case Absent():
                await self._register(active)
                return True
            case Finished(item):
                await self._follow.repeat(active.env, item)
                await self.finish_message(
                    active, item.header.get("err"), dead=item.status == "dead"
                )
                return False
            case Adopt(env, body):
                return await self._adopt(active, env, body)
            case TakeOver(env, body):
                active.env, active.body = env, body
                if env.attempt > env.retry.attempts:
                    active.env = env._replace(attempt=env.attempt - 1)
                    await self._die(active, die(WorkerLostError("worker died")))
                    return False
                return True
            case Duplicate(delay):
                await self.give_back(active, delay)
                return False
            case _:
                assert_never(standing)

    async def _register(self, active: Active) -> None:
        """Register a work whose producer has not, or has died before it could."""
        await sleep(self._core.settings.producer_grace)
        env = active.env._replace(version=1)
        registered = await self._core.ledger.register(env, encode(env))
        active.env = registered.env._replace(version=1)
        active.body = encode(active.env)

    async def _adopt(self, active: Active, env: Envelope, body: str) -> bool:
        """Go by the record: run it now, or push it for its time."""
        late = env.start_at - self._core.clock.now_ms()
        if late > self._core.settings.early * 1000:
            await self._push(active, env._replace(recheck=True))
            await self._ack(active)
            return False
        active.env, active.body = env, body
        return True

    # ---- after the handler ---------------------------------------------------------------------

    async def succeed(self, active: Active, text: str, value: Any) -> None:
        """Settle a work whose handler returned."""
        await self.settle(active, Outcome("success", result=text), value)

    async def _interrupted(self, active: Active, error: BaseException | None = None) -> None:
        """The handler was stopped: by its timeout, its deadline, a request, a lost lease, stop."""
        _clear_cancel()
        reason = active.reason
        env = active.env
        if reason == "timeout":
            await self._failed(active, TimeoutError(f"timed out after {env.timeout:g} s"))
        elif reason == "deadline":
            await self.settle(active, Outcome("expired", error="passed its deadline"))
        elif reason == "cancel":
            await self.settle(active, Outcome("cancelled", error="cancelled"))
        elif reason == "lost":
            active.entry.metrics.lease_lost()
            await self._withdraw(active)
        else:
            await self._stopped(active)

    async def _withdraw(self, active: Active) -> None:
        """Leave a work to whoever has its message now: to be run, and not taken for a crash."""
        if (writing := self._heart.end_writes(active)) is not None:
            await asyncio.wait([writing])
        await self._heart.leave(active)
        if active.traced:
            new = active.env._replace(version=active.env.version + 1)
            with contextlib.suppress(WriteConflictError):  # somebody else has it already
                await self._core.ledger.put_off(active.env, new, encode(new), writer=active.writer)

    async def _stopped(self, active: Active) -> None:
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
                    await self._push(active, new)
        await self.give_back(active, 0.0)

    async def _failed(self, active: Active, error: BaseException) -> None:
        """Decide what follows a failure, and write it."""
        if isinstance(error, (BadInputError, BadResultError)):
            kind = "bad input" if isinstance(error, BadInputError) else "bad result"
            await self._die(active, Die(f"{kind}: {error}", "InvalidWorkError", ""))
            return
        core = self._core
        env = active.env
        verdict = decide_failure(
            error,
            env,
            classify=self._classifier(active, error),
            now_ms=core.clock.now_ms(),
            random=core.random,
        )
        match verdict:
            case Again(delay, text):
                now = core.clock.now_ms()
                new = env._replace(attempt=env.attempt + 1, start_at=now + round(delay * 1000))
                if await self._put_off(active, new):
                    self._count_failure(active, will_retry=True)
                    active.entry.metrics.retried(delay)
                    core.emit(
                        "failed",
                        env,
                        active.entry,
                        will_retry=True,
                        error=text,
                        start_at=new.start_at,
                    )
            case PutOff(start_at, turn, text):
                new = env._replace(start_at=start_at, turn=env.turn + turn, input=text or env.input)
                if await self._put_off(active, new):
                    delay = (start_at - core.clock.now_ms()) / 1000
                    active.entry.metrics.deferred(delay)
                    core.emit("deferred", env, active.entry, start_at=start_at)
            case Die():
                await self._die(active, verdict)
            case _:
                assert_never(verdict)

    def _classifier(
        self, active: Active, error: BaseException
    ) -> Callable[[BaseException], Fate] | None:
        hook = active.entry.on_failure or self._core.hooks.on_failure
        if hook is None or isinstance(error, (WorkSignal, RetryAbort)):
            return None

        def classify(error: BaseException) -> Fate:
            try:
                fate = hook(error, self.info(active))
                return check_fate(fate, self._core.clock.now_ms())
            except Exception as broken:  # noqa: BLE001 - fall back to a counted retry
                self._core.hooks.report(broken, "commit", "on_failure raised")
                return None

        return classify

    def info(self, active: Active) -> WorkInfo:
        """What hooks are told of a work."""
        env = active.env
        return WorkInfo(
            id=env.id,
            type=env.type,
            group_id=env.group_id,
            attempt=env.attempt,
            attempts=env.retry.attempts,
            input=active.entry.work_type.binding.mapping(env.input),
        )

    async def _die(self, active: Active, verdict: Die) -> None:
        await self.settle(
            active,
            Outcome(
                "dead",
                error=verdict.error,
                error_type=verdict.error_type,
                traceback=verdict.traceback,
            ),
        )

    def _count_failure(self, active: Active, *, will_retry: bool) -> None:
        env = active.env
        now = self._core.clock.now_ms()
        run_at = active.run_at if active.run_at is not None else now
        active.entry.metrics.failed(now, run_at, env.queue_at, env.attempt, will_retry)

    # ---- writing outcomes ----------------------------------------------------------------------

    async def _put_off(self, active: Active, new: Envelope) -> bool:
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
            await self.give_back(active, delay)
            return True
        await self._push(active, written)
        await self._ack(active)
        return True

    async def settle(self, active: Active, outcome: Outcome, value: Any = None) -> bool:
        """Write the terminal state, do what follows, and let go of the message, in this order."""
        if (writing := self._heart.end_writes(active)) is not None:
            await asyncio.wait([writing])
        core = self._core
        env = active.env
        if env.track == "none":
            await self.finish_message(active, outcome.error, dead=outcome.status == "dead")
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
            await self._die(active, Die(f"bad result: {error}", type(error).__name__, ""))
            return False
        if settled is None:
            return False
        self._tell(active, outcome, value)  # before what follows, so before "group-done"
        quiet = not active.repeated and self._follow.nothing_follows(env, settled, outcome)
        if not quiet:
            await self._follow.settled(
                active.env, settled, outcome, again=active.repeated, parent=active.parent
            )
        await self.finish_message(active, outcome.error, dead=outcome.status == "dead")
        return True

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
            self._count_failure(active, will_retry=False)
            self._core.emit("failed", env, entry, error=outcome.error)
        elif outcome.status == "cancelled":
            metrics.cancelled(now, env.queue_at)
            self._core.emit("cancelled", env, entry)
        else:
            metrics.expired(now, env.queue_at)
            self._core.emit("expired", env, entry)

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
                    await self._register(active)
                    continue
                if item.version == active.env.version and not item.terminal:
                    self._recount(active, item.envelope())
                    continue
                standing = stand(item, now_ms=self._core.clock.now_ms())
                await self._yield_to(active, standing)
                return None
            except PayloadTooLargeError:
                raise
            except Exception as error:
                self._core.hooks.report(error, "commit", f"settling work {active.env.id} failed")
                if active.reason in ("lost", "stop"):
                    raise
                await sleep(pause)
                pause = min(pause * 2, 5.0)

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

    async def _yield_to(self, active: Active, standing: Standing) -> None:
        """This run is void: somebody else has moved the work on."""
        match standing:
            case Finished(item):
                await self._follow.repeat(active.env, item)
                await self.finish_message(
                    active, item.header.get("err"), dead=item.status == "dead"
                )
            case Adopt(env, _):
                await self._push(active, env._replace(recheck=True))
                await self._ack(active)
            case Duplicate(delay):
                await self.give_back(active, delay)
            case TakeOver() | Absent():
                await self.give_back(active, 0.0)
            case _:
                assert_never(standing)

    # ---- the message ---------------------------------------------------------------------------

    async def _push(self, active: Active, env: Envelope) -> None:
        queue = active.entry.queue
        await queue.push([self._submitter.message(env, encode(env), queue)])

    async def _ack(self, active: Active) -> None:
        await self._heart.leave(active)
        if active.lease is not None:
            await active.queue.ack([active.lease])

    async def finish_message(self, active: Active, error: str | None, *, dead: bool) -> None:
        """Let go of the message of a terminal work: ack it, or move it to the dead letters.

        If that fails, the next delivery finds the work terminal and does it again.
        """
        if (beat := self._heart.end_beats(active)) is not None:
            await asyncio.wait([beat])
        try:
            if dead:
                await self.bury(active, error or "dead")
            elif active.lease is not None:
                await active.queue.ack([active.lease])
        except Exception as failed:  # noqa: BLE001 - the work is settled, whatever the queue says
            self._core.hooks.report(failed, "commit", f"acking work {active.env.id} failed")

    async def bury(self, active: Active, reason: str) -> None:
        """Move the message of a dead work to the dead letters."""
        queue = active.queue
        letters = self._core.dead_letters
        if active.lease is not None and (queue.dead_letter_queue is not None or letters is None):
            await queue.dead_letter(active.lease, reason)
            return
        target = self._core.dead_letters_of(queue)
        if target is not None:
            await target.push([Message(active.body, reason=reason, group=active.env.group)])
        if active.lease is not None:
            await queue.ack([active.lease])

    async def give_back(self, active: Active, delay: float) -> None:
        """Put a message back, to be delivered again after ``delay`` seconds. Spends no attempt."""
        await self._heart.leave(active)
        if active.lease is None:
            return
        try:
            await active.queue.release([active.lease], delay)
        except Exception as error:  # noqa: BLE001 - its lease ends by itself
            self._core.hooks.report(error, "queue", f"putting work {active.env.id} back failed")


def _is_cancelling() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _clear_cancel() -> None:
    """Take back a cancellation that has done its work, so that what follows can be awaited."""
    task = asyncio.current_task()
    while task is not None and task.cancelling() > 0:
        task.uncancel()
