"""One annotated type and its JSON text, written so that nothing is lost.

Pydantic's JSON is used as it is wherever it brings the same value back. Where it would not
(infinite floats or raw bytes in a model with default settings, a ``datetime`` under
``dict[str, Any]`` or ``str | datetime``), the value's plain Python form is kept with the tags of
``codec.py`` instead. What neither can keep is refused.
"""

from __future__ import annotations

from itertools import product
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import (
    CoreConfig,
    PydanticSerializationError,
    SchemaSerializer,
    SchemaValidator,
    from_json,
    to_json,
)

from piecework.codec import default_codec
from piecework.errors import InvalidWorkError
from piecework.explain import place_of
from piecework.fidelity import Difference, first_difference
from piecework.tags import TAG, VALUE, tagged

KEPT: Final = "python"
"""The tag of a value that stands in its plain Python form."""
_KEPT_START: Final = f'{{"{TAG}":"{KEPT}"'

#: Longer texts are read again before they count as kept: parsers refuse numbers of that length.
_CERTAIN_LENGTH: Final = 4_300

JSON_CONFIG: Final = CoreConfig(
    ser_json_bytes="base64", val_json_bytes="base64", ser_json_inf_nan="strings"
)
"""How JSON keeps bytes and floats, where a model does not say otherwise."""
_CERTAIN: Final = frozenset(
    {"int", "str", "float", "bool", "none", "nullable", "bytes", "uuid", "date"}
    | {"list", "set", "frozenset", "tuple", "dict"}
)
_CERTAIN_KEYS: Final = frozenset({"str", "int", "uuid"})
_FAILURES = (PydanticSerializationError, ValueError, TypeError, RecursionError)


class LossError(Exception):
    """A value would not come back the same; ``field`` is the path to it."""

    def __init__(self, problem: str, field: str = "", fix: str = "") -> None:
        self.problem = problem
        self.field = field
        self.fix = fix or "Use a type that JSON brings back, or declare the type given."
        super().__init__(problem)


class Shape:
    """Validates, writes and reads values of one type.

    Args:
        annotation: The type.
        loose_fields: Fields of a typed mapping whose values are JSON-able already.

    Raises:
        Exception: Whatever pydantic raises for a type it cannot build a schema for.
    """

    __slots__ = ("_certain", "_reader", "_strict", "_writer", "accept")

    def __init__(self, annotation: Any, loose_fields: frozenset[str] = frozenset()) -> None:
        schema = _schema_of(annotation)
        self._reader = SchemaValidator(schema, JSON_CONFIG)
        self._writer = SchemaSerializer(schema, JSON_CONFIG)
        #: Validates a Python value; raises pydantic's ``ValidationError``.
        self.accept = self._reader.validate_python
        parts: Any = schema
        if loose_fields and schema["type"] == "typed-dict":
            parts = [f for name, f in schema["fields"].items() if name not in loose_fields]
        elif schema["type"] == "typed-dict":
            parts = list(schema["fields"].values())
        self._certain = _is_certain(parts)
        self._strict = not self._certain and _mentions(parts, ("any", "union", "tagged-union"))

    def dump(self, value: Any) -> str:
        """Write a value that ``accept`` returned.

        Raises:
            LossError: It would not come back the same.
        """
        if self._certain:
            text = self._writer.to_json(value).decode()
            if len(text) <= _CERTAIN_LENGTH:
                return text
        return self._dump_checked(value)

    def load(self, text: str) -> Any:
        """Read what ``dump`` wrote.

        Raises:
            ValidationError: The text is not JSON or not of this type.
            InvalidWorkError: A tag in it is malformed.
        """
        if text.startswith(_KEPT_START):
            return self._reader.validate_python(default_codec.unpack(_kept(text)))
        return self._reader.validate_json(text)

    def _dump_checked(self, value: Any) -> str:
        losses: list[LossError] = []
        for write, by_alias in product((self._as_json, self._as_python), (True, False)):
            text = ""
            try:
                text = write(value, by_alias)
                loss = self._loss(value, self.load(text))
            except InvalidWorkError as error:
                losses.append(LossError(error.problem, error.field, error.fix))
                continue
            except _FAILURES as error:
                loss = _failure(error)
            if loss is None:
                return text
            losses.append(LossError(loss.problem, loss.path.removeprefix(".")))
        # The third way keeps most, so what it lost is the reason; a place helps more than none.
        raise next((loss for loss in (losses[2], *losses) if loss.field), losses[0])

    def _loss(self, value: Any, back: Any) -> Difference | None:
        if not self._strict and value == back:
            return None
        return first_difference(value, back, strict=self._strict)

    def _as_json(self, value: Any, by_alias: bool) -> str:
        return self._writer.to_json(
            value, by_alias=by_alias, round_trip=True, warnings="none"
        ).decode()

    def _as_python(self, value: Any, by_alias: bool) -> str:
        tree = self._writer.to_python(value, by_alias=by_alias, round_trip=True, warnings="none")
        return to_json(tagged(KEPT, default_codec.pack(tree))).decode()


