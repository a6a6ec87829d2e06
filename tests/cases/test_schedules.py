"""Schedules over a fleet: the case B43 and promise P5."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from tests.cases.conftest import Fleet

from piecework import WorkContext, define_work
from piecework.ports import Change, Record
from piecework.testing.virtual_clock import VirtualClock

KINDS: dict[str, dict[str, Any]] = {
    "cron": {"cron": "* * * * *"},
    "every": {"every": 60},
    "next": {"next": lambda last: last.replace(second=0, microsecond=0) + timedelta(minutes=1)},
}


def dying_with_a_claim(fleet: Fleet, armed: list[bool]) -> None:
    """While armed, the first process that claims an occurrence is killed right after."""
    for system, switch in zip(fleet.systems, fleet.switches, strict=True):
        store: Any = system.store

        async def write(
            changes: Sequence[Change], write: Any = store.write, switch: Any = switch
        ) -> list[Record]:
            answer = await write(changes)
            if armed and any(":claim:" in c.key and c.expect == 0 for c in changes):
                armed.clear()
                switch.kill()
                await switch.hang()
            return answer

        store.write = write


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("killed", [False, True], ids=["all live", "a claimer is killed"])
async def test_an_occurrence_fires_once_over_the_fleet(
    fleet: Fleet, virtual_clock: VirtualClock, kind: str, killed: bool
) -> None:  # B43
    runs: Counter[str] = Counter()

    @define_work("tick")
    async def tick(ctx: WorkContext) -> None:
        runs[ctx.id] += 1

    def skewed(by: float) -> Any:
        return lambda: virtual_clock.now() + timedelta(seconds=by)

    await virtual_clock.advance(30)
    for skew in (-2, -1, 0, 1, 2):
        fleet.system(tick, now=skewed(skew))
    armed: list[bool] = []
    dying_with_a_claim(fleet, armed)
    for system in fleet.systems:
        system.schedule("minutely", tick(), **KINDS[kind])
        await system.start()
    await virtual_clock.advance(120)
    assert len(runs) == 2
    if killed:
        armed.append(True)
    await virtual_clock.advance(600)
    assert not armed
    assert sum(switch.dead for switch in fleet.switches) == killed
    assert len(runs) == 12  # the claim of the dead one ended after 90 s, and nothing was left out
    assert set(runs.values()) == {1}
    assert not fleet.wire.open_works()
