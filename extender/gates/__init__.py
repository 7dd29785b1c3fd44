"""Pods that are held until their images are known, and how their gates are removed."""
