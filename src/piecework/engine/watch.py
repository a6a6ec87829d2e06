"""The watcher behind ``dependency(...)``: looks, remembers, puts itself off or fires."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

from piecework.engine.decide import LookAgainError
from piecework.engine.submit import Place
from piecework.errors import InvalidWorkError
from piecework.gates import DEPENDENCY_TYPE, SHORTEST_POLL, When, check_when, judge
from piecework.options import NO_OPTIONS
from piecework.packing import unpack_work
from piecework.record import read_item
from piecework.signals import RetryAbort

if TYPE_CHECKING:
    from piecework.engine.active import Active
    from piecework.engine.core import Core
    from piecework.engine.gates import GateKeeper
    from piecework.engine.submit import Submitter

#: Seconds: the longest pause between two looks.
_LONGEST_PAUSE = 60.0


def read_spec(text: str) -> dict[str, Any]:
    """Read the input of a dependency.

    Raises:
        InvalidWorkError: It is none that ``dependency(...)`` wrote.
    """
    try:
        spec: dict[str, Any] = json.loads(json.loads(text)["spec"])
        check_when(spec["when"])
        fits = (
            all(isinstance(id, str) for id in (*_list(spec["on"]), *spec.get("ended", {})))
            and all(isinstance(work, dict) for work in _list(spec["queue"]))
            and spec["poll"] >= SHORTEST_POLL
            and (spec["timeout"] is None or spec["timeout"] > 0)
        )
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        raise _unreadable(f"{type(error).__name__}: {error}") from error
    if not fits:
        raise _unreadable("a value is of another kind")
    return spec


def _list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise TypeError("a list is needed")
    return cast("list[Any]", value)


def _unreadable(problem: str) -> InvalidWorkError:
    return InvalidWorkError(
        f"what the dependency waits for cannot be read ({problem})",
        work_type=DEPENDENCY_TYPE,
        field="spec",
        fix="Make it with dependency(on, queue).",
    )


class Watcher:
    """Runs dependencies.

    Args:
        core: The shared parts.
        submitter: Queues the dependents.
        gates: Keeps the ids beside the dependency, for ``ctx.upstream``.
    """

    def __init__(self, core: Core, submitter: Submitter, gates: GateKeeper) -> None:
        self._core = core
        self._submitter = submitter
        self._gates = gates

    async def run(self, active: Active, spec: dict[str, Any]) -> None:
        """Look at what a dependency waits for, and queue its works if the condition holds.

        Args:
            active: The dependency.
            spec: What ``read_spec`` made of its input.

        Raises:
            LookAgainError: It does not hold yet.
            RetryAbort: It can no longer hold, or the time is up.
        """
        ids: list[str] = spec["on"]
        when: When = spec["when"]
        ended: dict[str, bool] = spec.get("ended", {})
        await self._look([id for id in ids if id not in ended], ended)
        ok = sum(ended.values())
        verdict = judge(
            when,
            total=len(ids),
            ok=ok,
            failed=len(ended) - ok,
            drained=len(ended) == len(ids),
        )
        if verdict == "fire":
            await self._fire(active, spec)
        elif verdict == "fail":
            failed = ", ".join([id for id, success in ended.items() if not success][:20])
            raise RetryAbort(f"dependency: {when} cannot be met: [{failed}] did not succeed")
        else:
            raise self._again(active, spec, ended)

    async def _look(self, ids: list[str], ended: dict[str, bool]) -> None:
        for at in range(0, len(ids), 100):
            page = ids[at : at + 100]
            records = await self._core.ledger.read(page)
            for id, record in zip(page, records, strict=True):
                item = read_item(record)
                if item is not None and item.terminal:
                    ended[id] = item.status == "success"

    def _again(
        self, active: Active, spec: dict[str, Any], ended: dict[str, bool]
    ) -> LookAgainError | RetryAbort:
        waited = (self._core.clock.now_ms() - active.env.queue_at) / 1000
        limit = spec["timeout"]
        if limit is not None and waited >= limit:
            missing = ", ".join([id for id in spec["on"] if id not in ended][:20])
            return RetryAbort(TimeoutError(f"dependency: timed out waiting for [{missing}]"))
        pause = min(spec["poll"] * 2 ** min(active.env.turn, 10), _LONGEST_PAUSE)
        if limit is not None:
            pause = min(pause, limit - waited)
        text = json.dumps({**spec, "ended": ended})
        return LookAgainError(pause, json.dumps({"spec": text}))

    async def _fire(self, active: Active, spec: dict[str, Any]) -> None:
        env = active.env
        active.parent = True
        await self._gates.write_upstream(env.id, spec["on"])
        place = Place(env.group_id, env.id, upstream=env.id, root=active.root)
        registry = self._core.registry
        works = [unpack_work(registry.type_of, packed) for packed in spec["queue"]]
        prepared = [
            self._submitter.prepare(work, NO_OPTIONS, replace(place, counted=True))
            for work in works
        ]
        await self._submitter.send_children(prepared)
