"""What a fetcher is started with."""

from typing import Literal

import msgspec

from extender.config.registry_section import RegistryConfig

LogLevel = Literal["debug", "info", "warning", "error"]


class FetcherSettings(msgspec.Struct, frozen=True, kw_only=True, tag="settings"):
    """The section `registry` of the service's settings, and what else this process is to keep to."""

    registry: RegistryConfig
    log_level: LogLevel = "info"
    resident_bytes: int = 0
    """How large the process may become before it ends itself."""
