"""Enqueue: from a built work to a record and a message that nobody can lose."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from piecework.envelope import Envelope, encode
from piecework.errors import PayloadTooLargeError
from piecework.ledger import register_unique, unique_key
from piecework.options import NO_OPTIONS, Options, parse_options
from piecework.ports.queue import Message
from piecework.record import read_item

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from piecework.definitions import Work
    from piecework.engine.core import Core
    from piecework.engine.ports import EngineQueue
    from piecework.engine.registry import Entry
    from piecework.ledger import Registered


@dataclass(frozen=True, slots=True)
class Place:
    """Where a new work stands: whose child it is and what counts it.

    Attributes:
        group_id: The group that it joins; ``None`` makes it the root of its own.
        parent_id: The work whose handler queues it.
        gate: The gate that it counts in.
        upstream: The gate whose works it depends on.
        counted: Whether it is recorded and counted whatever its type says.
        trace: The trace context to hand on.
        root: The work that queues it, if that is the root of its group; see
            ``Ledger.register_children``.
    """

    group_id: str | None = None
    parent_id: str | None = None
    gate: str | None = None
    upstream: str | None = None
    counted: bool = False
    trace: dict[str, str] | None = None
    root: Envelope | None = None


ALONE = Place()

#: Seconds within which a handler that is still running after ``start_after`` is written down.
_TRACE_TIME = 1.0

#: Milliseconds after which a unique work that has not started may have lost its message: its
#: producer may have died after the register and before the push.
_LOST_AFTER_MS = 60_000


@dataclass(frozen=True, slots=True)
class Prepared:
    """A work that is ready to be sent; ``fresh`` where nobody can have sent it before."""

    env: Envelope
    body: str
    entry: Entry
    skip_queue: bool = False
    unique_for: float | None = None
    fresh: bool = True
    root: Envelope | None = None


class Submitter:
    """Turns works into records and messages.

    Args:
        core: The shared parts.
        run_here: Runs the first attempt of a work that skips the queue.
    """

    def __init__(self, core: Core, run_here: Callable[[Prepared], None]) -> None:
        self._core = core
        self._run_here = run_here
        self._overlap = not (
            core.queue.capabilities.in_process and core.store.capabilities.in_process
        )

    # ---- prepare -------------------------------------------------------------------------------

    def prepare(self, work: Work[Any], given: Options, place: Place = ALONE) -> Prepared:
        """Resolve a work's options and write its envelope.

        Raises:
            PayloadTooLargeError: The message is larger than its queue takes.
            InvalidWorkError: An option cannot be used.
        """
        core = self._core
        entry = core.registry.of(work.work_type)
        options = self._options(work, given, entry)
        now = core.clock.now_ms()
        start_at = options.run_at
        if start_at is None:
            start_at = now + round(options.delay * 1000) if options.delay else now
        elif start_at < now:
            start_at = now
        id = given.id or work.id
        counted = place.gate or place.counted or options.unique
        track = "full" if counted else entry.track
        unique_until = None
        if options.unique is not None and options.unique_for is not None:
            unique_until = now + round(options.unique_for * 1000)
        env = Envelope(
            id=id,
            type=work.type,
            input=work.encoded,
            group_id=place.group_id or id,
            queue_at=now,
            start_at=start_at,
            priority=options.priority or 0,
            group=options.group,
            retry=options.retry or entry.retry,
            version=1 if track == "full" else 0,
            parent_id=place.parent_id,
            gate=place.gate,
            track=track,
            timeout=options.timeout,
            deadline=options.deadline_ms(now),
            upstream=place.upstream,
            unique=options.unique,
            unique_until=unique_until,
            trace=place.trace,
        )
        body = encode(env)
        self._check_size(env, body, entry.queue)
        skip = bool(options.skip_queue) and start_at <= now
        fresh = not work.sent and id == work.id and options.id is None
        work.sent = True
        return Prepared(env, body, entry, skip, options.unique_for, fresh, place.root)

    def _options(self, work: Work[Any], given: Options, entry: Entry) -> Options:
        level = entry.level
        compute = work.work_type.options.get("options")
        if compute is not None:
            args, kwargs = work.work_type.binding.arguments(work.encoded)
            computed: Mapping[str, Any] = compute(*args, **kwargs) or {}
            level = parse_options(computed, work.type).over(level)
        if work.options is not NO_OPTIONS:
            level = work.options.over(level)
        return level if given is NO_OPTIONS else given.over(level)

    @staticmethod
    def _check_size(env: Envelope, body: str, queue: EngineQueue) -> None:
        limit = queue.capabilities.max_body_bytes
        if limit is not None and len(body) * 4 > limit:
            size = len(body.encode())
            if size > limit:
                raise PayloadTooLargeError(
                    f"the message of work type {env.type!r}", size=size, limit=limit
                )

    # ---- send ----------------------------------------------------------------------------------

    async def send(self, prepared: Prepared) -> Envelope:
        """Register a work that stands alone or joins a group, and push it; return its envelope.

        When this returned, the work is accepted. A work that is in the ledger already is left as
        it is; if it still waits for its turn, its message is pushed again, for the case that an
        earlier caller died before its own push.
        """
        env = prepared.env
        if prepared.skip_queue:
            return await self._send_here(prepared)
        if env.unique is not None:
            registered = await self._register_unique(prepared)
            if registered.new:
                moved = registered.env
                await self._push([self._moved(prepared, moved)])
                self._queued(moved, prepared.entry)
            elif (
                self._overlap
                or registered.env.start_at + _LOST_AFTER_MS < self._core.clock.now_ms()
            ):
                await self.push_again(self._moved(prepared, registered.env))
            return registered.env
        if self._overlap:
            registered = (await self._both(self._register_all([prepared]), [prepared]))[0]
        else:
            registered = await self._register(prepared)
            if registered.new and registered.env is env:
                await self._push([prepared])
        if registered.new and registered.env is env:
            self._queued(env, prepared.entry)
            return env
        return await self._settle_registered(prepared, registered)

    async def send_children(self, children: Sequence[Prepared]) -> list[Envelope]:
        """Register and push works that one counter counts, in as few writes as can be.

        Those that are there already and still wait are pushed once more: whoever was to push them
        may have died.
        """
        special = [p for p in children if p.skip_queue or p.env.unique or p.env.track != "full"]
        plain = [p for p in children if p not in special] if special else list(children)
        envs = {p.env.id: await self.send(p) for p in special}
        if plain:
            pairs = [(p.env, p.body) for p in plain]
            done = await self._both(
                self._core.ledger.register_children(pairs, plain[0].root), plain
            )
            for prepared, registered in zip(plain, done, strict=True):
                if registered.new and registered.env is prepared.env:
                    self._queued(prepared.env, prepared.entry)
                    envs[prepared.env.id] = prepared.env
                else:
                    envs[prepared.env.id] = await self._settle_registered(prepared, registered)
        return [envs[p.env.id] for p in children]

    async def send_roots(self, roots: Sequence[Prepared]) -> list[Envelope]:
        """Register and push works that stand alone; their messages go out together.

        Raises:
            BackendError: Not all were accepted; sending all again is safe.
        """
        if any(p.skip_queue or p.env.unique for p in roots):
            return [await self.send(p) for p in roots]
        done = await self._both(self._register_all(roots), roots)
        envs: list[Envelope] = []
        for prepared, registered in zip(roots, done, strict=True):
            if registered.new:
                self._queued(prepared.env, prepared.entry)
                envs.append(prepared.env)
            else:
                envs.append(await self.push_again(prepared))
        return envs

    async def _register_all(self, roots: Sequence[Prepared]) -> list[Registered]:
        if not self._overlap:
            return [await self._register(p) for p in roots]
        return await asyncio.gather(*(self._register(p) for p in roots))

    async def _register(self, prepared: Prepared) -> Registered:
        return await self._core.ledger.register(prepared.env, prepared.body, prepared.root)

    async def _both(
        self, register: Awaitable[list[Registered]], prepared: Sequence[Prepared]
    ) -> list[Registered]:
        """Register and push: at once where a call can be lost half way, else one after the other.

        A producer that dies leaves nothing, or a message that runs; never a counted work without
        a message that anybody would miss. Of a work that may be there already no second message
        goes out before that is known. A child is pushed only once it is counted: were it run
        before, nobody could tell whether its group is still to come or has settled. Should its
        parent die in between, the next run of that parent pushes it.
        """
        if not self._overlap or not all(_stands_alone(p) and p.fresh for p in prepared):
            done = await register
            pairs = zip(prepared, done, strict=True)
            await self._push([p for p, one in pairs if one.new and one.env is p.env])
            return done
        push = asyncio.ensure_future(self._push(prepared))
        try:
            done = await register
        except BaseException:
            push.cancel()
            await asyncio.gather(push, return_exceptions=True)
            raise
        await push
        return done

    async def _settle_registered(self, prepared: Prepared, registered: Registered) -> Envelope:
        if registered.new:  # its group had settled: it became a root of its own
            await self._push([self._moved(prepared, registered.env)])
            self._queued(registered.env, prepared.entry)
            return registered.env
        return await self.push_again(prepared)

    async def push_again(self, prepared: Prepared) -> Envelope:
        """Push a work that was there already, if it still waits and may have lost its message.

        The message comes late enough to find what an earlier one has started.
        """
        record = (await self._core.ledger.read([prepared.env.id]))[0]
        item = read_item(record)
        if item is None or item.status != "pending":
            return prepared.env
        env = item.second_message()
        queue = prepared.entry.queue
        message = self.message(env, encode(env), queue)
        late = message.delay + self._core.settings.start_after + _TRACE_TIME
        await queue.push([message._replace(delay=min(late, queue.capabilities.max_delay))])
        return env

    @staticmethod
    def _moved(prepared: Prepared, env: Envelope) -> Prepared:
        if env is prepared.env:
            return prepared
        return Prepared(env, encode(env), prepared.entry)

    async def _push(self, prepared: Sequence[Prepared]) -> None:
        if len(prepared) == 1:
            first = prepared[0]
            await first.entry.queue.push([self.message(first.env, first.body, first.entry.queue)])
            return
        by_queue: dict[EngineQueue, list[Message]] = {}
        for p in prepared:
            queue = p.entry.queue
            by_queue.setdefault(queue, []).append(self.message(p.env, p.body, queue))
        for queue, messages in by_queue.items():
            await queue.push(messages)

    def message(self, env: Envelope, body: str, queue: EngineQueue) -> Message:
        """The message of an envelope; a delay longer than the queue's is made in hops."""
        delay = (env.start_at - self._core.clock.now_ms()) / 1000
        if delay <= 0:
            return Message(body, 0.0, env.group)
        return Message(body, min(delay, queue.capabilities.max_delay), env.group)

    async def _send_here(self, prepared: Prepared) -> Envelope:
        if prepared.env.unique is not None:
            registered = await self._register_unique(prepared)
        else:
            registered = await self._register(prepared)
        if not registered.new:
            # Perhaps it was this call that put it there, and the answer got lost.
            return await self.push_again(self._moved(prepared, registered.env))
        self._queued(registered.env, prepared.entry)
        self._run_here(self._moved(prepared, registered.env))
        return registered.env

    async def _register_unique(self, prepared: Prepared) -> Registered:
        key = unique_key(self._core.settings.prefix, prepared.env)
        return await register_unique(
            self._core.ledger,
            prepared.env,
            key,
            unique_for=prepared.unique_for,
            root=prepared.root,
        )

    def _queued(self, env: Envelope, entry: Entry) -> None:
        entry.metrics.queued(env.queue_at)
        self._core.emit("queued", env, entry, start_at=env.start_at)

    def prepared(self, env: Envelope, body: str) -> Prepared:
        """A work whose envelope is written already, such as a gate's dependent."""
        return Prepared(env, body, self._core.registry.route(env.type))


def _stands_alone(prepared: Prepared) -> bool:
    """Whether nothing but its own record counts a work."""
    return prepared.env.counter in (None, prepared.env.id)
