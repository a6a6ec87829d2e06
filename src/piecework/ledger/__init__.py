"""The ledger: the state machine of works and gates. Nothing else writes their states."""

from piecework.ledger.gates import GateLedger, Opening
from piecework.ledger.unique import register_unique, release_unique, unique_key
from piecework.ledger.works import (
    LONGEST_GROUP_TTL,
    PENDING_TTL,
    Ledger,
    Registered,
    Settled,
    WriteConflictError,
)

__all__ = [
    "LONGEST_GROUP_TTL",
    "PENDING_TTL",
    "GateLedger",
    "Ledger",
    "Opening",
    "Registered",
    "Settled",
    "WriteConflictError",
    "register_unique",
    "release_unique",
    "unique_key",
]
