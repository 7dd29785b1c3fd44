"""The command `multiarch-extender` (also `kubectl multiarch`): its subcommands and exit codes.

Exit codes: 0 for success, 1 if the answer is "no", 2 for a usage or configuration error. A file of this folder is a
subcommand if it defines a function with the file's name.
"""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Annotated

import typer

from extender import __version__, cli
from extender.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Keeps pods on nodes whose CPU platform their images were built for.",
)


def commands() -> Iterator[tuple[str, Callable[..., None]]]:
    """The name and the function of each subcommand; both have the name of the file."""
    for name in sorted(module.name for module in iter_modules(cli.__path__)):
        command = None if name == "main" else getattr(import_module(f"{cli.__name__}.{name}"), name, None)
        if command is not None:
            yield name, command


for _name, _command in commands():
    app.command(_name)(_command)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"multiarch-extender {__version__}")
        raise typer.Exit


@app.callback()
def options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options of the command itself."""


def main() -> None:
    """Run the command line and exit with its code."""
    try:
        app()
    except ConfigError as exc:
        for line in str(exc).splitlines():
            print(f"error: {line}", file=sys.stderr)
        sys.exit(2)
