"""The service under siege: real processes in a network namespace, honest tenants, and those that attack."""
