from __future__ import annotations

import base64
import dataclasses
import json
import threading
from collections.abc import Coroutine, Sequence
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from math import inf, isnan, nan
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Generic,
    Literal,
    NoReturn,
    TypeVar,
)
from typing import (
    TypedDict as PlainTypedDict,
)
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, SecretStr, computed_field, field_serializer
from typing_extensions import TypedDict, Unpack

from piecework.binding import Binding
from piecework.codec import default_codec
from piecework.errors import ConfigError, InvalidWorkError
from piecework.fidelity import first_difference

if TYPE_CHECKING:
    from piecework.nowhere import Missing

T = TypeVar("T")
N = TypeVar("N", bound=int)
C = TypeVar("C", int, str)
ZONE = timezone(timedelta(hours=2))


class Context:
    pass


class SubContext(Context):
    pass


class Colour(Enum):
    RED = "r"
    PAIR = (1, 2)


class Level(IntEnum):
    LOW = 1


class Inner(BaseModel):
    at: datetime
    tags: set[str] = set()


class Model(BaseModel):
    name: str
    inner: Inner | None = None
    size: float = 1.0
    maybe: float | None = None
    raw: bytes = b""
    meta: dict[str, Any] = {}


class SubModel(Model):
    more: int


class Twin(Model):
    pass


class Box(BaseModel, Generic[T]):
    item: T


class Named(BaseModel):
    model_config = ConfigDict(extra="forbid")
    first: int = Field(alias="firstName")
    hidden: int = Field(default=1, exclude=True)

    @computed_field
    @property
    def double(self) -> int:
        return self.first * 2


class OneWay(BaseModel):
    key: int = Field(serialization_alias="Key")


@dataclasses.dataclass
class Data:
    at: datetime
    raw: bytes
    size: float = inf


@dataclasses.dataclass
class SubData(Data):
    more: int = 1


class Movie(TypedDict):
    title: str
    year: int


def bound(fn, **options):
    return Binding(fn, work_type="w", context_type=Context, **options)


def taking(annotation):
    def handler(value):
        return value

    handler.__annotations__ = {"value": annotation, "return": annotation}
    return bound(handler)


def back(annotation, value):
    """What a handler gets for a value, and what a waiter gets for it as a result."""
    binding = taking(annotation)
    (), got = binding.unbind(binding.bind((value,), {}), None)
    result = binding.load_result(binding.dump_result(value))
    assert type(result) is type(got["value"])
    return got["value"]


def add(a: int, b: int = 2) -> int:
    return a + b


def test_arguments_become_json_by_name():
    binding = bound(add)
    assert binding.bind((1,), {"b": 2}) == '{"a":1,"b":2}'
    assert binding.bind((1, 2), {}) == '{"a":1,"b":2}'
    assert binding.bind_mapping({"b": 2, "a": 1}) == '{"b":2,"a":1}'.replace(
        '"b":2,"a":1', '"a":1,"b":2'
    )
    assert binding.unbind('{"a":1,"b":3}', None) == ((), {"a": 1, "b": 3})
    assert binding.mapping('{"a":1}') == {"a": 1}
    assert binding.parameters == ["a", "b"]
    assert binding.load_result(binding.dump_result(3)) == 3


def test_a_default_is_left_to_the_handler_that_runs():
    binding = bound(add)
    assert binding.bind((1,), {}) == '{"a":1}'
    assert binding.unbind('{"a":1}', None) == ((), {"a": 1})


@pytest.mark.parametrize(
    ("args", "kwargs", "field", "text"),
    [
        ((), {}, "a", "is missing. Pass it"),
        ((1, 2, 3), {}, "", "takes 2 positional arguments, 3 were given. The parameters are: a, b"),
        ((1,), {"c": 1}, "c", "is not a parameter. The parameters are: a, b"),
        ((1,), {"a": 1}, "a", "is given twice"),
        (("x",), {}, "a", "must be a valid integer"),
        (("x", "y"), {}, "a", "and 1 more error)"),
        ((None,), {}, "a", "got NoneType"),
    ],
)
def test_a_wrong_call_is_refused_in_one_sentence(args, kwargs, field, text):
    with pytest.raises(InvalidWorkError) as caught:
        bound(add).bind(args, kwargs)
    assert caught.value.work_type == "w"
    assert caught.value.field == field
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "pydantic" not in str(caught.value)


