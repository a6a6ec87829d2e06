"""The life of one schedule in one instance: claim an occurrence, fire it, advance the record."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from piecework.clock import sleep
from piecework.envelope import is_time
from piecework.errors import ConfigError, ConflictError
from piecework.ids import derived_id
from piecework.ports.store import Change

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from piecework.clock import Clock
    from piecework.occurrences import Recurrence
    from piecework.ports.store import Record, Store

#: Seconds that a timer sleeps at most, so that a change of the computer's clock is noticed.
LONGEST_SLEEP = 60.0
#: Seconds between two attempts after an error, at most.
LONGEST_RETRY = 30.0
#: Seconds between two looks at an occurrence that another instance has claimed, at most.
LONGEST_CHECK = 10.0
#: Seconds of delay from which an instance counts as stalled: what it slept through was missed.
STALL = 5.0
#: Seconds over the life of a claim after which a watched occurrence counts as missed all the same.
WATCH_MARGIN = 60.0
#: Seconds that giving back a claim may take, so that a stop never hangs on a store.
RELEASE_TIME = 2.0
#: Seconds that the record of a schedule outlives its next occurrence: 400 days.
RECORD_TTL = 400 * 86_400.0

Report: TypeAlias = Callable[[BaseException, Literal["queue"]], None]
"""Told each error that the scheduler goes on after."""


@dataclass(frozen=True, slots=True, eq=False)
class ScheduleEntry:
    """One schedule of a system.

    Attributes:
        name: Its name, the same in the whole fleet.
        recurrence: When it is due.
        make: What to enqueue; only ``fire`` looks at it.
    """

    name: str
    recurrence: Recurrence
    make: object


Fire: TypeAlias = Callable[[ScheduleEntry, int, str], Awaitable[None]]
"""Enqueues an occurrence (milliseconds since 1970) under a work id; repeating it is harmless."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """What the schedules of one instance share; ``Scheduler`` explains each."""

    store: Store
    clock: Clock
    prefix: str
    fire: Fire
    report: Report
    claim_ttl: float


@dataclass(frozen=True, slots=True)
class _State:
    """What the fleet has agreed on: the record of a schedule.

    Up to ``last_ms`` all is dealt with. The rest is for ``next`` functions: ``upcoming_ms`` is the
    occurrence after it; ``None`` if it is not known yet or, with ``ended``, if there is none.
    """

    last_ms: int
    upcoming_ms: int | None
    ended: bool
    version: int

    @classmethod
    def of(cls, record: Record) -> _State | None:
        if record.value is None:
            return None
        value: Any = None
        last: Any = None
        upcoming: Any = None
        try:
            value = json.loads(record.value)
            last, upcoming = value["last"], value.get("upcoming")
        except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
            pass  # said below
        if not is_time(last) or not (upcoming is None or is_time(upcoming)):
            raise ConfigError(
                f"the record {record.key!r} of a schedule was not written by us; "
                f"give every program that shares the store a prefix of its own"
            )
        return cls(last, upcoming, "upcoming" in value and upcoming is None, record.version)


class ScheduleRun:
    """One schedule in one instance.

    Args:
        fleet: What the schedules share.
        entry: The schedule.
        holder: Tells its claims from those of every other run in the fleet.
    """

    def __init__(self, fleet: Fleet, entry: ScheduleEntry, holder: str) -> None:
        self.entry = entry
        self.removed = False
        self.firing = False
        self._fleet = fleet
        self._holder = holder
        self._store = fleet.store
        self._recurrence = entry.recurrence
        self._key = f"{fleet.prefix}schedule:{entry.name}"
        self._watching_since_ms = 0
        self._upcoming_ms: int | None = None
        self._fired_ms: int | None = None
        self._asked = False
        self._checks = 0

    async def forever(self) -> None:
        """Step until the schedule ends; an error is reported and the step repeated later."""
        self._watching_since_ms = self._now()
        self._upcoming_ms = None
        self._asked = False
        failures = 0
        while not self.removed:
            wait: float | None
            try:
                wait = await self._step()
                failures = 0
            except asyncio.CancelledError as error:
                if _is_cancelled():
                    raise
                # Something that the user's code waited for was cancelled, not this task.
                wait = self._failed(error, failures)
                failures += 1
            except Exception as error:  # noqa: BLE001 - the supervisor of the schedule
                wait = self._failed(error, failures)
                failures += 1
            if wait is None:
                return
            await self._sleep(min(wait, LONGEST_SLEEP))

    def _now(self) -> int:
        return self._fleet.clock.now_ms()

    def _failed(self, error: BaseException, failures: int) -> float:
        self._upcoming_ms = None
        self._fleet.report(error, "queue")
        return min(LONGEST_RETRY, 2.0 ** min(failures, 8))

    async def _sleep(self, wait: float) -> None:
        before = self._now()
        await sleep(wait)
        self._notice_stall(before, wait)

    def _notice_stall(self, before_ms: int, expected: float) -> None:
        now = self._now()
        if now - before_ms > (expected + STALL) * 1000:
            self._watching_since_ms = now

    def _watched_from(self, now_ms: int) -> int:
        """Occurrences after this were not slept through; at most their claimer died."""
        longest = round((self._fleet.claim_ttl + WATCH_MARGIN) * 1000)
        return max(self._watching_since_ms, now_ms - longest)

    async def _step(self) -> float | None:
        """Do what is due; return the seconds to the next step, ``None`` at the schedule's end."""
        if self._upcoming_ms is None or self._upcoming_ms <= self._now():
            state = await self._state()
            by_next = self._recurrence.next is not None
            wait = await (self._by_next(state) if by_next else self._by_rule(state))
            if wait is not None:
                return wait
            if self._upcoming_ms is None:
                return None
        return max(0.0, (self._upcoming_ms - self._now()) / 1000)

    async def _by_rule(self, state: _State) -> float | None:
        """Step a schedule whose occurrences every instance computes alike.

        Returns ``None`` where ``_upcoming_ms`` tells how to go on, or else when to read again.
        """
        now = self._now()
        due = self._recurrence.due(state.last_ms, now, 1, watched_from_ms=self._watched_from(now))
        for occurrence in due.occurrences_ms:
            if not await self._take(occurrence):
                return self._check_later()
            if not await self._write(state, occurrence, {"last": occurrence}, due.upcoming_ms):
                return 0.0
        self._upcoming_ms = due.upcoming_ms
        return None

    async def _by_next(self, state: _State) -> float | None:
        """Step a schedule by function: what the first instance stored is what all of them use.

        At its start an instance asks its function again, for it may be newer than the stored
        answer: an earlier time takes its place, also after the end. A later one does not, or a
        function that reckons from the present would be put off by each restart.
        """
        now = self._now()
        first = state.upcoming_ms
        unknown = first is None and not state.ended
        if unknown or (not self._asked and (first is None or first > now)):
            self._asked = True
            own = self._recurrence.following(now)
            if unknown or (own is not None and (first is None or own < first)):
                await self._write(state, now, {"last": now, "upcoming": own}, own)
                return 0.0
        if first is None or first > now:
            self._upcoming_ms = first
            return None
        watched = self._watched_from(now)
        if not self._recurrence.drops(first, now, watched) and not await self._take(first):
            return self._check_later()
        try:
            upcoming = self._recurrence.onward(first, now, watched)
        except Exception:
            # It was fired: keep that, and ask again for what comes after it.
            await self._write(state, first, {"last": first}, None)
            raise
        if not await self._write(state, first, {"last": first, "upcoming": upcoming}, upcoming):
            return 0.0
        self._upcoming_ms = upcoming
        return None

    def _check_later(self) -> float:
        """Another instance has the claim: look again soon, then ever less often."""
        self._upcoming_ms = None
        self._checks += 1
        return min(LONGEST_CHECK, 2.0 ** min(self._checks - 1, 8))

    async def _state(self) -> _State:
        """The schedule's record; a schedule that has none starts now."""
        state = _State.of((await self._store.read([self._key]))[0])
        while state is None:
            now = self._now()
            change = Change(self._key, value=json.dumps({"last": now}), expect=0, ttl=RECORD_TTL)
            try:
                record = (await self._store.write([change]))[0]
                return _State(now, None, ended=False, version=record.version)
            except ConflictError as error:
                state = _State.of(error.records[0])
        return state

    async def _write(
        self, state: _State, handled_ms: int, value: dict[str, int | None], upcoming_ms: int | None
    ) -> bool:
        """Advance the record unless another instance did meanwhile; tell whether it is ours."""
        far = max(0, (upcoming_ms or handled_ms) - self._now()) / 1000
        change = Change(
            self._key, value=json.dumps(value), expect=state.version, ttl=RECORD_TTL + far
        )
        try:
            await self._store.write([change])
        except ConflictError:
            self._upcoming_ms = None
            return False
        return True

    async def _take(self, occurrence_ms: int) -> bool:
        """Fire an occurrence if no other instance has its claim; tell whether it was fired."""
        if occurrence_ms == self._fired_ms:
            return True  # fired before; only the record could not be advanced
        fleet, claim = self._fleet, f"{self._key}:claim:{occurrence_ms}"
        if not await self._store.set_if_not_exists(claim, self._holder, fleet.claim_ttl):
            holder = await self._store.get(claim)
            if holder != self._holder:
                return False
        work_id = derived_id("schedule", fleet.prefix, self.entry.name, occurrence_ms)
        before = self._now()
        async with self._holding(claim):
            await fleet.fire(self.entry, occurrence_ms, work_id)
        self._fired_ms = occurrence_ms
        self._checks = 0
        self._notice_stall(before, 0.0)
        return True

    @asynccontextmanager
    async def _holding(self, claim: str) -> AsyncGenerator[None, None]:
        """Renew a claim while its occurrence is fired; give it back if that fails."""
        renewal = asyncio.create_task(self._renew(claim))
        self.firing = True
        try:
            yield
        except BaseException:
            await _end(renewal)
            await self._release(claim)
            raise
        finally:
            self.firing = False
            await _end(renewal)

    async def _renew(self, claim: str) -> None:
        fleet = self._fleet
        while True:
            await sleep(fleet.claim_ttl / 3)
            try:
                await self._store.set(claim, self._holder, fleet.claim_ttl)
            except Exception as error:  # noqa: BLE001 - the next renewal may be in time
                fleet.report(error, "queue")

    async def _release(self, claim: str) -> None:
        try:
            async with asyncio.timeout(RELEASE_TIME):
                await self._store.delete(claim)
        except Exception as error:  # noqa: BLE001 - the claim ends by itself
            self._fleet.report(error, "queue")


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
