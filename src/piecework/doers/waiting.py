"""Tasks that wait, and which of them is next. All picks and additions are O(log n)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from piecework.doers.doer import Task

Entry: TypeAlias = "tuple[Any, ...]"
"""A rank that ends with the number of arrival (so that no two are equal), then the task."""
Rank: TypeAlias = "Callable[[Task, int], Entry]"


def by_priority(task: Task, arrival: int) -> Entry:
    """The higher priority, then the older, then the one that came first."""
    return (-task.priority, task.created_at, arrival, task)


def by_age(task: Task, arrival: int) -> Entry:
    """The older, then the one that came first."""
    return (task.created_at, arrival, task)


class Waiting(ABC):
    """The tasks that wait. It is told of what starts without waiting, and of what is over."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Task]: ...

    @abstractmethod
    def add(self, task: Task) -> None:
        """Let a task wait."""

    @abstractmethod
    def pick(self) -> Task:
        """Remove and return the one that is next; it counts as started. There must be one."""

    @abstractmethod
    def take(self, owner: object) -> list[Task]:
        """Remove and return the owner's, in the order they came; ``None`` for all."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything."""

    def started(self, task: Task) -> None:  # noqa: B027 - most ranks do not depend on it
        """A task runs from now on that never waited, since nothing did."""

    def finished(self, task: Task) -> None:  # noqa: B027 - most ranks do not depend on it
        """The task does not run any more."""


def split(entries: list[Entry], owner: object) -> tuple[list[Entry], list[Entry]]:
    """A heap as the owner's entries and a heap of the others."""
    if owner is None:
        return entries, []
    theirs = [entry for entry in entries if entry[-1].owner is owner]
    others = [entry for entry in entries if entry[-1].owner is not owner]
    heapify(others)
    return theirs, others


def in_order_of_arrival(entries: list[Entry]) -> list[Task]:
    """The tasks of the entries, the first that came first."""
    return [entry[-1] for entry in sorted(entries, key=lambda entry: entry[-2])]


class RankedWaiting(Waiting):
    """One heap in the order of a rank."""

    __slots__ = ("_arrivals", "_heap", "_rank")

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._heap: list[Entry] = []
        self._arrivals = 0

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Task]:
        return (entry[-1] for entry in self._heap)

    def add(self, task: Task) -> None:
        """Let a task wait."""
        self._arrivals += 1
        heappush(self._heap, self._rank(task, self._arrivals))

    def pick(self) -> Task:
        """Remove and return the one of the lowest rank."""
        return heappop(self._heap)[-1]

    def take(self, owner: object) -> list[Task]:
        """Remove and return the owner's, in the order they came; ``None`` for all."""
        theirs, self._heap = split(self._heap, owner)
        return in_order_of_arrival(theirs)

    def clear(self) -> None:
        """Forget everything."""
        self._heap = []


class _Group:
    """A group that has something running or waiting."""

    __slots__ = ("heap", "running", "stamp")

    def __init__(self) -> None:
        self.heap: list[Entry] = []
        self.running = 0
        self.stamp = 0


#: Outdated entries that are let be before the heap of groups is built anew.
_SLACK = 64


class BalancedWaiting(Waiting):
    """Picks from the group that has the fewest tasks running, and in it by priority, then age.

    Each group has a heap of its own. A second heap ranks the groups by what runs and by their
    first task. A group that changed gets a new entry there; the stamp tells the outdated ones,
    which are dropped when they come up, or all together when they outnumber the groups.
    """

    __slots__ = ("_arrivals", "_groups", "_length", "_ranks")

    def __init__(self) -> None:
        self._groups: dict[str | None, _Group] = {}
        self._ranks: list[Entry] = []
        self._length = 0
        self._arrivals = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Task]:
        return (entry[-1] for group in self._groups.values() for entry in group.heap)

    def add(self, task: Task) -> None:
        """Let a task wait."""
        self._arrivals += 1
        self._length += 1
        entry = by_priority(task, self._arrivals)
        group = self._group(task)
        heappush(group.heap, entry)
        if group.heap[0] is entry:
            self._rank(group)

    def pick(self) -> Task:
        """Remove and return the next one of the group with the fewest running."""
        while True:
            *_, stamp, group = heappop(self._ranks)
            if stamp == group.stamp:
                break
        task: Task = heappop(group.heap)[-1]
        self._length -= 1
        group.running += 1
        self._rank(group)
        return task

    def take(self, owner: object) -> list[Task]:
        """Remove and return the owner's, in the order they came; ``None`` for all."""
        taken: list[Entry] = []
        for name, group in list(self._groups.items()):
            theirs, group.heap = split(group.heap, owner)
            taken += theirs
            if not group.heap and not group.running:
                del self._groups[name]
        self._length -= len(taken)
        self._rank_anew()
        return in_order_of_arrival(taken)

    def clear(self) -> None:
        """Forget everything."""
        self._groups = {}
        self._ranks = []
        self._length = 0

    def started(self, task: Task) -> None:
        """Its group, which has nothing waiting, has one more running."""
        self._group(task).running += 1

    def finished(self, task: Task) -> None:
        """Its group has one less running; a group with nothing left is forgotten."""
        group = self._groups[task.group]
        group.running -= 1
        if group.heap:
            self._rank(group)
        elif not group.running:
            del self._groups[task.group]

    def _group(self, task: Task) -> _Group:
        group = self._groups.get(task.group)
        if group is None:
            group = self._groups[task.group] = _Group()
        return group

    def _rank(self, group: _Group) -> None:
        group.stamp += 1
        if group.heap:
            heappush(self._ranks, self._entry(group))
            if len(self._ranks) > 2 * len(self._groups) + _SLACK:
                self._rank_anew()
        elif not self._length:
            self._ranks.clear()

    def _rank_anew(self) -> None:
        self._ranks = [self._entry(group) for group in self._groups.values() if group.heap]
        heapify(self._ranks)

    @staticmethod
    def _entry(group: _Group) -> Entry:
        return (group.running, *group.heap[0][:-1], group.stamp, group)