def test_errors_do_not_repeat_the_value_and_name_the_place():
    def f(items: list[Model]) -> None: ...

    with pytest.raises(InvalidWorkError) as caught:
        bound(f).bind(([{"name": "a"}, {"name": "b", "size": "hunter2"}],), {})
    assert caught.value.field == "items[1].size"
    assert "hunter2" not in str(caught.value)
    with pytest.raises(InvalidWorkError) as caught:
        bound(f).bind(([{}],), {})
    assert caught.value.field == "items[0].name"
    assert caught.value.problem == "is missing"


# S63
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("nope", "the text is not JSON"),
        ("[1]", "must be"),
        ('{"a":"x"}', "must be a valid integer"),
        ('{"a":1,"z":1}', "is not a parameter"),
        ("{}", "is missing"),
        ('{"$type":"python","value":{"$type":"set","value":1}}', "malformed"),
        ('{"a":1e999}', "must be"),
    ],
)
def test_bad_input_says_what_is_wrong(text, problem):
    with pytest.raises(InvalidWorkError) as caught:
        bound(add).unbind(text, None)
    assert caught.value.problem.startswith(problem) or problem in caught.value.problem
    assert caught.value.work_type == "w"


def test_a_malformed_tag_in_an_untyped_field_is_bad_input():
    with pytest.raises(InvalidWorkError, match=r"work type 'w'.*malformed"):
        bound(lambda a: a).unbind('{"a":{"$type":"UUID","value":"x"}}', None)
    with pytest.raises(InvalidWorkError, match=r"work type 'w'.*malformed"):
        bound(lambda a: a).load_result('{"$type":"UUID","value":"x"}')


def test_every_kind_of_parameter_is_put_where_it_belongs():
    def f(a: int, /, b: int = 5, *rest: int, c: int, d: int = 4, **extra: date) -> None: ...

    binding = bound(f)
    text = binding.bind((1, 2, 3, 4), {"c": 5, "day": date(2024, 1, 1)})
    assert json.loads(text) == {
        "a": 1, "b": 2, "rest": [3, 4], "c": 5, "extra": {"day": "2024-01-01"},
    }  # fmt: skip
    assert binding.unbind(text, None) == ((1, 2, 3, 4), {"c": 5, "day": date(2024, 1, 1)})
    assert binding.unbind(binding.bind((1,), {"c": 5}), None) == ((1, 5), {"c": 5})
    assert binding.bind_mapping({"a": 1, "c": 5, "day": "2024-01-01"}) == binding.bind(
        (1,), {"c": 5, "day": date(2024, 1, 1)}
    )
    assert binding.bind_mapping({"a": 1, "c": 5, "extra": {"x": date(2024, 1, 1)}}) == binding.bind(
        (1,), {"c": 5, "x": date(2024, 1, 1)}
    )


def test_a_positional_only_parameter_takes_no_keyword():
    def f(a: int, /) -> None: ...

    with pytest.raises(InvalidWorkError, match="'a': is not a parameter"):
        bound(f).bind((), {"a": 1})
    assert bound(f).bind_mapping({"a": 1}) == '{"a":1}'


def test_keyword_arguments_may_be_a_typed_dict():
    def f(**options: Unpack[Movie]) -> None: ...

    binding = bound(f)
    text = binding.bind((), {"title": "x", "year": 1})
    assert binding.unbind(text, None) == ((), {"title": "x", "year": 1})
    with pytest.raises(InvalidWorkError, match="year"):
        binding.bind((), {"title": "x", "year": "y"})


def test_untyped_keyword_and_rest_arguments_keep_their_types():
    binding = bound(lambda *a, **k: None)
    text = binding.bind((date(2024, 1, 1), {1: b"x"}), {"s": {1}, "n": None})
    assert binding.unbind(text, None) == ((date(2024, 1, 1), {1: b"x"}), {"s": {1}, "n": None})


