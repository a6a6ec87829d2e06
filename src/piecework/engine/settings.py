"""The numbers of the engine, each with its unit and the reason for its default."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from piecework.errors import ConfigError, shown


@dataclass(frozen=True, slots=True)
class Settings:
    """What can be tuned. All durations are seconds.

    Attributes:
        poll_interval: Upper bound of one wait for messages; 20 s is the longest poll of SQS.
        visibility: How long a lease lasts without a renewal.
        heartbeat: How often leases are renewed.
        start_after: When a work that is still running is written down as running; 0 writes it
            before the handler starts.
        result_ttl: How long a terminal record is kept.
        prefix: Stands before every key of the store.
        redrive_count: How many dead letters the idle worker brings back at once; 0 for none.
        max_redrives: How often one work may come back from the dead letters by itself.
        backlog_after: How long a poller must stay behind before ``on_backlog`` hears of it.
        backlog_every: How often it hears of it then.
        poll_cap: The most messages of one pop.
        put_back: The delay of a message that this worker does not take now.
        unknown_delay: The delay of a message whose type this worker does not know: time for a
            worker of the next deploy.
        early: How much before its time a work may start: below the clock differences of a fleet,
            above the rounding of a queue's delays.
        producer_grace: How long a worker that finds no record waits for the producer to write it.
        group_grace: How long an ended group waits for somebody who wants its result.
        fallback_first, fallback_last: The shortest and longest pause between two reads of somebody
            who waits for a result whose notification may be lost.
        cancel_grace: How long a handler may take to end after it was cancelled, before it is given
            up.
        claim_ttl: How long the claim on firing an occurrence of a schedule lasts.
        progress_every: The shortest pause between two writes of a work's progress.
        untracked_deliveries: After how many deliveries a work without a record is dead, since
            nothing else can tell that it kills its workers.
    """

    poll_interval: float = 20.0
    visibility: float = 30.0
    heartbeat: float = 10.0
    start_after: float = 1.0
    result_ttl: float = 86400.0
    prefix: str = "work:"
    redrive_count: int = 10
    max_redrives: int = 3
    backlog_after: float = 10.0
    backlog_every: float = 10.0
    poll_cap: int = 512
    put_back: float = 1.0
    unknown_delay: float = 5.0
    early: float = 1.0
    producer_grace: float = 0.05
    group_grace: float = 0.1
    fallback_first: float = 2.0
    fallback_last: float = 15.0
    cancel_grace: float = 1.0
    claim_ttl: float = 90.0
    progress_every: float = 1.0
    untracked_deliveries: int = 20

    def check(self) -> None:
        """Check that the numbers fit together.

        Raises:
            ConfigError: One is out of its range; the text says which and the range.
        """
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(field.default, int) and type(value) is not int:
                raise ConfigError(f"{field.name} must be a whole number, not {shown(value)}")
            if not isinstance(value, str) and not value >= 0:  # not a number is neither
                raise ConfigError(f"{field.name} must be at least 0, not {value:g}")
        for name in ("poll_interval", "visibility", "heartbeat", "result_ttl"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be above 0 seconds and not endless")
        if self.heartbeat > self.visibility / 2:
            raise ConfigError(
                f"heartbeat ({self.heartbeat:g} s) must be at most half of visibility "
                f"({self.visibility:g} s), or one late renewal loses the lease"
            )
