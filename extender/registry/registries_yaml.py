"""`registries.yaml` of k3s and rke2: the endpoints and logins that nodes have by it.

Follows pkg/agent/containerd of k3s and pkg/registries of github.com/rancher/wharfie. Tries the certificates that the
file names. Sends no request. The embedded mirror is a flag of k3s and not in here.

Departures: an endpoint that is no address is an error, where k3s leaves it out. Rewrites are tried in the file's order.
"""

import base64
import binascii
import ipaddress
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from yarl import URL

from extender.bounded_yaml import InvalidYaml
from extender.errors import ConfigError, naming
from extender.images.reference import HUB, HUB_HOST, host_of_registry
from extender.registry.endpoint import MirrorRule, Place, Routes
from extender.registry.endpoint_tls import CertificateReader, Certificates
from extender.registry.go_rewrites import read_rewrites
from extender.registry.hosts_toml import read_root
from extender.yaml_values import FALSE, TRUE, PlainText, read_texts

MOST_BYTES = 256 << 10


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


class NodeRegistries(NamedTuple):
    """The routes, and a name and a password by host."""

    routes: Routes
    logins: Mapping[str, tuple[str, str]]


def read_registries_yaml(data: bytes, certificates: CertificateReader) -> NodeRegistries:
    """Returns what k3s makes of the file, where registries are asked themselves after their mirrors.

    Raises:
        ConfigError: the file cannot be used; the message says where.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(f"it has more than {MOST_BYTES >> 10} KiB")
    try:
        read = msgspec.convert(_as_go(read_texts(data)) or {}, _Registries)
    except msgspec.ValidationError as exc:
        raise ConfigError(str(exc)) from exc
    except InvalidYaml as exc:
        raise ConfigError(f"it is no YAML: {exc}") from exc
    configs = {host: config or _HostConfig() for host, config in (read.configs or {}).items()}
    mirrors = dict.fromkeys(configs) | (read.mirrors or {})
    rules = [_rule(host, mirror or _MirrorConfig(), configs, certificates) for host, mirror in mirrors.items()]
    logins = {host: login for host, config in configs.items() if (login := _login(host, config))}
    return NodeRegistries(Routes(rules=tuple(rule for rule in rules if rule.places)), logins)


def _rule(
    host: str, mirror: _MirrorConfig, configs: Mapping[str, _HostConfig], certificates: CertificateReader
) -> MirrorRule:
    """Returns what k3s writes to the `hosts.toml` of a registry: its endpoints, and the registry itself.

    It has no places if k3s writes no file.
    """

    def config_of(name: str) -> _HostConfig:
        return configs.get(host_of_registry(name)) or configs.get(name) or _HostConfig()

    own = None if host == "*" else _address(host)[1]
    config = config_of(host)
    last = Place(root=own, trust=_trust(host, configs.get(host) or config, certificates))
    with naming(f"mirrors.{host}.rewrite"):
        rewrites = read_rewrites(mirror.rewrite or {})
    places: dict[URL, Place] = {}
    addresses = list(map(_address, mirror.endpoint or ()))
    for position, (name, root) in enumerate(addresses, 1):
        if root in places:
            continue
        trust = _trust(name, config_of(name), certificates)
        if position == len(addresses) and root == own:
            last = Place(root=own, trust=trust)
        else:
            places[root] = Place(root=root, trust=trust, rewrites=rewrites)
    if not places and not (config.auth or config.tls):
        return MirrorRule(host, ())
    # The containerd of k3s adds no registry to a file with hosts and without `server`, which k3s leaves out here.
    is_last_left_out = places and host == "*" and host in configs
    return MirrorRule("" if host == "*" else f"{host}/", (*places.values(), *(() if is_last_left_out else (last,))))


def _trust(host: str, config: _HostConfig, certificates: CertificateReader) -> Certificates | None:
    tls = config.tls or _Tls()
    clients = [(Path(tls.cert_file), Path(tls.key_file) if tls.key_file else None)] if tls.cert_file else []
    with naming(f"configs.{host}.tls"):
        authorities = [Path(tls.ca_file)] if tls.ca_file else []
        return certificates.trust(authorities, clients, skip_verify=tls.insecure_skip_verify)


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


def _address(text: str) -> tuple[str, URL]:
    """Returns the host of an endpoint, or of a registry that is asked itself, as `configs` has it, and the root.

    Raises ConfigError.
    """
    invalid = ConfigError(f"{text!r} is no http or https address")
    try:
        url = urlsplit(text if "://" in text else f"//{text}")
        host, port = url.hostname, url.port
    except ValueError as exc:
        raise invalid from exc
    if not host or url.scheme not in ("", "http", "https"):
        raise invalid
    is_plain = url.scheme == "http" or (not url.scheme and _is_local(host) and port not in (None, 443))
    root = f"{'http' if is_plain else 'https'}://{host_of_registry(url.netloc)}"
    name = HUB if url.netloc == HUB_HOST else url.netloc
    overrides_path = url.path not in ("", "/", "/v2")
    return name, read_root(root + url.path, override_path=overrides_path)


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
