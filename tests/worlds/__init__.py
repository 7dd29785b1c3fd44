"""Worlds: small clusters made from one number each, played in simulated time and judged by invariants."""
