"""The backend in this process: a queue, a store and a pub/sub that need no set-up."""

from piecework.memory.backend import memory_backend
from piecework.memory.pubsub import MemoryPubSub
from piecework.memory.queue import MemoryQueue
from piecework.memory.store import MemoryStore

__all__ = ["MemoryPubSub", "MemoryQueue", "MemoryStore", "memory_backend"]
