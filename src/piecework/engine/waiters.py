"""Waiting for works and groups: one subscription per system, and a slow read for lost notices."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from piecework.engine.notices import Notice, NoticeKind, decode_notice
from piecework.state import read_progress

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from piecework.engine.core import Core
    from piecework.ports.pubsub import Subscription
    from piecework.ports.store import Record
    from piecework.state import Progress


class Waiters:
    """Wakes those who wait for an id.

    Args:
        core: The shared parts.
        on_notice: Called with every notice, before those who wait for it.
    """

    def __init__(self, core: Core, on_notice: Callable[[Notice], None]) -> None:
        self._core = core
        self._on_notice = on_notice
        self._waiting: dict[tuple[NoticeKind, str], set[asyncio.Future[None]]] = {}
        self._progress: dict[str, Progress] = {}
        self._watched: dict[str, int] = {}
        self._subscription: Subscription | None = None
        self._subscribing: asyncio.Lock = asyncio.Lock()
        self._retired = False
        self._users = 0

    @property
    def count(self) -> int:
        """How many wait."""
        return sum(map(len, self._waiting.values()))

    async def subscribe(self) -> None:
        """Listen to notices from now on; a failure only means that waiting is slower."""
        if self._subscription is not None:
            return
        async with self._subscribing:
            if self._subscription is None:
                try:
                    self._subscription = await self._core.pubsub.subscribe(self._hear)
                except Exception as error:  # noqa: BLE001 - the fallback read serves waiters
                    self._core.hooks.report(error, "queue", "subscribing failed")

    def resume(self) -> None:
        """Go on listening when nobody waits."""
        self._retired = False

    async def retire(self) -> None:
        """Listen no more once nobody waits."""
        self._retired = True
        await self._close_if_unused()

    async def _close_if_unused(self) -> None:
        if self._retired and not self._users:
            await self.close()

    @contextlib.asynccontextmanager
    async def _listening(self) -> AsyncGenerator[None]:
        self._users += 1
        try:
            await self.subscribe()
            yield
        finally:
            self._users -= 1
            await self._close_if_unused()

    async def close(self) -> None:
        """Listen no more."""
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            try:
                await subscription.close()
            except Exception as error:  # noqa: BLE001 - stopping goes on
                self._core.hooks.report(error, "queue", "unsubscribing failed")

    def _hear(self, text: str) -> None:
        notice = decode_notice(text)
        if notice is None:
            return
        self._on_notice(notice)
        if notice.kind == "progress":
            self._note_progress(notice)
        self.wake(notice.kind, notice.id)
        if notice.kind == "done":
            self.wake("progress", notice.id)

    def wake(self, kind: NoticeKind, id: str) -> None:
        """Let those who wait for this look again."""
        for future in self._waiting.get((kind, id), ()):
            if not future.done():
                future.set_result(None)

    # ---- progress ------------------------------------------------------------------------------

    def _note_progress(self, notice: Notice) -> None:
        if notice.id in self._watched:
            progress = read_progress(notice.data)
            if progress is not None:
                self._progress[notice.id] = progress

    def heard(self, id: str) -> Progress | None:
        """The progress that was heard last of a watched work."""
        return self._progress.get(id)

    @contextlib.asynccontextmanager
    async def watching(self, id: str) -> AsyncGenerator[None]:
        """Remember what is heard of a work's progress."""
        self._watched[id] = self._watched.get(id, 0) + 1
        try:
            async with self._listening():
                yield
        finally:
            self._watched[id] -= 1
            if not self._watched[id]:
                del self._watched[id]
                self._progress.pop(id, None)

    async def next_progress(self, id: str) -> None:
        """Wait until a work may have made progress."""
        key: tuple[NoticeKind, str] = ("progress", id)
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(key, set()).add(future)
        try:
            await asyncio.wait([future], timeout=self._core.settings.fallback_first)
        finally:
            self._leave(key, future)

    # ---- waiting -------------------------------------------------------------------------------

    async def wait(
        self,
        kind: NoticeKind,
        id: str,
        first: Callable[[], Awaitable[Record]],
        again: Callable[[], Awaitable[Record]],
        ready: Callable[[Record], bool],
    ) -> Record:
        """Wait until a record is ready.

        The subscription is up and the place taken before the record is first read, so that no
        notice can fall between; a notice that is lost costs at most one fallback pause.

        Args:
            kind: The kind of notice that tells.
            id: The id that it names.
            first: Marks the waiting on the record and reads it.
            again: Reads it.
            ready: Whether the record is what is waited for.
        """
        async with self._listening():
            return await self._wait((kind, id), first, again, ready)

    async def _wait(
        self,
        key: tuple[NoticeKind, str],
        first: Callable[[], Awaitable[Record]],
        again: Callable[[], Awaitable[Record]],
        ready: Callable[[Record], bool],
    ) -> Record:
        pause = self._core.settings.fallback_first
        read = first
        while True:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.setdefault(key, set()).add(future)
            try:
                record = await self._read(read)
                if record is not None:
                    read = again
                    if ready(record):
                        return record
                await asyncio.wait([future], timeout=pause)
                if not future.done():
                    pause = min(pause * 1.5, self._core.settings.fallback_last)
            finally:
                self._leave(key, future)

    def _leave(self, key: tuple[NoticeKind, str], future: asyncio.Future[None]) -> None:
        places = self._waiting[key]
        places.discard(future)
        if not places:
            del self._waiting[key]

    async def _read(self, read: Callable[[], Awaitable[Record]]) -> Record | None:
        try:
            return await read()
        except Exception as error:  # noqa: BLE001 - the store may come back: read again later
            self._core.hooks.report(error, "queue", "reading a result failed")
            return None
