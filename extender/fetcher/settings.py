"""What a fetcher is started with."""

from typing import Literal

import msgspec

from extender.config.registry_section import RegistryConfig

LogLevel = Literal["debug", "info", "warning", "error"]

PATIENCE_SECONDS = 10.0
"""How long one lookup of the service's waits for programs and clouds that give logins; a later answer serves others."""


class FetcherSettings(msgspec.Struct, frozen=True, kw_only=True, tag="settings"):
    """The section `registry` of the service's settings, and what else this process is to keep to."""

    registry: RegistryConfig
    log_level: LogLevel = "info"
    id_key: bytes = b""
    """The hash key of the id that stands for the operator's credentials."""
    resident_bytes: int = 0
    """How large the process may become before it ends itself."""

    def __repr__(self) -> str:
        """Shows no key."""
        return f"FetcherSettings(registry={self.registry!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `__repr__`: msgspec's own would show the key in a pretty-printer."""
        return [("registry", repr(self.registry))]
