"""`config`: prints the effective settings, or checks a file."""

import asyncio
from collections.abc import Iterable
from typing import Annotated

import msgspec
import typer

from extender.cli.console import print_document, print_line, print_problem
from extender.cli.options import Assignments, ConfigFile, Context, Kubeconfig, on_cluster
from extender.config.checks import warnings_of
from extender.config.reading import load_config, read_config, to_yaml
from extender.config.tree import Config
from extender.logs import configure_logs
from extender.masked import masked_settings
from extender.service.start_check import check_start


def config(
    file: ConfigFile = None,
    assignments: Assignments = None,
    check: Annotated[
        str | None, typer.Option(metavar="FILE", help="Only say whether `serve` would start here with FILE.")
    ] = None,
    values_only: Annotated[
        bool, typer.Option("--values-only", help="With --check: open none of the files that FILE names.")
    ] = False,
    kubeconfig: Kubeconfig = "",
    context: Context = "",
) -> None:
    """Print the effective configuration with every default.

    Example: multiarch-extender config --set scheduler.wait_seconds=0.2

    Example: multiarch-extender config --check /etc/multiarch-extender/config.yaml
    """
    if check is not None:
        _check(
            on_cluster(load_config(check, assignments or (), option="--check"), kubeconfig, context),
            values_only=values_only,
        )
        print_line(f"{check} is right")
    else:
        shown = on_cluster(read_config(file, assignments or ()), kubeconfig, context)
        print_document(to_yaml(masked_settings(msgspec.to_builtins(shown))))


def _check(config: Config, *, values_only: bool) -> None:
    _warn(warnings_of(config))
    if not values_only:
        configure_logs("error", "console")
        _warn(asyncio.run(check_start(config)))


def _warn(warnings: Iterable[str]) -> None:
    for warning in warnings:
        print_problem(f"warning: {warning}")
