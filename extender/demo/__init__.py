"""The demonstration: its pods and nodes, and an embedded registry that the integration tests use too."""
