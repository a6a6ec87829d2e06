"""What programs outside are written against: names, signatures, docstrings, a light import."""

from __future__ import annotations

import dataclasses
import doctest
import inspect
import subprocess
import sys
from typing import Any

import pytest

import piecework

#: The names that the contract fixes.
CONTRACT = [
    "BackendError",
    "ConfigError",
    "ConflictError",
    "DEFAULT_BUCKETS",
    "DEPENDENCY_TYPE",
    "Delay",
    "InvalidWorkError",
    "LeaseLostError",
    "MemoryPubSub",
    "MemoryQueue",
    "MemoryStore",
    "PayloadTooLargeError",
    "PieceworkError",
    "Retry",
    "RetryAbort",
    "RunAt",
    "UnknownWorkError",
    "WORK_METRICS",
    "Work",
    "WorkCancelledError",
    "WorkContext",
    "WorkDelayError",
    "WorkEvent",
    "WorkExpiredError",
    "WorkFailedError",
    "WorkHandle",
    "WorkState",
    "WorkSystem",
    "WorkType",
    "adaptive_delay",
    "age_doer",
    "backoff",
    "balanced_doer",
    "condition_met",
    "create_metrics",
    "create_work",
    "default_codec",
    "define_batch_work",
    "define_work",
    "dependency",
    "do_with",
    "enqueue",
    "format_prometheus",
    "get_default_retry",
    "list",
    "memory_backend",
    "next_after",
    "parse_cron",
    "priority_doer",
    "rate_limited_doer",
    "retry",
    "schedule",
    "set_default_retry",
    "start",
    "stop",
    "unlimited_doer",
    "work",
]

#: The contract's names that come from modules with more to import, on first use.
LATE = ["sqlite_backend"]

#: What is ours besides: the types that appear in signatures, and the ports to implement.
ADDED = [
    "Backend",
    "BackpressureContext",
    "Capabilities",
    "Change",
    "Clock",
    "Codec",
    "DeadLetter",
    "Doer",
    "GroupInfo",
    "Lease",
    "Message",
    "Metrics",
    "Progress",
    "PubSub",
    "Queue",
    "Record",
    "RestoredError",
    "ResultGoneError",
    "ScheduleHandle",
    "Store",
    "Subscription",
    "WorkHandles",
    "WorkInfo",
    "WorkLogFilter",
    "WorkOptions",
]

#: What must not be paid for by those who do not use it.
HEAVY = [
    "aioboto3",
    "boto3",
    "croniter",
    "multiprocessing",
    "opentelemetry",
    "prometheus_client",
    "redis",
    "rich",
    "typer",
]

#: Errors that say enough by their arguments.
NO_EXAMPLE = {
    "ConfigError",
    "ConflictError",
    "LeaseLostError",
    "PayloadTooLargeError",
    "PieceworkError",
    "ResultGoneError",
    "UnknownWorkError",
    "WorkCancelledError",
    "WorkExpiredError",
}

DESCRIBED = [
    name
    for name in piecework.__all__
    if inspect.isclass(getattr(piecework, name)) or inspect.isroutine(getattr(piecework, name))
]


def names_of(call: Any) -> list[str]:
    return [name for name in inspect.signature(call).parameters if name != "self"]


