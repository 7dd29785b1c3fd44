"""Looks inside an image: which program it starts, and for which machine that is. For commands alone."""
