from __future__ import annotations

import socket
import sys
import threading
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, Flag, IntEnum, auto
from math import inf, isnan, nan
from types import ModuleType
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from piecework.codec import MAX_DEPTH, DefaultCodec, default_codec
from piecework.errors import InvalidWorkError, UnknownWorkError
from piecework.loaded import RestoredError

BERLIN = timezone(timedelta(hours=2))


class Colour(Enum):
    RED = "r"
    GREEN = (1, 2)


class Level(IntEnum):
    LOW = 1


class Mode(Flag):
    READ = auto()
    WRITE = auto()


class Loose(Flag, boundary=__import__("enum").KEEP):
    A = 1


class CardError(Exception):
    ran = 0

    def __init__(self, *, card: str) -> None:
        type(self).ran += 1
        self.card = card
        super().__init__(f"card {card}")


class SilentError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


class Model(BaseModel):
    a: int


@dataclass
class Data:
    a: int


def back(value):
    return default_codec.decode(default_codec.encode(value))


def same(value, other):
    if type(value) is not type(other):
        return False
    if isinstance(value, float) and isnan(value):
        return isnan(other)
    if isinstance(value, (list, tuple)):
        return len(value) == len(other) and all(map(same, value, other))
    if isinstance(value, dict):
        pairs = zip(value.items(), other.items(), strict=True)
        return len(value) == len(other) and all(same(a, b) for a, b in pairs)
    return value == other


# S49 S142
@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        2**63,
        2**70,
        -(2**20_000),
        1.1,
        1e308,
        5e-324,
        inf,
        -inf,
        nan,
        "",
        "é\x00\u2028",
        "\ud800 alone",
        [],
        {},
        set(),
        frozenset({1}),
        (),
        (1, (2, [3])),
        {"a": [None, {"b": "c"}]},
        {1: "a", (1, 2): "b", None: "c", "x": "d", 1.5: {"$type": "set"}},
        {"$type": "datetime", "value": "not one"},
        {"$type": 5},
        {"\ud800": 1},
        {frozenset({1}): {b"k": 1}},
        datetime(2024, 5, 1, 12, 30, 1, 7),
        datetime(2024, 5, 1, 12, 30, tzinfo=BERLIN),
        datetime(1900, 1, 1, tzinfo=timezone(timedelta(hours=5, seconds=13))),
        datetime(2024, 5, 1, tzinfo=UTC),
        date(2024, 2, 29),
        time(1, 2, 3, 4),
        time(1, 2, tzinfo=BERLIN),
        timedelta.max,
        timedelta.min,
        timedelta(microseconds=-1),
        Decimal("1.10"),
        Decimal("NaN"),
        Decimal("-1E+1000"),
        UUID(int=7),
        b"\x00\xff",
        b"",
        bytearray(b"ab"),
        complex(1, -0.0),
        complex(inf, 2),
        {b"\xff", b""},
        Colour.RED,
        Colour.GREEN,
        Level.LOW,
        Mode.READ,
        Mode.READ | Mode.WRITE,
        Mode(0),
    ],
    ids=lambda v: type(v).__name__,
)
def test_a_value_comes_back_with_its_type(value):
    nested = {"deep": [value]}
    for one, got in ((value, back(value)), (nested, back(nested))):
        assert same(one, got) or repr(one) == repr(got)


JSON = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
HASHABLE = (
    st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.dates()
    | st.decimals(allow_nan=False)
    | st.uuids()
    | st.timedeltas()
)
LEAVES = JSON | HASHABLE | st.datetimes() | st.datetimes(timezones=st.just(BERLIN)) | st.times()
VALUES = st.recursive(
    LEAVES | st.sets(HASHABLE, max_size=3) | st.frozensets(HASHABLE, max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=3) | st.just("$type") | HASHABLE, inner, max_size=3)
        | st.tuples(inner, inner)
    ),
    max_leaves=8,
)


# B26
@settings(max_examples=150, deadline=None)
@given(VALUES)
def test_any_value_of_the_kept_types_comes_back_the_same(value):
    assert same(value, back(value))


@settings(max_examples=50, deadline=None)
@given(st.text(st.characters(), max_size=5))
def test_the_text_is_always_valid_unicode(text):
    default_codec.encode({text: text}).encode()


