"""Fuzzes the envelope and the record readers by coverage. Run by hand; pytest does not collect it.

    pip install atheris  # has wheels for Linux and CPython 3.11 to 3.13
    PYTHONPATH=src python tests/fuzz/atheris_envelope.py -max_total_time=60

It stops at the first exception that is not ours, and writes the input that caused it.
"""

from __future__ import annotations

import contextlib
import sys

import atheris

with atheris.instrument_imports(include=["piecework"]):
    from piecework.envelope import decode, encode
    from piecework.errors import PieceworkError
    from piecework.ports.store import Record
    from piecework.record import read_state


def one_input(data: bytes) -> None:
    text = atheris.FuzzedDataProvider(data).ConsumeUnicode(len(data))
    plain = data.decode("utf-8", "surrogateescape")
    for body in (text, plain):
        with contextlib.suppress(PieceworkError):
            assert decode(encode(decode(body))).id
        with contextlib.suppress(PieceworkError):
            read_state("1", Record("work:item:1", body, 1))


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()
