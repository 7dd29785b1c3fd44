"""Options that several commands share."""

from collections.abc import Sequence
from typing import Annotated

import typer

from extender.config.checks import unheard_of
from extender.errors import ConfigError
from extender.images.platform import InvalidPlatform, Platform, parse_platform

ConfigFile = Annotated[str | None, typer.Option("--config", metavar="FILE", help="YAML file of settings.")]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="PATH=VALUE", help="One setting, over the file; the value is YAML. Repeatable."),
]


def required_platforms(texts: Sequence[str]) -> list[Platform]:
    """The platforms in `os/architecture[/variant]`. Raises ConfigError if one is none, or one that no node has."""
    try:
        required = [parse_platform(text) for text in texts]
    except InvalidPlatform as exc:
        raise ConfigError(f"--require: {exc}") from exc
    for text, platform in zip(texts, required, strict=True):
        if problem := unheard_of(platform):
            raise ConfigError(f"--require: {text!r}: {problem}")
    return required
