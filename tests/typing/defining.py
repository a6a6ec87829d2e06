"""What a type checker knows of work types, however they are defined. Checked, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, assert_type

from pydantic import BaseModel

from piecework import (
    Delay,
    Retry,
    RunAt,
    Work,
    WorkContext,
    WorkInfo,
    WorkOptions,
    WorkType,
    balanced_doer,
    define_batch_work,
    define_work,
    rate_limited_doer,
)

NOON = datetime(2030, 1, 1, 12, tzinfo=UTC)


class Text(BaseModel):
    text: str


class Vector(BaseModel):
    values: list[float]


# ---- the decorator, plain -------------------------------------------------------------------


@define_work
def add(a: int, b: int) -> int:
    return a + b


@define_work
async def add_later(a: int, b: int = 2) -> int:
    return a + b


@define_work
async def resize(ctx: WorkContext, url: str, width: int = 640) -> Vector:
    assert_type(ctx.id, str)
    assert_type(ctx.attempt, int)
    assert_type(ctx.parent_id, str | None)
    return Vector(values=[width])


@define_work
def in_thread(ctx: WorkContext, url: str) -> str:
    return url + ctx.id


@define_work
async def nothing() -> None: ...


@define_work
async def only_context(ctx: WorkContext) -> None: ...


assert_type(add(1, b=2), Work[int])
assert_type(add_later(1), Work[int])
assert_type(resize("a", width=3), Work[Vector])
assert_type(in_thread("a"), Work[str])
assert_type(nothing(), Work[None])
assert_type(only_context(), Work[None])

add("1", 2)  # pyright: ignore[reportArgumentType] - a is an int
add(1)  # pyright: ignore[reportCallIssue] - b is missing
add(1, 2, 3)  # pyright: ignore[reportCallIssue] - one too many
add(1, c=2)  # pyright: ignore[reportCallIssue] - there is no c
add_later("1")  # pyright: ignore[reportArgumentType] - a is an int
resize()  # pyright: ignore[reportCallIssue] - url is missing
resize("a", width="3")  # pyright: ignore[reportArgumentType] - width is an int
resize("a", ctx=None)  # pyright: ignore[reportCallIssue] - the context is not an argument
in_thread(1)  # pyright: ignore[reportArgumentType] - url is a text
nothing(1)  # pyright: ignore[reportCallIssue] - it takes nothing


# ---- the decorator, with arguments ----------------------------------------------------------


@define_work("named", retry=Retry(attempts=5, base=1.0), timeout=60, executor="thread")
def named(a: int) -> list[str]:
    return [str(a)]


@define_work("named-later", priority=3, group="tenant", track="result")
async def named_later(ctx: WorkContext, a: int) -> list[str]:
    return [str(a)]


@define_work(timeout=5)
async def by_its_name(a: int) -> bytes:
    return bytes(a)


assert_type(named(1), Work[list[str]])
assert_type(named_later(a=1), Work[list[str]])
assert_type(by_its_name(1), Work[bytes])
named("1")  # pyright: ignore[reportArgumentType] - a is an int
named_later()  # pyright: ignore[reportCallIssue] - a is missing
by_its_name(b=1)  # pyright: ignore[reportCallIssue] - there is no b
define_work("x", retries=3)  # pyright: ignore[reportCallIssue] - there is no such option
define_work("x", timeout="5")  # pyright: ignore[reportArgumentType] - a text
define_work("x", executor="fiber")  # pyright: ignore[reportArgumentType] - unknown


# ---- the functional form --------------------------------------------------------------------


def plain(a: int, b: str) -> float:
    return a + len(b)


async def later(a: int, b: str) -> float:
    return a + len(b)


async def with_context(ctx: WorkContext, b: str) -> float:
    return len(b)


f_plain = define_work("plain", plain, priority=5)
f_later = define_work("later", later)
f_context = define_work("context", with_context, timeout=3)
assert_type(f_plain(1, "b"), Work[float])
assert_type(f_later(1, b="b"), Work[float])
assert_type(f_context("b"), Work[float])
f_plain("a", "b")  # pyright: ignore[reportArgumentType] - a is an int
f_later(1)  # pyright: ignore[reportCallIssue] - b is missing
f_context(1)  # pyright: ignore[reportArgumentType] - b is a text
define_work("plain", plain, prio=5)  # pyright: ignore[reportCallIssue] - there is no such option


# ---- parameters of any type -----------------------------------------------------------------


@define_work
def anything(a: Any, b: int) -> int:
    return b


@define_work
async def anything_later(a: Any, b: int = 1) -> int:
    return b


@define_work("anything-named")
async def anything_named(a: object, b: int = 1) -> int:
    return b


async def loose(a: Any, b: int) -> int:
    return b


assert_type(anything(1, 2), Work[int])
assert_type(anything(a=1, b=2), Work[int])
assert_type(anything_later(1, b=2), Work[int])
assert_type(anything_named("a"), Work[int])
assert_type(define_work("loose", loose)(1, b=2), Work[int])


# ---- batches --------------------------------------------------------------------------------


@define_batch_work("embed", size=50, max_wait=0.1)
async def embed(texts: list[Text]) -> list[Vector]:
    return [Vector(values=[len(text.text)]) for text in texts]


@define_batch_work("embed-thread", size=50, timeout=9)
def embed_in_thread(texts: list[Text]) -> list[Vector]:
    return [Vector(values=[len(text.text)]) for text in texts]


@define_batch_work("embed-some", size=50)
async def embed_some(texts: list[Text]) -> list[Vector | Exception]:
    return [ValueError(text.text) for text in texts]


@define_batch_work("embed-nothing", size=50)
async def embed_nothing(texts: list[Text]) -> None: ...


async def vectors(texts: list[Text]) -> Sequence[Vector]:
    return [Vector(values=[len(text.text)]) for text in texts]


f_embed = define_batch_work("vectors", vectors, size=3, max_wait=0.5, priority=2)

assert_type(embed, WorkType[[Text], Vector])
assert_type(embed(Text(text="a")), Work[Vector])
assert_type(embed_in_thread(Text(text="a")), Work[Vector])
assert_type(embed_some(Text(text="a")), Work[Vector])
assert_type(embed_nothing(Text(text="a")), Work[None])
assert_type(f_embed, WorkType[[Text], Vector])
embed([Text(text="a")])  # pyright: ignore[reportArgumentType] - one at a time
embed()  # pyright: ignore[reportCallIssue] - the text is missing
f_embed("a")  # pyright: ignore[reportArgumentType] - not a Text
define_batch_work("embed")  # pyright: ignore[reportCallIssue] - the size is missing
define_batch_work("vectors", vectors)  # pyright: ignore[reportCallIssue] - the size is missing


# ---- options --------------------------------------------------------------------------------

assert_type(add(1, 2).id, str)
assert_type(add(1, 2).type, str)
assert_type(add(1, 2).input, dict[str, Any])
assert_type(add(1, 2).with_options(delay=5, unique="a", run_at=NOON), Work[int])
add(1, 2).with_options(dealy=5)  # pyright: ignore[reportCallIssue] - there is no such option
add(1, 2).with_options(priority="x")  # pyright: ignore[reportArgumentType] - a whole number


def fate(error: BaseException, info: WorkInfo) -> Delay | RunAt | None:
    if info.attempt > info.attempts:
        return RunAt(NOON)
    return Delay(3)


def tenant(a: int, b: str) -> WorkOptions:
    return {"group": b, "delay": a}


def misfit(error: BaseException, info: WorkInfo) -> int:
    return 3


define_work("a", plain, on_failure=fate)
define_work("a", plain, on_failure=lambda error, info: "retry" if info.attempt < 3 else "abort")
define_work("a", plain, on_failure=misfit)  # pyright: ignore[reportArgumentType, reportCallIssue]
define_work("a", plain, doer=balanced_doer(3), options=tenant)
define_work("a", plain, doer=rate_limited_doer(3, 1.0), log_context=lambda given: {"a": given["a"]})
