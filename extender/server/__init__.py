"""The listeners and their assembly."""
