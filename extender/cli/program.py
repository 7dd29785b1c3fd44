"""The names of the program, and what a shell's script for completion asks it by its environment."""

import os
import shlex
import sys
from pathlib import Path

PROGRAM, PLUGIN = "multiarch-extender", "kubectl-multiarch"
WORDS = "_TYPER_COMPLETE_ARGS"
"""The variable with the line that is being typed, in every shell but bash."""


def program_name() -> str:
    """The name under which this process was started, of the two that are installed."""
    return PLUGIN if Path(sys.argv[0]).name == PLUGIN else PROGRAM


def variable_of(name: str) -> str:
    """The environment variable by which a script asks the program of that name for completions."""
    return f"_{name}_COMPLETE".replace("-", "_").upper()


def completed_words(name: str) -> list[str] | None:
    """The words after the program's name that are to be completed; None if no script asks for that."""
    if variable_of(name) not in os.environ:
        return None
    line = os.environ.get(WORDS) or os.environ.get("COMP_WORDS", "")
    try:
        return shlex.split(line)[1:]
    except ValueError:  # an open quote
        return line.split()[1:]
