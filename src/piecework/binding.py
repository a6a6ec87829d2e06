"""From the arguments of a call to JSON text and back, once per work type.

Nothing is built when a type is defined: the first ``bind`` or ``unbind`` resolves the annotations
and builds the validators. A default is not stored: an argument that the caller leaves out gets the
default of the handler that runs, so a changed default holds for works that wait already.

Validation follows pydantic's lax mode, unions its smart mode. Arguments without an annotation go
through ``default_codec``, each in its field.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from pydantic import ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaError, from_json, to_json

from piecework.codec import default_codec
from piecework.errors import ConfigError, InvalidWorkError
from piecework.explain import invalid_work
from piecework.failure import message_of, name_of
from piecework.hints import (
    RESULT,
    awaited,
    is_open,
    item_of,
    local_names,
    resolve_hints,
    signature_of,
    without_errors,
)
from piecework.parameters import Parameters, read_item, read_parameters
from piecework.shape import JSON_CONFIG, KEPT, LossError, Shape, plain_tree
from piecework.tags import TAG, tagged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from piecework.codec import Codec

# A mapping with a configuration of its own takes nothing from the configuration around it.
_INPUT_CONFIG: Final[dict[str, Any]] = {"extra": "forbid", **JSON_CONFIG}
_SCHEMA_FAILURES = (PydanticUserError, SchemaError, TypeError)
#: What a codec of the user's may raise where a text is not its own.
_CODEC_FAILURES = (ValueError, TypeError, LookupError, ArithmeticError, RecursionError)
_RESULT_FIELD: Final = "result"
_ITEM: Final = "item"
_NO_CONTEXT: Final = object()


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is known once the annotations are resolved."""

    parameters: Parameters
    open_fields: tuple[str, ...]
    result: Any


