"""Values to JSON text and back, where no annotation says what they are.

What JSON has no word for is tagged, ``{"$type": "date", "value": "2024-05-01"}``, so it comes back
with its type. A value that cannot be kept is refused when it is written, with the path to it.
"""

from __future__ import annotations

from dataclasses import is_dataclass
from enum import Enum, Flag
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from piecework.errors import InvalidWorkError
from piecework.loaded import (
    RestoredError,
    class_name,
    find_class,
    find_enum,
    rebuild_exception,
)
from piecework.tags import READERS, TAG, VALUE, WRITERS, Refused, tagged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

#: Levels of JSON that a value may have. The parser stops at 200, and a mapping is put around it.
MAX_DEPTH: Final = 150

_BAD_DATA = (TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
_LEAVES: Final = frozenset({int, bool, type(None)})
_SMALL: Final = 2**63


class Codec(Protocol):
    """Turns values into text and text into values.

    A type's own codec (``define_work(codec=...)``) is given the whole mapping of inputs, and the
    result. Values of annotated parameters are JSON-able in it; the others are as the caller gave
    them. ``decode(encode(value))`` must equal ``value``.

    Example:
        >>> class Sealed:
        ...     def encode(self, value: Any) -> str:
        ...         return seal(default_codec.encode(value))
        ...     def decode(self, text: str) -> Any:
        ...         return default_codec.decode(unseal(text))
    """

    def encode(self, value: Any) -> str:
        """Turn a value into text; raise where it cannot be kept."""
        ...

    def decode(self, text: str) -> Any:
        """Turn text of ``encode`` back into an equal value; raise where it is something else."""
        ...


class DefaultCodec:
    """JSON with tags for the types that JSON lacks.

    Kept: ``None``, ``bool``, ``int``, ``float``, ``str``, ``list``, ``dict`` (with any keys),
    ``datetime``, ``date``, ``time``, ``timedelta``, ``Decimal``, ``UUID``, ``bytes``,
    ``bytearray``, ``set``, ``frozenset``, ``tuple``, ``complex``, members of enums, exceptions.
    A zone comes back as its offset. Subclasses of these are refused, for they would change their
    type; models and dataclasses belong to an annotated parameter.

    Reading never imports and runs no code of a payload's choice. An enum's class must be loaded
    already or be given in ``classes``; an exception whose class is not becomes a ``RestoredError``.
    Unknown tags are left as they are.

    Args:
        classes: Enum and exception classes that cannot be found by name (local ones).

    Example:
        >>> default_codec.encode({"at": date(2024, 5, 1)})
        '{"at":{"$type":"date","value":"2024-05-01"}}'
    """

    def __init__(self, classes: Iterable[type] = ()) -> None:
        self._classes = {class_name(cls): cls for cls in classes}
        self._writers: dict[type, Callable[[Any, int], Any]] = {
            dict: self._write_dict,
            list: self._write_list,
            tuple: lambda v, depth: tagged("tuple", self._write_list(v, depth + 1)),
            set: lambda v, depth: tagged("set", self._write_list(v, depth + 1)),
            frozenset: lambda v, depth: tagged("frozenset", self._write_list(v, depth + 1)),
        }
        readers: dict[str, Callable[[dict[str, Any]], Any]] = {
            "dict": lambda d: {self._read(k): self._read(v) for k, v in d[VALUE]},
            "tuple": lambda d: tuple(self._read_list(d)),
            "set": lambda d: set(self._read_list(d)),
            "frozenset": lambda d: frozenset(self._read_list(d)),
            "enum": self._read_enum,
            "flag": self._read_flag,
            "exception": self._read_exception,
        }
        self._readers = readers | READERS

    def encode(self, value: Any) -> str:
        """Turn a value into JSON text.

        Raises:
            InvalidWorkError: It cannot be kept; the text names the path, the type and the fix.
        """
        from pydantic_core import to_json

        return to_json(self.pack(value)).decode()

    def decode(self, text: str) -> Any:
        """Turn JSON text back into the value.

        Raises:
            InvalidWorkError: The text is not JSON, a tag is malformed, or an enum is not loaded.
        """
        try:
            from pydantic_core import from_json

            tree = from_json(text)
        except (ValueError, TypeError) as error:  # half of a surrogate pair is a TypeError
            raise InvalidWorkError(f"the text is not JSON: {error}") from error
        # Without the tag's key nothing is tagged, and the parser's own tree is the value.
        return self.unpack(tree) if TAG in text else tree

    def pack(self, value: Any, field: str = "") -> Any:
        """The JSON-able form of a value.

        Args:
            value: Any value.
            field: The name that paths in errors start with.

        Raises:
            InvalidWorkError: It cannot be kept.
        """
        if type(value) in _LEAVES and (value is None or -_SMALL < value < _SMALL):
            return value
        try:
            return self._write(value, 0)
        except Refused as refused:
            refused.path.append(field)
            where = refused.where()
            raise InvalidWorkError(
                f"cannot keep {refused.problem}", field=where, fix=refused.fix
            ) from None

    def unpack(self, tree: Any) -> Any:
        """The value of a JSON-able form.

        Args:
            tree: What ``pack`` returned, or what a JSON parser made of it.

        Raises:
            InvalidWorkError: A tag is malformed, or an enum is not loaded.
        """
        try:
            return self._read(tree)
        except RecursionError:
            raise InvalidWorkError("the value is nested too deeply") from None

    def _write(self, value: Any, depth: int) -> Any:
        kind = cast("type[Any]", type(value))
        leaf = WRITERS.get(kind)
        if leaf is not None:
            return leaf(value)
        if depth >= MAX_DEPTH:
            raise Refused(
                f"a value that is nested over {MAX_DEPTH} levels or that holds itself",
                "Make it flatter, and break the cycle.",
            )
        container = self._writers.get(kind)
        if container is not None:
            return container(value, depth + 1)
        if isinstance(value, Enum):
            return self._write_enum(value, depth)
        if isinstance(value, BaseException):
            return self._write_exception(value, depth)
        raise _refusal(value)

    def _write_list(self, values: Iterable[Any], depth: int) -> list[Any]:
        packed: list[Any] = []
        try:
            for value in values:
                packed.append(self._write(value, depth))  # noqa: PERF401 - its length is the index at fault
        except Refused as refused:
            refused.path.append(f"[{len(packed)}]")
            raise
        return packed

    def _write_dict(self, values: dict[Any, Any], depth: int) -> Any:
        packed: dict[str, Any] = {}
        for key, value in values.items():
            if type(key) is not str or key == TAG or not (key.isascii() or _is_text(key)):
                return self._write_pairs(values, depth)
            try:
                packed[key] = self._write(value, depth)
            except Refused as refused:
                refused.path.append(f".{key}")
                raise
        return packed

    def _write_pairs(self, values: dict[Any, Any], depth: int) -> Any:
        pairs: list[Any] = []
        for key, value in values.items():
            try:
                pairs.append([self._write(key, depth + 2), self._write(value, depth + 2)])
            except Refused as refused:
                refused.path.append(f"[{_short(key)}]")
                raise
        return tagged("dict", pairs)

    def _write_enum(self, value: Enum, depth: int) -> Any:
        cls = type(value)
        name = class_name(cls)
        if find_enum(name, self._classes) is not cls:
            raise Refused(
                f"a member of the enum {cls.__qualname__}, which cannot be found by its name",
                "Define the enum at the top of a module, or annotate the parameter with it.",
            )
        if isinstance(value, Flag):
            names = [m.name for m in value]
            if _united(cls, list(value)) != value:
                raise Refused("a flag with bits that have no name", "Pass its integer.")
            return {TAG: "flag", "class": name, "names": names}
        return {TAG: "enum", "class": name, "name": value.name}

    def _write_exception(self, error: BaseException, depth: int) -> Any:
        kept: dict[str, Any] = {
            TAG: "exception",
            "class": class_name(type(error)),
            "text": WRITERS[str](_text_of(error)),
        }
        try:
            args = self._write_list(error.args, depth + 1)
            attributes = self._write_dict(vars(error), depth + 1)
        except Refused:
            return kept  # The name and the text are what every exception has.
        return kept | {"args": args, "attributes": attributes}

    def _read(self, tree: Any) -> Any:
        kind = cast("type[Any]", type(tree))
        if kind is list:
            return [self._read(item) for item in tree]
        if kind is not dict:
            return tree
        tag = tree.get(TAG)
        reader = self._readers.get(tag) if type(tag) is str else None
        if reader is None:
            return {key: self._read(value) for key, value in tree.items()}
        try:
            return reader(tree)
        except InvalidWorkError:
            raise
        except _BAD_DATA as error:
            raise InvalidWorkError(f"the tagged value {tag!r} is malformed: {error}") from error

    def _read_list(self, data: dict[str, Any]) -> list[Any]:
        values = data[VALUE]
        if type(values) is not list:
            raise TypeError("it holds no list")
        return [self._read(value) for value in cast("list[Any]", values)]

    def _enum_class(self, name: str) -> type[Enum]:
        cls = find_enum(name, self._classes)
        if cls is None:
            raise InvalidWorkError(
                f"the enum {name!r} is not loaded here",
                fix="Import its module in the worker, or annotate the parameter with the enum.",
            )
        return cls

    def _read_enum(self, data: dict[str, Any]) -> Enum:
        return self._enum_class(data["class"]).__members__[data["name"]]

    def _read_flag(self, data: dict[str, Any]) -> Enum:
        cls = self._enum_class(data["class"])
        if not issubclass(cls, Flag):
            raise TypeError("its class is no flag")
        members = [cls.__members__[name] for name in data["names"]]
        return _united(cls, members)

    def _read_exception(self, data: dict[str, Any]) -> BaseException:
        name, text = data["class"], self._read(data["text"])
        if type(text) is not str:
            raise TypeError("its text must be a text")
        if "args" in data:
            cls = find_class(name, self._classes)
            args = tuple(self._read(data["args"]))
            attributes = self._read(data["attributes"])
            error = rebuild_exception(cls, args, attributes) if cls is not None else None
            if error is not None:
                return error
        return RestoredError(name, text)


def _united(cls: Any, members: Iterable[Any]) -> Any:
    """The flag that has all these members set."""
    flag = cls(0)
    for member in members:
        flag |= member
    return flag


def _is_text(text: str) -> bool:
    """Whether a text is free of lone surrogates."""
    return WRITERS[str](text) is text


def _short(key: Any) -> str:
    """A key as it stands in a path; a key of an unknown class may have any ``repr``."""
    return repr(key)[:40] if type(key) in WRITERS else f"<{type(key).__qualname__}>"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - a failing __str__ must not hide the error it belongs to
        return f"<{type(error).__qualname__} whose text cannot be made>"


def _refusal(value: Any) -> Refused:
    kind = cast("type[Any]", type(value))
    name = kind.__qualname__
    model = hasattr(kind, "__pydantic_core_schema__")
    if model or is_dataclass(kind):
        what = "dataclass" if is_dataclass(kind) else "model"
        return Refused(f"the {what} {name} without an annotation", f"Annotate it with {name}.")
    for parent in kind.__mro__[1:]:
        if parent in WRITERS or parent in (dict, list, tuple, set, frozenset):
            fix = f"Convert it with {parent.__name__}(...), or annotate the parameter."
            return Refused(f"a value of type {name}, a kind of {parent.__name__}", fix)
    fix = "Pass the data that it is made from, or annotate it with a type that pydantic serializes."
    return Refused(f"a value of type {name}", fix)


default_codec: Final = DefaultCodec()
"""The codec of values that no annotation describes."""
