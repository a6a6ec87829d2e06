"""Metrics as the text that Prometheus scrapes. ``prometheus_client`` is imported at first use."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from piecework.metrics.registry import Metrics
    from piecework.metrics.series import Kind

_NOT_IN_A_NAME = re.compile(r"[^a-zA-Z0-9_]")


def exposed_name(name: str, kind: Kind | None = None) -> str:
    """A name of ours as Prometheus takes it: dots and other signs become ``_``.

    That of a counter ends in ``_total``, once.
    """
    plain = _NOT_IN_A_NAME.sub("_", name)
    plain = f"_{plain}" if plain[:1].isdigit() else plain
    return plain.removesuffix("_total") + "_total" if kind == "counter" else plain


def format_prometheus(metrics: Metrics) -> str:
    """All that the registry of ``metrics`` collects, in Prometheus's text format.

    Dots in names become ``_``, counters end in ``_total``, summaries are shown as histograms
    (``_bucket``, ``_sum``, ``_count``), durations are in seconds. Where ``create_metrics`` was
    given a registry of yours, the text holds what else you registered there.

    Args:
        metrics: What to show, such as ``work.metrics``.

    Example:
        >>> from piecework.metrics import create_metrics
        >>> metrics = create_metrics()
        >>> metrics.counter("mails.sent", "Mails sent.", kind="welcome").inc()
        >>> print(format_prometheus(metrics), end="")
        # HELP mails_sent_total Mails sent.
        # TYPE mails_sent_total counter
        mails_sent_total{kind="welcome"} 1.0
    """
    from prometheus_client import generate_latest

    return generate_latest(metrics.registry).decode()
