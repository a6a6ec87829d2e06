"""Unique works: one claim per type and key, taken together with the work's registration."""

from __future__ import annotations

from typing import TYPE_CHECKING

from piecework.envelope import encode
from piecework.errors import ConflictError
from piecework.ledger.works import LONGEST_GROUP_TTL, PENDING_TTL, Registered
from piecework.options import is_name
from piecework.ports.store import Change, Record
from piecework.record import read_item

if TYPE_CHECKING:
    from piecework.envelope import Envelope
    from piecework.ledger.works import Ledger


def unique_key(prefix: str, env: Envelope) -> str:
    """The key of the claim of a work."""
    return f"{prefix}unique:{env.type}:{env.unique}"


async def register_unique(
    ledger: Ledger,
    env: Envelope,
    key: str,
    *,
    unique_for: float | None,
    root: Envelope | None = None,
) -> Registered:
    """Register a work, unless another of its type and key is under way: then return that one.

    A claim whose work was never registered is taken over with the id that it names, so that its
    producer, should it live after all, meets the same work. ``root`` is as in
    ``Ledger.register_children``.
    """
    expect = 0
    while True:
        life = unique_for if unique_for is not None else _longest(ledger, env)
        claim = Change(key, value=env.id, expect=expect, ttl=life)
        try:
            await ledger.store.write([*ledger.register_changes(env, encode(env)), claim])
        except ConflictError as conflict:
            held = conflict.records[-1]
            own = conflict.records[0]
            counter = conflict.records[1]
        else:
            return Registered(env, new=True)
        if own.version > 0:
            return Registered(env, new=False)
        if root is not None and counter.version == 0:
            await ledger.register(root, encode(root))  # its message came before its record
            root = None
            continue
        if held.version == expect:  # the group had settled
            env = env._replace(group_id=env.id, gate=None)
            continue
        first = held.value
        if first is None:
            expect = 0
            continue
        record = (await ledger.read([first]))[0]
        item = read_item(record)
        if item is None and is_name(first):
            env = _renamed(env, first)
        elif item is not None and (not item.terminal or unique_for is not None):
            return Registered(_first(env, first, record), new=False)
        expect = held.version


async def release_unique(ledger: Ledger, env: Envelope, key: str) -> None:
    """Let go of the claim of a work that has settled, unless its life is fixed."""
    if env.unique_until is not None:
        return
    held = (await ledger.store.read([key]))[0]
    if held.value != env.id:
        return
    try:
        await ledger.store.write([Change(key, delete=True, expect=held.version)])
    except ConflictError:
        return  # somebody has taken it over already


def _longest(ledger: Ledger, env: Envelope) -> float:
    """Longer than the work may be put off, which does not renew its claim; its end releases it."""
    until = max(0, env.start_at - ledger.now_ms()) / 1000
    return max(LONGEST_GROUP_TTL, until + PENDING_TTL)


def _renamed(env: Envelope, id: str) -> Envelope:
    root = env.group_id == env.id
    return env._replace(id=id, group_id=id if root else env.group_id)


def _first(env: Envelope, id: str, record: Record) -> Envelope:
    item = read_item(record)
    if item is None or item.terminal:
        group_id = item.header.get("gid", id) if item is not None else id
        return env._replace(id=id, group_id=group_id)
    return item.envelope()
