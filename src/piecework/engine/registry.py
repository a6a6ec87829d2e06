"""The work types that a system knows, each with its options resolved once."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from piecework.definitions import WorkType
from piecework.errors import UnknownWorkError
from piecework.retry import Retry, get_default_retry, merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from piecework.definitions import OnEvent, OnFailure
    from piecework.doers import Doer
    from piecework.engine.ports import EngineQueue
    from piecework.metrics import TypeMetrics, WorkRecorder
    from piecework.options import Options, Track
    from piecework.ports.queue import Queue


class Entry:
    """A work type as one system runs it.

    Attributes:
        work_type: The definition.
        name: Its name.
        level: The options of the type over those of the system.
        retry: The retry policy where nothing else is asked for.
        doer: Decides how many run and which is next.
        queue: Where its works are pushed.
        metrics: Its series.
    """

    __slots__ = (
        "doer",
        "level",
        "metrics",
        "name",
        "on_event",
        "on_failure",
        "queue",
        "retry",
        "track",
        "work_type",
    )

    def __init__(
        self,
        work_type: WorkType[..., Any],
        *,
        system_retry: Retry | None,
        doer: Doer,
        queue: EngineQueue,
        metrics: TypeMetrics,
    ) -> None:
        options = work_type.options
        self.work_type = work_type
        self.name = work_type.type
        self.retry = merge(get_default_retry(), system_retry, options.get("retry"))
        self.level: Options = replace(work_type.level, retry=self.retry)
        self.doer = options.get("doer") or doer
        self.queue = queue
        self.metrics = metrics
        self.track: Track = options.get("track", "full")
        self.on_event: OnEvent | None = options.get("on_event")
        self.on_failure: OnFailure | None = options.get("on_failure")


class Registry:
    """Work types by name; the last one of a name wins.

    Args:
        wrap_queue: Gives the engine's view of a queue, the same one for the same queue.
        queue: The queue of types that name none.
        doer: The doer of types that name none.
        retry: The system's retry options.
        recorder: Gives the series of a type.
    """

    def __init__(
        self,
        *,
        wrap_queue: Callable[[Queue], EngineQueue],
        queue: EngineQueue,
        doer: Doer,
        retry: Retry | None,
        recorder: WorkRecorder,
    ) -> None:
        self._wrap_queue = wrap_queue
        self._queue = queue
        self._doer = doer
        self._retry = retry
        self._recorder = recorder
        self._types: dict[str, WorkType[..., Any]] = {}
        self._entries: dict[str, Entry] = {}
        self._foreign: dict[str, Entry] = {}
        #: How often types were registered: what depends on them is made anew then.
        self.changes = 0
        #: Whether any registered type listens to the events of its works.
        self.listened = False

    def register(self, work_types: Iterable[WorkType[..., Any]]) -> None:
        """Add types; one of a known name takes its place.

        Raises:
            ConfigError: A worker process could not import the handler of one.
        """
        for work_type in work_types:
            if work_type.executor == "process":
                from piecework.engine.executors import check_target

                check_target(work_type.fn)
            self._types[work_type.type] = work_type
            self.listened = self.listened or work_type.options.get("on_event") is not None
            self._entries.pop(work_type.type, None)
        self.changes += 1

    def get(self, name: str) -> Entry | None:
        """The registered type of that name."""
        entry = self._entries.get(name)
        if entry is None and name in self._types:
            entry = self._entries[name] = self._resolve(self._types[name])
        return entry

    def named(self, name: str) -> Entry:
        """The registered type of that name.

        Raises:
            UnknownWorkError: There is none.
        """
        entry = self.get(name)
        if entry is None:
            raise UnknownWorkError(name, [n for n in self._types if not n.startswith("@")])
        return entry

    def of(self, work_type: WorkType[..., Any]) -> Entry:
        """How a type is enqueued here, also one that only other workers run."""
        entry = self._entries.get(work_type.type)
        if entry is not None:
            return entry
        if work_type.type in self._types:
            return self.named(work_type.type)
        foreign = self._foreign.get(work_type.type)
        if foreign is None or foreign.work_type is not work_type:
            foreign = self._foreign[work_type.type] = self._resolve(work_type)
        return foreign

    def known(self, name: str) -> Entry | None:
        """The type of that name, registered or only ever enqueued here."""
        return self.get(name) or self._foreign.get(name)

    def route(self, name: str) -> Entry:
        """Where works of that name go: also of a type that only other workers know."""
        known = self.known(name)
        if known is not None:
            return known
        return self.of(WorkType(name, _elsewhere, {}))

    def type_of(self, name: str) -> WorkType[..., Any]:
        """The work type of that name, or a stand-in for one that only other workers know."""
        return self.route(name).work_type

    def __iter__(self) -> Iterator[Entry]:
        for name in list(self._types):
            yield self.named(name)

    def _resolve(self, work_type: WorkType[..., Any]) -> Entry:
        own = work_type.options.get("queue")
        return Entry(
            work_type,
            system_retry=self._retry,
            doer=self._doer,
            queue=self._queue if own is None else self._wrap_queue(own),
            metrics=self._recorder.of(work_type.type),
        )


def _elsewhere() -> None:
    """Stands for the handler of a type that this process does not run."""
