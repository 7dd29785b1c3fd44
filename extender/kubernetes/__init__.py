"""The fields that we read and write of Kubernetes API objects and requests, one API group per file. Pure."""
