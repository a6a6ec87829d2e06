"""The short examples run alone and print what they promise."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"

LINES = {
    "batch": "asked for 10 prices at once",
    "fairness": "urgent first: later urgent urgent later later later",
    "gate": "order 7 is on its way",
    "retries": "hopeless is dead: the card was stolen",
    "schedule": "the pulse is off",
}


@pytest.mark.parametrize("name", LINES)
def test_an_example_prints_what_it_promises(name: str):
    run = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py"],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert run.stderr == ""
    assert run.returncode == 0
    assert LINES[name] in run.stdout.splitlines()


def test_every_example_is_tested():
    assert {path.stem for path in EXAMPLES.glob("*.py")} == {*LINES, "stdlib_index"}
