"""Every program in the documentation runs, and satisfies a strict type checker."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/guarantees.md", "docs/reliability.md")
BLOCKS = [
    pytest.param(block, id=f"{page}-{number}")
    for page in PAGES
    for number, block in enumerate(
        re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    )
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_program_of_the_documentation_runs(block: str, tmp_path: Path):
    program = tmp_path / "program.py"
    program.write_text(block)
    run = subprocess.run(
        [sys.executable, program], check=False, capture_output=True, text=True, timeout=60
    )
    assert run.stderr == ""
    assert run.returncode == 0


def test_the_programs_of_the_documentation_pass_a_strict_type_checker(tmp_path: Path):
    for number, block in enumerate(BLOCKS):
        (tmp_path / f"program_{number}.py").write_text(str(block.values[0]))
    settings = {
        "typeCheckingMode": "strict",
        "pythonVersion": "3.11",
        "extraPaths": [str(ROOT / "src")],
    }
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(settings))
    pyright = Path(sys.executable).with_name("pyright")
    command = [str(pyright) if pyright.exists() else str(shutil.which("pyright"))]
    run = subprocess.run(
        [*command, "--pythonpath", sys.executable, "--project", tmp_path],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert run.returncode == 0, run.stdout


@pytest.mark.parametrize("page", ["README.md", "docs/guarantees.md", "docs/life-of-a-work.md"])
def test_links_of_the_documentation_lead_somewhere(page: str):
    for target in re.findall(r"\]\(([^)#:]+)\)", (ROOT / page).read_text()):
        assert (ROOT / page).parent.joinpath(target).exists(), target
