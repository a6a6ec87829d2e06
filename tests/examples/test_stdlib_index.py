"""The main example, end to end, over small folders."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "stdlib_index.py"

#: Seconds, with two processes to start on a busy machine.
LIMIT = 60


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "shop" / "site-packages").mkdir(parents=True)
    (root / "one.py").write_text("def f():\n    pass\n\n\nclass A:\n    def g(self): ...\n")
    (root / "shop" / "two.py").write_text("async def h(): ...\n")
    (root / "broken.py").write_text("def f(:\n")
    (root / "shop" / "old.py").write_text("print 'hello'\n")
    (root / "nul.py").write_bytes(b"x = 1\0\n")
    (root / "shop" / "site-packages" / "skipped.py").write_text("x = 1\n")
    return root


def run(folder: Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, EXAMPLE, folder]
    return subprocess.run(
        command, check=False, cwd=cwd, capture_output=True, text=True, timeout=LIMIT
    )


def test_it_indexes_a_folder_and_lists_what_does_not_parse(folder: Path, tmp_path: Path):
    for _ in range(2):  # a second run starts afresh
        done = run(folder, tmp_path)
        assert done.stderr == ""
        assert done.returncode == 0
        report = json.loads((tmp_path / "stdlib-index" / "report.json").read_text())
        assert report == {
            "files": 2,
            "lines": 7,
            "functions": 3,
            "classes": 1,
            "largest": [["one.py", 6], [str(Path("shop", "two.py")), 1]],
        }
    assert "Indexing 5 files" in done.stdout
    assert "5 of 5 files" in done.stdout
    for dead in ("broken.py", "nul.py", "old.py"):
        assert dead in done.stdout
    assert "Missing parentheses in call to 'print'" in done.stdout
    assert "report.json" in done.stdout.splitlines()[-1]


def test_a_folder_without_python_files_is_told(tmp_path: Path):
    done = run(tmp_path, tmp_path)
    assert done.returncode == 1
    assert "There is no Python file" in done.stdout


def test_ctrl_c_ends_it_soon_with_status_130_and_leaves_no_process(tmp_path: Path):
    root = tmp_path / "source"
    root.mkdir()
    for number in range(600):
        body = "".join(f"def f{n}(): ...\n" for n in range(500))
        (root / f"m{number}.py").write_text(body)
    started = subprocess.Popen(
        [sys.executable, EXAMPLE, root],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert started.stdout is not None
        for line in started.stdout:
            if line.startswith("60 of"):
                break
        children = psutil.Process(started.pid).children(recursive=True)
        assert len(children) >= 2
        os.killpg(started.pid, signal.SIGINT)  # as a terminal does
        out, err = started.communicate(timeout=10)
    finally:
        started.kill()
        started.communicate()
    assert err == ""
    assert "Stopped by Ctrl-C" in out
    assert started.returncode == 130
    _, alive = psutil.wait_procs([c for c in children if not is_gone(c)], timeout=2)
    assert [child for child in alive if not is_gone(child)] == []


def is_gone(process: psutil.Process) -> bool:
    """Ended; one that nobody has waited for yet counts too."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True
