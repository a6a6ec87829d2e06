"""Which workloads a seed is about. Other processes find these by their names."""

from __future__ import annotations

import importlib
from random import Random
from typing import TYPE_CHECKING, Any

from piecework.testing.simulation.workloads import WORKLOADS, draw_workloads

if TYPE_CHECKING:
    from collections.abc import Callable

    from piecework.testing.simulation.workload import Workload


def drawn(seed: int) -> list[Workload]:
    """The workloads that a seed draws."""
    return draw_workloads(Random(f"workloads {seed}"))  # noqa: S311 - repeatable on purpose


class Only:
    """One workload, whatever the seed.

    Args:
        name: One of ``WORKLOADS``, or ``MODULE:CLASS``.

    Raises:
        SystemExit: There is no such workload; the text names those that there are.
    """

    def __init__(self, name: str) -> None:
        _load(name)
        self.name = name

    def __call__(self, _: int) -> list[Workload]:
        """A fresh one."""
        return [_load(self.name)()]


def _load(name: str) -> Callable[[], Workload]:
    if name in WORKLOADS:
        return WORKLOADS[name]
    module, _, attribute = name.partition(":")
    try:
        found: Any = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise SystemExit(
            f"there is no workload {name!r} ({error}); use MODULE:CLASS or one of "
            f"{', '.join(WORKLOADS)}"
        ) from error
    return found
