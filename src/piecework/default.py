"""The default instance, for programs that need only one system in one process.

It knows the types of the works that it is given, and runs them once it was started.
"""

from __future__ import annotations

from piecework.codec import default_codec
from piecework.doers import unlimited_doer
from piecework.engine.hooks import Hooks
from piecework.engine.settings import Settings
from piecework.ids import chance
from piecework.metrics import create_metrics
from piecework.system import WorkSystem
from piecework.system_ports import complete_ports

work = WorkSystem(
    work=(),
    **complete_ports(None, None, None, None),
    settings=Settings(),
    hooks=Hooks(),
    retry=None,
    port_retry=None,
    doer=unlimited_doer(),
    codec=default_codec,
    dlq=None,
    metrics=create_metrics(),
    auto_start=False,
    now=None,
    random=chance,
    adopt=True,
)
"""The default system: in memory, started by ``start()``."""

enqueue = work.enqueue
schedule = work.schedule
start = work.start
stop = work.stop
list = work.list
