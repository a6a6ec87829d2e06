"""One suite per port: subclass it, give the fixture, and pytest runs every guarantee against it."""

from piecework.testing.conformance.pubsub import PubSubConformance
from piecework.testing.conformance.queue import QueueConformance
from piecework.testing.conformance.store import StoreConformance

__all__ = ["PubSubConformance", "QueueConformance", "StoreConformance"]
