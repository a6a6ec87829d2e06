"""The ports that the tests of the engine run over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest


@pytest.fixture
def backend(piecework_memory: Mapping[str, Any]) -> Mapping[str, Any]:
    return piecework_memory
