"""Texts that no codec of ours wrote, and values that no codec can keep: taken, or refused by us."""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from collections.abc import Callable, Generator
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntFlag
from typing import Annotated, Any, Literal, TypedDict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from tests.fuzz.effort import fuzzed
from tests.fuzz.values import odd_values

from piecework import WorkContext, default_codec
from piecework.binding import Binding
from piecework.errors import InvalidWorkError
from piecework.packing import unpack_work
from piecework.testing.fuzz import inputs, json_texts, json_values, tagged_values


class UserError(Exception):
    """What code of the user's raises where we read for them: it is theirs to see."""


class Colour(Enum):
    RED = "red"


class Strict(Enum):
    ONE = 1

    @classmethod
    def _missing_(cls, value: object) -> Any:
        raise UserError("code of the user's")


class Bits(IntFlag):
    A = 1
    B = 2


class Model(BaseModel):
    name: str
    at: datetime | None = None
    inner: dict[str, Any] = Field(default_factory=dict)
    kids: list[Model] = Field(default_factory=list)


@dataclass
class Point:
    x: int
    y: Decimal = Decimal(0)


class Typed(TypedDict, total=False):
    a: int
    b: list[str]


def plain(a: int, b: int = 2) -> int: ...
def loose(a, b=None, *rest, **more): ...
def models(ctx: WorkContext, value: Model, points: list[Point] | None = None) -> Model: ...
def unions(a: int | str | Model | None, b: Literal["x", 1] = "x", /, *, item: Any = 0) -> Any: ...
def many(*a: date, **b: UUID) -> set[bytes]: ...
def typed(a: Typed, b: dict[Bits, tuple[float, complex]] | None = None) -> Typed: ...
def enums(a: Colour, b: Annotated[int, Field(gt=0)], value: timedelta | float = 0.0) -> Strict: ...
def listed(items: list[Model | int]) -> list[int | ValueError]: ...


HANDLERS = [plain, loose, models, unions, many, typed, enums]


def binding(fn: Callable[..., Any], *, batch: bool = False) -> Binding:
    return Binding(fn, work_type="kind", context_type=WorkContext, batch=batch)


BINDINGS = [*map(binding, HANDLERS), binding(listed, batch=True)]
MORE_NAMES = st.sampled_from(["enum:Enum", f"{__name__}:Strict", f"{__name__}:Bits"])


@contextlib.contextmanager
def refused_by_us(work_type: str = "", *, reading: bool = False) -> Generator[None]:
    """What is refused is refused with an error of ours that names the work type."""
    try:
        yield
    except UserError:
        if not reading:
            raise
    except InvalidWorkError as error:
        if error.work_type != work_type:
            raise AssertionError(f"it names {error.work_type!r}") from error


@fuzzed(25)
@given(json_values() | tagged_values())
def test_any_tree_is_read_or_refused(tree):  # P7
    before = set(sys.modules)
    with refused_by_us(reading=True):
        default_codec.unpack(tree)
    assert not {"antigravity", "this"} & (set(sys.modules) - before)


@fuzzed(25)
@given(json_texts() | st.text() | tagged_values().map(json.dumps))
def test_any_text_is_decoded_or_refused(text):  # P7
    with refused_by_us(reading=True):
        default_codec.decode(text)


@fuzzed(25)
@given(odd_values())
def test_any_value_is_encoded_or_refused(odd):  # P7
    with refused_by_us():
        default_codec.decode(default_codec.encode(odd.value))


@fuzzed(25)
@given(st.sampled_from(BINDINGS), inputs() | tagged_values().map(json.dumps))
def test_any_input_fits_a_handler_or_is_refused_by_its_name(bound, text):  # P7 S63
    with refused_by_us("kind", reading=True):
        args, kwargs = bound.unbind(text, None)
        assert isinstance(args, tuple)
        assert isinstance(kwargs, dict)
    with refused_by_us("kind", reading=True):
        bound.bind_json(text)
    with refused_by_us("kind", reading=True):
        bound.mapping(text)
    with refused_by_us("kind", reading=True):
        bound.load_result(text)


@fuzzed(25)
@given(
    st.sampled_from(BINDINGS),
    st.lists(odd_values(), max_size=3),
    st.dictionaries(st.sampled_from(["a", "b", "value", "items", "item", "x", ""]), odd_values()),
)
def test_any_argument_is_taken_or_refused_by_its_name(bound, args, kwargs):  # P7
    args = [odd.value for odd in args]
    kwargs = {name: odd.value for name, odd in kwargs.items()}
    with refused_by_us("kind"):
        bound.unbind(bound.bind(tuple(args), kwargs), None)
    with refused_by_us("kind"):
        bound.bind_mapping(kwargs)


@fuzzed(25)
@given(st.sampled_from(BINDINGS), odd_values())
def test_any_result_is_kept_or_refused_by_its_name(bound, odd):  # P7
    with refused_by_us("kind"):
        bound.load_result(bound.dump_result(odd.value))


@fuzzed(20)
@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["type", "id", "input", "options"], json_values(max_leaves=4))
    )
)
def test_any_packed_work_is_unpacked_or_refused(packed):  # P7
    from piecework.definitions import WorkType

    with refused_by_us():
        unpack_work(lambda name: WorkType(name, plain, {}), packed)


def test_the_handlers_differ():
    assert len({str(inspect.signature(fn)) for fn in HANDLERS}) == len(HANDLERS)


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 1_000 + "1" + "}" * 1_000])
def test_deep_text_is_refused(text):  # P7
    with pytest.raises(InvalidWorkError):
        default_codec.decode(text)
