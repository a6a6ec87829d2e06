"""What holds for all tests: the plugin's fixtures."""

from __future__ import annotations

import pytest

from piecework.testing import plugin


def pytest_configure(config: pytest.Config) -> None:
    # An installed Piecework has registered it already; a bare source tree has not.
    if not config.pluginmanager.is_registered(plugin):
        config.pluginmanager.register(plugin)
