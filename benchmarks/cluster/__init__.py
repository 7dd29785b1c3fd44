"""Benchmarks on a real control plane: how fast kube-scheduler places pods, and what the service costs."""
