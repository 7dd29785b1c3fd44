"""The embedded registry, used by the demo and the integration tests."""
