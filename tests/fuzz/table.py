"""Every fuzz target, by name."""

from collections.abc import Mapping
from pathlib import Path

from tests.fuzz.target import Target
from tests.fuzz.targets import answers, cluster, credentials, fetcher, http, images, layers, registry

CORPUS = Path(__file__).parent / "corpus"
"""Inputs to begin with, in a folder per target."""

TARGETS: Mapping[str, Target] = {
    target.name: target
    for file in (images, registry, credentials, answers, cluster, http, fetcher, layers)
    for target in file.TARGETS
}


def seeds(name: str) -> list[Path]:
    """Returns the files of a target's corpus, in order."""
    return sorted((CORPUS / name).iterdir())
