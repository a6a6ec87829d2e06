"""The three ports: contracts that every backend fulfils and the engine is written against."""

from piecework.ports.backend import Backend
from piecework.ports.capabilities import Capabilities
from piecework.ports.pubsub import Listener, PubSub, Subscription
from piecework.ports.queue import Lease, Message, Queue
from piecework.ports.store import ANY, KEEP, Any_, Change, Keep, Page, Record, Store

__all__ = [
    "ANY",
    "KEEP",
    "Any_",
    "Backend",
    "Capabilities",
    "Change",
    "Keep",
    "Lease",
    "Listener",
    "Message",
    "Page",
    "PubSub",
    "Queue",
    "Record",
    "Store",
    "Subscription",
]
