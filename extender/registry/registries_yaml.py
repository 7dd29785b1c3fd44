"""`registries.yaml` of k3s and rke2, as the tables of the `hosts.toml` that these write for each registry.

Follows pkg/agent/containerd of k3s and pkg/registries of github.com/rancher/wharfie. Takes bytes and gives tables that
`hosts_toml` reads. Opens no file and sends no request. The embedded mirror is a flag of k3s and not in here.

Departures: an endpoint that is no address is an error, where k3s leaves it out. Rewrites are tried in the file's order.
"""

import base64
import binascii
import ipaddress
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from extender.bounded_yaml import FALSE, TRUE, InvalidYaml, PlainText, read_texts
from extender.errors import ConfigError

MOST_BYTES = 256 << 10
_HOSTS = {"docker.io": "registry-1.docker.io"}


class _Tls(msgspec.Struct, frozen=True):
    cert_file: str = ""
    key_file: str = ""
    ca_file: str = ""
    insecure_skip_verify: bool = False


class _Auth(msgspec.Struct, frozen=True):
    username: str = ""
    password: str = ""
    auth: str = ""
    identity_token: str = ""


class _HostConfig(msgspec.Struct, frozen=True):
    auth: _Auth | None = None
    tls: _Tls | None = None


class _MirrorConfig(msgspec.Struct, frozen=True):
    endpoint: tuple[str, ...] | None = None
    rewrite: dict[str, str] | None = None


class _Registries(msgspec.Struct, frozen=True):
    mirrors: dict[str, _MirrorConfig | None] | None = None
    configs: dict[str, _HostConfig | None] | None = None


class Rendered(NamedTuple):
    """The tables of `hosts.toml` by the name of its folder, and a name and a password by host."""

    hosts: Mapping[str, dict[str, Any]]
    logins: Mapping[str, tuple[str, str]]


class _Address(NamedTuple):
    host: str  # as `configs` has it
    url: str
    overrides_path: bool


def read_registries_yaml(data: bytes, *, default_endpoint: bool) -> Rendered:
    """Returns what k3s makes of the file. `default_endpoint`: registries are asked themselves after their mirrors.

    Raises:
        ConfigError: the file cannot be used; the message says where.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(f"it has more than {MOST_BYTES >> 10} KiB")
    try:
        read = msgspec.convert(_as_go(read_texts(data, unique_keys=False)) or {}, _Registries)
    except msgspec.ValidationError as exc:
        raise ConfigError(str(exc)) from exc
    except InvalidYaml as exc:
        raise ConfigError(f"it is no YAML: {exc}") from exc
    configs = {host: config or _HostConfig() for host, config in (read.configs or {}).items()}
    hosts = {host: _default_table(host, config) for host, config in configs.items()}
    for host, mirror in (read.mirrors or {}).items():
        table = hosts.get(host)
        if table is None:
            table = _default_table(host, _config_of(configs, host))
            if not default_endpoint:
                table.pop("server", None)
            elif host == "*":
                table["server"] = ""
        hosts[host] = _with_mirror(table, mirror or _MirrorConfig(), configs)
    used = {host: table for host, table in hosts.items() if table["host"] or _is_kept(host, table, configs)}
    logins = {host: login for host, config in configs.items() if (login := _login(host, config))}
    return Rendered({"_default" if host == "*" else host: table for host, table in used.items()}, logins)


def _as_go(value: Any, key: str = "") -> Any:  # noqa: ANN401  # what a decoder takes
    """The value as Go's decoder reads it: a text is what stands there, such as the password 0123."""
    if isinstance(value, dict):
        return {str(name): _as_go(each, name) for name, each in value.items()}
    if isinstance(value, list):
        return [_as_go(each) for each in value]
    if not isinstance(value, PlainText):
        return value
    if key == "insecure_skip_verify" and value in TRUE + FALSE:
        return value in TRUE
    return None if value.is_null else str(value)


def _default_table(host: str, config: _HostConfig) -> dict[str, Any]:
    """The table of a registry that is asked itself."""
    table: dict[str, Any] = {"host": {}} if host == "*" else {"server": _address(host).url, "host": {}}
    return table | _tls_keys(config)


def _with_mirror(table: dict[str, Any], mirror: _MirrorConfig, configs: Mapping[str, _HostConfig]) -> dict[str, Any]:
    endpoints = mirror.endpoint or ()
    seen: set[str] = set()
    for position, text in enumerate(endpoints, 1):
        address = _address(text)
        if address.url in seen:
            continue
        seen.add(address.url)
        keys = {
            "capabilities": ["pull", "resolve"],
            "override_path": address.overrides_path,
            "rewrite": dict(mirror.rewrite or {}),
        } | _tls_keys(_config_of(configs, address.host))
        if position == len(endpoints) and address.url == table.get("server"):
            table |= {key: value for key, value in keys.items() if key != "rewrite"}
        else:
            table["host"][address.url] = keys
    return table


def _is_kept(host: str, table: Mapping[str, Any], configs: Mapping[str, _HostConfig]) -> bool:
    """Whether k3s writes a file for a registry without mirrors, since its own endpoint has settings."""
    config = _config_of(configs, host)
    return bool(config.auth or config.tls) and (host in configs or "server" in table)


def _tls_keys(config: _HostConfig) -> dict[str, Any]:
    tls = config.tls
    if tls is None:
        return {}
    pair = [(tls.cert_file, tls.key_file)] if tls.cert_file else []
    return {"ca": [tls.ca_file] if tls.ca_file else [], "client": pair, "skip_verify": tls.insecure_skip_verify}


def _config_of(configs: Mapping[str, _HostConfig], host: str) -> _HostConfig:
    return configs.get(_HOSTS.get(host, host)) or configs.get(host) or _HostConfig()


def _address(text: str) -> _Address:
    """Returns the address of an endpoint, or of a registry that is asked itself."""
    invalid = ConfigError(f"{text!r} is no http or https address")
    try:
        url = urlsplit(text if "://" in text else f"//{text}")
        host, port = url.hostname, url.port
    except ValueError as exc:
        raise invalid from exc
    if not host or url.scheme not in ("", "http", "https"):
        raise invalid
    is_plain = url.scheme == "http" or (not url.scheme and _is_local(host) and port not in (None, 443))
    root = f"{'http' if is_plain else 'https'}://{_HOSTS.get(url.netloc, url.netloc)}"
    name = "docker.io" if url.netloc == "registry-1.docker.io" else url.netloc
    if url.path in ("", "/", "/v2"):
        return _Address(name, f"{root}/v2", overrides_path=False)
    return _Address(name, root + url.path, overrides_path=True)


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _login(host: str, config: _HostConfig) -> tuple[str, str] | None:
    auth = config.auth
    if auth is None:
        return None
    if auth.auth and not auth.username:
        try:
            name, _, password = base64.b64decode(auth.auth, validate=True).decode().partition(":")
        except (binascii.Error, ValueError) as exc:
            raise ConfigError(f"configs.{host}.auth.auth is no base64 of a name and a password") from exc
        return name, password.rstrip("\0")
    return (auth.username, auth.password) if auth.username else None
