"""The command `multiarch-extender` (also `kubectl multiarch`): its subcommands, and how an error becomes an exit code.

0: fine. 1: the answer is "no". 2: usage or configuration.
"""

import sys
from typing import Annotated

import typer

from extender import __version__
from extender.cli import config, demo, inspect, serve
from extender.errors import ConfigError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="Keeps pods on nodes whose CPU platform their images were built for.",
)
app.command("serve")(serve.serve)
app.command("inspect")(inspect.inspect)
app.command("demo")(demo.demo)
app.command("config")(config.config)


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
