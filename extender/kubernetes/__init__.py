"""The fields that are read and written of what Kubernetes components send each other, one API group a file. Pure."""
