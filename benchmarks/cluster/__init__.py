"""Clusters for the benchmarks and the end-to-end tests: one interface, `local` processes or `kind` containers."""
