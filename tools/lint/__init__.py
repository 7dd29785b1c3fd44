"""Lints of our own."""