class Binding:
    """Maps the arguments and the result of one handler to JSON text and back.

    Args:
        fn: The handler: a function, a bound method, a ``partial`` or another callable with a
            signature.
        work_type: The name of the work type, for errors.
        codec: Replaces JSON for this type. It is given the whole mapping of inputs, and the result.
        context_type: The class that marks the context's parameter.
        batch: Whether the handler takes a list of items and returns a list of results; one item
            and one result are bound then.

    Example:
        >>> def add(a: int, b: int = 2) -> int: ...
        >>> Binding(add, work_type="add", context_type=WorkContext).bind((1,), {})
        '{"a":1}'
    """

    __slots__ = (
        "_batch",
        "_codec",
        "_context_type",
        "_fn",
        "_input",
        "_locals",
        "_plan_",
        "_result",
        "_work_type",
    )

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        work_type: str,
        codec: Codec | None = None,
        context_type: type,
        batch: bool = False,
    ) -> None:
        self._fn = fn
        self._work_type = work_type
        self._codec = codec
        self._context_type = context_type
        self._batch = batch
        self._locals = local_names(fn)
        self._plan_: _Plan | None = None
        self._input: Shape | None = None
        self._result: Shape | None = None

    @property
    def context_name(self) -> str | None:
        """The name of the parameter that is annotated with the context's class."""
        return self._plan().parameters.context

    @property
    def takes_context(self) -> bool:
        """Whether the handler asks for the context."""
        return self.context_name is not None

    @property
    def parameters(self) -> list[str]:
        """The names of the stored fields, in the handler's order."""
        return self._plan().parameters.names

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str:
        """Validate the arguments of a call (without the context) and write them as text.

        Raises:
            InvalidWorkError: An argument is missing, doubled, unknown, of a wrong type, or cannot
                be kept.
            ConfigError: An annotation cannot be resolved.
        """
        plan = self._plan_ or self._plan()
        if self._batch and _ITEM in kwargs and _ITEM not in plan.parameters.keywords:
            kwargs = self._item_renamed(kwargs)
        return self._write(plan.parameters.collect(args, kwargs))

    def bind_mapping(self, mapping: Mapping[str, Any]) -> str:
        """Like ``bind``, from Python values by the names of the parameters."""
        plan = self._plan_ or self._plan()
        if self._batch and _ITEM in mapping and _ITEM not in plan.parameters.keywords:
            mapping = self._item_renamed(mapping)
        return self._write(plan.parameters.collect_mapping(mapping))

    def bind_json(self, text: str) -> str:
        """Like ``bind_mapping``, from JSON text with tags: a command line, or ``mapping``'s own.

        Raises:
            InvalidWorkError: The text is not a JSON object, or not what the handler takes.
        """
        return self._write(self._parse_json(text))

    def unbind(self, text: str, context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read what ``bind`` wrote: the arguments to call the handler with.

        Args:
            text: The stored input.
            context: What to pass where the handler asks for the context.

        Raises:
            InvalidWorkError: The text is not what the handler takes (any more).
        """
        if self._batch:
            return ([self.unbind_item(text)],), {}
        plan = self._plan_ or self._plan()
        return plan.parameters.arrange(self._read(text), context)

    def arguments(self, text: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Read what ``bind`` wrote, as the caller gave it: without the context.

        Raises:
            InvalidWorkError: The text is not what the handler takes (any more).
        """
        if self._batch:
            return (self.unbind_item(text),), {}
        args, kwargs = self.unbind(text, _NO_CONTEXT)
        given = tuple(value for value in args if value is not _NO_CONTEXT)
        return given, {name: value for name, value in kwargs.items() if value is not _NO_CONTEXT}

    def unbind_item(self, text: str) -> Any:
        """The one item of a batch type's input.

        Raises:
            InvalidWorkError: The text is not what the handler takes (any more).
        """
        return self._read(text)[self.parameters[0]]

    def dump_result(self, value: Any) -> str:
        """Validate a result against the return annotation and write it as text.

        Raises:
            InvalidWorkError: It is of a wrong type or cannot be kept.
        """
        plan = self._plan_ or self._plan()
        if is_open(plan.result):
            return self._encode(value, _RESULT_FIELD)
        shape = self._result or self._result_shape()
        try:
            text = shape.dump(shape.accept(value))
        except ValidationError as error:
            raise invalid_work(error, work_type=self._work_type, field=_RESULT_FIELD) from error
        except LossError as loss:
            raise self._lost(loss, _RESULT_FIELD) from loss
        except Exception as error:
            raise self._raised(error, _RESULT_FIELD) from error
        return text if self._codec is None else self._encode(from_json(text), _RESULT_FIELD)

    def load_result(self, text: str) -> Any:
        """Read what ``dump_result`` wrote.

        Raises:
            InvalidWorkError: The text is not of the return annotation.
        """
        plan = self._plan_ or self._plan()
        if is_open(plan.result):
            return self._decode(text)
        shape = self._result or self._result_shape()
        try:
            if self._codec is not None:
                tree = self._decode(text)
                plain = plain_tree(tree)
                # A codec may have changed the order of the keys, and the tag has to be the first.
                text = to_json(plain if plain is tree else tagged(KEPT, plain)).decode()
            return shape.load(text)
        except ValidationError as error:
            raise invalid_work(error, work_type=self._work_type, field=_RESULT_FIELD) from error
        except InvalidWorkError as error:
            raise self._named(error) from error

    def mapping(self, text: str) -> dict[str, Any]:
        """The input as a JSON-able mapping of parameter names; untyped values keep their tags.

        Raises:
            InvalidWorkError: The text is no input of this type.
        """
        if self._codec is None:
            return self._plain_mapping(text)
        opened = self._plan().open_fields
        given = self._decoded_mapping(text)
        return {n: _jsonable(v) if n in opened else v for n, v in given.items() if n != TAG}

    def _write(self, data: dict[str, Any]) -> str:
        shape = self._input or self._input_shape()
        plan = cast("_Plan", self._plan_)
        try:
            data = shape.accept(data)
            if self._codec is not None:
                return self._write_with_codec(shape, data)
            for name in plan.open_fields:
                if name in data:
                    data[name] = default_codec.pack(data[name], name)
            return shape.dump(data)
        except ValidationError as error:
            known = plan.parameters.names
            raise invalid_work(error, work_type=self._work_type, known=known) from error
        except LossError as loss:
            raise self._lost(loss, "") from loss
        except InvalidWorkError as error:
            raise self._named(error) from error
        except Exception as error:
            raise self._raised(error, "") from error

    def _read(self, text: str) -> dict[str, Any]:
        shape = self._input or self._input_shape()
        plan = cast("_Plan", self._plan_)
        try:
            if self._codec is not None:
                return self._read_with_codec(shape, text)
            data: dict[str, Any] = shape.load(text)
            for name in plan.open_fields:
                if type(data.get(name)) in (dict, list):
                    data[name] = default_codec.unpack(data[name])
        except ValidationError as error:
            known = plan.parameters.names
            raise invalid_work(error, work_type=self._work_type, known=known) from error
        except InvalidWorkError as error:
            raise self._named(error) from error
        return data

    def _parse_json(self, text: str) -> dict[str, Any]:
        shape = self._input or self._input_shape()
        plan = cast("_Plan", self._plan_)
        given = self._object(text)
        if self._batch and _ITEM in given:
            given = self._item_renamed(given)
        tree = plan.parameters.collect_mapping(given)
        try:
            data: dict[str, Any] = shape.load(to_json(tree).decode())
            for name in plan.open_fields:
                if name in data:
                    data[name] = default_codec.unpack(data[name])
        except ValidationError as error:
            known = plan.parameters.names
            raise invalid_work(error, work_type=self._work_type, known=known) from error
        except InvalidWorkError as error:
            raise self._named(error) from error
        return data

    def _write_with_codec(self, shape: Shape, data: dict[str, Any]) -> str:
        opened = {n: data[n] for n in cast("_Plan", self._plan_).open_fields if n in data}
        tree = from_json(shape.dump({**data, **dict.fromkeys(opened)}))
        if TAG in tree:  # no parameter has that name
            tree = {TAG: KEPT, **plain_tree(tree)}
        return self._encode({**tree, **opened}, "")

    def _read_with_codec(self, shape: Shape, text: str) -> dict[str, Any]:
        given = self._decoded_mapping(text)
        opened = {n: given[n] for n in cast("_Plan", self._plan_).open_fields if n in given}
        typed = {**given, **dict.fromkeys(opened)}
        if typed.pop(TAG, None) == KEPT:
            typed = tagged(KEPT, typed)
        return {**shape.load(to_json(typed).decode()), **opened}

    def _encode(self, value: Any, field: str) -> str:
        if self._codec is not None:
            return self._codec.encode(value)
        try:
            return to_json(default_codec.pack(value, field)).decode()
        except InvalidWorkError as error:
            raise self._named(error) from error

    def _decode(self, text: str) -> Any:
        codec = self._codec or default_codec
        try:
            return codec.decode(text)
        except InvalidWorkError as error:
            raise self._named(error) from error
        except _CODEC_FAILURES as error:
            raise InvalidWorkError(
                f"the codec cannot decode the text: {error}", work_type=self._work_type
            ) from error

    def _decoded_mapping(self, text: str) -> dict[str, Any]:
        given = self._decode(text)
        if not isinstance(given, dict):
            raise InvalidWorkError(
                f"the codec decoded a {type(given).__qualname__}, not the mapping of the inputs",
                work_type=self._work_type,
            )
        return cast("dict[str, Any]", given)

    def _object(self, text: str) -> dict[str, Any]:
        try:
            tree = from_json(text)
        except (ValueError, TypeError) as error:  # half of a surrogate pair is a TypeError
            raise InvalidWorkError(
                f"the text is not JSON: {error}", work_type=self._work_type
            ) from error
        if not isinstance(tree, dict):
            raise InvalidWorkError(
                f"the input must be a JSON object, not a {type(tree).__qualname__}",
                work_type=self._work_type,
                fix=f"Its keys are: {', '.join(self.parameters) or 'none'}.",
            )
        return cast("dict[str, Any]", tree)

    def _plain_mapping(self, text: str) -> dict[str, Any]:
        try:
            plain = plain_tree(self._object(text))
        except InvalidWorkError as error:
            raise self._named(error) from error
        if not isinstance(plain, dict):
            raise InvalidWorkError("the input holds no mapping", work_type=self._work_type)
        return cast("dict[str, Any]", plain)

    def _item_renamed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        name = self.parameters[0]
        return {name if key == _ITEM else key: value for key, value in given.items()}

    def _plan(self) -> _Plan:
        """Resolve the annotations; two threads at once do the same work twice."""
        if self._plan_ is None:
            signature = signature_of(self._fn, self._work_type)
            hints = resolve_hints(
                self._fn,
                signature,
                work_type=self._work_type,
                names=self._locals,
                known=self._context_type,
            )
            read = read_item if self._batch else read_parameters
            found = read(
                signature, hints, work_type=self._work_type, context_type=self._context_type
            )
            result = awaited(hints[RESULT])
            if self._batch:
                result = without_errors(item_of(result))
            self._plan_ = _Plan(found, tuple(found.open_fields), result)
            self._locals = {}
        return self._plan_

    def _input_shape(self) -> Shape:
        plan = self._plan()
        try:
            fields = plan.parameters.typed_dict(_INPUT_CONFIG)
            self._input = Shape(fields, frozenset(plan.open_fields))
        except (PydanticUndefinedAnnotation, *_SCHEMA_FAILURES) as error:
            raise self._no_schema(plan.parameters.types, error) from error
        return self._input

    def _result_shape(self) -> Shape:
        annotation = self._plan().result
        try:
            self._result = Shape(annotation)
        except (PydanticUndefinedAnnotation, *_SCHEMA_FAILURES) as error:
            raise self._no_schema({_RESULT_FIELD: annotation}, error) from error
        return self._result

    def _no_schema(self, types: Mapping[str, Any], error: Exception) -> Exception:
        """Name the field whose type cannot be kept, or say what a model waits for."""
        for name, annotation in types.items():
            try:
                Shape(annotation)
            except (PydanticUndefinedAnnotation, *_SCHEMA_FAILURES) as inner:
                shown = getattr(annotation, "__qualname__", None) or str(annotation)
                if _waits_for_a_name(inner):
                    return ConfigError(
                        f"work type {self._work_type!r}: the type {shown} of {name!r} names what "
                        f"is not defined yet. Define it, then call model_rebuild() on the model."
                    )
                return InvalidWorkError(
                    f"the type {shown} cannot be kept",
                    work_type=self._work_type,
                    field=name,
                    fix="Use a pydantic model, a dataclass, a TypedDict or plain data.",
                )
        return InvalidWorkError(f"its types cannot be kept: {error}", work_type=self._work_type)

    def _lost(self, loss: LossError, field: str) -> InvalidWorkError:
        inner = loss.field
        place = f"{field}.{inner}" if field and inner and inner[0] != "[" else field + inner
        return InvalidWorkError(loss.problem, work_type=self._work_type, field=place, fix=loss.fix)

    def _raised(self, error: Exception, field: str) -> InvalidWorkError:
        """What a validator or a method of the value itself has raised."""
        return InvalidWorkError(
            f"checking it raised {name_of(error)}: {message_of(error)}",
            work_type=self._work_type,
            field=field,
        )

    def _named(self, error: InvalidWorkError) -> InvalidWorkError:
        if error.work_type:
            return error
        return InvalidWorkError(
            error.problem, work_type=self._work_type, field=error.field, fix=error.fix
        )


def _waits_for_a_name(error: Exception) -> bool:
    unnamed = getattr(error, "code", "") == "class-not-fully-defined"
    return unnamed or isinstance(error, PydanticUndefinedAnnotation)


def _jsonable(value: Any) -> Any:
    """A JSON-able stand-in for a value that only the type's own codec knows how to keep."""
    try:
        return default_codec.pack(value)
    except InvalidWorkError:
        return repr(value)
