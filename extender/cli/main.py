"""The command `multiarch-extender` (also `kubectl multiarch`): its subcommands and exit codes.

A command ends with 0 if the answer is "yes", and with 1 if it is "no", whatever its question is. It ends with 2 if
there is no answer: for wrong usage or settings, a file that cannot be used, or a cluster that cannot be read.
"""

import errno
import os
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, cast

import typer

from extender import __version__
from extender.cli.console import print_line, print_problem
from extender.errors import ConfigError, ExtenderError

PROGRAM, PLUGIN = "multiarch-extender", "kubectl-multiarch"
COMMANDS = (
    "audit", "config", "doctor", "explain", "fix", "inspect", "serve", "ungate",
)  # fmt: skip
"""The subcommands; each is the function of its name in the file of its name."""


_UNWRITABLE = {errno.EBADF, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ENOSPC, errno.EPIPE}
_WrongUsage: type[Exception] = typer.BadParameter.__mro__[1]  # of which typer exports one kind


def commands(names: Sequence[str] = ()) -> dict[str, Callable[..., None]]:
    """The functions of the subcommands with these names, or of all of them, by name. Imports no other file."""
    chosen = [name for name in COMMANDS if name in names] or COMMANDS
    return {name: getattr(import_module(f"extender.cli.{name}"), name) for name in chosen}


def _print_version(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


def version() -> None:
    """Print the version."""
    print_line(f"{PROGRAM} {__version__}")


def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


def command_line(arguments: Sequence[str], *, add_completion: bool = True) -> typer.Typer:
    """The command line for these arguments, with options that install completion or without.

    It has the one subcommand that the first argument names, because importing all of them takes half a second, and all
    of them where it names none.
    """
    app = typer.Typer(
        add_completion=add_completion,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Keeps pods on nodes whose CPU platform their images were built for.",
    )
    app.callback()(options)
    app.command(hidden=True)(version)
    for name, command in commands(arguments[:1]).items():
        app.command(name, help=_paragraphs(command.__doc__ or ""))(command)
    return app


def _paragraphs(text: str) -> str:
    """The text with each paragraph on one line, which a terminal wraps where it ends."""
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def main() -> None:
    is_plugin = Path(sys.argv[0]).name == PLUGIN  # which has no completion: kubectl asks another program for that
    name = "kubectl multiarch" if is_plugin else PROGRAM
    if sys.stdout is None:
        print_problem("error: standard output is closed")
        sys.exit(2)
    try:
        arguments = sys.argv[1:] or ["--help"]
        code = command_line(arguments, add_completion=not is_plugin)(arguments, prog_name=name, standalone_mode=False)
        sys.stdout.flush()
        sys.exit(code)
    except typer.Abort:
        sys.exit(1)
    except _WrongUsage as exc:
        _print_usage(cast("typer.BadParameter", exc))
    except ConfigError as exc:
        for problem in exc.problems:
            print_problem(f"error: {problem}")
    except ExtenderError as exc:
        print_problem(f"error: {exc}")
    except OSError as exc:
        if exc.errno not in _UNWRITABLE:
            raise
        _discard_output()
        if exc.errno == errno.EPIPE:  # whoever read it has enough
            sys.exit(1)
        print_problem(f"error: standard output cannot be written: {exc.strerror}")
    sys.exit(2)


def _discard_output() -> None:
    """Has what is left to write go nowhere: the interpreter would try once more as it ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)


def _print_usage(exc: typer.BadParameter) -> None:
    """Says what is wrong with the arguments."""
    if exc.ctx:
        print_problem(exc.ctx.get_usage())
    print_problem(f"error: {exc.format_message().rstrip('.')}; -h describes the options")
