"""Benchmarks of speed, size and capacity: each file answers one question."""
