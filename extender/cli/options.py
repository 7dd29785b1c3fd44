"""Options that several commands share."""

from typing import Annotated

import typer

ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="YAML file of settings.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="One setting, over the file; the value is YAML. Repeatable."),
]
