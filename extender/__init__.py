"""Keeps pods on nodes whose CPU platform their images were built for. Importing it does nothing."""

__version__ = "0.1.0"
