"""Credentials for lookups: keyrings, logins, pull secrets, Docker configuration, the kubelet's plugins, clouds."""
