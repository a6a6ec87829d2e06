"""One suite per port: subclass it, give the fixture, and pytest runs every guarantee against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from piecework.testing.conformance.pubsub import PubSubConformance
from piecework.testing.conformance.queue import QueueConformance
from piecework.testing.conformance.store import StoreConformance

if TYPE_CHECKING:
    from piecework.testing.conformance.ledger import LedgerConformance

__all__ = ["LedgerConformance", "PubSubConformance", "QueueConformance", "StoreConformance"]


def __getattr__(name: str) -> Any:
    # It alone needs hypothesis, which those who do not use it need not have.
    if name == "LedgerConformance":
        from piecework.testing.conformance.ledger import LedgerConformance

        return LedgerConformance
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
