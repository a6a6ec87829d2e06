"""Piecework: typed background work and workflows for Python on AWS.

Example:
    >>> from piecework import create_work, define_work
    >>> @define_work
    ... async def add(a: int, b: int) -> int:
    ...     return a + b
    >>> work = create_work(work=[add])
    >>> async def main() -> None:
    ...     async with work:
    ...         assert await work.run(add(1, 2)) == 3
"""

from piecework.clock import Clock
from piecework.codec import Codec, default_codec
from piecework.context import WorkContext
from piecework.create import create_work
from piecework.cron import next_after, parse_cron
from piecework.default import enqueue, list, schedule, start, stop, work  # noqa: A004 - the contract
from piecework.define import define_batch_work, define_work
from piecework.definitions import Delay, RunAt, Work, WorkType
from piecework.dependency import dependency
from piecework.doers import (
    Doer,
    age_doer,
    balanced_doer,
    do_with,
    priority_doer,
    rate_limited_doer,
    unlimited_doer,
)
from piecework.engine.log import WorkLogFilter
from piecework.errors import (
    BackendError,
    ConfigError,
    ConflictError,
    InvalidWorkError,
    LeaseLostError,
    PayloadTooLargeError,
    PieceworkError,
    ResultGoneError,
    UnknownWorkError,
    WorkCancelledError,
    WorkExpiredError,
    WorkFailedError,
)
from piecework.gates import DEPENDENCY_TYPE, condition_met
from piecework.handle import WorkHandle, WorkHandles
from piecework.loaded import RestoredError
from piecework.memory import MemoryPubSub, MemoryQueue, MemoryStore, memory_backend
from piecework.metrics import (
    DEFAULT_BUCKETS,
    WORK_METRICS,
    BackpressureContext,
    Metrics,
    adaptive_delay,
    create_metrics,
    format_prometheus,
)
from piecework.options import WorkOptions
from piecework.ports import (
    Backend,
    Capabilities,
    Change,
    Lease,
    Message,
    PubSub,
    Queue,
    Record,
    Store,
    Subscription,
)
from piecework.retry import Retry, backoff, get_default_retry, retry, set_default_retry
from piecework.schedules import ScheduleHandle
from piecework.signals import RetryAbort, WorkDelayError
from piecework.state import DeadLetter, GroupInfo, Progress, WorkEvent, WorkInfo, WorkState
from piecework.system import WorkSystem

__all__ = [
    "DEFAULT_BUCKETS",
    "DEPENDENCY_TYPE",
    "WORK_METRICS",
    "Backend",
    "BackendError",
    "BackpressureContext",
    "Capabilities",
    "Change",
    "Clock",
    "Codec",
    "ConfigError",
    "ConflictError",
    "DeadLetter",
    "Delay",
    "Doer",
    "GroupInfo",
    "InvalidWorkError",
    "Lease",
    "LeaseLostError",
    "MemoryPubSub",
    "MemoryQueue",
    "MemoryStore",
    "Message",
    "Metrics",
    "PayloadTooLargeError",
    "PieceworkError",
    "Progress",
    "PubSub",
    "Queue",
    "Record",
    "RestoredError",
    "ResultGoneError",
    "Retry",
    "RetryAbort",
    "RunAt",
    "ScheduleHandle",
    "Store",
    "Subscription",
    "UnknownWorkError",
    "Work",
    "WorkCancelledError",
    "WorkContext",
    "WorkDelayError",
    "WorkEvent",
    "WorkExpiredError",
    "WorkFailedError",
    "WorkHandle",
    "WorkHandles",
    "WorkInfo",
    "WorkLogFilter",
    "WorkOptions",
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
