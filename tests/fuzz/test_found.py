"""What the fuzz has found, one test each."""

from __future__ import annotations

import importlib.util
import json
import sys
from datetime import UTC, datetime
from typing import Any

import pytest
from tests.fuzz.values import NoZone

from piecework import (
    ConfigError,
    InvalidWorkError,
    Retry,
    create_work,
    define_batch_work,
    define_work,
    dependency,
    memory_backend,
    next_after,
)
from piecework.binding import Binding
from piecework.clock import sleep
from piecework.codec import default_codec
from piecework.context import WorkContext
from piecework.engine.decide import Again, decide_failure
from piecework.engine.notices import encode_notice
from piecework.envelope import Envelope, decode
from piecework.gates import DEPENDENCY_TYPE
from piecework.ports.store import Record
from piecework.record import read_item
from piecework.testing.fuzz import Entrance, push

VALID: dict[str, Any] = {
    "v": 1,
    "id": "x",
    "type": "add",
    "input": '{"a":1,"b":2}',
    "queue_at": 0,
    "start_at": 0,
    "retry": [2, 0, 1, 0, 0],
    "version": 1,
}


def body(**fields: Any) -> str:
    return json.dumps({**VALID, **fields})


def handler(a: int = 1) -> int:
    return a


# ---- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("more", [{}, {"priority": 1}])
def test_a_number_that_is_no_float_in_a_retry_policy_harms_no_neighbour(more):  # P7
    (fate,) = Entrance(push).run([body(retry=[3, 10**400, 1, 1, 0], **more)])
    assert (fate.kind, "field 'retry'" in fate.reason) == ("dead", True)


@pytest.mark.parametrize("name", ["queue_at", "start_at", "deadline"])
def test_a_time_before_the_year_1_is_a_dead_letter(name):  # P7
    (fate,) = Entrance(push).run([body(**{name: -62_135_596_800_001})])
    assert (fate.kind, f"field {name!r}" in fate.reason) == ("dead", True)
    assert decode(body(**{name: -62_135_596_800_000}))


@pytest.mark.parametrize("name", ["id", "type", "group", "input"])
@pytest.mark.parametrize("ascii", [True, False])
def test_half_of_a_surrogate_pair_is_refused_as_no_store_could_keep_it(name, ascii):  # P7
    text = json.dumps({**VALID, name: "a\ud800"}, ensure_ascii=ascii)
    with pytest.raises(InvalidWorkError, match="surrogate"):
        decode(text)


def test_a_whole_surrogate_pair_is_a_character():
    assert decode(body(id="\U0001f600")).id == "\U0001f600"


def test_input_that_is_no_json_dies_also_where_accept_is_asked():  # P7
    (fate,) = Entrance(push, accept=lambda info: True).run([body(input="[")])
    assert (fate.kind, "bad input" in fate.reason) == ("dead", True)


@pytest.mark.parametrize(
    "spec",
    [
        "{}",
        '{"spec":1}',
        json.dumps({"spec": json.dumps({"on": [], "queue": [], "when": "never"})}),
        json.dumps(
            {"spec": '{"on":["x"],"queue":[],"when":"all-done","poll":0,"timeout":null}'},
        ),
    ],
)
def test_a_dependency_that_nobody_made_says_what_is_wrong(spec):  # P7
    (fate,) = Entrance(push).run([body(type=DEPENDENCY_TYPE, input=spec)])
    assert fate.kind == "dead"
    assert fate.reason.startswith(f"bad input: work type '{DEPENDENCY_TYPE}': field 'spec'")


def test_a_backoff_that_no_time_can_hold_is_a_century():  # P7
    env = Envelope("x", "add", "{}", "x", 0, 0, retry=Retry(2, 1e308, 1, 1e308, 0))
    verdict = decide_failure(ValueError(), env, classify=None, now_ms=0, random=lambda: 0.0)
    assert isinstance(verdict, Again)
    assert 0 < verdict.delay <= 101 * 366 * 86_400


# ---- records -------------------------------------------------------------------------------------


async def test_a_record_that_holds_another_work_ends_no_loop(virtual_clock):  # P7
    """Cancelling it went round for ever, without a pause."""
    ports = memory_backend()
    await ports["store"].set("work:item:mine", f"pending\n{body(id='other')}")
    system = create_work(**ports)
    with pytest.raises(InvalidWorkError, match="it holds the work 'other'"):
        await system.cancel("mine")
    await system.stop()


