"""Questions whose answers take a real control plane: how fast kube-scheduler places pods, what the service costs."""
