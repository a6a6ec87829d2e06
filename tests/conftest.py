"""What holds for all tests: the plugin's fixtures, and a look at what each test leaves behind."""

from __future__ import annotations

import asyncio
import gc
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any

import pytest

from piecework.clock import sleep
from piecework.testing import plugin

#: How many turns of the loop tasks that were just cancelled get to end.
_TURNS_TO_END = 10

#: Real seconds that threads of a stopped system get to end.
_THREADS_END = 2.0


def pytest_configure(config: pytest.Config) -> None:
    # An installed Piecework has registered it already; a bare source tree has not.
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin)


@pytest.fixture(autouse=True)
def nothing_left_behind(
    request: pytest.FixtureRequest, loop_errors: list[str], no_threads_left: None
) -> None:
    """Fails a test that leaves tasks, threads of ours, or errors that only the loop saw."""
    if inspect.iscoroutinefunction(getattr(request.node, "obj", None)):
        request.getfixturevalue("no_tasks_left")


@pytest.fixture
def loop_errors(monkeypatch: pytest.MonkeyPatch) -> Generator[list[str]]:
    """What event loops reported as unhandled; a test that provokes that empties the list."""
    errors: list[str] = []
    report: Callable[..., None] = asyncio.BaseEventLoop.call_exception_handler

    def note(loop: asyncio.BaseEventLoop, context: dict[str, Any]) -> None:
        errors.append(f"{context.get('message')}: {context.get('exception')!r}")
        report(loop, context)

    monkeypatch.setattr(asyncio.BaseEventLoop, "call_exception_handler", note)
    yield errors
    if errors:
        pytest.fail("errors that nobody handled:\n" + "\n".join(errors), pytrace=False)


@pytest.fixture
def no_threads_left() -> Generator[None]:
    before = set(threading.enumerate())
    yield
    ours = [
        thread
        for thread in threading.enumerate()
        if thread not in before and thread.name.startswith("piecework-")
    ]
    for thread in ours:
        thread.join(_THREADS_END / len(ours))
    left = [thread.name for thread in ours if thread.is_alive()]
    if left:
        pytest.fail(f"threads left behind: {', '.join(left)}", pytrace=False)


@pytest.fixture
async def no_tasks_left() -> AsyncGenerator[None]:
    before = asyncio.all_tasks()
    yield
    for _ in range(_TURNS_TO_END):
        await sleep(0)
    mine = asyncio.current_task()
    left = [task for task in asyncio.all_tasks() - before if task is not mine]
    if left:
        pytest.fail("tasks left behind:\n" + "\n".join(map(repr, left)), pytrace=False)
    del left
    gc.collect(0)  # a task that failed unseen tells so when it is collected
