"""Making a system out of options and ports."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from piecework.clock import Now, Seconds, seconds
from piecework.codec import Codec, default_codec
from piecework.doers import Doer, unlimited_doer
from piecework.engine.hooks import Hooks, Phase
from piecework.engine.settings import Settings
from piecework.errors import ConfigError
from piecework.ids import chance
from piecework.metrics import Metrics, create_metrics
from piecework.system import WorkSystem
from piecework.system_ports import complete_ports

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from piecework.definitions import OnEvent, OnFailure, WorkType
    from piecework.metrics import BackpressureContext
    from piecework.ports.pubsub import PubSub
    from piecework.ports.queue import Queue
    from piecework.ports.store import Store
    from piecework.retry import Retry
    from piecework.state import GroupInfo, WorkInfo


def create_work(
    *,
    work: Iterable[WorkType[..., Any]] = (),
    queue: Queue | None = None,
    pubsub: PubSub | None = None,
    store: Store | None = None,
    retry: Retry | None = None,
    port_retry: Retry | None = None,
    doer: Doer | None = None,
    poll_interval: Seconds = 20.0,
    visibility: Seconds = 30.0,
    heartbeat: Seconds | None = None,
    start_after: Seconds = 1.0,
    prefix: str = "work:",
    codec: Codec | None = None,
    log_with: Callable[[Mapping[str, object], Callable[[], Awaitable[Any]]], Awaitable[Any]]
    | None = None,
    log_context: Callable[[dict[str, Any], str], Mapping[str, object]] | None = None,
    on_event: OnEvent | None = None,
    on_error: Callable[[BaseException, Phase], None] | None = None,
    on_failure: OnFailure | None = None,
    on_backlog: Callable[[int], None] | None = None,
    backlog_after: Seconds = 10.0,
    backlog_every: Seconds = 10.0,
    backpressure: Callable[[BackpressureContext], float | Awaitable[float | None] | None]
    | None = None,
    accept: Callable[[WorkInfo], bool | Awaitable[bool]] | None = None,
    dlq: Queue | None = None,
    redrive_count: int = 10,
    max_redrives: int = 3,
    unhandled_work_group: Callable[[GroupInfo], Awaitable[None] | None] | None = None,
    metrics: Metrics | None = None,
    auto_start: bool | None = None,
    result_ttl: Seconds = 86400.0,
    now: Now | None = None,
    random: Callable[[], float] | None = None,
) -> WorkSystem:
    """Make a system. Without any argument it runs in this process, with nothing to set up.

    Args:
        work: The work types that it runs.
        queue: Carries messages; a missing port is one in memory.
        pubsub: Carries notifications.
        store: Keeps states and results.
        retry: The retry options of all works, under those of their types.
        port_retry: How failed writes to the ports are repeated; not at all without it.
        doer: Decides how many works run at once and which is next.
        poll_interval: Seconds: the longest wait for messages.
        visibility: Seconds that a lease lasts without a renewal.
        heartbeat: Seconds between renewals; a third of ``visibility`` without it.
        start_after: Seconds after which a work that still runs is written down as running.
        prefix: Stands before every key of the store.
        codec: Encodes values that no annotation describes, and the results of groups.
        log_with: Runs each handler; given the log context and the call.
        log_context: A function of the input and the type that returns fields for the log.
        on_event: Called with every ``WorkEvent`` of this process.
        on_error: Called with errors that nobody awaits, and their phase.
        on_failure: Decides on failures of types that do not themselves.
        on_backlog: Called with the number of works held, while the worker stays behind.
        backlog_after: Seconds that it must stay behind before.
        backlog_every: Seconds between two calls.
        backpressure: Asked before each pull; a number above 0 is a pause in seconds.
        accept: Asked before each work; ``False`` leaves it to another worker.
        dlq: The dead letters that the idle worker brings back, and where they go on queues that
            keep none themselves.
        redrive_count: How many the idle worker brings back at once; 0 for none.
        max_redrives: How often one work comes back by itself.
        unhandled_work_group: Called with a group that ended while nobody waited for it.
        metrics: Where the series are; a fresh ``create_metrics()`` without it.
        auto_start: Start the worker at the first enqueue; ``None`` does so where the queue lives
            in this process. After ``stop`` only ``start`` starts it again.
        result_ttl: Seconds that the record of a terminal work is kept.
        now: A ``Clock``, or a function that gives the time, for stamps.
        random: Gives numbers from 0 to 1, for jitter.

    Raises:
        ConfigError: An option cannot be used.

    Example:
        >>> work = create_work(work=[add])
        >>> async with work:
        ...     assert await work.run(add(1, 2)) == 3
    """
    lease = _seconds("visibility", visibility)
    beat = lease / 3 if heartbeat is None else _seconds("heartbeat", heartbeat)
    settings = Settings(
        poll_interval=_seconds("poll_interval", poll_interval),
        visibility=lease,
        heartbeat=beat,
        start_after=_seconds("start_after", start_after),
        result_ttl=_seconds("result_ttl", result_ttl),
        prefix=prefix,
        redrive_count=redrive_count,
        max_redrives=max_redrives,
        backlog_after=_seconds("backlog_after", backlog_after),
        backlog_every=_seconds("backlog_every", backlog_every),
    )
    settings.check()
    ports = complete_ports(queue, pubsub, store, now)
    return WorkSystem(
        work=work,
        **ports,
        settings=settings,
        hooks=Hooks(
            on_event=on_event,
            on_error=on_error,
            on_failure=on_failure,
            on_backlog=on_backlog,
            backpressure=backpressure,
            accept=accept,
            unhandled_work_group=unhandled_work_group,
            log_with=log_with,
            log_context=log_context,
        ),
        retry=retry,
        port_retry=port_retry,
        doer=doer or unlimited_doer(),
        codec=codec or default_codec,
        dlq=dlq,
        metrics=metrics or create_metrics(),
        auto_start=auto_start,
        now=now,
        random=random or chance,
    )


def _seconds(name: str, value: Seconds) -> float:
    try:
        return seconds(value)
    except ConfigError as error:
        raise ConfigError(f"{name}: {error}") from error
