"""Fetches manifests and blobs from image registries and their mirrors."""
