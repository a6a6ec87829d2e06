"""Errors as text."""

from __future__ import annotations

import json
import traceback

import pytest

from piecework.failure import describe_error
from piecework.signals import RetryAbort


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_error_reads_as_name_and_message_with_its_traceback():
    # S46
    name, text, lines = describe_error(raised(ValueError("too long")))
    assert (name, text) == ("ValueError", "ValueError: too long")
    assert lines.startswith("Traceback")
    assert "in raised" in lines
    assert lines.endswith("ValueError: too long\n")


def test_an_error_without_a_message_is_its_name_alone():
    # S46
    assert describe_error(KeyError())[:2] == ("KeyError", "KeyError")


@pytest.mark.parametrize("value", ["card was stolen", 7, {"code": 3}])
def test_what_is_no_exception_is_its_own_text(value):
    # S83
    name, text, lines = describe_error(value)
    assert (name, text, lines) == (type(value).__name__, str(value), "")


def test_an_abort_stands_for_its_cause():
    # S83
    name, text, _ = describe_error(RetryAbort(RetryAbort(ValueError("no such card"))))
    assert (name, text) == ("ValueError", "ValueError: no such card")
    assert describe_error(RetryAbort("card was stolen"))[:2] == ("RetryAbort", "card was stolen")
    assert describe_error(RetryAbort(""))[:2] == ("RetryAbort", "RetryAbort")


def test_a_broken_str_is_told_in_place_of_the_message():
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no")

    name, text, lines = describe_error(raised(BrokenError()))
    assert (name, text) == ("BrokenError", "BrokenError: <no text: __str__ raised RuntimeError>")
    assert "BrokenError" in lines


def test_a_class_without_a_module_is_described():
    lost = type("Lost", (Exception,), {"__module__": None})
    name, text, lines = describe_error(raised(lost("x")))
    assert (name, text) == ("Lost", "Lost: x")
    assert lines


def test_a_traceback_that_cannot_be_formatted_does_not_hide_the_failure(monkeypatch):
    def broken(_: BaseException) -> list[str]:
        raise AttributeError("strange")

    monkeypatch.setattr(traceback, "format_exception", broken)
    assert describe_error(ValueError("x"))[2] == (
        "ValueError: x\n<no traceback: formatting raised AttributeError>\n"
    )


def test_long_texts_are_cut():
    long_name = type("N" * 9_000, (Exception,), {})
    name, text, lines = describe_error(long_name("a" * 100_000))
    assert len(name) == 200
    assert len(text) == 8_000
    assert len(lines) <= 16_000
    assert "(cut)" in lines


def test_a_deep_chain_of_causes_is_described():
    error: BaseException = ValueError("first")
    for number in range(200):
        following = ValueError(f"number {number}")
        following.__cause__ = raised(error)
        error = following
    assert describe_error(error)[1] == "ValueError: number 199"


def test_lone_surrogates_are_replaced():
    for part in describe_error(raised(ValueError("a\ud800b\udfffé"))):
        assert json.dumps(part, ensure_ascii=False).encode()
    assert describe_error(ValueError("a\ud800b\udfffé"))[1] == "ValueError: a\ufffdb\ufffdé"