def _schema_of(annotation: Any) -> Any:
    schema: Any = TypeAdapter(annotation).core_schema
    if isinstance(schema, dict):
        return cast("Any", schema)
    _ = schema["type"]  # A model waits for a name: pydantic builds it now, or raises.
    return TypeAdapter(annotation).core_schema


def plain_tree(tree: Any) -> Any:
    """The JSON-able value in a tree that ``dump`` wrote, without the mark of its form.

    Raises:
        InvalidWorkError: It is marked and holds nothing.
    """
    if isinstance(tree, dict) and cast("dict[str, Any]", tree).get(TAG) == KEPT:
        if VALUE not in tree:
            raise InvalidWorkError(f"the tagged value {KEPT!r} is malformed: it holds no value")
        return cast("dict[str, Any]", tree)[VALUE]
    return cast("Any", tree)


def _kept(text: str) -> Any:
    try:
        tree = from_json(text)
    except (ValueError, TypeError) as error:
        raise InvalidWorkError(f"the text is not JSON: {error}") from error
    return plain_tree(tree)


def _failure(error: Exception) -> Difference:
    if isinstance(error, ValidationError):
        found = error.errors(include_url=False, include_context=False, include_input=False)[0]
        return Difference(place_of(found["loc"]), f"it cannot be read back ({found['msg']})")
    first_line = str(error).partition("\n")[0]
    return Difference("", f"it cannot be kept ({first_line})")


def _is_certain(schema: Any) -> bool:
    """Whether JSON surely brings every value of a schema back, so that no second look is needed."""
    if isinstance(schema, list):
        return all(_is_certain(part["schema"]) for part in cast("list[Any]", schema))
    if schema["type"] not in _CERTAIN or "serialization" in schema or schema.get("strict"):
        return False
    if schema["type"] == "dict" and schema.get("keys_schema", {}).get("type") not in _CERTAIN_KEYS:
        return False
    if schema["type"] == "tuple":
        return all(_is_certain(part) for part in schema["items_schema"])
    inner = ("schema", "items_schema", "keys_schema", "values_schema")
    if schema["type"] in ("list", "set", "frozenset") and "items_schema" not in schema:
        return False
    return all(_is_certain(schema[key]) for key in inner if key in schema)


def _mentions(schema: Any, kinds: tuple[str, ...]) -> bool:
    """Whether any part of a schema is of one of these kinds."""
    if isinstance(schema, dict):
        parts = cast("dict[str, Any]", schema)
        return parts.get("type") in kinds or any(_mentions(p, kinds) for p in parts.values())
    if isinstance(schema, (list, tuple)):
        return any(_mentions(part, kinds) for part in cast("list[Any]", schema))
    return False
