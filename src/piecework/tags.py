"""The tagged forms of plain values that JSON has no word for: ``{"$type": ..., "value": ...}``.

Only leaves stand here (values that hold no other values); containers, enums and exceptions need the
walk of ``codec.py``. Reading a tag calls constructors of the standard library and nothing else.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final, TypeAlias
from uuid import UUID

TAG: Final = "$type"
"""The key that marks a tagged value."""
VALUE: Final = "value"
"""The key under which a tagged value keeps its content."""

#: Integers of more bits are tagged: JSON parsers stop at 4,300 decimal digits (about 14,284 bits).
MAX_PLAIN_INT_BITS: Final = 14_000

Write: TypeAlias = Callable[[Any], Any]
Read: TypeAlias = Callable[[Any], Any]


class Refused(Exception):  # noqa: N818 - travels inside the codec, which turns it into an error
    """A value cannot be kept; the path to it grows as the exception goes up.

    Args:
        problem: What is wrong with the value.
        fix: What to do about it.
    """

    def __init__(self, problem: str, fix: str = "") -> None:
        self.problem = problem
        self.fix = fix
        self.path: list[str] = []
        super().__init__(problem)

    def where(self) -> str:
        """The path from the outside to the value; the middle of a very long one is left out."""
        steps = self.path[::-1]
        if len(steps) > 12:
            steps = [*steps[:6], "...", *steps[-3:]]
        return "".join(steps).removeprefix(".")


def tagged(tag: str, value: Any) -> dict[str, Any]:
    """The tagged form of a value."""
    return {TAG: tag, VALUE: value}


def write_int(value: int) -> Any:
    """Keep an integer as a number, or in hexadecimal where JSON parsers would give up."""
    return value if value.bit_length() <= MAX_PLAIN_INT_BITS else tagged("int", hex(value))


def write_float(value: float) -> Any:
    """Keep a float as a number; JSON has no infinities and no not-a-number."""
    if value - value == 0.0:
        return value
    return tagged("float", repr(value))


def write_str(value: str) -> Any:
    """Keep a text; lone surrogates are no Unicode text, so they travel as bytes."""
    if not value.isascii():
        try:
            value.encode()
        except UnicodeEncodeError:
            data = value.encode("utf-8", "surrogatepass")
            return tagged("str", base64.b64encode(data).decode("ascii"))
    return value


def _write_datetime(value: datetime) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Refused("a datetime whose zone gives no offset", "Give it a zone with an offset.")
    kept = tagged("datetime", value.isoformat())
    if value.fold:
        kept["fold"] = 1
    return kept


def _write_time(value: time) -> Any:
    if value.tzinfo is not None and value.utcoffset() is None:
        raise Refused("a time whose zone gives no offset", "Keep the name of the zone beside it.")
    kept = tagged("time", value.isoformat())
    if value.fold:
        kept["fold"] = 1
    return kept


def _write_timedelta(value: timedelta) -> Any:
    return tagged("timedelta", [value.days, value.seconds, value.microseconds])


def _write_complex(value: complex) -> Any:
    return tagged("complex", [repr(value.real), repr(value.imag)])


def _same(value: Any) -> Any:
    return value


WRITERS: Final[dict[type, Write]] = {
    type(None): _same,
    bool: _same,
    int: write_int,
    float: write_float,
    str: write_str,
    datetime: _write_datetime,
    date: lambda v: tagged("date", v.isoformat()),
    time: _write_time,
    timedelta: _write_timedelta,
    Decimal: lambda v: tagged("Decimal", str(v)),
    UUID: lambda v: tagged("UUID", str(v)),
    bytes: lambda v: tagged("bytes", base64.b64encode(v).decode("ascii")),
    bytearray: lambda v: tagged("bytearray", base64.b64encode(v).decode("ascii")),
    complex: _write_complex,
}
"""How each leaf is written, by its exact class."""


def _read_datetime(data: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(data[VALUE]).replace(fold=data.get("fold", 0))


def _read_time(data: dict[str, Any]) -> time:
    return time.fromisoformat(data[VALUE]).replace(fold=data.get("fold", 0))


def _read_timedelta(data: dict[str, Any]) -> timedelta:
    days, seconds, microseconds = data[VALUE]
    return timedelta(days, seconds, microseconds)


def _read_complex(data: dict[str, Any]) -> complex:
    real, imag = data[VALUE]
    return complex(float(real), float(imag))


def _read_bytes(data: dict[str, Any]) -> bytes:
    return base64.b64decode(data[VALUE], validate=True)


READERS: Final[dict[str, Read]] = {
    "int": lambda d: int(d[VALUE], 16),
    "float": lambda d: float(d[VALUE]),
    "str": lambda d: _read_bytes(d).decode("utf-8", "surrogatepass"),
    "datetime": _read_datetime,
    "date": lambda d: date.fromisoformat(d[VALUE]),
    "time": _read_time,
    "timedelta": _read_timedelta,
    "Decimal": lambda d: Decimal(d[VALUE]),
    "UUID": lambda d: UUID(d[VALUE]),
    "bytes": _read_bytes,
    "bytearray": lambda d: bytearray(_read_bytes(d)),
    "complex": _read_complex,
}
"""How each tag of a leaf is read: from the whole tagged dictionary."""