def test_plain_values_are_plain_json():
    assert default_codec.encode({"a": [1, "x", None, 1.5]}) == '{"a":[1,"x",None,1.5]}'.replace(
        "None", "null"
    )
    assert default_codec.encode(None) == "null"  # S49


# S142
def test_an_unknown_tag_is_left_untouched():
    text = f'{{"$type":"Money","value":{{"$type":"UUID","value":"{UUID(int=1)}"}}}}'
    assert default_codec.decode(text) == {"$type": "Money", "value": UUID(int=1)}
    assert default_codec.decode('{"$type":["a"]}') == {"$type": ["a"]}


def test_fold_is_kept():
    late = datetime(2024, 10, 27, 2, 30, fold=1)
    assert back(late).fold == 1
    assert back(time(2, 30, fold=1)).fold == 1


def test_a_zone_comes_back_as_its_offset():
    at = datetime(2024, 5, 1, tzinfo=ZoneInfo("Europe/Berlin"))
    assert back(at) == at
    assert back(at).utcoffset() == timedelta(hours=2)


class NoOffset(tzinfo):
    def utcoffset(self, dt):
        return None


@pytest.mark.parametrize("value", [datetime(2024, 1, 1), time(1)])
def test_a_zone_without_an_offset_is_refused(value):
    with pytest.raises(InvalidWorkError, match="no offset"):
        default_codec.encode(value.replace(tzinfo=NoOffset()))


# B26 B27
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (threading.Lock(), "lock"),
        (lambda: 1, "function"),
        (object(), "object"),
        (Model(a=1), "the model Model.*Annotate it with Model"),
        (Data(1), "the dataclass Data.*Annotate it with Data"),
        (OrderedDict(a=1), r"OrderedDict, a kind of dict.*dict\("),
        (type("Name", (str,), {})("x"), r"Name, a kind of str.*str\("),
        (memoryview(b"x"), "memoryview"),
        (Loose(8), "no name"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_its_path(value, text):
    with pytest.raises(InvalidWorkError, match=text) as caught:
        default_codec.encode({"items": [0, {"owner": value}]})
    assert caught.value.field == "items[1].owner"
    with pytest.raises(InvalidWorkError) as caught:
        default_codec.pack({1: (value,)}, "box")
    assert caught.value.field == "box[1][0]"


def test_a_key_that_cannot_be_kept_is_named_by_its_class():
    with pytest.raises(InvalidWorkError) as caught:
        default_codec.pack({threading: 1}, "box")
    assert caught.value.field == "box[<module>]"


def test_a_cycle_is_refused():
    loop: list = []
    loop += [loop, loop]
    with pytest.raises(InvalidWorkError, match=r"holds itself.*break the cycle"):
        default_codec.encode(loop)
    ring: dict = {}
    ring["ring"] = ring
    with pytest.raises(InvalidWorkError) as caught:
        default_codec.encode(ring)
    assert len(caught.value.field) < 100


@pytest.mark.parametrize("wrap", [lambda v: [v], lambda v: (v,), lambda v: {1: v}])
def test_nesting_is_either_kept_or_refused(wrap):
    value, deepest = 1, 0
    for depth in range(MAX_DEPTH + 2):
        try:
            same_again = back(value) == value
        except InvalidWorkError:
            break
        assert same_again
        deepest, value = depth, wrap(value)
    with pytest.raises(InvalidWorkError, match="levels"):
        back(value)
    assert MAX_DEPTH / 4 < deepest <= MAX_DEPTH


def test_very_deep_trees_do_not_exhaust_the_stack():
    tree: object = 1
    for _ in range(100_000):
        tree = [tree]
    with pytest.raises(InvalidWorkError, match="levels"):
        default_codec.encode(tree)
    with pytest.raises(InvalidWorkError, match="deep"):
        default_codec.unpack(tree)
    while isinstance(tree, list):
        tree = tree.pop()


@pytest.mark.parametrize("text", ["", "{", "[1", "nope", "[" * 5000, "9" * 9000])
def test_text_that_is_not_json_is_refused(text):
    with pytest.raises(InvalidWorkError, match="not JSON"):
        default_codec.decode(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"$type":"datetime"}',
        '{"$type":"datetime","value":5}',
        '{"$type":"set","value":[[1]]}',
        '{"$type":"set","value":"ab"}',
        '{"$type":"dict","value":[1]}',
        '{"$type":"Decimal","value":"x"}',
        '{"$type":"bytes","value":"*"}',
        '{"$type":"timedelta","value":[1e9,0,0,0]}',
        f'{{"$type":"enum","class":"{__name__}:Colour","name":"BLUE"}}',
        '{"$type":"exception","class":5,"text":"x"}',
        '[{"$type":"tuple","value":{"$type":"UUID","value":"x"}}]',
    ],
)
def test_a_malformed_tag_is_refused(text):
    if "exception" in text:
        assert isinstance(default_codec.decode(text), RestoredError)
        return
    with pytest.raises(InvalidWorkError, match="malformed"):
        default_codec.decode(text)


