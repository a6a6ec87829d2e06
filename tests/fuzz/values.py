"""Python values that nobody expects: as arguments, as options, as results, as exceptions."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from fractions import Fraction
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from piecework import Retry
from piecework.errors import shown
from piecework.testing.fuzz import json_values


class NoZone(tzinfo):
    """A zone that knows no offset."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    def tzname(self, dt: datetime | None) -> None:
        return None

    def dst(self, dt: datetime | None) -> None:
        return None


class Hostile:
    """Raises whatever it is asked for."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __str__(self) -> str:
        raise RuntimeError("no str")

    def __reduce__(self) -> Any:
        raise AssertionError("nothing is pickled")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no comparison")

    def __hash__(self) -> int:
        raise RuntimeError("no hash")


class Text(str):
    __slots__ = ()

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class Number(int):
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


class OddError(Exception):
    """An exception whose every method fails."""

    def __str__(self) -> str:
        raise RuntimeError("no text")

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __reduce__(self) -> Any:
        raise AssertionError("nothing is pickled")


class NoTextError(Exception):
    """An exception whose text is no text."""

    def __str__(self) -> Any:
        return 7  # noqa: PLE0307 - on purpose


class GreedyError(Exception):
    """An exception that needs arguments to be built again."""

    def __init__(self, a: int, *, b: int) -> None:
        self.held = object()
        super().__init__()


def _loop() -> list[Any]:
    values: list[Any] = []
    values.append(values)
    return values


def _deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(3_000):
        value = [value]
    return value


def _cyclic_error() -> Exception:
    error = ValueError("cycle")
    error.__cause__ = KeyError("other")
    error.__cause__.__cause__ = error
    return error


def odd_errors() -> st.SearchStrategy[BaseException]:
    """Exceptions with hostile methods, arguments and attributes."""
    odd = st.sampled_from(
        [
            lambda: OddError(Hostile()),
            NoTextError,
            lambda: GreedyError(1, b=2),
            lambda: ValueError(Hostile()),
            lambda: KeyError("\ud800"),
            lambda: ValueError("x" * 100_000),
            lambda: OSError(2, "x", Hostile()),
            lambda: ExceptionGroup("many", [OddError(), ValueError("\ud800")]),
            lambda: UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"),
            lambda: type("\u2028" * 300, (Exception,), {})("name"),
            lambda: StopIteration(1),
            StopAsyncIteration,
            _cyclic_error,
        ]
    ).map(lambda make: make())
    noted = st.builds(_noted, json_values(max_leaves=3))
    plain = st.builds(ValueError, json_values(max_leaves=3), json_values(max_leaves=3))
    return odd | plain | noted


def _noted(note: Any) -> Exception:
    error = RuntimeError("noted")
    error.__notes__ = note
    error.held = note  # type: ignore[attr-defined] # what users do
    return error


ODD: list[Any] = [
    Hostile(),
    Hostile,
    Text("\ud800"),
    Text("text"),
    Number(3),
    object(),
    object,
    len,
    lambda: 1,
    ...,
    NotImplemented,
    math.nan,
    math.inf,
    -math.inf,
    -0.0,
    1e308,
    -1,
    10**400,
    -(10**400),
    10**5_000,
    2**63,
    1j,
    b"\xff",
    bytearray(b"\xff"),
    memoryview(b"1"),
    range(3),
    deque([1]),
    OrderedDict(a=1),
    Fraction(1, 3),
    Decimal("NaN"),
    Decimal("sNaN"),
    Decimal("1E+999999"),
    datetime(1, 1, 1),
    datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14))),
    datetime(9999, 12, 31, 23, 59, 59, 999_999, tzinfo=timezone(timedelta(hours=-14))),
    datetime(2026, 1, 1, tzinfo=UTC),
    datetime(2026, 1, 1, tzinfo=NoZone()),
    time(1, tzinfo=NoZone()),
    date(1, 1, 1),
    timedelta.max,
    timedelta.min,
    timedelta(0),
    UUID(int=0),
    Retry(),
    "",
    "\ud800",
    "\x00",
    "$type",
    {"$type": "int"},
    {1: 2},
    {(): []},
    {"a": {1, 2}},
    frozenset([()]),
    iter([1]),
    (n for n in ()),
    [],
    {},
    (),
]


class Odd:
    """Holds a value of which hypothesis could not even print an example."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return f"Odd({shown(self.value)})"


def odd_values() -> st.SearchStrategy[Odd]:
    """Any Python value: plain ones, strange ones, ones that hold themselves."""
    made = st.sampled_from([_loop, _deep]).map(lambda make: make())
    odd = st.integers(0, len(ODD) - 1).map(ODD.__getitem__)  # some have no hash
    leaf = json_values(max_leaves=4) | odd | made | odd_errors()
    some = st.lists(leaf, max_size=2) | st.dictionaries(st.text(max_size=3), leaf, max_size=2)
    return (leaf | some).map(Odd)
