"""Which level of options wins: enqueue > with_options > options(...) > type > system > default."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest

from piecework import Retry, WorkContext, define_work
from piecework.envelope import decode

#: A field as the envelope has it, and three values to tell the levels apart by.
FIELDS: dict[str, tuple[Any, ...]] = {
    "priority": (1, 2, 3, 4),
    "group": ("a", "b", "c", "d"),
    "timeout": (1.0, 2.0, 3.0, 4.0),
    "retry": tuple(Retry(attempts=n, base=9, factor=1, max=9, jitter=0) for n in (4, 5, 6, 7)),
}
#: Fields that a type does not have.
INSTANCE_FIELDS: dict[str, tuple[Any, ...]] = {
    "delay": (100, 200, 300),
    "deadline": (1000, 2000, 3000),
    "unique": ("a", "b", "c"),
    "unique_for": (10.0, 20.0, 30.0),
}

LEVELS = ["type", "options", "with_options", "enqueue"]


async def _handler() -> None: ...


def _given(level: str, field: str, value: Any) -> dict[str, Any]:
    extra = {"unique": "key"} if field == "unique_for" else {}
    return {field: value, **extra}


async def _sent(make, queue, field: str, values: dict[str, Any]):
    """The envelope of a work with the field given at some levels."""
    options: dict[str, Any] = {}
    if "type" in values:
        options[field] = values["type"]
    if "options" in values:
        options["options"] = lambda: _given("options", field, values["options"])
    kind = define_work("kind", _handler, **options)
    built = kind()
    if "with_options" in values:
        built = built.with_options(**_given("with_options", field, values["with_options"]))
    work = make(kind, auto_start=False)
    given = _given("enqueue", field, values["enqueue"]) if "enqueue" in values else {}
    await work.enqueue(built, **given)
    (messages,) = queue.plan.arguments("push")[-1]
    return decode(messages[0].body)


def _seen(env: Any, field: str) -> Any:
    if field == "delay":
        return (env.start_at - env.queue_at) / 1000
    if field == "deadline":
        return (env.deadline - env.queue_at) / 1000
    if field == "unique_for":
        return (env.unique_until - env.queue_at) / 1000
    return getattr(env, field)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("field", FIELDS)
async def test_a_field_given_at_one_level_counts(make, queue, field, level):  # S33
    value = FIELDS[field][0]
    assert _seen(await _sent(make, queue, field, {level: value}), field) == value


@pytest.mark.parametrize("winner", [1, 2, 3])
@pytest.mark.parametrize("field", FIELDS)
async def test_the_higher_of_all_levels_below_wins(make, queue, field, winner):  # S33
    values = dict(zip(LEVELS[: winner + 1], FIELDS[field], strict=False))
    seen = _seen(await _sent(make, queue, field, values), field)
    assert seen == values[LEVELS[winner]]


@pytest.mark.parametrize("winner", [0, 1, 2])
@pytest.mark.parametrize("field", INSTANCE_FIELDS)
async def test_the_higher_of_the_instances_levels_wins(make, queue, field, winner):  # S33
    values = dict(zip(LEVELS[1 : winner + 2], INSTANCE_FIELDS[field], strict=False))
    seen = _seen(await _sent(make, queue, field, values), field)
    assert seen == values[LEVELS[winner + 1]]


async def test_run_at_of_a_lower_level_is_not_beaten_by_a_delay_of_a_higher(
    make, queue, virtual_clock
):  # S33 S36
    kind = define_work("kind", _handler)
    at = virtual_clock.now() + timedelta(seconds=50)
    work = make(kind, auto_start=False)
    handle = await work.enqueue(kind().with_options(run_at=at), delay=10)
    assert (await handle.state()).start_at == at


@pytest.mark.parametrize("level", LEVELS)
async def test_skip_queue_counts_at_each_level_and_false_wins_above(make, queue, level):  # S33
    values: dict[str, Any] = {level: True}
    options: dict[str, Any] = {"skip_queue": True} if level == "type" else {}
    if level == "options":
        options["options"] = lambda: {"skip_queue": True}
    kind = define_work("kind", _handler, **options)
    work = make(kind)
    built = kind().with_options(skip_queue=True) if level == "with_options" else kind()
    given = {"skip_queue": True} if level == "enqueue" else {}
    await work.run(built, **given)
    assert queue.plan.count("push") == 0
    built = kind().with_options(skip_queue=True) if level == "with_options" else kind()
    await work.run(built, skip_queue=False)
    assert queue.plan.count("push") == 1
    assert values


async def test_id_given_at_enqueue_wins(make):  # S33
    kind = define_work("kind", _handler, options=lambda: {"id": "computed"})
    work = make(kind, auto_start=False)
    built = kind().with_options(id="given-with")
    assert built.id == "given-with"
    assert (await work.enqueue(built)).id == "given-with"
    assert (await work.enqueue(kind(), id="at-enqueue")).id == "at-enqueue"


async def test_defaults_are_at_once_priority_zero_through_the_queue(make, queue):  # S33
    env = await _sent(make, queue, "delay", {})
    assert (env.start_at, env.priority, env.group, env.timeout) == (env.queue_at, 0, None, None)
    assert (env.deadline, env.unique) == (None, None)
    assert env.retry.as_tuple() == (3, 1.0, 2.0, 30.0, 0.5)
    assert queue.plan.count("push") == 1


# ---- retry, field by field -----------------------------------------------------------------------


async def test_retry_is_merged_field_by_field_over_all_levels(make, queue):  # S34
    kind = define_work(
        "kind",
        _handler,
        retry=Retry(attempts=1, base=2),
        options=lambda: {"retry": Retry(factor=3)},
    )
    work = make(kind, auto_start=False, retry=Retry(attempts=9, base=9, factor=9, max=99, jitter=0))
    await work.enqueue(kind().with_options(retry=Retry(factor=4, max=8)), retry=Retry(attempts=5))
    (messages,) = queue.plan.arguments("push")[-1]
    assert decode(messages[0].body).retry.as_tuple() == (5, 2.0, 4.0, 8.0, 0.0)


async def test_attempts_at_enqueue_keep_the_types_base(make, queue):  # S34
    env = await _sent(make, queue, "retry", {"type": Retry(base=7), "enqueue": Retry(attempts=5)})
    assert (env.retry.attempts, env.retry.base) == (5, 7.0)


async def test_children_resolve_their_options_as_all_works_do(make, queue):  # S33 S39
    child = define_work("child", _handler, priority=1, group="type", retry=Retry(base=3))

    async def handler(ctx: WorkContext) -> None:
        await ctx.queue(child().with_options(priority=2), group="queued", retry=Retry(attempts=7))

    parent = define_work("parent", handler, priority=9, group="parent")
    work = make(parent, child)
    handle = await work.enqueue(parent())
    await handle
    (messages,) = queue.plan.arguments("push")[-1]
    env = decode(messages[0].body)
    assert (env.priority, env.group, env.retry.attempts, env.retry.base) == (2, "queued", 7, 3.0)


async def test_options_travel_with_the_work(make, queue, virtual_clock):  # S37
    kind = define_work("kind", _failing, retry=Retry(attempts=2, base=4, jitter=0))
    producer = make(kind, auto_start=False)
    handle = await producer.enqueue(kind(), priority=3, group="tenant")
    (messages,) = queue.plan.arguments("push")[-1]
    body = json.loads(messages[0].body)
    assert (body["id"], body["type"]) == (handle.id, "kind")
    assert decode(messages[0].body).group_id == handle.group_id
    assert (body["priority"], body["group"]) == (3, "tenant")
    assert isinstance(body["input"], str)
    assert decode(messages[0].body).attempt == 1
    other = make(define_work("kind", _failing, retry=Retry(attempts=9, base=1)))
    await other.start()
    began = virtual_clock.now()
    with pytest.raises(Exception, match="no"):
        await handle.result()
    assert (await handle.state()).attempt == 2
    assert (virtual_clock.now() - began).total_seconds() == pytest.approx(4, abs=0.01)


async def _failing() -> None:
    raise ValueError("no")
