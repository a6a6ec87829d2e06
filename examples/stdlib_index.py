"""Builds a search index over the source of Python's own standard library.

Every file is one work. Worker processes parse them, a batch writes what they found to SQLite, and
gates start each step once the one before it is done. Some files of the library do not parse, on
purpose: they are dead at once, and listed at the end with the reason.

Run it with ``make demo``, or over a folder of yours: ``python examples/stdlib_index.py FOLDER``.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import os
import sqlite3
import sys
import sysconfig
import warnings
from collections.abc import Callable, Generator
from pathlib import Path

from pydantic import BaseModel
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from piecework import (
    RetryAbort,
    WorkContext,
    WorkEvent,
    balanced_doer,
    create_work,
    define_batch_work,
    define_work,
)

OUTPUT = Path("stdlib-index")
DATABASE = OUTPUT / "index.db"
REPORT = OUTPUT / "report.json"
CPUS = os.cpu_count() or 1
KINDS: dict[type[ast.AST], str] = {
    ast.FunctionDef: "function",
    ast.AsyncFunctionDef: "function",
    ast.ClassDef: "class",
}


class Symbol(BaseModel, frozen=True):
    """A function or class and where it is."""

    kind: str
    name: str
    line: int


class ParsedFile(BaseModel, frozen=True):
    """What is known of one file."""

    path: str
    lines: int
    symbols: list[Symbol]


class Totals(BaseModel, frozen=True):
    """The whole index in numbers."""

    files: int
    lines: int
    functions: int
    classes: int
    largest: list[tuple[str, int]]


# ---- the works -----------------------------------------------------------------------------------


@define_work(
    "parse",
    executor="process",  # parsing keeps a processor busy
    options=lambda root, path: {"group": Path(path).parts[0]},  # its package: shared out fairly
)
def parse(root: str, path: str) -> ParsedFile:
    source = Path(root, path).read_bytes()
    try:
        with warnings.catch_warnings(action="ignore"):
            tree = ast.parse(source, path)
    except (SyntaxError, ValueError) as error:
        raise RetryAbort(error) from error  # another attempt would find the same
    symbols = [
        Symbol(kind=KINDS[type(node)], name=node.name, line=node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
    ]
    return ParsedFile(path=path, lines=source.count(b"\n"), symbols=symbols)


@define_work("gather")
async def gather(ctx: WorkContext) -> None:
    """Starts when all files are parsed or dead; a dead one has no result."""
    parsed: list[ParsedFile | None] = await ctx.results(ctx.upstream)
    await ctx.queue([save(file) for file in parsed if file is not None], then=report())


@define_batch_work("save", size=200)
def save(files: list[ParsedFile]) -> list[int]:
    """Saves up to 200 files in one transaction; saving one twice changes nothing."""
    with contextlib.closing(open_database()) as database, database:
        for file in files:
            database.execute("INSERT OR REPLACE INTO file VALUES (?, ?)", (file.path, file.lines))
            database.execute("DELETE FROM symbol WHERE path = ?", (file.path,))
            database.executemany(
                "INSERT INTO symbol VALUES (?, ?, ?, ?)",
                [(file.path, symbol.kind, symbol.name, symbol.line) for symbol in file.symbols],
            )
    return [len(file.symbols) for file in files]


@define_work("report")
def report(ctx: WorkContext) -> None:
    """Starts when all files are saved; its totals are the result of the whole group."""
    with contextlib.closing(open_database()) as database:
        files, lines = database.execute("SELECT count(*), total(lines) FROM file").fetchone()
        kinds = dict(database.execute("SELECT kind, count(*) FROM symbol GROUP BY kind"))
        largest = database.execute(
            "SELECT path, lines FROM file ORDER BY lines DESC, path LIMIT 10"
        ).fetchall()
    totals = Totals(
        files=files,
        lines=lines,
        functions=kinds.get("function", 0),
        classes=kinds.get("class", 0),
        largest=largest,
    )
    REPORT.write_text(totals.model_dump_json(indent=2), encoding="utf-8")
    ctx.set_result(totals.model_dump())


def open_database() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE)
    database.executescript(
        """
        CREATE TABLE IF NOT EXISTS file (path TEXT PRIMARY KEY, lines INTEGER);
        CREATE TABLE IF NOT EXISTS symbol (path TEXT, kind TEXT, name TEXT, line INTEGER);
        CREATE INDEX IF NOT EXISTS symbol_path ON symbol (path);
        CREATE INDEX IF NOT EXISTS symbol_name ON symbol (name);
        """
    )
    return database


# ---- the program ---------------------------------------------------------------------------------


def find_files(root: Path) -> list[str]:
    """All Python files below a folder, but for what was installed there."""
    skip = {"site-packages", "dist-packages"}
    files = (path.relative_to(root) for path in root.rglob("*.py") if path.is_file())
    return sorted(str(path) for path in files if skip.isdisjoint(path.parts))


def start_afresh() -> None:
    OUTPUT.mkdir(exist_ok=True)
    for old in (DATABASE, REPORT):
        old.unlink(missing_ok=True)


async def build_index(
    root: Path, files: list[str], console: Console
) -> tuple[Totals, dict[str, str]]:
    """Run the works; return the totals, and the files that are dead with their reasons."""
    tell = progress_bar if console.is_terminal else progress_lines
    with tell(console, len(files)) as advance:

        def on_event(event: WorkEvent) -> None:
            ended = event.kind == "succeeded" or (event.kind == "failed" and not event.will_retry)
            if event.type == parse.type and ended:
                advance()

        work = create_work(
            work=[parse, gather, save, report],
            doer=balanced_doer(max=CPUS),  # as many at once as there are worker processes
            on_event=on_event,
        )
        async with work:  # also when Ctrl-C cancels this: what runs may finish
            works = [parse(str(root), file) for file in files]
            handles = await work.enqueue_many(works, then=gather())
            assert handles.gate is not None
            totals = Totals.model_validate(await handles.gate)  # waits for the whole group
            name_of = {work.id: file for work, file in zip(works, files, strict=True)}
            letters = await work.dead_letters(limit=len(files))
    return totals, {name_of[letter.id]: letter.reason for letter in letters}


@contextlib.contextmanager
def progress_bar(console: Console, total: int) -> Generator[Callable[[], None]]:
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("files"), TimeElapsedColumn())
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("parse", total=total)
        yield lambda: bar.advance(task)


@contextlib.contextmanager
def progress_lines(console: Console, total: int) -> Generator[Callable[[], None]]:
    """Ten lines in all, for logs."""
    done = 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done * 10 // total > (done - 1) * 10 // total:
            console.print(f"{done:,} of {total:,} files")

    yield advance


def show(totals: Totals, dead: dict[str, str], console: Console) -> None:
    table = Table(title="Index", show_header=False, title_justify="left")
    for name, number in totals.model_dump(exclude={"largest"}).items():
        table.add_row(name, f"{number:,}")
    console.print(table)

    table = Table("largest files", "lines")
    for path, lines in totals.largest:
        table.add_row(escape(path), f"{lines:,}")
    console.print(table)

    if dead:
        table = Table("dead letters", "reason")
        table.columns[0].overflow = "fold"
        for path, reason in sorted(dead.items()):
            table.add_row(escape(path), escape(reason))
        console.print(table)
    console.print(f"The index is in {DATABASE}, the report in {REPORT}.")


def main(arguments: list[str]) -> int:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 120  # a log has no width of its own
    root = Path(arguments[0] if arguments else sysconfig.get_path("stdlib")).resolve()
    files = find_files(root)
    if not files:
        console.print(f"There is no Python file in {root}.")
        return 1
    start_afresh()
    console.print(f"Indexing {len(files):,} files of {root} in {CPUS} worker processes")
    try:
        totals, dead = asyncio.run(build_index(root, files, console))
    except KeyboardInterrupt:
        console.print("Stopped by Ctrl-C; the index is not complete. The next run starts afresh.")
        return 130
    show(totals, dead, console)
    return 0


if __name__ == "__main__":  # worker processes import this file
    sys.exit(main(sys.argv[1:]))
