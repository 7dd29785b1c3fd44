"""Resolves an image reference with credentials: cache, registry lookups, failures and persistence."""