@pytest.mark.parametrize(
    "annotation",
    [
        Context, "Context", "Context | None", Context | None, Annotated[Context, 1], SubContext,
        Annotated[Context | None, "x"],
    ],
)  # fmt: skip
def test_the_context_is_found_by_its_annotation(annotation):
    def f(a: int, seen, b: int = 1) -> None: ...

    f.__annotations__["seen"] = annotation
    binding = bound(f)
    assert binding.takes_context
    assert binding.context_name == "seen"
    context = Context()
    assert binding.bind((1, 2), {}) == '{"a":1,"b":2}'
    assert binding.unbind('{"a":1}', context) == ((), {"a": 1, "seen": context})


def test_a_positional_context_stands_in_its_place():
    def f(ctx: Context, a: int, /, *rest: int) -> None: ...

    context = Context()
    assert bound(f).unbind('{"a":1,"rest":[2]}', context) == ((context, 1, 2), {})
    assert not bound(add).takes_context
    assert bound(add).context_name is None


def test_the_context_may_be_imported_for_type_checkers_only():
    space: dict[str, Any] = {}
    exec("def f(ctx: 'Context', a: 'int'): ...", space)
    assert bound(space["f"]).context_name == "ctx"


def test_two_contexts_are_refused():
    def f(a: Context, b: Context) -> None: ...

    with pytest.raises(ConfigError, match="a, b are all annotated with Context"):
        bound(f).bind((), {})


def test_an_annotation_that_cannot_be_resolved_is_named():
    def f(a: Missing) -> None: ...

    def g(a: int) -> Missing: ...

    with pytest.raises(ConfigError, match="'w': the annotation of 'a' cannot be resolved"):
        bound(f).bind((1,), {})
    with pytest.raises(ConfigError, match="its return annotation cannot be resolved"):
        bound(g).bind((1,), {})


def test_local_and_later_names_are_resolved():
    class Local(BaseModel):
        a: int

    def f(x: Local, y: Later) -> Local: ...

    binding = bound(f)
    args, kwargs = binding.unbind(binding.bind((Local(a=1), Later(b=2)), {}), None)
    assert kwargs == {"x": Local(a=1), "y": Later(b=2)}

    unset: Any

    def g(x: Local) -> None:
        _ = Local, unset

    assert bound(g).bind(({"a": 1},), {}) == '{"x":{"a":1}}'
    if args:
        unset = 1


class Later(BaseModel):
    b: int


class Handlers:
    def method(self, a: int) -> int:
        return a

    @classmethod
    def of_class(cls, a: int) -> int:
        return a

    def __call__(self, a: int) -> date:
        return date(2024, 1, a)


@pytest.mark.parametrize(
    "fn",
    [Handlers().method, Handlers.of_class, Handlers(), partial(Handlers().method),
     partial(add, b=3)],
)  # fmt: skip
def test_any_callable_with_a_signature_is_bound(fn):
    binding = bound(fn)
    text = binding.bind((1,), {})
    args, kwargs = binding.unbind(text, None)
    fn(*args, **kwargs)
    assert kwargs == {"a": 1}
    with pytest.raises(InvalidWorkError):
        binding.bind(("x",), {})


def test_a_class_is_a_handler_too():
    class Point:
        def __init__(self, x: int) -> None: ...

    assert bound(Point).bind(("1",), {}) == '{"x":1}'


def test_a_callable_without_a_signature_is_refused():
    with pytest.raises(ConfigError, match="no signature"):
        bound(min).bind((1,), {})


# S49
@pytest.mark.parametrize("annotation", [None, "None", NoReturn, Any, int | None])
def test_nothing_is_a_result(annotation):
    def f(): ...

    f.__annotations__["return"] = annotation
    binding = bound(f)
    assert binding.dump_result(None) == "null"
    assert binding.load_result("null") is None
    assert binding.bind((), {}) == "{}"
    assert binding.unbind("{}", None) == ((), {})


def test_a_result_in_an_awaitable_is_unwrapped():
    def f() -> Coroutine[Any, Any, date]: ...

    assert bound(f).load_result('"2024-01-01"') == date(2024, 1, 1)


