"""What follows a settle: notices, the end of the group, gates, claims. All can be repeated."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

from piecework.clock import from_ms, sleep
from piecework.counters import GROUP_WAITERS, OPEN, OPENED, WAITERS
from piecework.engine.hooks import resolve
from piecework.engine.notices import NoticeKind, encode_notice
from piecework.ledger import release_unique, unique_key
from piecework.record import read_state
from piecework.state import GroupInfo, WorkEvent, WorkState

if TYPE_CHECKING:
    from piecework.engine.core import Core
    from piecework.engine.gates import GateKeeper
    from piecework.engine.results import Results
    from piecework.envelope import Envelope
    from piecework.ledger import Settled
    from piecework.ports.store import Record
    from piecework.record import Item, Outcome

#: How many groups' states are remembered for ``unhandled_work_group``, and how many of each.
_GROUPS, _STATES = 1000, 1000


class FollowUps:
    """Repeatable effects of terminal states.

    Args:
        core: The shared parts.
        gates: Decides gates.
        results: Reads groups' results.
    """

    def __init__(self, core: Core, gates: GateKeeper, results: Results) -> None:
        self._core = core
        self._gates = gates
        self._results = results
        hooks = core.hooks
        self._listened = hooks.on_event is not None or hooks.unhandled_work_group is not None
        self._graces: set[asyncio.Task[None]] = set()
        self._states: OrderedDict[str, list[WorkState]] = OrderedDict()

    def nothing_follows(self, env: Envelope, settled: Settled, outcome: Outcome) -> bool:
        """Whether a settle is the quiet end of a lone first attempt, as most are."""
        record = settled.record
        counts = record.counters
        return (
            outcome.status == "success"
            and env.attempt == 1
            and env.unique is None
            and (settled.counter is None or settled.counter is record)
            and not (counts.get(WAITERS) or counts.get(GROUP_WAITERS) or counts.get(OPENED))
            and not self._listened
            and not self._core.registry.listened
        )

    async def settled(
        self,
        env: Envelope,
        settled: Settled,
        outcome: Outcome,
        *,
        again: bool = False,
        parent: bool = False,
    ) -> None:
        """Do what follows this worker's own settle of a work.

        Args:
            env: The work.
            settled: What the settle has shown.
            outcome: How it ended.
            again: Whether the work ran before: then gates may be left open.
            parent: Whether its record was kept for its children.
        """
        if not parent and settled.record.count(OPEN) > 0:  # children of an earlier run
            await self._core.ledger.outlive(env.id)
        if settled.record.count(WAITERS) > 0:
            await self.publish("done", env.id)
        if env.unique is not None:
            await release_unique(
                self._core.ledger, env, unique_key(self._core.settings.prefix, env)
            )
        if outcome.status != "success" or again or env.attempt > 1:
            await self._gates.close_unreleased(env)
        if self._core.hooks.unhandled_work_group is not None:
            self._remember(env, outcome)
        await self._counted(env, settled.counter)

    async def repeat(self, env: Envelope, item: Item) -> None:
        """Do what follows the settle of a work that somebody settled, perhaps half way."""
        counter = env.counter
        own = (await self._core.ledger.read([env.id]))[0]
        if own.count(OPEN) > 0:
            await self._core.ledger.outlive(env.id)
        if own.count(WAITERS) > 0:
            await self.publish("done", env.id)
        if env.unique is not None:
            await release_unique(
                self._core.ledger, env, unique_key(self._core.settings.prefix, env)
            )
        await self._gates.close_unreleased(env)
        gate = item.header.get("gate")
        if counter is None:
            return
        counter = gate or item.header.get("gid", env.id)
        await self._counted(
            env._replace(gate=gate, group_id=item.header.get("gid", env.id)),
            own if counter == env.id else (await self._core.ledger.read([counter]))[0],
            repeat=True,
        )

    async def _counted(
        self, env: Envelope, counter: Record | None, *, repeat: bool = False
    ) -> None:
        if counter is None:
            return
        if env.gate is not None:
            root = await self._gates.follow(env.gate, counter, repeat=repeat)
            if root is not None:
                await self.group_may_end(root)
        elif counter.count(OPEN) == 0:
            await self.group_may_end(counter, repeat=repeat)

    # ---- groups --------------------------------------------------------------------------------

    async def group_may_end(self, root: Record, *, repeat: bool = False) -> None:
        """End the group if nothing of it is open; only one caller in the fleet gets to."""
        if root.count(OPEN) != 0:
            return
        if not await self._core.ledger.claim_group_end(root, repeat=repeat):
            return
        group_id = self._core.ledger.id_of(root.key)
        if root.count(GROUP_WAITERS) > 0:
            await self.publish("group", group_id)
        await self._tell_group(group_id, root)
        hooks = self._core.hooks
        if hooks.unhandled_work_group is not None and root.count(GROUP_WAITERS) <= 0:
            task = asyncio.get_running_loop().create_task(self._unhandled(group_id))
            self._graces.add(task)
            task.add_done_callback(self._graces.discard)

    async def _tell_group(self, group_id: str, root: Record) -> None:
        hooks = self._core.hooks
        if hooks.on_event is None and not self._core.registry.listened:
            return
        state = read_state(group_id, root)
        if state is None:
            return
        entry = self._core.registry.known(state.type)
        own = None if entry is None else entry.on_event
        if hooks.on_event is None and own is None:
            return
        event = WorkEvent(
            kind="group-done",
            id=group_id,
            type=state.type,
            group_id=group_id,
            attempt=state.attempt,
            at=from_ms(self._core.clock.now_ms()),
            result=await self._results.group_value(group_id),
        )
        hooks.emit(event, own)

    async def _unhandled(self, group_id: str) -> None:
        """Tell of a group that nobody waits for, after a moment in which somebody may still."""
        hook = self._core.hooks.unhandled_work_group
        assert hook is not None
        try:
            await sleep(self._core.settings.group_grace)
            root = (await self._core.ledger.read([group_id]))[0]
            states = self._states.pop(group_id, [])
            if root.count(GROUP_WAITERS) > 0 or root.count(WAITERS) > 0:
                return
            value = await self._results.group_value(group_id)
            await resolve(hook(GroupInfo(group_id, value, states)))
        except Exception as error:  # noqa: BLE001 - a hook must not change what happens
            self._core.hooks.report(error, "commit", "unhandled_work_group raised")

    def _remember(self, env: Envelope, outcome: Outcome) -> None:
        states = self._states.setdefault(env.group_id, [])
        self._states.move_to_end(env.group_id)
        if len(states) < _STATES:
            states.append(
                WorkState(
                    id=env.id,
                    type=env.type,
                    status=outcome.status,
                    attempt=env.attempt,
                    error=outcome.error,
                    queue_at=from_ms(env.queue_at),
                    start_at=from_ms(env.start_at),
                    end_at=from_ms(self._core.clock.now_ms()),
                    group_id=env.group_id,
                    parent_id=env.parent_id,
                )
            )
        while len(self._states) > _GROUPS:
            self._states.popitem(last=False)

    async def close(self) -> None:
        """Wait for hooks that were told of groups."""
        if self._graces:
            await asyncio.wait(list(self._graces))

    async def publish(self, kind: NoticeKind, id: str) -> None:
        """Tell those who wait; a failure costs them one fallback pause."""
        try:
            await self._core.pubsub.publish(encode_notice(kind, id))
        except Exception as error:  # noqa: BLE001 - best effort
            self._core.hooks.report(error, "queue", "publishing a notice failed")
