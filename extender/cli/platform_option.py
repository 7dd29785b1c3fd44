"""The option --require of the commands that fail for images without a platform."""

from collections.abc import Sequence

from extender.config.checks import unheard_of
from extender.errors import ConfigError
from extender.images.platform import InvalidPlatform, Platform, parse_platform


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
