"""Pods that are held until their images are known, and how they are let go."""
