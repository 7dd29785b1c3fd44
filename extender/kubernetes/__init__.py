"""The fields read and written on the Kubernetes wire. Pure."""