async def test_a_message_whose_record_holds_another_work_is_a_dead_letter(virtual_clock):  # P7
    ports = memory_backend()
    work_type = define_work("kind", handler, executor="loop")
    async with create_work(work=[work_type], **ports, start_after=0, auto_start=False) as system:
        await system.stop()
    system = create_work(work=[work_type], **ports, start_after=0, auto_start=False)
    handle = await system.enqueue(work_type(1))
    await ports["store"].set(f"work:item:{handle.id}", f"pending\n{body(id='other')}")
    async with system:
        await sleep(5)
        (letter,) = await system.dead_letters()
        assert "it holds the work 'other'" in letter.reason


@pytest.mark.parametrize(
    "value",
    [
        "dead {}\n",
        'success {"t":"a","a":1}\n1',
        'running {"l":"soon"}\n{}',
        f'running {{"l":{10**400}}}\n{{}}',
    ],
)
def test_a_header_that_is_not_ours_is_refused(value):  # P7 S43
    with pytest.raises(InvalidWorkError, match="its header"):
        read_item(Record("work:item:x", value, 1))


async def test_one_bad_record_does_not_end_a_sweep(virtual_clock):  # P7
    from piecework.ports.store import Change

    ports = memory_backend()
    work_type = define_work("kind", handler, executor="loop")
    errors: list[str] = []
    system = create_work(
        work=[work_type],
        **ports,
        auto_start=False,
        on_error=lambda error, phase: errors.append(str(error)),
    )
    await ports["store"].write([Change("work:item:bad", value="junk", index="work:pending")])
    await system.enqueue(work_type(1))
    await sleep(10)
    assert await system.reconcile(1) == 1
    assert len(errors) == 1
    assert "work:item:bad" in errors[0]
    await system.stop()


async def test_a_note_of_cancellations_that_is_not_ours_is_ignored(virtual_clock):  # P7
    ports = memory_backend()
    await ports["store"].set("work:cancelled", "9" * 5_000)
    work_type = define_work("kind", handler, executor="loop")
    async with create_work(work=[work_type], **ports) as system:
        assert await (await system.enqueue(work_type(3), delay=5)).result(timeout=60) == 3


async def test_progress_that_is_none_is_not_shown(virtual_clock):  # P7
    async def slow() -> None:
        await sleep(3)

    ports = memory_backend()
    async with create_work(work=[define_work("slow", slow)], **ports) as system:
        handle = await system.enqueue("slow")

        async def disturb() -> None:
            await sleep(1)
            await ports["pubsub"].publish(encode_notice("progress", handle.id, ["much", {}]))
            await ports["pubsub"].publish(encode_notice("progress", handle.id, {"1": 2}))

        import asyncio

        task = asyncio.create_task(disturb())
        assert [progress async for progress in handle.progress()] == []
        await task


# ---- codec ---------------------------------------------------------------------------------------


def test_text_with_half_of_a_surrogate_pair_is_refused():  # P7
    with pytest.raises(InvalidWorkError, match="not JSON"):
        default_codec.decode('"\ud800"')
    bound = Binding(handler, work_type="kind", context_type=WorkContext)
    with pytest.raises(InvalidWorkError, match=r"'kind'.*not JSON"):
        bound.bind_json('{"a":"\ud800"}')


@pytest.mark.parametrize("text", ['{"$type":"python"}', '{"$type":"python"', '{"$type":"python"x'])
def test_a_value_in_its_python_form_that_is_none_is_refused(text):  # P7
    bound = Binding(handler, work_type="kind", context_type=WorkContext)
    with pytest.raises(InvalidWorkError, match="'kind'"):
        bound.unbind(text, None)
    with pytest.raises(InvalidWorkError, match="'kind'"):
        bound.load_result(text)
    with pytest.raises(InvalidWorkError, match="'kind'"):
        bound.mapping(text)


def test_further_keywords_under_their_own_name_must_be_a_mapping():  # P7
    def loose(a, **more): ...

    bound = Binding(loose, work_type="kind", context_type=WorkContext)
    with pytest.raises(InvalidWorkError, match="field 'more': must be a mapping"):
        bound.bind_mapping({"a": 1, "b": 2, "more": 3})


def test_what_a_value_itself_raises_is_told_with_the_work_type():  # P7
    class Rude:
        def __hash__(self) -> int:
            raise RuntimeError("no hash")

    def literal(a: frozenset[Any]) -> None: ...

    bound = Binding(literal, work_type="kind", context_type=WorkContext)
    with pytest.raises(InvalidWorkError, match=r"'kind'.*RuntimeError: no hash"):
        bound.bind(([Rude()],), {})


