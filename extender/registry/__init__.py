"""I/O with one outside party: image registries."""