# B27
@pytest.mark.parametrize("annotation", [int, Any, Model, threading.Lock, "dict[str, Any]"])
def test_a_result_that_cannot_be_kept_is_refused(annotation):
    def f(): ...

    f.__annotations__["return"] = annotation
    value = {"a": threading.Lock()} if isinstance(annotation, str) else threading.Lock()
    with pytest.raises(InvalidWorkError) as caught:
        bound(f).dump_result(value)
    assert caught.value.work_type == "w"
    assert caught.value.field.startswith("result")


def test_a_stored_result_of_another_type_is_refused():
    with pytest.raises(InvalidWorkError, match="'result': must be a valid integer"):
        bound(add).load_result('"x"')
    with pytest.raises(InvalidWorkError, match="malformed"):
        bound(add).load_result('{"$type":"python","value":{"$type":"set","value":1}}')
    with pytest.raises(InvalidWorkError, match="not JSON"):
        bound(add).load_result("x")


AT = datetime(2024, 5, 1, 12, tzinfo=ZONE)
ODD = datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=5, seconds=13)))


# B26
@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (float, 1.1),
        (float, 1e308),
        (float, inf),
        (float, -inf),
        (int, 2**70),
        (int, 2**20_000),
        (list[int], [2**20_000]),
        (str, ""),
        (str, "x" * 5000),
        (set[int], set()),
        (frozenset[str], frozenset({"a"})),
        (tuple[int, date], (1, date(2024, 1, 1))),
        (tuple[int, ...], (1, 2)),
        (dict[UUID, float], {UUID(int=1): inf}),
        (dict[bytes, bytes], {b"\xff": b"\xfe"}),
        (dict[tuple[int, int], str], {(1, 2): "x"}),
        (dict[float, int], {inf: 1}),
        (dict[bool, int], {True: 1}),
        (dict[date, int], {date(2024, 1, 1): 1}),
        (list, [1, (2,), {3}]),
        (dict, {1: date(2024, 1, 1)}),
        (set, {1, b"x"}),
        (tuple, (1, [2])),
        (bytes, b"\x00\xff"),
        (datetime, AT),
        (datetime, ODD),
        (datetime, datetime(2024, 1, 1)),
        (timedelta, timedelta(microseconds=-1)),
        (Decimal, Decimal("1.10")),
        (complex, 1 + 2j),
        (UUID, UUID(int=1)),
        (Path, Path("/a/b")),
        (Colour, Colour.RED),
        (Colour, Colour.PAIR),
        (Level, Level.LOW),
        (Literal["a", 1], 1),
        (date | None, date(2024, 1, 1)),
        (str | datetime, AT),
        (str | datetime, "2024-05-01"),
        (str | bytes, b"x"),
        (int | Decimal, Decimal(1)),
        (int | float, 1.0),
        (int | str, "1"),
        (int | Level, Level.LOW),
        (dict[str, Any], {"at": AT, "n": [1, {"b": {2}}]}),
        (dict[str, Any], {"level": Level.LOW, "one": 1.0, "yes": True}),
        (list[Any], [(1, 2), [1, 2]]),
        (Sequence[int], [1]),
        (Sequence[int], (1, 2)),
        (object, {1: AT}),
        (T, (1,)),
        (N, 5),
        (C, "5"),
        (Movie, {"title": "x", "year": 1}),
        (Inner, Inner(at=AT, tags={"a"})),
        (Model, Model(name="a", inner=Inner(at=ODD))),
        (Model, Model(name="a", size=inf, maybe=-inf, raw=b"\xff")),
        (Model, Model(name="a", meta={"at": AT, "t": (1, 2)})),
        (list[Model], [Model(name="a", maybe=inf)]),
        (Box[date], Box[date](item=date(2024, 1, 1))),
        (Box[Any], Box[Any](item=AT)),
        (Named, Named(firstName=3)),
        (Data, Data(AT, b"\xff")),
        (Data | Model, Data(AT, b"", 1.0)),
        (Annotated[int, Field(gt=0)], 5),
        (Annotated[float, Field(strict=True)], inf),
    ],
    ids=lambda v: type(v).__name__,
)
def test_an_annotated_value_comes_back_the_same(annotation, value):
    got = back(annotation, value)
    assert got == value
    assert type(got) is type(value)
    if isinstance(value, datetime):
        assert got.utcoffset() == value.utcoffset()
    if isinstance(value, (list, dict)):
        assert default_or_repr(got) == default_or_repr(value)


