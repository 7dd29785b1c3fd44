"""The HTTP server: listeners, TLS, the connection of the hot paths, routes, operations."""
