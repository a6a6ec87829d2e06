"""Log context: every record that a handler writes says which work it belongs to."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from piecework.running import current_run

if TYPE_CHECKING:
    from piecework.definitions import WorkType
    from piecework.engine.hooks import Hooks


class WorkLogFilter(logging.Filter):
    """Adds ``work_id``, ``work_type``, ``group_id``, ``attempt`` and the log context to records.

    Outside of a handler the four are empty, so that a format may always name them.

    Example:
        >>> handler = logging.StreamHandler()
        >>> handler.addFilter(WorkLogFilter())
        >>> handler.setFormatter(logging.Formatter("%(work_type)s %(work_id)s %(message)s"))
    """

    def filter(self, record: logging.LogRecord) -> bool:
        """Add the fields; never drops a record."""
        run = current_run.get()
        record.work_id = run.id if run else ""
        record.work_type = run.type if run else ""
        record.group_id = run.group_id if run else ""
        record.attempt = run.attempt if run else 0
        if run and run.log:
            for name, value in run.log.items():
                if not hasattr(record, name):
                    setattr(record, name, value)
        return True


def log_fields(hooks: Hooks, work_type: WorkType[..., Any], input: str) -> dict[str, object]:
    """The log context of a work: the system's, with the type's own over it."""
    own = work_type.options.get("log_context")
    arguments = work_type.binding.mapping(input)
    fields: dict[str, object] = {}
    try:
        if hooks.log_context is not None:
            fields.update(hooks.log_context(arguments, work_type.type))
        if own is not None:
            fields.update(own(arguments))
    except Exception:
        logging.getLogger("piecework").exception("log_context of %s raised", work_type.type)
    return fields
