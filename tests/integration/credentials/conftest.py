"""The fixtures of the registry's tests that credentials are tested with too."""

from tests.integration.registry.conftest import clock, session

__all__ = ["clock", "session"]
