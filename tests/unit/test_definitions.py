"""What can be defined, and what is refused with the fix."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from piecework import (
    ConfigError,
    InvalidWorkError,
    Retry,
    Work,
    WorkContext,
    WorkType,
    define_batch_work,
    define_work,
)
from piecework.definitions import check_distinct, is_async


def add(a: int, b: int = 2) -> int:
    """Adds."""
    return a + b


async def later(ctx: WorkContext, a: int) -> int:
    return a


async def lengths(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


class Called:
    async def __call__(self, a: int) -> int:
        return a


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: define_work(add), "add"),
        (lambda: define_work()(add), "add"),
        (lambda: define_work("sum")(add), "sum"),
        (lambda: define_work("sum", add), "sum"),
        (lambda: define_work(timeout=3)(add), "add"),
        (lambda: define_work(None, add), "add"),
    ],
)
def test_every_form_makes_a_work_type(make, name):  # S01
    work_type = make()
    assert isinstance(work_type, WorkType)
    assert (work_type.type, work_type.fn) == (name, add)
    assert (work_type.__doc__, work_type.__name__) == ("Adds.", "add")
    assert repr(work_type) == f"<WorkType {name}>"
    work = work_type(1)
    assert isinstance(work, Work)
    assert work.input == {"a": 1}  # a default is the handler's own, when it runs
    assert repr(work) == f"<Work {name} {work.id}>"


@pytest.mark.parametrize(
    "make",
    [
        lambda: define_batch_work("lengths", size=3, max_wait=0.5)(lengths),
        lambda: define_batch_work("lengths", lengths, size=3, max_wait=0.5),
    ],
)
def test_a_batch_type_takes_both_forms(make):  # S03
    work_type = make()
    assert (work_type.type, work_type.batch.size, work_type.batch.max_wait) == ("lengths", 3, 0.5)
    assert work_type("abc").input == {"texts": "abc"}


@pytest.mark.parametrize(
    ("fn", "asks"),
    [
        (add, False),
        (later, True),
        (functools.partial(later, a=1), True),
        (functools.partial(add, 1), False),
        (Called(), True),
        (lambda: None, False),
    ],
)
def test_a_handler_is_async_however_it_is_wrapped(fn, asks):
    assert is_async(fn) is asks


def test_where_a_handler_runs():
    assert define_work(add).executor == "thread"
    assert define_work(later).executor == "loop"
    assert define_work("a", add, executor="loop").executor == "loop"
    assert define_work("a", later, executor="process").executor == "process"


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: define_work("a", add, timeuot=3), "there is no option 'timeuot'. Known: retry,"),
        (lambda: define_work("a", add, executor="fiber"), "must be 'loop', 'thread' or 'process'"),
        (lambda: define_work("a", later, executor="thread"), "make it a plain def"),
        (lambda: define_work("a", add, track="most"), "track must be 'full', 'result' or 'none'"),
        (lambda: define_work("a", add, timeout=0), "'timeout': must be above 0 seconds"),
        (lambda: define_work("a", add, timeout="3"), "'timeout': must be seconds or a timedelta"),
        (lambda: define_work("a", add, priority="high"), "'priority': must be a whole number"),
        (lambda: define_work("a", add, group=""), "'group': must be a text that is not empty"),
        (lambda: define_work("a", add, retry=3), "'retry': must be a Retry"),
        (lambda: define_work("a", add, skip_queue="yes"), "'skip_queue': must be True or False"),
        (lambda: define_work("a", 3), "a name and a handler are needed"),
        (lambda: define_work("", add), "a name and a handler are needed"),
        (lambda: define_work(3, add), "a name and a handler are needed"),
        (lambda: define_work("a", define_work(add)), "the one of a work type is its .fn"),
        (lambda: define_work(lambda a: a), "has no name of its own; give one"),
        (lambda: define_work(functools.partial(add, 1)), "has no name of its own"),
        (lambda: define_batch_work("a", lengths, size=0), "size must be a whole number from 1"),
        (lambda: define_batch_work("a", lengths, size=1.5), "size must be a whole number from 1"),
        (lambda: define_batch_work("a", size=3, max_wait=-1), "max_wait at least 0"),
        (lambda: define_batch_work("a", size=3, max_wait=float("nan")), "max_wait at least 0"),
        (
            lambda: define_batch_work("a", lengths, size=3, executor="process"),
            "a batch type cannot run in a process",
        ),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_fix(make: Any, said: str):
    with pytest.raises((ConfigError, InvalidWorkError)) as caught:
        make()
    assert said in str(caught.value)


def test_options_are_laid_over_those_that_a_work_has():  # S33
    work = define_work(add)(1).with_options(delay=3, priority=2)
    again = work.with_options(delay=5)
    assert (again.id, again.options.delay, again.options.priority) == (work.id, 5.0, 2)
    assert work.options.delay == 3.0
    assert work.with_options(id="mine").id == "mine"
    with pytest.raises(InvalidWorkError, match="there is no such option"):
        work.with_options(dealy=5)


def test_a_work_given_twice_is_found():
    work, other = define_work(add)(1), define_work(add)(1)
    check_distinct([work, other])
    with pytest.raises(InvalidWorkError, match=r"was given twice\. Build a new work"):
        check_distinct([work, other, work.with_options(delay=3)])


def test_a_type_keeps_its_own_level_of_options():  # S10
    level = define_work("a", add, priority=3, retry=Retry(attempts=1), timeout=3).level
    assert (level.priority, level.timeout) == (3, 3.0)
    assert level.retry == Retry(attempts=1)
    assert define_work("a", add, timeout=3).timeout == 3.0


def test_a_work_by_mapping_is_validated():  # S32
    work_type = define_work(add)
    assert work_type.from_mapping({"a": 1}).input == {"a": 1}
    with pytest.raises(InvalidWorkError, match="'c'"):
        work_type.from_mapping({"a": 1, "c": 2})