def default_or_repr(value):
    try:
        return default_codec.encode(value)
    except InvalidWorkError:
        return repr(value)


def test_not_a_number_comes_back():
    assert isnan(back(float, nan))
    assert isnan(back(Model, Model(name="a", size=nan)).size)


# B26
@settings(max_examples=60, deadline=None)
@given(
    st.builds(
        Model,
        name=st.text(),
        inner=st.none()
        | st.builds(
            Inner,
            at=st.datetimes() | st.datetimes(timezones=st.just(ZONE)),
            tags=st.sets(st.text()),
        ),
        size=st.floats(allow_nan=False),
        maybe=st.none() | st.floats(allow_nan=False),
        raw=st.binary(),
        meta=st.dictionaries(st.text(), st.datetimes() | st.integers() | st.binary(), max_size=2),
    ),
    st.integers(),
    st.sets(st.uuids(), max_size=2),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.timedeltas(),
)
def test_any_annotated_call_comes_back_the_same(model, number, ids, price, span):
    assert BINDING.unbind(BINDING.bind((model, number), {"ids": ids, "price": price, "span": span,
                                                         "free": (price, ids)}), None) == (
        (),
        {"model": model, "number": number, "ids": ids, "price": price, "span": span,
         "free": (price, ids)},
    )  # fmt: skip


def typed(model: Model, number: int, ids: set[UUID], price: Decimal, span: timedelta, free): ...


BINDING = Binding(typed, work_type="w", context_type=Context)


def test_an_untyped_argument_keeps_its_tags_inside_typed_input():
    def f(a: int, b): ...

    text = bound(f).bind((1, date(2024, 1, 1)), {})
    assert text == '{"a":1,"b":{"$type":"date","value":"2024-01-01"}}'
    assert bound(f).mapping(text)["b"] == {"$type": "date", "value": "2024-01-01"}
    with pytest.raises(InvalidWorkError) as caught:
        bound(f).bind((1, [threading.Lock()]), {})
    assert (caught.value.field, caught.value.work_type) == ("b[0]", "w")
    with pytest.raises(InvalidWorkError, match="Annotate it with Model"):
        bound(f).bind((1, Model(name="a")), {})


# B26
@pytest.mark.parametrize(
    ("annotation", "value", "field"),
    [
        (Model, SubModel(name="a", more=1), "value.more"),
        (list[Model], [Model(name="b"), SubModel(name="a", more=1)], "value[1].more"),
        (Data, SubData(AT, b""), "value.more"),
        (SecretStr, SecretStr("x"), "value"),
        (dict[str, Any], {"k": [threading.Lock()]}, "value.k[0]"),
        (Model, Model(name="a", meta={"k": threading.Lock()}), "value.meta.k"),
        (Model, Model.model_construct(name=5), "value.name"),
        (OneWay, OneWay(key=1), None),
    ],
)
def test_a_value_that_would_lose_something_is_refused(annotation, value, field):
    if field is None:
        assert back(annotation, value) == value
        return
    with pytest.raises(InvalidWorkError) as caught:
        taking(annotation).bind((value,), {})
    assert caught.value.field == field
    assert caught.value.fix
    result = "result" + field.removeprefix("value")
    with pytest.raises(InvalidWorkError) as caught:
        taking(annotation).dump_result(value)
    assert caught.value.field == result


def test_a_subclass_that_adds_nothing_is_written_as_annotated():
    got = back(Model, Twin(name="a"))
    assert type(got) is Model
    assert got.name == "a"


# B26
@pytest.mark.parametrize("annotation", [threading.Lock, list[threading.Event], Handlers])
def test_a_type_that_cannot_be_kept_is_refused_by_name(annotation):
    def f(a: int, b) -> None: ...

    f.__annotations__["b"] = annotation
    with pytest.raises(InvalidWorkError, match="cannot be kept") as caught:
        bound(f).bind((1, 2), {})
    assert caught.value.field == "b"


