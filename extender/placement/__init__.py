"""Decisions and their reasons, computed from facts about images and nodes. Pure."""
