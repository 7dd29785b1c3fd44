"""The baseline: scheduler extenders in Go."""
