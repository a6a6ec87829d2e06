"""The check of an entrance: whatever text comes in is kept, and harms nothing that stands beside.

An entrance is any way by which texts from outside reach a system: a queue, an event of a function,
a command line.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from piecework import clock
from piecework.create import create_work
from piecework.define import define_batch_work, define_work
from piecework.envelope import Envelope, NewerEnvelopeError, decode
from piecework.errors import InvalidWorkError
from piecework.gates import DEPENDENCY_TYPE
from piecework.memory import memory_backend
from piecework.ports.queue import Message
from piecework.retry import Retry
from piecework.testing.virtual_clock import VirtualClock

if TYPE_CHECKING:
    from piecework.definitions import WorkType
    from piecework.ports import Backend
    from piecework.state import DeadLetter, WorkEvent
    from piecework.system import WorkSystem

Feed: TypeAlias = Callable[["WorkSystem", Sequence[str]], Awaitable[Sequence[str | None] | None]]
"""Brings texts into a running system. It may return, for each text, why the entrance refused it
(``None`` for one that it took); ``None`` in all says that it took every one."""

#: Seconds between two looks at what has become of the texts: the first, and the most.
_FIRST_LOOK, _LAST_LOOK = 0.01, 60.0
_NO_RETRY: Final = Retry(attempts=1)


@dataclass(frozen=True, slots=True)
class Fate:
    """What has become of a text.

    Attributes:
        kind: ``"dead"``: it is in the dead letters. ``"ended"``: it was a work, which has ended.
            ``"refused"``: the entrance did not take it, and said why. ``"waits"``: it is a work
            that is not due yet.
        reason: Why it is dead or was refused.
    """

    kind: Literal["dead", "ended", "refused", "waits"]
    reason: str = ""


async def push(system: WorkSystem, texts: Sequence[str]) -> None:
    """The plainest entrance: the texts are messages of the system's queue."""
    await system.queue.push([Message(text) for text in texts])


def sample_works() -> list[WorkType[..., Any]]:
    """Work types of several kinds, for texts that happen to be works.

    They are ``add`` (two integers), ``loose`` (no annotations) and ``batch`` (integers, collected).
    """

    async def add(a: int, b: int) -> int:
        return a + b

    async def loose(a: Any = None, b: Any = None) -> Any:
        return [a, b]

    async def batch(items: list[int]) -> list[int]:
        return items

    return [
        define_work("add", add),
        define_work("loose", loose),
        define_batch_work("batch", batch, size=3, max_wait=0.01),
    ]


@define_work("neighbour", retry=_NO_RETRY)
async def _neighbour(n: int) -> int:
    return n


class Entrance:
    """Feeds texts into a system between valid works, and checks what becomes of them all.

    Args:
        feed: Brings the texts in; ``push`` puts them on the queue.
        work: The work types that texts may name; ``sample_works()`` without it.
        ports: Makes the ports of each check; three in memory without it.
        patience: Seconds within which the fate of each text must show, in the time of the loop.
        **options: More options for ``create_work``.

    Example:
        >>> Entrance(push).run(["no work at all"])
        [Fate(kind='dead', reason='bad message: not JSON (JSONDecodeError)')]
    """

    def __init__(
        self,
        feed: Feed,
        *,
        work: Sequence[WorkType[..., Any]] | None = None,
        ports: Callable[[], Backend] = memory_backend,
        patience: float = 7200.0,
        **options: Any,
    ) -> None:
        self._feed = feed
        self._work = sample_works() if work is None else work
        self._ports = ports
        self._patience = patience
        self._options = options

    def run(self, texts: Sequence[str]) -> list[Fate]:
        """Do ``check`` in virtual time, in an event loop of its own.

        Raises:
            AssertionError: See ``check``.
        """
        return VirtualClock().run(self.check(texts))

    async def check(self, texts: Sequence[str]) -> list[Fate]:
        """Feed texts in; return the fate of each, in their order.

        Raises:
            AssertionError: A text was lost or is kept without a reason, a valid work did not
                succeed, an error came up that nobody awaits, or a message was left behind.
        """
        errors: list[str] = []
        ended: dict[str, str] = {}

        def hear(event: WorkEvent) -> None:
            if event.kind in ("succeeded", "cancelled", "expired", "deferred") or (
                event.kind == "failed" and not event.will_retry
            ):
                ended[event.id] = event.kind

        def note(error: BaseException, phase: str) -> None:
            errors.append(f"{phase}: {error!r}")

        options: dict[str, Any] = {
            "work": [_neighbour, *self._work],
            **self._ports(),
            "on_event": hear,
            "on_error": note,
            **self._options,
        }
        system = create_work(**options)
        async with system:
            first = await system.enqueue(_neighbour(1))
            refusals = await self._feed(system, texts)
            others = await system.enqueue_many([_neighbour(2), _neighbour(3)])
            results = [await handle.result(timeout=self._patience) for handle in (first, *others)]
            _must(results == [1, 2, 3], f"the neighbours returned {results}")
            fates = await self._fates(system, texts, refusals or [None] * len(texts), ended)
            _must(await system.run(_neighbour(4)) == 4, "the system does not go on")
            _must(not errors, f"errors that nobody awaits: {errors}")
        return fates

    async def _fates(
        self,
        system: WorkSystem,
        texts: Sequence[str],
        refusals: Sequence[str | None],
        ended: dict[str, str],
    ) -> list[Fate]:
        _must(len(refusals) == len(texts), "the entrance answered for more or fewer texts")
        loop = asyncio.get_running_loop()
        end = loop.time() + self._patience
        pause = _FIRST_LOOK
        while True:
            letters = await system.dead_letters(limit=10_000)
            found = [
                Fate("refused", refusal) if refusal is not None else _fate(text, letters, ended)
                for text, refusal in zip(texts, refusals, strict=True)
            ]
            fates = [fate for fate in found if fate is not None]
            waiting = sum(fate.kind == "waits" for fate in fates)
            left = await system.queue.size() - waiting
            if len(fates) == len(texts) and left <= 0:
                silent = [t for t, f in zip(texts, fates, strict=True) if _says_nothing(f)]
                _must(not silent, f"kept without a reason: {silent}")
                return fates
            lost = [text for text, fate in zip(texts, found, strict=True) if fate is None]
            problem = f"neither dead, nor ended, nor refused: {lost}; left in the queue: {left}"
            _must(loop.time() < end, problem)
            await clock.sleep(pause)
            pause = min(pause * 2, _LAST_LOOK)


def _fate(text: str, letters: Sequence[DeadLetter], ended: dict[str, str]) -> Fate | None:
    """What has become of a text; ``None`` if that does not show yet."""
    env = _read(text)
    for letter in letters:
        if letter.body == text or (env is not None and letter.id == env.id):
            return Fate("dead", letter.reason)
    if env is None:
        return None
    kind = ended.get(env.id)
    if kind in ("succeeded", "cancelled", "expired"):
        return Fate("ended")
    if env.start_at > clock.wall_ms() or (kind == "deferred" and env.type == DEPENDENCY_TYPE):
        return Fate("waits")
    return None


def _read(text: str) -> Envelope | None:
    try:
        return decode(text)
    except (InvalidWorkError, NewerEnvelopeError):
        return None


def _says_nothing(fate: Fate) -> bool:
    return fate.kind in ("dead", "refused") and not fate.reason.strip()


def _must(holds: bool, problem: str) -> None:
    if not holds:
        raise AssertionError(problem)
