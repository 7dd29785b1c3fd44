"""Fixtures of the registry's tests, for the tests of credentials."""

from tests.integration.registry.conftest import clock, session

__all__ = ["clock", "session"]
