"""Manifests as people write them: YAML read for what it says, and edited so that the rest of its text stays."""
