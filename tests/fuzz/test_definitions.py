"""Anything given where a work is defined, scheduled or enqueued: it works, or we say why not."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fuzz.effort import fuzzed
from tests.fuzz.values import Odd, odd_values

from piecework import (
    PieceworkError,
    Retry,
    WorkContext,
    WorkType,
    create_work,
    define_batch_work,
    define_work,
    dependency,
    next_after,
    parse_cron,
)
from piecework.definitions import TypeOptions
from piecework.engine.settings import Settings
from piecework.errors import ConfigError, InvalidWorkError
from piecework.memory import memory_backend
from piecework.options import WorkOptions
from piecework.testing.virtual_clock import VirtualClock

TYPE_OPTIONS = st.sampled_from([*TypeOptions.__annotations__, "other"])
WORK_OPTIONS = st.sampled_from([*WorkOptions.__annotations__, "other"])


def handler(a: int = 1) -> int:
    return a


@contextlib.contextmanager
def refused_by_us(*names: str) -> Generator[None]:
    """What is refused is refused with an error of ours whose text has one of the names."""
    try:
        yield
    except PieceworkError as error:
        if names and not any(name in str(error) for name in names):
            raise AssertionError(f"it names none of {names}") from error


@fuzzed(25)
@given(st.dictionaries(TYPE_OPTIONS, odd_values(), min_size=1, max_size=2))
def test_any_option_of_a_type_is_taken_or_named(given):  # P7
    options: Any = {name: odd.value for name, odd in given.items()}
    with refused_by_us(*options):
        work_type = define_work("kind", handler, **options)
        with contextlib.suppress(InvalidWorkError):  # by a codec of that kind
            work_type(1)


@fuzzed(20)
@given(odd_values(), odd_values())
def test_any_name_and_any_handler_are_taken_or_refused(name, fn):  # P7
    with refused_by_us():
        made: Any = define_work(name.value, fn.value)
        if isinstance(made, WorkType):
            made()
    with refused_by_us():
        decorate: Any = define_work("kind")
        decorate(fn.value)


@fuzzed(20)
@given(odd_values(), odd_values(), odd_values())
def test_any_size_of_a_batch_is_taken_or_refused(name, size, max_wait):  # P7
    for one in ("kind", name.value):
        for other in (5, size.value):
            with refused_by_us("size", "max_wait", "name"):
                define_batch_work(one, lambda items: items, size=other, max_wait=max_wait.value)


@fuzzed(25)
@given(st.dictionaries(WORK_OPTIONS, odd_values(), min_size=1, max_size=2))
def test_any_option_of_a_work_is_taken_or_named(given):  # P7
    options: Any = {name: odd.value for name, odd in given.items()}
    with refused_by_us(*options):
        define_work("kind", handler)(1).with_options(**options)


@fuzzed(25)
@given(st.dictionaries(WORK_OPTIONS, odd_values(), min_size=1, max_size=2))
def test_a_work_with_any_options_that_are_taken_ends_or_waits(given):  # P7
    options: Any = {name: odd.value for name, odd in given.items()}

    async def main() -> None:
        async with create_work(work=[define_work("kind", handler, executor="loop")]) as system:
            try:
                handle = await system.enqueue("kind", {"a": 5}, **options)
            except PieceworkError:
                return
            with contextlib.suppress(PieceworkError, TimeoutError):
                assert await handle.result(timeout=60) == 5
            assert await system.dead_letters() == []

    VirtualClock().run(main())


@fuzzed(20)
@given(st.lists(odd_values(), max_size=5))
def test_any_retry_is_taken_or_refused(values):  # P7
    fields = zip(("attempts", "base", "factor", "max", "jitter"), values, strict=False)
    with refused_by_us("retry"):
        Retry(**{name: odd.value for name, odd in fields})
    with refused_by_us("retry"):
        Retry.from_tuple(tuple(odd.value for odd in values))


@fuzzed(25)
@given(st.text(max_size=20) | odd_values(), odd_values(), st.text(max_size=10) | odd_values())
def test_any_cron_expression_is_taken_or_refused(expr, after, tz):  # P7
    text = expr.value if isinstance(expr, Odd) else expr
    zone = tz.value if isinstance(tz, Odd) else tz
    with refused_by_us():
        parse_cron(text)
    with refused_by_us():
        next_after("0 0 29 2 *", after.value)
    with refused_by_us():
        next_after("* * * * *", after.value, zone)


@fuzzed(20)
@given(
    st.dictionaries(
        st.sampled_from(["cron", "every", "next", "tz", "catch_up"]),
        odd_values() | st.sampled_from([Odd("0 0 * * *"), Odd(60)]),
        max_size=3,
    ),
    odd_values(),
    odd_values(),
)
def test_any_schedule_is_taken_or_refused(given, name, work):  # P7
    system = create_work(**memory_backend())
    options: Any = {option: odd.value for option, odd in given.items()}
    with refused_by_us():
        system.schedule("name", define_work("kind", handler)(1), **options)
    with refused_by_us():
        system.schedule(name.value, work.value, every=60)


@fuzzed(20)
@given(odd_values(), odd_values(), odd_values(), odd_values())
def test_any_dependency_is_taken_or_refused(on, queue, when, pause):  # P7
    work = define_work("kind", handler)(1)
    for one, others, condition in (
        (on.value, work, "all-done"),
        ([on.value], [work], "all-done"),
        (["id"], queue.value, "all-done"),
        (["id"], [queue.value], "all-done"),
        (["id"], work, when.value),
    ):
        with refused_by_us():
            dependency(one, others, when=condition)
    with refused_by_us():
        dependency(["id"], work, poll=pause.value, timeout=pause.value)


NUMBERS = ["poll_interval", "visibility", "heartbeat", "start_after", "result_ttl", "redrive_count"]
SYSTEM = st.sampled_from([*NUMBERS, "max_redrives", "backlog_after", "backlog_every", "work"])


@fuzzed(20)
@given(st.dictionaries(SYSTEM, odd_values(), min_size=1, max_size=2))
def test_any_option_of_a_system_is_taken_or_named(given):  # P7
    options: Any = {name: odd.value for name, odd in given.items()}
    with refused_by_us(*options, "heartbeat", "work type"):
        create_work(**options)


def test_the_numbers_of_a_system_are_settings():
    assert set(NUMBERS) <= set(Settings.__slots__)


ANNOTATIONS = st.sampled_from(
    [
        *("int", "list[int", "Nowhere", "1 + 1", "WorkContext", "'int'", "lambda: 1", "len"),
        *("None", "type", "list[...]", "dict[int]", "Any | None", "a.b", "()", "[]", "x: int"),
        *("", "''", "1 / 0"),
    ]
)


@fuzzed(20)
@given(ANNOTATIONS, ANNOTATIONS, st.booleans())
def test_any_annotation_is_understood_or_refused(one, result, batch):  # P7
    def fn(a, b=1): ...

    def many(items): ...

    chosen: Any = many if batch else fn
    chosen.__annotations__ = {"items" if batch else "a": one, "return": result}
    with refused_by_us():
        work_type: Any = (
            define_batch_work("kind", chosen, size=2) if batch else define_work("kind", chosen)
        )
        built = work_type(1)
        work_type.binding.unbind(built.encoded, None)


@pytest.mark.parametrize(
    "fn", [len, print, dict, int, type, map, object(), WorkContext, Retry, [].append, "x".join]
)
def test_a_callable_that_is_no_usual_handler_is_taken_or_refused(fn):  # P7
    with refused_by_us("kind"):
        define_work("kind", fn)(1)


def test_a_type_name_of_half_a_surrogate_pair_is_refused():  # P7
    with pytest.raises(ConfigError, match="a name and a handler are needed"):
        define_work("\ud800", handler)