def test_reading_imports_nothing():
    assert "antigravity" not in sys.modules
    for kind in ("enum", "flag"):
        text = f'{{"$type":"{kind}","class":"antigravity:X","name":"A","names":[]}}'
        with pytest.raises(InvalidWorkError, match=r"not loaded here.*Import its module"):
            default_codec.decode(text)
    text = '{"$type":"exception","class":"antigravity:E","text":"t","args":[],"attributes":{}}'
    assert isinstance(default_codec.decode(text), RestoredError)
    assert "antigravity" not in sys.modules


@pytest.mark.parametrize("name", ["builtins:int", "os:system", "os", ":", "builtins:eval.x", ""])
def test_reading_calls_no_class_that_is_no_enum_and_no_exception(name):
    with pytest.raises(InvalidWorkError, match="not loaded"):
        default_codec.decode(f'{{"$type":"enum","class":"{name}","name":"A"}}')
    text = f'{{"$type":"exception","class":"{name}","text":"t","args":[],"attributes":{{}}}}'
    assert isinstance(default_codec.decode(text), RestoredError)


def test_a_module_that_loads_lazily_is_not_asked(monkeypatch):
    lazy = ModuleType("lazy_module")
    lazy.__getattr__ = lambda name: pytest.fail("asked")  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_module", lazy)
    with pytest.raises(InvalidWorkError, match="not loaded"):
        default_codec.decode('{"$type":"enum","class":"lazy_module:X","name":"A"}')


def test_a_local_enum_is_refused_unless_the_codec_knows_it():
    class Local(Enum):
        A = 1

    with pytest.raises(InvalidWorkError, match=r"found by its name.*top of a module") as caught:
        default_codec.pack(Local.A, "colour")
    assert caught.value.field == "colour"
    codec = DefaultCodec(classes=[Local])
    assert codec.decode(codec.encode([Local.A])) == [Local.A]


# S142
def test_builtin_exceptions_come_back():
    bad_utf8 = UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")
    for error in (ValueError("a", 1), KeyError("k"), OSError(2, "gone"), bad_utf8):
        got = back(error)
        assert type(got) is type(error)
        assert got.args == error.args
        assert str(got) == str(error)
    assert back(FileNotFoundError(2, "gone")).errno == 2
    group = back(ExceptionGroup("many", [ValueError(1), TypeError(2)]))
    assert [type(e) for e in group.exceptions] == [ValueError, TypeError]
    noted = ValueError("x")
    noted.add_note("while testing")
    assert back(noted).__notes__ == ["while testing"]


# B27
def test_an_exception_of_a_loaded_class_comes_back_without_running_its_code():
    error = CardError(card="7")
    before = CardError.ran
    got = back(error)
    assert CardError.ran == before
    assert (type(got), str(got), got.card) == (CardError, "card 7", "7")
    unknown = back(UnknownWorkError("x", ["y"]))
    assert unknown.known == ("y",)


# B27
def test_an_exception_that_cannot_be_rebuilt_keeps_its_name_and_text():
    class LocalError(Exception):
        pass

    with socket.socket() as plug:
        for error in (LocalError("t"), ValueError("t", plug), SilentError("t", plug)):
            got = back(error)
            assert isinstance(got, RestoredError)
            assert got.error_type.endswith(type(error).__qualname__)
            assert "t" in str(got)
    silent = back(SilentError(threading))
    assert "text cannot be made" in str(silent)
    wrong = '{"$type":"exception","class":"builtins:ExceptionGroup","text":"t","args":[1]%s}'
    assert isinstance(default_codec.decode(wrong % ',"attributes":{}'), RestoredError)


def test_an_exception_may_have_odd_attributes():
    error = ValueError("x")
    error.when = {1: date(2024, 1, 1)}  # type: ignore[attr-defined]
    assert back(error).when == {1: date(2024, 1, 1)}
