"""The test kit: conformance suites, a virtual clock, and pytest fixtures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from piecework.testing.conformance import (
        LedgerConformance,
        PubSubConformance,
        QueueConformance,
        StoreConformance,
    )

__all__ = ["LedgerConformance", "PubSubConformance", "QueueConformance", "StoreConformance"]


def __getattr__(name: str) -> Any:
    # Every pytest run on a machine with Piecework imports this package for the plugin's sake, so
    # the suites are imported by those who name them.
    if name in __all__:
        from piecework.testing import conformance

        return getattr(conformance, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