def test_a_type_that_is_none_is_refused():
    with pytest.raises(InvalidWorkError, match="cannot be kept"):
        taking(PlainTypedDict("Old", {"a": 5})).bind((1,), {})  # type: ignore[misc]


def test_a_model_with_an_open_name_is_a_configuration_error():
    class Waiting(BaseModel):
        x: Nowhere  # noqa: F821

    for go in (lambda b: b.bind((1,), {}), lambda b: b.dump_result(1)):
        with pytest.raises(ConfigError, match=r"type .*Waiting.* names what.*model_rebuild"):
            go(taking(Waiting))


def test_json_text_is_bound_with_its_tags():
    def f(a: bytes, b=None): ...

    binding = bound(f)
    text = binding.bind((b"\xff", {1}), {})
    assert binding.bind_json(text) == text
    assert binding.bind_json(json.dumps(binding.mapping(text))) == text
    assert binding.bind_json('{"a":"aGk="}') == binding.bind((b"hi",), {})
    for bad in ("x", "[1]", '{"b":1}', '{"a":"aGk=","c":1}'):
        with pytest.raises(InvalidWorkError, match="work type 'w'"):
            binding.bind_json(bad)


def test_the_mapping_of_a_tagged_input_is_plain():
    binding = bound(typed)
    text = taking(Model).bind((Model(name="a", size=inf),), {})
    assert taking(Model).mapping(text)["value"]["name"] == "a"
    with pytest.raises(InvalidWorkError, match="JSON object"):
        binding.mapping("[1]")


