"""The environment of the shipped image, for programs that are measured and tested as users run them."""

import re
from collections.abc import Sequence
from pathlib import Path

DOCKERFILE = Path(__file__).parents[1] / "Dockerfile"


def as_shipped(command: Sequence[str]) -> list[str]:
    """Returns the command with the variables that the Dockerfile sets for the allocator, in the same process."""
    variables = re.findall(r"\bMALLOC_\w+=\d+", DOCKERFILE.read_text())
    return ["/usr/bin/env", *variables, *command]
