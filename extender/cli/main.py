"""The command `multiarch-extender` (also `kubectl multiarch`): its subcommands and exit codes.

Exit codes: 0 for success, 1 if the answer is "no", 2 for a usage or configuration error. A file of this folder is a
subcommand if it defines a function with the file's name.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from inspect import isfunction
from pkgutil import iter_modules
from typing import Annotated

import typer

from extender import __version__, cli
from extender.cli.program import PLUGIN, completed_words, program_name
from extender.errors import ConfigError


def commands(names: Sequence[str] = ()) -> dict[str, Callable[..., None]]:
    """The functions of the subcommands with these names, or of all of them, by name. Imports no other file."""
    files = sorted(module.name for module in iter_modules(cli.__path__) if module.name != "main")
    found: dict[str, Callable[..., None]] = {}
    for name in [file for file in files if file in names] or files:
        command = getattr(import_module(f"{cli.__name__}.{name}"), name, None)
        if isfunction(command) and command.__module__ == f"{cli.__name__}.{name}":
            found[name] = command
    return found


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"multiarch-extender {__version__}")
        raise typer.Exit


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
        no_args_is_help=True,
        add_completion=add_completion,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        help="Keeps pods on nodes whose CPU platform their images were built for.",
    )
    app.callback()(options)
    for name, command in commands(arguments[:1]).items():
        app.command(name)(command)
    return app


def main() -> None:
    """Run the command line and exit with its code."""
    name = program_name()
    words = completed_words(name)
    try:
        if words is not None:
            command_line(words)(prog_name=name)
        elif name == PLUGIN:  # kubectl completes by itself
            command_line(sys.argv[1:], add_completion=False)(prog_name="kubectl multiarch")
        else:
            command_line(sys.argv[1:])(prog_name=name)
    except ConfigError as exc:
        for line in str(exc).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
