"""The names of the counters that stand in a work's record beside its value."""

from __future__ import annotations

from typing import Final

#: Works of the group that are not terminal.
OPEN: Final = "open"
#: How many works were ever open, so that each time a group ends can be told from the last.
OPENED: Final = "opened"
#: Works of a gate that are not terminal.
MEMBERS: Final = "members"
#: Works of a gate that succeeded.
OK: Final = "ok"
#: Works of a gate that ended otherwise.
FAILED: Final = "failed"
#: 1 until all works of a gate are queued.
HOLD: Final = "hold"
#: How many wait for the result of the work.
WAITERS: Final = "waiters"
#: How many wait for the end of its group.
GROUP_WAITERS: Final = "group_waiters"
#: How often a running work was asked to stop.
CANCEL: Final = "cancel"
