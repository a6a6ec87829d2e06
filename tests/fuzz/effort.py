"""How hard the fuzz tests try: a little at each run, or for minutes with PIECEWORK_FUZZ=thorough.

PIECEWORK_FUZZ=thorough python -m pytest tests/fuzz -q
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from hypothesis import HealthCheck, settings

#: How many times as many examples the thorough profile has.
THOROUGH = 100

_SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]


def fuzzed(examples: int) -> Callable[[Any], Any]:
    """Settings of a fuzz test that tries so many examples under the default profile."""
    times = THOROUGH if os.environ.get("PIECEWORK_FUZZ") == "thorough" else 1
    return settings(max_examples=examples * times, deadline=None, suppress_health_check=_SLOW)
