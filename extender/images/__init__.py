"""Image references, platforms and manifests. Pure."""