def in_a_fresh_process(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def test_the_public_names_are_those_of_the_contract_and_ours():
    assert len(CONTRACT) == len(set(CONTRACT))
    extra = [name for name in LATE if name in piecework.__all__]
    assert sorted(piecework.__all__) == sorted([*CONTRACT, *ADDED, *extra])
    assert len(piecework.__all__) == len(set(piecework.__all__))
    for name in piecework.__all__:
        assert getattr(piecework, name) is not None


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_public_name_has_a_docstring(name):
    text = inspect.getdoc(getattr(piecework, name)) or ""
    assert len(text.splitlines()[0]) > 15
    assert (">>>" in text) or name in NO_EXAMPLE, f"{name} has no example"


@pytest.mark.parametrize("name", DESCRIBED)
def test_a_docstrings_examples_compile(name):
    found = doctest.DocTestFinder(recurse=True).find(getattr(piecework, name), name, globs={})
    for case in found:
        for example in case.examples:
            flags = _TOP_LEVEL_AWAIT
            compile(example.source, f"{case.name}:{example.lineno}", "exec", flags)


_TOP_LEVEL_AWAIT = 0x2000  # ast.PyCF_ALLOW_TOP_LEVEL_AWAIT


def test_an_import_brings_nothing_heavy():  # S08
    code = f"import sys, piecework; print([m for m in {HEAVY!r} if m in sys.modules])"
    assert in_a_fresh_process(code) == "[]"


def test_an_import_starts_no_thread_and_no_task():  # S08 S53
    code = """if True:
        import asyncio, threading

        async def main():
            import piecework
            return len(asyncio.all_tasks()), threading.active_count()

        print(asyncio.run(main()))
    """
    assert in_a_fresh_process(code) == "(1, 1)"


def test_the_options_of_create_work():
    assert names_of(piecework.create_work) == [
        "work",
        "queue",
        "pubsub",
        "store",
        "retry",
        "port_retry",
        "doer",
        "poll_interval",
        "visibility",
        "heartbeat",
        "start_after",
        "prefix",
        "codec",
        "log_with",
        "log_context",
        "on_event",
        "on_error",
        "on_failure",
        "on_backlog",
        "backlog_after",
        "backlog_every",
        "backpressure",
        "accept",
        "dlq",
        "redrive_count",
        "max_redrives",
        "unhandled_work_group",
        "metrics",
        "auto_start",
        "result_ttl",
        "now",
        "random",
    ]
    parameters = inspect.signature(piecework.create_work).parameters
    assert all(p.kind is p.KEYWORD_ONLY for p in parameters.values())


def test_the_defaults_of_create_work():  # S11 S12 S14 S27 S150
    parameters = inspect.signature(piecework.create_work).parameters
    given = {name: p.default for name, p in parameters.items() if p.default is not None}
    assert given == {
        "work": (),
        "poll_interval": 20.0,
        "visibility": 30.0,
        "start_after": 1.0,
        "prefix": "work:",
        "backlog_after": 10.0,
        "backlog_every": 10.0,
        "redrive_count": 10,
        "max_redrives": 3,
        "result_ttl": 86400.0,
    }


@pytest.mark.parametrize(
    ("owner", "names"),
    [
        (
            piecework.WorkSystem,
            (
                "enqueue enqueue_many run schedule start stop list state states active cancel "
                "redrive dead_letters stats process register"
            ),
        ),
        (piecework.WorkHandle, "result group state cancel progress __await__"),
        (piecework.WorkContext, "queue set_result states results claim progress remaining"),
        (piecework.Work, "with_options"),
        (piecework.ScheduleHandle, "cancel"),
        (piecework.Store, "read write list get set set_if_not_exists increment delete open close"),
        (piecework.Queue, "push pop extend ack release dead_letter size open close"),
        (piecework.PubSub, "publish subscribe open close"),
    ],
)
def test_the_methods_of_the_contract_are_there_and_described(owner, names):
    for name in names.split():
        method = getattr(owner, name)
        assert callable(method)
        assert name.startswith("_") or inspect.getdoc(method)


@pytest.mark.parametrize(
    ("call", "names"),
    [
        (piecework.WorkSystem.schedule, "name work cron every next tz catch_up"),
        (piecework.WorkSystem.stop, "drain"),
        (piecework.WorkSystem.enqueue_many, "works then when options"),
        (piecework.WorkSystem.process, "leases queue"),
        (piecework.WorkHandle.result, "timeout"),
        (piecework.WorkHandle.group, "timeout"),
        (piecework.WorkContext.queue, "works then when options"),
        (piecework.WorkContext.progress, "done total message"),
        (piecework.dependency, "on queue when poll timeout"),
        (piecework.define_batch_work, "name handler size max_wait options"),
        (piecework.Retry, "attempts base factor max jitter"),
        (piecework.WorkDelayError, "delay run_at"),
        (piecework.RetryAbort, "cause"),
    ],
)
def test_the_arguments_of_the_contract(call, names):
    assert names_of(call) == names.split()


def test_the_fields_of_a_state():
    names = [field.name for field in dataclasses.fields(piecework.WorkState)]
    assert names == [
        "id",
        "type",
        "status",
        "attempt",
        "error",
        "queue_at",
        "start_at",
        "run_at",
        "end_at",
        "priority",
        "group",
        "group_id",
        "parent_id",
        "result",
        "progress",
    ]


def test_the_options_of_one_work():
    assert list(piecework.WorkOptions.__annotations__) == [
        "delay",
        "run_at",
        "priority",
        "group",
        "retry",
        "skip_queue",
        "deadline",
        "timeout",
        "id",
        "unique",
        "unique_for",
    ]


def test_the_errors_have_one_root_and_fitting_parents():
    errors = [
        error
        for name in piecework.__all__
        if name.endswith("Error") and isinstance(error := getattr(piecework, name), type)
    ]
    outside = {
        error.__name__ for error in errors if not issubclass(error, piecework.PieceworkError)
    }
    assert outside == {"WorkDelayError", "RestoredError"}
    assert issubclass(piecework.WorkExpiredError, TimeoutError)
    assert issubclass(piecework.UnknownWorkError, LookupError)
    assert issubclass(piecework.BackendError, ConnectionError)
    assert issubclass(piecework.InvalidWorkError, ValueError)
    assert issubclass(piecework.ConfigError, ValueError)


def test_the_type_of_dependencies_has_its_name():  # S101
    assert piecework.DEPENDENCY_TYPE == "@piecework/gate"