class Shouting:
    """A codec that remembers what it was given."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def encode(self, value: Any) -> str:
        self.seen.append(value)
        return "!" + base64.b64encode(default_codec.encode(value).encode()).decode()

    def decode(self, text: str) -> Any:
        if text[0] != "!":
            raise ValueError("not shouted")
        return default_codec.decode(base64.b64decode(text[1:]).decode())


# S15
def test_a_codec_sees_the_mapping_of_inputs_and_the_result():
    def f(a: Model, b, c: int = 1) -> Model: ...

    codec = Shouting()
    binding = bound(f, codec=codec)
    model = Model(name="a", size=inf, raw=b"\xff")
    text = binding.bind((model, {1}), {})
    assert text.startswith("!")
    assert set(codec.seen[0]) >= {"b"}
    assert codec.seen[0]["b"] == {1}
    assert binding.unbind(text, None) == ((), {"a": model, "b": {1}})
    assert binding.mapping(text)["b"] == {"$type": "set", "value": [1]}
    stored = binding.dump_result(model)
    assert stored.startswith("!")
    assert binding.load_result(stored) == model

    plain = Model(name="b")
    assert binding.unbind(binding.bind((plain, None), {"c": 2}), None)[1]["a"] == plain
    assert codec.seen[-1]["a"]["name"] == "b"
    assert binding.bind_json('{"a":{"name":"x"},"b":1}').startswith("!")


# S15
def test_a_codec_keeps_values_that_only_it_knows():
    class Memory:
        def __init__(self) -> None:
            self.values: list[Any] = []

        def encode(self, value: Any) -> str:
            self.values.append(value)
            return str(len(self.values) - 1)

        def decode(self, text: str) -> Any:
            return self.values[int(text)]

    binding = bound(lambda a: a, codec=Memory())
    lock = threading.Lock()
    text = binding.bind((lock,), {})
    assert binding.unbind(text, None) == ((), {"a": lock})
    assert "lock" in binding.mapping(text)["a"]
    assert binding.load_result(binding.dump_result(lock)) is lock


# S63
def test_what_a_codec_cannot_decode_is_bad_input():
    binding = bound(add, codec=Shouting())
    with pytest.raises(InvalidWorkError, match="'w': the codec cannot decode the text: not shout"):
        binding.unbind("x", None)
    with pytest.raises(InvalidWorkError, match="decoded a int, not the mapping"):
        binding.unbind(Shouting().encode(1), None)
    with pytest.raises(InvalidWorkError, match="malformed"):
        binding.unbind("!" + base64.b64encode(b'{"$type":"set"}').decode(), None)
    with pytest.raises(InvalidWorkError, match="valid integer"):
        binding.unbind(Shouting().encode({"a": "x"}), None)


def embed(texts: list[Inner]) -> list[date]: ...


def test_a_batch_handler_is_bound_by_item():
    binding = bound(embed, batch=True)
    item = Inner(at=AT)
    text = binding.bind((item,), {})
    assert text == binding.bind((), {"texts": item}) == binding.bind((), {"item": item})
    assert text == binding.bind_mapping({"item": item}) == binding.bind_mapping({"texts": item})
    assert text == binding.bind_json(text) == binding.bind_json(text.replace("texts", "item"))
    assert binding.unbind_item(text) == item
    assert binding.unbind(text, None) == (([item],), {})
    assert not binding.takes_context
    assert binding.load_result(binding.dump_result(date(2024, 1, 1))) == date(2024, 1, 1)
    with pytest.raises(InvalidWorkError, match="'texts'"):
        binding.bind(([item],), {})


@pytest.mark.parametrize("annotation", [list, Any, Annotated[list[Any], 1]])
def test_an_untyped_batch_keeps_its_items(annotation):
    def f(items): ...

    f.__annotations__["items"] = annotation
    binding = bound(f, batch=True)
    assert binding.unbind_item(binding.bind(((1, {2}),), {})) == (1, {2})
    assert binding.load_result(binding.dump_result({1})) == {1}


def test_a_batch_handler_takes_one_list():
    def f(ctx: Context, items: list[int]) -> list[int]: ...

    def g(ctx: Context) -> list[int]: ...

    for fn in (f, g):
        with pytest.raises(ConfigError, match="exactly one parameter"):
            bound(fn, batch=True).bind((1,), {})


class Odd(BaseModel):
    a: int

    @field_serializer("a")
    def _write(self, a: int) -> str:
        return f"#{a}"


def test_a_serializer_that_cannot_be_read_back_is_refused():
    with pytest.raises(InvalidWorkError, match="read back"):
        taking(Odd).bind((Odd(a=1),), {})


def test_a_model_that_holds_itself_is_refused():
    class Node(BaseModel):
        next: Node | None = None

    Node.model_rebuild()
    node = Node()
    node.next = node
    with pytest.raises(InvalidWorkError):
        taking(Node).bind((node,), {})


@dataclasses.dataclass
class Timing:
    clock: Any


@pytest.mark.parametrize(
    ("value", "other", "path"),
    [
        ([1, 2], [1], ""),
        ({"a": 1}, {}, ".a"),
        ({1: {2: 3}}, {1: {}}, "[1][2]"),
        ({}, {"a": 1}, ""),
        ({1: 1}, {True: 1}, ""),
        (Data(AT, b""), {"at": AT}, ""),
        (Model(name="a"), Model(name="b"), ".name"),
        (AT, ODD, ""),
    ],
)
def test_a_difference_names_its_place(value, other, path):
    found = first_difference(value, other, strict=True)
    assert found
    assert found.path == path


def test_objects_that_cannot_be_compared_count_as_the_same():
    assert first_difference(Timing(object()), Timing(object()), strict=True) is None
    assert first_difference(Timing(1), Timing(1.0), strict=False) is None


def test_defining_a_type_builds_nothing():
    binding = bound(embed, batch=True)
    assert binding._plan_ is None
    assert binding._input is None
    binding.bind((Inner(at=AT),), {})
    assert binding._result is None


# S115
def test_the_input_of_a_work_can_be_enqueued_again_by_name():
    binding = bound(lambda a, b: None)
    text = binding.bind((AT, {"$type": "set"}), {})
    assert binding.bind_json(json.dumps(binding.mapping(text))) == text


def test_a_model_whose_name_came_later_is_bound():
    class Early(BaseModel):
        later: Afterwards

    class Afterwards(BaseModel):
        a: int

    binding = taking(Early)
    Early.model_rebuild(_types_namespace={"Afterwards": Afterwards})
    assert binding.bind(({"later": {"a": 1}},), {}) == '{"value":{"later":{"a":1}}}'
