"""`completion`: prints the script by which a shell completes words; and answers kubectl, which needs no script.

kubectl runs `kubectl_complete-multiarch` with the words after `kubectl multiarch`, of which the last is incomplete. It
reads a completion a line, with a tab before its description, and then a number that says what the shell does besides.
Specification: https://kubernetes.io/docs/tasks/extend-kubectl/kubectl-plugins/ and cobra's ShellCompDirective.
"""

import contextlib
import enum
import io
import os
import shlex
import sys
from typing import Annotated

import typer

from extender.cli.main import command_line, main
from extender.cli.program import PLUGIN, WORDS, program_name, variable_of

_FILES, _NO_FILES = ":0", ":4"  # what cobra calls ShellCompDirectiveDefault and ShellCompDirectiveNoFileComp


class Shell(enum.StrEnum):
    """The shells that there are scripts for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(help="The shell that is to read the script.")]) -> None:
    """Print the script that lets a shell complete commands and options.

    Example: source <(multiarch-extender completion bash)
    """
    name = program_name()
    os.environ[variable_of(name)] = f"source_{shell}"  # by which the library is asked for it
    command_line(["completion"])(prog_name=name)


def answer_kubectl() -> None:
    """Prints what kubectl wants to know; the arguments are the words, of which the last may be empty."""
    *words, last = sys.argv[1:] or [""]
    os.environ[variable_of(PLUGIN)] = "complete_fish"
    os.environ["_TYPER_COMPLETE_FISH_ACTION"] = "get-args"
    os.environ[WORDS] = f"{shlex.join([PLUGIN, *words])} {last}"
    sys.argv = [PLUGIN]
    with contextlib.redirect_stdout(io.StringIO()) as found, contextlib.suppress(SystemExit):
        main()
    lines = [line for line in found.getvalue().splitlines() if line]
    print("\n".join([*lines, _NO_FILES if lines else _FILES]))