def test_an_exception_that_is_restored_has_a_text():  # P7
    with pytest.raises(InvalidWorkError, match="malformed"):
        default_codec.decode('{"$type":"exception","class":"a:B","text":7}')


def test_reading_does_not_load_a_module_that_waits_to_be_loaded(monkeypatch):  # P7
    spec = importlib.util.find_spec("antigravity")
    assert spec is not None
    assert spec.loader is not None
    spec.loader = importlib.util.LazyLoader(spec.loader)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "antigravity", module)
    spec.loader.exec_module(module)
    with pytest.raises(InvalidWorkError, match="not loaded"):
        default_codec.decode('{"$type":"enum","class":"antigravity:geohash","name":"A"}')
    assert "geohash" not in object.__getattribute__(module, "__dict__")


# ---- definitions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["delay", "timeout", "unique_for", "deadline"])
@pytest.mark.parametrize("value", [10**400, float("inf"), float("nan")])
def test_a_duration_that_no_time_can_hold_is_refused(name, value):  # P7
    with pytest.raises(InvalidWorkError, match=f"'kind': field '{name}'"):
        define_work("kind", handler)(1).with_options(**{name: value})


@pytest.mark.parametrize(
    ("name", "value"),
    [("priority", 10**5_000), ("group", "\ud800"), ("id", "\ud800"), ("unique", b"x" * 10_000)],
    ids=["priority", "group", "id", "unique"],
)
def test_an_option_that_no_store_can_keep_is_refused_in_few_words(name, value):  # P7
    with pytest.raises(InvalidWorkError, match=f"'kind': field '{name}'") as caught:
        define_work("kind", handler)(1).with_options(**{name: value})
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("attempts", [10**5_000, 2**63], ids=["huge", "large"])
def test_attempts_without_an_end_are_refused(attempts):  # P7
    with pytest.raises(ConfigError, match="attempts"):
        Retry(attempts=attempts)


@pytest.mark.parametrize("name", ["doer", "queue", "codec", "options", "on_event", "on_failure"])
def test_a_part_of_a_type_that_is_none_is_refused_when_it_is_defined(name):  # P7
    with pytest.raises(ConfigError, match=f"'kind': {name} must be"):
        define_work("kind", handler, **{name: 5})


@pytest.mark.parametrize("max_wait", [None, "x", 10**400])
def test_a_wait_of_a_batch_that_is_none_is_refused(max_wait):  # P7
    with pytest.raises(ConfigError, match="'kind': max_wait"):
        define_batch_work("kind", lambda items: items, size=2, max_wait=max_wait)


@pytest.mark.parametrize("annotation", ["", "1 / 0"])
def test_an_annotation_that_cannot_be_evaluated_is_told(annotation):  # P7
    def fn(a): ...

    fn.__annotations__ = {"a": annotation}
    with pytest.raises(ConfigError, match=r"'kind': the annotation of 'a' cannot be resolved"):
        define_work("kind", fn)(1)


def test_a_zone_without_an_offset_is_no_zone():  # P7
    moment = datetime(2026, 1, 1, tzinfo=NoZone())
    with pytest.raises(InvalidWorkError, match="field 'run_at'.*no time zone"):
        define_work("kind", handler)(1).with_options(run_at=moment)
    with pytest.raises(ConfigError, match="no time zone"):
        next_after("* * * * *", moment)


def test_after_the_last_minute_of_all_time_nothing_is_due():  # P7
    assert next_after("* * * * *", datetime(9999, 12, 31, 23, 59, tzinfo=UTC)) is None


@pytest.mark.parametrize("name", ["poll_interval", "visibility", "heartbeat", "result_ttl"])
def test_a_number_of_a_system_that_is_none_is_named(name):  # P7
    with pytest.raises(ConfigError, match=f"^{name}: "):
        create_work(**{name: "soon"})


def test_one_thing_that_is_no_work_type_is_told():  # P7
    with pytest.raises(ConfigError, match="takes work types, not 5"):
        create_work(work=5)  # pyright: ignore[reportArgumentType] - on purpose


@pytest.mark.parametrize(("on", "queue"), [(5, []), ([5], []), (["a"], [5]), ("abc", [])])
def test_a_dependency_on_something_else_is_refused(on, queue):  # P7
    with pytest.raises(InvalidWorkError, match=DEPENDENCY_TYPE):
        dependency(on, queue)


@pytest.mark.parametrize(("name", "work"), [("", handler), (["x"], handler), ("x", 5)])
def test_a_schedule_of_nothing_is_refused(name, work):  # P7
    with pytest.raises(ConfigError, match="a schedule takes a name and a work"):
        create_work().schedule(name, work, every=60)
