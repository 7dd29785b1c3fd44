"""The Kubernetes API as this program reads it: a connection, and views kept current by list and watch."""
