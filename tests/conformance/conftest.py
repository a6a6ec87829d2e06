"""What the suites provoke on purpose."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator


@pytest.fixture(autouse=True)
def expected_loop_errors(request: pytest.FixtureRequest, loop_errors: list[str]) -> Generator[None]:
    """A listener that raises is reported by its loop; the suite means it to be."""
    yield
    if request.node.name == "test_a_listener_that_raises_does_not_stop_the_others":
        loop_errors.clear()
