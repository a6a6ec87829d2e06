"""What a handler takes: which parameters, by which way, and where the context goes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn, NotRequired, cast, get_args, get_origin

import typing_extensions
from typing_extensions import TypedDict

from piecework.errors import ConfigError, InvalidWorkError
from piecework.hints import is_open, item_of, names_class

_EMPTY = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameters:
    """The parameters of one handler, without its context.

    Attributes:
        work_type: The name of the work type, for errors.
        positional: Names that take positional arguments, in order.
        positional_only: Those of them that take no keyword.
        keywords: Names that take a keyword.
        rest: The name of ``*args``, if there is one.
        extra: The name of ``**kwargs``, if there is one.
        context: The name of the context's parameter, if there is one.
        defaults: The defaults of the parameters that have one.
        types: What each stored field is annotated with.
        by_keyword: Whether the handler can be called by keywords alone.
        order: The positional parameters with the context's among them.
    """

    work_type: str
    positional: tuple[str, ...]
    positional_only: frozenset[str]
    keywords: frozenset[str]
    rest: str | None
    extra: str | None
    context: str | None
    defaults: Mapping[str, Any]
    types: Mapping[str, Any]
    by_keyword: bool
    order: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """The names of all stored fields."""
        return list(self.types)

    @property
    def open_fields(self) -> frozenset[str]:
        """The fields whose annotation says nothing."""
        return frozenset(name for name, annotation in self.types.items() if is_open(annotation))

    def typed_dict(self, config: Mapping[str, Any]) -> Any:
        """The fields as a ``TypedDict``; those that may be left out are not required."""
        fields: dict[str, Any] = {
            name: NotRequired[annotation]
            if name in self.defaults or name in (self.rest, self.extra)
            else annotation
            for name, annotation in self.types.items()
        }
        make = cast("Any", TypedDict)  # its fields are known at run time only
        shape = make("Input", fields)
        shape.__pydantic_config__ = dict(config)
        return shape

    def collect(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name.

        Raises:
            InvalidWorkError: There are too many, or one is doubled or unknown.
        """
        data = dict(zip(self.positional, args, strict=False))
        if len(args) > len(self.positional):
            if self.rest is None:
                self._too_many(len(args))
            data[self.rest] = args[len(self.positional) :]
        for name, value in kwargs.items():
            if name in self.keywords:
                if name in data:
                    self._fail("is given twice", name, "Pass it once.")
                data[name] = value
            elif self.extra is None:
                self._unknown(name)
            else:
                data.setdefault(self.extra, {})[name] = value
        return data

    def collect_mapping(self, mapping: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments by name, where positional-only ones have a name as well.

        What ``**kwargs`` takes may stand beside the parameters or under its own name.

        Raises:
            InvalidWorkError: A name is unknown.
        """
        data = {name: value for name, value in mapping.items() if name in self.types}
        if len(data) == len(mapping):
            return data
        others = {name: value for name, value in mapping.items() if name not in data}
        if self.extra is None:
            self._unknown(next(iter(others)))
        inner = data.get(self.extra, {})
        if not isinstance(inner, Mapping):
            self._fail("must be a mapping", self.extra, "Pass its entries by their own names.")
        data[self.extra] = {**inner, **others}
        return data

    def arrange(self, data: dict[str, Any], context: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments for the call of the handler, its context in place; ``data`` is used up."""
        if self.context is not None:
            data[self.context] = context
        if self.by_keyword:
            return (), data
        rest = data.pop(self.rest, ()) if self.rest else ()
        extra: dict[str, Any] = data.pop(self.extra, {}) if self.extra else {}
        args = [data.pop(n) if n in data else self.defaults[n] for n in self.order]
        return (*args, *rest), {**data, **extra}

    def _fail(self, problem: str, field: str, fix: str) -> NoReturn:
        raise InvalidWorkError(problem, work_type=self.work_type, field=field, fix=fix)

    def _unknown(self, name: str) -> NoReturn:
        known = ", ".join(self.names) or "none"
        self._fail("is not a parameter", str(name), f"The parameters are: {known}.")

    def _too_many(self, count: int) -> NoReturn:
        known = ", ".join(self.names) or "none"
        self._fail(
            f"takes {len(self.positional)} positional arguments, {count} were given",
            "",
            f"The parameters are: {known}.",
        )


def read_parameters(
    signature: inspect.Signature, hints: Mapping[str, Any], *, work_type: str, context_type: type
) -> Parameters:
    """Sort the parameters of a signature by how they are passed.

    Raises:
        ConfigError: Two parameters ask for the context.
    """
    given = list(signature.parameters.values())
    contexts = [p.name for p in given if names_class(hints[p.name], context_type)]
    if len(contexts) > 1:
        raise ConfigError(
            f"work type {work_type!r}: the parameters {', '.join(contexts)} are all annotated with "
            f"{context_type.__name__}. Keep one."
        )
    mine = [p for p in given if p.name not in contexts]
    rest = next((p.name for p in mine if p.kind is p.VAR_POSITIONAL), None)
    extra = next((p.name for p in mine if p.kind is p.VAR_KEYWORD), None)
    in_order = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    only = [p.name for p in given if p.kind is p.POSITIONAL_ONLY]
    by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    return Parameters(
        work_type=work_type,
        positional=tuple(p.name for p in mine if p.kind in in_order),
        positional_only=frozenset(only),
        keywords=frozenset(p.name for p in mine if p.kind in by_name),
        rest=rest,
        extra=extra,
        context=contexts[0] if contexts else None,
        defaults={p.name: p.default for p in mine if p.default is not _EMPTY},
        types={p.name: _stored_type(p, hints[p.name]) for p in mine},
        by_keyword=not (rest or extra or only),
        order=tuple(p.name for p in given if p.kind in in_order),
    )


def read_item(
    signature: inspect.Signature, hints: Mapping[str, Any], *, work_type: str, context_type: type
) -> Parameters:
    """The one item of a batch handler, under the name of its list.

    Raises:
        ConfigError: The handler does not take exactly one list.
    """
    given = list(signature.parameters.values())
    if len(given) != 1 or names_class(hints[given[0].name], context_type):
        raise ConfigError(
            f"work type {work_type!r}: a batch handler takes exactly one parameter, the list of "
            f"items, not ({', '.join(p.name for p in given)}). Remove the others."
        )
    name = given[0].name
    return Parameters(
        work_type=work_type,
        positional=(name,),
        positional_only=frozenset(),
        keywords=frozenset({name}),
        rest=None,
        extra=None,
        context=None,
        defaults={},
        types={name: item_of(hints[name])},
        by_keyword=True,
        order=(name,),
    )


def _stored_type(parameter: inspect.Parameter, annotation: Any) -> Any:
    """What is stored for a parameter: a list for ``*args``, a mapping for ``**kwargs``."""
    if parameter.kind is parameter.VAR_POSITIONAL:
        return list[annotation]
    if parameter.kind is parameter.VAR_KEYWORD:
        if get_origin(annotation) is typing_extensions.Unpack:
            return get_args(annotation)[0]
        return dict[str, annotation]
    return annotation
