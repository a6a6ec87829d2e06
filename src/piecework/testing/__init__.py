"""The test kit: conformance suites, a virtual clock, and pytest fixtures."""

from piecework.testing.conformance import PubSubConformance, QueueConformance, StoreConformance

__all__ = ["PubSubConformance", "QueueConformance", "StoreConformance"]
