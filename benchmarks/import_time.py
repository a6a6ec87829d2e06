"""What `import piecework` costs, as a ratio to `import pydantic` in the same run.

    python benchmarks/import_time.py

Each import runs in fresh interpreters, in turn; the least CPU time of each counts, because other
programs can only add to it.
"""

from __future__ import annotations

import os
import subprocess
import sys

ROUNDS = 15
PROGRAMS = {
    "nothing": "pass",
    "pydantic": "import pydantic",
    "piecework": "import piecework",
}


def cpu_ms(program: str) -> float:
    """Milliseconds of CPU that a fresh interpreter takes for a program."""
    child = subprocess.Popen([sys.executable, "-c", program])
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise SystemExit(f"{program!r} failed")
    return (usage.ru_utime + usage.ru_stime) * 1000


def main() -> None:
    least = dict.fromkeys(PROGRAMS, float("inf"))
    for _ in range(ROUNDS):
        for name, program in PROGRAMS.items():
            least[name] = min(least[name], cpu_ms(program))
    bare = least.pop("nothing")
    own = {name: took - bare for name, took in least.items()}
    for name, took in own.items():
        print(f"import {name:10} {took:7.1f} ms")
    print(f"ratio             {own['piecework'] / own['pydantic']:7.2f}  (at most 2)")


if __name__ == "__main__":
    main()
