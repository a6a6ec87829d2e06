"""Fuzzing: texts that are no works of ours, and the check that each is kept and harms nothing.

For authors of adapters and of entrances (a queue, an event of a function, a command line). Give
``Entrance`` the function that feeds texts in; it puts them between valid works and checks that each
text ends as a dead letter with a reason, as a work that ran, or refused with an error, that the
valid works succeed, and that the system goes on. Needs the package ``hypothesis``.

Example:
    >>> async def feed(system, texts):
    ...     await handler({"Records": [record(text) for text in texts]})
    >>> @given(st.lists(bodies(), max_size=5))
    ... def test_any_record_is_kept(texts):
    ...     Entrance(feed).run(texts)
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from piecework.envelope import Envelope
from piecework.testing.entrance import Entrance, Fate, Feed, push

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy

__all__ = [
    "FOREIGN",
    "RETRY",
    "Entrance",
    "Fate",
    "Feed",
    "bodies",
    "envelopes",
    "foreign",
    "inputs",
    "json_texts",
    "json_values",
    "mutated",
    "push",
    "tagged_values",
]

#: The retry policy of generated envelopes: two attempts at once, so that no fuzz waits for long.
RETRY: Final = (2, 0.0, 1.0, 0.0, 0.0)

#: 2026-01-01 in milliseconds: what the virtual clock starts at.
_NOW_MS: Final = 1_767_225_600_000

#: Messages of other programs that a queue may receive by mistake, by what they are.
FOREIGN: Final[dict[str, str]] = {
    "an event of S3": json.dumps(
        {"Records": [{"eventSource": "aws:s3", "s3": {"object": {"key": "a.jpg", "size": 1}}}]}
    ),
    "the test event of S3": json.dumps({"Service": "Amazon S3", "Event": "s3:TestEvent"}),
    "a notification of SNS": json.dumps(
        {"Type": "Notification", "TopicArn": "arn:aws:sns:eu-west-1:1:t", "Message": '{"v":1}'}
    ),
    "an event of EventBridge": json.dumps(
        {"version": "0", "id": "1", "detail-type": "x", "source": "aws.ec2", "detail": {}}
    ),
    "an event of SQS": json.dumps({"Records": [{"messageId": "1", "body": "{}"}]}),
    "a message of Celery": json.dumps(
        {
            "body": "W1sxLCAyXSwge30sIHt9XQ==",
            "content-encoding": "utf-8",
            "content-type": "application/json",
            "headers": {"task": "add", "id": "1", "argsrepr": "(1, 2)"},
            "properties": {"delivery_info": {"routing_key": "celery"}},
        }
    ),
    "a message of Dramatiq": json.dumps(
        {"queue_name": "default", "actor_name": "add", "args": [1, 2], "kwargs": {}}
    ),
    "a job of Sidekiq": json.dumps({"class": "Add", "args": [1, 2], "retry": True, "jid": "1"}),
    "a pickle": "cposix\nsystem\n(S'true'\ntR.",
    "a pickle in base64": "gASVIQAAAAAAAACMBXBvc2l4lIwGc3lzdGVtlJOUjAR0cnVllIWUUpQu",
    "YAML with a tag": "!!python/object/apply:os.system ['true']",
    "Python": "__import__('os').system('true')",
    "XML": "<?xml version='1.0'?><!DOCTYPE x [<!ENTITY a 'b'>]><x>&a;</x>",
    "form data": "id=1&type=add&v=1",
    "lines of JSON": '{"v":1}\n{"v":1}',
    "a byte order mark": '\ufeff{"v":1}',
    "zero bytes": "\x00\x00",
    "deep nesting": '{"a":' * 5_000 + "1" + "}" * 5_000,
}

_LEAVES: Final = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([0, -1, 2**53, 2**63, 10**30, -(10**30), 10**400, -(10**400)])
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["", "\ud800", "\udfff\ud800", "\x00", "$type", "\u2028", "1" * 400])
)


def json_values(*, max_leaves: int = 10) -> SearchStrategy[Any]:
    """Anything that a JSON parser may give, and a little more.

    Among them are not-a-number and infinities, integers that are no float, lone surrogates, and
    values that look like the codec's tags.

    Args:
        max_leaves: About how many values one may hold.

    Example:
        >>> @given(json_values())
        ... def test_any_value_is_taken_or_refused(value): ...
    """
    return st.recursive(
        _LEAVES,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.dictionaries(st.text(max_size=6), inner, max_size=4)
            | _tagged(inner)
        ),
        max_leaves=max_leaves,
    )


def tagged_values() -> SearchStrategy[Any]:
    """JSON-able values with well-known tags and any content: what a codec must read with care."""
    return _tagged(json_values(max_leaves=4))


#: Names that a payload may ask for. None of them may be imported, called or evaluated.
_CLASSES: Final = (
    "builtins:eval",
    "builtins:SystemExit",
    "builtins:KeyError",
    "builtins:OSError",
    "builtins:UnicodeDecodeError",
    "builtins:BaseExceptionGroup",
    "os:system",
    "subprocess:Popen",
    "enum:Enum",
    "enum:Flag",
    "re:RegexFlag",
    "http:HTTPStatus",
    "piecework.errors:ConflictError",
    "piecework.errors:WorkFailedError",
    "json:JSONDecodeError",
    "antigravity:geohash",
    "nothing",
    "",
    ":",
    "builtins:",
)
_TAGS: Final = (
    *("int", "float", "str", "datetime", "date", "time", "timedelta", "Decimal", "UUID", "bytes"),
    *("bytearray", "complex", "dict", "tuple", "set", "frozenset", "enum", "flag", "exception"),
    *("python", "nothing"),
)


def _tagged(inner: SearchStrategy[Any]) -> SearchStrategy[Any]:
    plain = st.fixed_dictionaries(
        {"$type": st.sampled_from(_TAGS) | inner},
        optional={"value": inner | _CONTENTS, "fold": inner},
    )
    named = st.fixed_dictionaries(
        {
            "$type": st.sampled_from(["enum", "flag", "exception"]),
            "class": st.sampled_from(_CLASSES) | inner,
        },
        optional={
            "name": inner,
            "names": inner,
            "text": inner,
            "args": inner | st.lists(inner, max_size=5),
            "attributes": inner | st.dictionaries(st.text(max_size=5), inner, max_size=3),
        },
    )
    return plain | named


_VALUES: Final[list[Any]] = [
    "0x1f",
    "nan",
    "1e999999999",
    "9999-12-31T23:59:59+00:00",
    "0001-01-01",
    "25:00",
    "AAAA",
    "=",
    [1, 2, 3],
    [10**30, 0, 0],
    ["1", "2"],
    [[[], 1]],
    [[1, 2], [1, 3]],
    "00000000-0000-0000-0000-000000000000",
]
_CONTENTS: Final = st.sampled_from(_VALUES)


def inputs() -> SearchStrategy[str]:
    """Texts for the input of a work: of the right shape, of another one, and no JSON at all."""
    few = st.integers(-9, 9)
    right = st.fixed_dictionaries({"a": few, "b": few}).map(_dumps)
    named = st.dictionaries(
        st.sampled_from(["a", "b", "item", "value", "spec", "$type"]), json_values(max_leaves=4)
    )
    return right | named.map(_dumps) | json_texts() | st.text(max_size=8)


def json_texts() -> SearchStrategy[str]:
    """JSON texts, with what ``json.dumps`` never writes among them.

    Some have a key twice, white space in strange places, or more digits than a parser takes.
    """
    values = json_values().map(_dumps)
    twice = st.tuples(values, values).map(lambda two: f'{{"v":{two[0]},"v":{two[1]}}}')
    odd = st.sampled_from(
        ["9" * 5_000, "-0", "1E400", "[" * 5_000, '"\\ud800"', " \n1\t", "{}", ""]
    )
    return values | twice | odd


def _dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def envelopes(
    types: Sequence[str] = ("add",), texts: SearchStrategy[str] | None = None
) -> SearchStrategy[dict[str, Any]]:
    """The fields of valid envelopes that may start at once; ``json.dumps`` makes them bodies.

    Args:
        types: The names of their work types.
        texts: Their inputs; ``inputs()`` without it.

    Example:
        >>> @given(envelopes(types=["add"]).map(json.dumps))
        ... def test_a_valid_envelope_is_read(body): ...
    """
    name = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6)
    time = st.integers(_NOW_MS - 10**9, _NOW_MS)
    few = st.integers(0, 3)
    return st.fixed_dictionaries(
        {
            "v": st.just(1),
            "id": name,
            "type": st.sampled_from(types),
            "input": inputs() if texts is None else texts,
            "queue_at": time,
            "start_at": time,
            "retry": st.just(list(RETRY)),
            "version": few,
        },
        optional={
            "group_id": name,
            "attempt": st.integers(1, 3),
            "priority": st.integers(-9, 9),
            "group": name,
            "parent_id": name,
            "gate": name,
            "turn": few,
            "track": st.sampled_from(["full", "result", "none"]),
            "timeout": st.floats(0.5, 60),
            "deadline": st.integers(_NOW_MS - 10**9, _NOW_MS + 10**9),
            "upstream": name,
            "unique": name,
            "unique_until": time,
            "redrives": few,
            "trace": st.dictionaries(name, name, max_size=2),
            "recheck": st.booleans(),
        },
    )


_FIELDS: Final = (*(name for name in Envelope._fields), "v", "other")


@st.composite
def mutated(draw: st.DrawFn, valid: SearchStrategy[dict[str, Any]] | None = None) -> str:
    """Bodies that were valid envelopes before something happened to them.

    A field is dropped, given any value, or written twice; the whole is nested, cut, garbled or
    encoded again.

    Args:
        draw: Given by hypothesis.
        valid: The envelopes to start from; ``envelopes()`` without it.
    """
    fields = dict(draw(envelopes() if valid is None else valid))
    for _ in range(draw(st.integers(0, 2))):
        name = draw(st.sampled_from(_FIELDS))
        if draw(st.booleans()):
            fields[name] = draw(json_values(max_leaves=4) | _NEAR)
        else:
            fields.pop(name, None)
    text = json.dumps(fields, ensure_ascii=draw(st.booleans()))
    how = draw(st.sampled_from(["whole", "whole", "whole", "cut", "garbled", "twice", "wrapped"]))
    at = draw(st.integers(0, len(text)))
    match how:
        case "cut":
            return text[:at]
        case "garbled":
            return text[:at] + draw(st.text(max_size=3)) + text[at:]
        case "twice":
            name = draw(st.sampled_from(_FIELDS))
            return f"{text[:-1]},{_dumps(name)}:{_dumps(draw(json_values(max_leaves=3)))}}}"
        case "wrapped":
            return draw(st.sampled_from([json.dumps(text), f"[{text}]", f'{{"body":{text}}}']))
        case _:
            return text


#: Values close to the limits of a field.
_NEAR: Final = st.sampled_from(
    [
        0,
        1,
        -62_135_596_800_000,
        -62_135_596_800_001,
        -253_402_300_799_999,
        0.1,
        1e-300,
        [3, 1.0, 2.0, 30.0, 0.5],
        [3, 10**400, 1, 1, 0],
        [2, 1e308, 1e308, 1e308, 0],
        [10**30, 0, 1, 0, 0],
        [2, 0, 1, 0, True],
        ["2", 0, 1, 0, 0],
    ]
)


def foreign() -> SearchStrategy[str]:
    """Messages of other programs; see ``FOREIGN``."""
    return st.sampled_from(list(FOREIGN.values()))


def bodies(valid: SearchStrategy[dict[str, Any]] | None = None) -> SearchStrategy[str]:
    """Any text that may stand in a message: most are no works, some are.

    Args:
        valid: The envelopes that some of them are or come from; ``envelopes()`` without it.

    Example:
        >>> @given(st.lists(bodies(), max_size=5))
        ... def test_any_message_is_kept(texts):
        ...     Entrance(push).run(texts)
    """
    return st.text() | foreign() | json_texts() | mutated(valid) | mutated(valid)
