"""The settings that a fetcher is started with: all that asks registries and credential providers needs to know."""

from typing import Literal

import msgspec

from extender.credential_sources import Cloud


class FetcherSettings(msgspec.Struct, frozen=True, kw_only=True, tag="settings"):
    """As the fields of the same names in the service's configuration say."""

    timeout_seconds: float
    plain_http: tuple[str, ...] = ()
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    private_addresses: bool = True
    ca_files: tuple[str, ...] = ()
    mirrors: str = ""
    docker_config: str = ""
    plugin_config: str = ""
    plugin_dir: str = ""
    clouds: tuple[Cloud, ...] = ()
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    resident_bytes: int = 0
    """How large the process may become before it ends itself."""
