"""The context of a handler in a worker process: its requests go through a pipe, answered here.

A request is a name and JSON arguments. Works travel as type and input text, results as the text
that the record holds; nothing is pickled.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import inspect
import time
from typing import TYPE_CHECKING, Any, cast

from piecework.clock import from_ms, to_ms
from piecework.codec import default_codec
from piecework.context import Reply, Scope, WorkContext
from piecework.errors import ConfigError, InvalidWorkError
from piecework.options import parse_options
from piecework.packing import pack_work, plain_options, read_options, unpack_work
from piecework.running import Run, current_run
from piecework.state import Progress, WorkState

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from piecework.definitions import Work, WorkType
    from piecework.engine.executors.child import ChildContext
    from piecework.engine.registry import Registry
    from piecework.gates import When
    from piecework.options import Options, WorkOptions


class ChildScope(Scope):
    """A ``ctx`` in a worker process: each request is a round trip to the parent.

    Args:
        child: The pipe and what the parent told of this attempt.
        started: The time of the start, by ``clock``.
        clock: Seconds of a clock that only goes forward.
    """

    def __init__(self, child: ChildContext, clock: Callable[[], float]) -> None:
        self._child = child
        self._clock = clock
        self._started = clock()

    def context(self) -> WorkContext:
        """The handler's ``ctx``."""
        info = self._child.info
        return WorkContext(
            self,
            id=info["id"],
            type=info["type"],
            group_id=info["group_id"],
            attempt=info["attempt"],
            parent_id=info["parent_id"],
            upstream=info["upstream"],
        )

    def queue(
        self,
        works: Sequence[Work[Any]],
        then: Sequence[Work[Any]] | None,
        when: When,
        options: WorkOptions,
    ) -> tuple[list[str], Reply[None]]:
        """Queue children."""
        given = parse_options(options, works[0].type if works else "")
        after = None if then is None else [pack_work(work) for work in then]
        ids = self._child.call(
            "queue", [pack_work(w) for w in works], after, when, plain_options(given)
        )
        return ids, _answered(None)

    def set_result(self, value: Any) -> Reply[None]:
        """Write the group's result."""
        return _answered(self._child.call("set_result", default_codec.encode(value)))

    def states(self, ids: Sequence[str]) -> Reply[list[WorkState | None]]:
        """Read states."""
        return _answered(self._states(ids))

    def results(self, ids: Sequence[str]) -> Reply[list[Any]]:
        """Read results."""
        states = self._states(ids)
        return _answered([None if state is None else state.result for state in states])

    def _states(self, ids: Sequence[str]) -> list[WorkState | None]:
        return [_read_state(packed) for packed in self._child.call("states", list(ids))]

    def claim(self, key: str) -> Reply[bool]:
        """Be the first to claim a key."""
        return _answered(self._child.call("claim", key))

    def progress(self, done: float, total: float | None, message: str) -> None:
        """Note how far the work is."""
        self._child.call("progress", done, total, message)

    def remaining(self) -> float | None:
        """Seconds until the attempt is stopped."""
        left = self._child.info["remaining"]
        return None if left is None else max(0.0, left - (self._clock() - self._started))

    @property
    def cancelled(self) -> bool:
        """Whether the work was asked to stop: its process is killed before it could tell."""
        return False


class _Answer:
    """An answer that is there already, with the face of a future."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def result(self, timeout: float | None = None) -> Any:
        """The answer."""
        return self._value


def _answered(value: Any) -> Reply[Any]:
    return Reply(cast("asyncio.Future[Any]", _Answer(value)))


async def answer_child(registry: Registry, scope: Scope, method: str, args: list[Any]) -> Any:
    """Do what a handler in a worker process asks for; the answer is JSON-able.

    Raises:
        InvalidWorkError: There is no such request.
    """
    if method == "queue":
        works, after, when, options = args
        then = None if after is None else [unpack_work(registry.type_of, w) for w in after]
        given = read_options(options)
        built = [unpack_work(registry.type_of, w) for w in works]
        ids, reply = scope.queue(built, then, when, _as_given(given))
        await reply
        return ids
    if method == "set_result":
        await scope.set_result(default_codec.decode(args[0]))
        return None
    if method == "states":
        states = await scope.states(args[0])
        return [None if state is None else _pack_state(registry, state) for state in states]
    if method == "claim":
        return await scope.claim(args[0])
    if method == "progress":
        scope.progress(*args)
        return None
    raise InvalidWorkError(f"a worker process asked for {method!r}, which there is not")


def _pack_state(registry: Registry, state: WorkState) -> dict[str, Any]:
    """A state as plain data: the result as its type writes it, and where that type is found."""
    entry = registry.known(state.type)
    text: str | None = None
    target: str | None = None
    if state.status == "success":
        if entry is None:
            text = default_codec.encode(state.result)
        else:
            text = entry.work_type.binding.dump_result(state.result)
            target = f"{entry.work_type.fn.__module__}:{entry.work_type.fn.__qualname__}"
    plain = {name: getattr(state, name) for name in _PLAIN}
    for name in _TIMES:
        moment = getattr(state, name)
        plain[name] = None if moment is None else to_ms(moment)
    progress = state.progress
    plain["progress"] = None if progress is None else dataclasses.astuple(progress)
    return {"state": plain, "result": text, "target": target}


def _read_state(packed: dict[str, Any] | None) -> WorkState | None:
    """The state that ``_pack_state`` wrote.

    A result comes as its type says where that type can be imported by name, else as plain data.
    """
    if packed is None:
        return None
    values: dict[str, Any] = packed["state"]
    for name in _TIMES:
        values[name] = None if values[name] is None else from_ms(values[name])
    if values["progress"] is not None:
        values["progress"] = Progress(*values["progress"])
    text = packed["result"]
    return WorkState(
        **values, result=None if text is None else _read_result(text, packed["target"])
    )


def _read_result(text: str, target: str | None) -> Any:
    from piecework.definitions import WorkType
    from piecework.engine.executors.child import find_target

    if target is not None and "<" not in target:
        with contextlib.suppress(ConfigError):
            found = find_target(target)
            if isinstance(found, WorkType):
                return found.binding.load_result(text)
    return default_codec.decode(text)


_TIMES = ("queue_at", "start_at", "run_at", "end_at")
_PLAIN = (
    "id",
    "type",
    "status",
    "attempt",
    "error",
    "priority",
    "group",
    "group_id",
    "parent_id",
)


def _as_given(options: Options) -> WorkOptions:
    values = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    given = {name: value for name, value in values.items() if value is not None}
    if "run_at" in given:
        given["run_at"] = from_ms(given["run_at"])
    return cast("WorkOptions", given)


def run_handler(work_type: WorkType[..., Any], input: str, child: ChildContext) -> str:
    """Run a handler in a worker process; see ``WorkType.run_in_child``."""
    info = child.info
    current_run.set(
        Run(
            info.get("id", ""),
            info.get("type", work_type.type),
            info.get("group_id", ""),
            info.get("attempt", 1),
            info.get("turn", 0),
        )
    )
    binding = work_type.binding
    context = ChildScope(child, time.perf_counter).context() if binding.takes_context else None
    args, kwargs = binding.unbind(input, context)
    value = work_type.fn(*args, **kwargs)
    if inspect.isawaitable(value):
        value = asyncio.run(_wait_for(value))
    return binding.dump_result(value)


async def _wait_for(value: Awaitable[Any]) -> Any:
    return await value
