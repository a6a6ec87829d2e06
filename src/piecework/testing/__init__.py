"""The test kit: conformance suites, a virtual clock, and pytest fixtures."""
