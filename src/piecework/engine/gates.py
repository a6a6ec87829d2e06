"""Gates at work: opened by a call that queues works with ``then=``, decided by their settles.

A gate is a work of its own without a message. Its record holds what it is for and counts its
works; the settle that satisfies (or breaks) the condition starts the dependents and settles the
gate. Every step can be repeated by anybody: the ids are fixed, and every write is conditional.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from piecework.counters import HOLD, WAITERS
from piecework.engine.submit import Place
from piecework.envelope import Envelope, decode, encode
from piecework.errors import ConflictError, InvalidWorkError
from piecework.gates import (
    DEPENDENCY_TYPE,
    PAGE_SIZE,
    GateSpec,
    When,
    is_drained,
    judge_gate,
)
from piecework.ids import derived_id, random_id
from piecework.ledger import LONGEST_GROUP_TTL, GateLedger
from piecework.options import NO_OPTIONS, Options
from piecework.record import Item, Outcome, read_item
from piecework.retry import Retry
from piecework.running import gate_id

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from piecework.definitions import Work
    from piecework.engine.core import Core
    from piecework.engine.submit import Prepared, Submitter
    from piecework.ports.store import Record
    from piecework.running import Run

_ONCE = Retry(attempts=1)


@dataclass(frozen=True, slots=True)
class PreparedGate:
    """A gate that is ready to be opened.

    Attributes:
        env: The gate's own envelope.
        members: The works that count in it.
        dependents: The works that start when it fires.
        root: The work that opens it, if that is the root of its group.
    """

    env: Envelope
    members: list[Prepared]
    dependents: list[Prepared]
    root: Envelope | None = None

    @property
    def ids(self) -> list[str]:
        """The ids of the works that count in it."""
        return [member.env.id for member in self.members]


def _lone_gate_id(works: Sequence[Work[Any]], then: Sequence[Work[Any]]) -> str:
    """The id of a gate outside of handlers: the same one when a failed call is made again."""
    if not works and not then:
        return random_id()
    ids = [work.id for work in works], [work.id for work in then]
    return derived_id("lone-gate", ",".join(ids[0]), ",".join(ids[1]))


def _as_root(gate: PreparedGate) -> PreparedGate:
    def moved(prepared: Prepared) -> Prepared:
        env = prepared.env._replace(group_id=gate.env.id)
        return replace(prepared, env=env, body=encode(env))

    dependents = [moved(d) for d in gate.dependents]
    spec = GateSpec.decode(gate.env.input)
    spec = replace(spec, then=tuple(d.body for d in dependents))
    env = gate.env._replace(group_id=gate.env.id, input=spec.encode())
    return PreparedGate(env, [moved(m) for m in gate.members], dependents)


def _read_page(id: str, text: str) -> tuple[int, list[str]]:
    """How many pages of ids there are, and the ids of this one."""
    try:
        page = json.loads(text)
        pages, ids = page["pages"], page["ids"]
    except (ValueError, TypeError, LookupError, RecursionError):
        pages, ids = None, None
    if type(pages) is not int or not isinstance(ids, list) or pages > _MOST_PAGES:
        raise InvalidWorkError(
            f"the ids beside the gate {id!r} were not written by us",
            fix="Give every program that shares the store a prefix of its own.",
        )
    return pages, [str(one) for one in cast("list[Any]", ids)]


#: More pages of ids than any gate has: a billion works.
_MOST_PAGES = 1_000_000


class GateKeeper:
    """Opens gates, decides them, and lets their groups go on.

    Args:
        core: The shared parts.
        submitter: Prepares and sends works.
        publish: Tells those who wait for a work that will never run.
    """

    def __init__(
        self, core: Core, submitter: Submitter, publish: Callable[[str], Awaitable[None]]
    ) -> None:
        self._core = core
        self._submitter = submitter
        self._publish = publish
        self._ledger = GateLedger(core.ledger, result_ttl=core.settings.result_ttl)

    # ---- open ----------------------------------------------------------------------------------

    def prepare(
        self,
        works: Sequence[Work[Any]],
        then: Sequence[Work[Any]],
        when: When,
        given: Options,
        *,
        run: Run | None = None,
        root: Envelope | None = None,
    ) -> PreparedGate:
        """Write the envelopes of a gate, of its works and of its dependents."""
        id = _lone_gate_id(works, then) if run is None else run.gate_id()
        group_id = id if run is None else run.group_id
        parent_id = None if run is None else run.id
        submitter = self._submitter
        below = Place(group_id, parent_id)
        members = [submitter.prepare(w, given, replace(below, gate=id)) for w in works]
        after = Place(group_id, id, upstream=id, counted=True)
        dependents = [submitter.prepare(w, NO_OPTIONS, after) for w in then]
        now = self._core.clock.now_ms()
        spec = GateSpec(tuple(d.body for d in dependents), when, len(members))
        env = Envelope(
            id=id,
            type=DEPENDENCY_TYPE,
            input=spec.encode(),
            group_id=group_id,
            queue_at=now,
            start_at=now,
            retry=_ONCE,
            parent_id=parent_id,
        )
        return PreparedGate(env, members, dependents, root)

    async def open(self, gate: PreparedGate) -> None:
        """Register a gate, queue its works, and release its hold.

        A replay finds what is there already and completes it.
        """
        await self.fill(await self.register(gate))

    async def register(self, gate: PreparedGate) -> PreparedGate:
        """Register a gate with its hold; return it as it is then.

        Where its group had settled meanwhile, it is the root of its own.
        """
        await self._write_pages(gate.env.id, gate.ids)
        match await self._ledger.open(gate.env):
            case "rootless" if gate.root is not None:
                # The message of the root came before its record.
                await self._core.ledger.register(gate.root, encode(gate.root))
                return await self.register(replace(gate, root=None))
            case "late" | "rootless":
                return await self.register(_as_root(gate))
            case "opened" | "there":
                return gate

    async def fill(self, gate: PreparedGate) -> None:
        """Queue the works of a registered gate, and release its hold."""
        await self._submitter.send_children(gate.members)
        await self._release(gate.env.id)

    async def _write_pages(self, id: str, ids: Sequence[str]) -> None:
        """Put the ids of a gate's works beside it, so that no record grows with the width."""
        pages = [ids[at : at + PAGE_SIZE] for at in range(0, len(ids), PAGE_SIZE)] or [[]]
        for number, page in enumerate(pages):
            text = json.dumps({"pages": len(pages), "ids": list(page)})
            await self._core.store.set(self._page_key(id, number), text, LONGEST_GROUP_TTL)

    def _page_key(self, id: str, number: int) -> str:
        return f"{self._core.settings.prefix}gate:{id}:{number}"

    async def write_upstream(self, id: str, ids: Sequence[str]) -> None:
        """Put ids beside a dependency, for the works that it starts."""
        await self._write_pages(id, ids)

    async def upstream(self, id: str) -> list[str]:
        """The ids of the works of a gate."""
        first = await self._core.store.get(self._page_key(id, 0))
        if first is None:
            return []
        pages, ids = _read_page(id, first)
        if pages > 1:
            keys = [self._page_key(id, number) for number in range(1, pages)]
            for record in await self._core.store.read(keys):
                ids += _read_page(id, record.value)[1] if record.value else []
        return ids

    async def _release(self, id: str) -> None:
        """Say that all works of a gate are queued."""
        record = await self._ledger.release(id)
        await self._after(id, await self.follow(id, record, repeat=True))

    async def _after(self, id: str, root: Record | None) -> None:
        if root is not None and self.group_ended is not None:
            await self.group_ended(root)

    #: Set by the engine: ends a group whose last open work was a gate that no settle closed.
    group_ended: Callable[[Record], Awaitable[None]] | None = None

    # ---- decide --------------------------------------------------------------------------------

    async def follow(self, id: str, record: Record, *, repeat: bool = False) -> Record | None:
        """Bring a gate as far as its counters allow.

        Args:
            id: The gate.
            record: Its record, as it was last seen.
            repeat: Whether somebody may have died on the way, before the group could be ended.

        Returns:
            The record of the group's root, if this call has closed the gate in it, or if somebody
            had and may have died right after (``repeat``).
        """
        while True:
            item = read_item(record)
            if item is None:
                return None
            if item.terminal:
                return await self._drain(id, record, item, repeat=repeat)
            env = item.envelope()
            spec = GateSpec.decode(env.input)
            verdict = judge_gate(spec, record)
            if verdict == "wait":
                return None
            if verdict == "fire":
                await self._start(spec, env)
                outcome = Outcome("success", result="null")
            else:
                outcome = await self._broken(id, spec)
            try:
                return await self._settle(env, record, outcome)
            except ConflictError as conflict:
                record = conflict.records[0]

    async def _start(self, spec: GateSpec, gate: Envelope) -> None:
        """Register and push the dependents; those that are there already keep their place.

        One that is there and waits is pushed once more: whoever has registered it may not have come
        to push it, and once the gate is settled nobody looks at it again.
        """
        children: list[Prepared] = []
        now = self._core.clock.now_ms()
        for body in spec.then:
            env = decode(body)
            waited = max(0, env.start_at - env.queue_at)
            env = env._replace(queue_at=now, start_at=now + waited, group_id=gate.group_id)
            children.append(self._submitter.prepared(env, encode(env)))
        if children:
            await self._submitter.send_children(children)

    async def _broken(self, id: str, spec: GateSpec) -> Outcome:
        """The gate can no longer open: its dependents are dead, and say because of whom."""
        failed: list[str] = []
        ids = await self.upstream(id)
        for at in range(0, len(ids), PAGE_SIZE):
            page = ids[at : at + PAGE_SIZE]
            records = await self._core.ledger.read(page)
            failed += [
                work_id
                for work_id, record in zip(page, records, strict=True)
                if (item := read_item(record)) and item.terminal and item.status != "success"
            ]
        names = ", ".join(failed[:20]) + (
            f" and {len(failed) - 20} more" if len(failed) > 20 else ""
        )
        when = spec.when if isinstance(spec.when, str) else json.dumps(spec.when)
        why = f"{names} did not succeed" if failed else f"there are {spec.total} works in all"
        return await self._kill(spec, f"GateFailed: {when} cannot be met: {why}")

    async def _kill(self, spec: GateSpec, error: str) -> Outcome:
        outcome = Outcome("dead", error=error, error_type="GateFailed")
        for body in spec.then:
            env = decode(body)
            record = await self._ledger.kill_dependent(env, body, outcome)
            if record.count(WAITERS) > 0:
                await self._publish(env.id)
        return outcome

    async def _settle(self, env: Envelope, record: Record, outcome: Outcome) -> Record | None:
        written, root = await self._ledger.settle(env, record, outcome)
        if written.count(WAITERS) > 0:
            await self._publish(env.id)
        if root is not None:
            return root
        # Works may have ended while this was written, and have seen a gate that was not decided.
        latest = (await self._core.ledger.read([env.id]))[0]
        again = read_item(latest)
        return None if again is None else await self._drain(env.id, latest, again)

    async def _drain(
        self, id: str, record: Record, item: Item, *, repeat: bool = False
    ) -> Record | None:
        """Take a decided gate out of its group once none of its works is open."""
        root = item.header.get("gid", id)
        if item.header.get("drained"):
            # Whoever took it out of its group may have died before it could end the group.
            return (await self._core.ledger.read([root]))[0] if repeat else None
        if not is_drained(record):
            return None
        try:
            return (await self._ledger.drain(id, item))[1]
        except ConflictError as conflict:
            return await self.follow(id, conflict.records[0])

    # ---- a parent that ends --------------------------------------------------------------------

    async def close_unreleased(self, parent: Envelope) -> None:
        """End the gates that a parent opened and never released, so that no group hangs."""
        for turn in range(max(0, parent.turn - 1), parent.turn + 1):
            nth = 0
            while True:
                id = gate_id(parent.id, turn, nth)
                record = (await self._core.ledger.read([id]))[0]
                item = read_item(record)
                if item is None:
                    break
                if record.count(HOLD) > 0:
                    await (self._release(id) if item.terminal else self._close(id, record, item))
                nth += 1

    async def sweep(self, id: str, record: Record) -> bool:
        """Bring a gate on that nobody else does; tell whether there was anything to do.

        A gate that no handler opened and that is still held has lost the producer of its works: it
        is dead. (One that a handler opened is ended with its parent.)
        """
        item = read_item(record)
        if item is None or item.terminal:
            return False
        if record.count(HOLD) > 0:
            if item.envelope().parent_id is not None:
                return False
            await self._close(id, record, item)
            return True
        if judge_gate(GateSpec.decode(item.envelope().input), record) == "wait":
            return False
        await self._after(id, await self.follow(id, record, repeat=True))
        return True

    async def _close(self, id: str, record: Record, item: Item) -> None:
        spec = GateSpec.decode(item.envelope().input)
        outcome = await self._kill(spec, "GateFailed: the work that queued its works ended first")
        record = await self._ledger.close(record, item, outcome)
        await self._after(id, await self.follow(id, record))
