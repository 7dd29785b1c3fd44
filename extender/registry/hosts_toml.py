"""Reads registries' folders in containerd's format: the endpoints of each registry and how TLS is checked for each.

Follows containerd (docs/hosts.md; core/remotes/docker/config/hosts.go). Reads files and tries certificates;
`mirror_files` decides when.

Departures: a malformed file is an error, where containerd logs it and uses the registry without mirrors. Plain HTTP is
not assumed for `localhost`. Of several client certificates OpenSSL keeps one per type of key.
"""

import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
from yarl import URL

from extender.durations import parse_seconds
from extender.errors import ConfigError, naming
from extender.registry.endpoint import CAPABILITIES, Capability, MirrorRule, Place, Routes
from extender.registry.endpoint_tls import CertificateReader
from extender.regular_files import read_file

_MOST_BYTES = 256 << 10  # of a file: ten thousand hosts take a second to read
_KNOWN_CAPABILITIES = frozenset({"resolve", "pull", "push", "referrers"})
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"[\t\x20-\x7e]*")
K = TypeVar("K", bound="_HostKeys")


class _HostKeys(msgspec.Struct):
    """The keys of a host that are read. Other keys are ignored, as in containerd."""

    capabilities: list[str] = []
    ca: str | list[str] = []
    client: str | list[str | tuple[str, str]] = []
    skip_verify: bool = False
    header: dict[str, str | list[str]] = {}
    override_path: bool = False
    dial_timeout: str = ""


class _RootKeys(_HostKeys):
    server: str = ""


def read_folder(folder: Path, certificates: CertificateReader) -> Routes:
    """Returns what a folder says that has a folder per registry, and `_default` for registries without one.

    Raises:
        ConfigError: a file of it cannot be used; the message names the file and the key.
        OSError: a file or folder cannot be read.
    """
    places = {}
    for entry in sorted(registry_folders(folder)):  # so that `host_port_` comes after `host:port`, and counts
        places[_prefix_of(entry.name)] = _read_registry(entry, certificates)
    return Routes(rules=tuple(MirrorRule(prefix, each) for prefix, each in places.items()))


def registry_folders(folder: Path) -> Iterator[Path]:
    """Yields the registries' folders in a folder. The kubelet hides in others what it links to."""
    return (entry for entry in folder.iterdir() if entry.is_dir() and not entry.name.startswith(".."))


def host_of_folder(name: str) -> str:
    """Returns the host that a folder is for: `host_port_` stands for `host:port`, as not every system has colons."""
    return re.sub(r"_([0-9]+)_$", r":\1", name)


def read_root(text: str, *, override_path: bool) -> URL:
    """Returns the root of the API: appends `/v2` if the path lacks it, unless `override_path` is set.

    Raises:
        ConfigError: the text is no address.
    """
    try:
        url = URL(text if "://" in text else f"https://{text}")
        if url.scheme in ("http", "https") and url.host and url.port:
            path = _path_of(url, override_path=override_path)
            return URL.build(scheme=url.scheme, host=url.host, port=url.explicit_port, path=path)
    except (ValueError, LookupError):  # `https://[]@` is an IndexError in yarl
        pass
    raise ConfigError(f"{text!r} is no http or https address")


def _prefix_of(name: str) -> str:
    return "" if name == "_default" else f"{host_of_folder(name)}/"


def _read_registry(folder: Path, certificates: CertificateReader) -> tuple[Place, ...]:
    """Returns the places in `hosts.toml`; without that file, the registry with the folder's certificates."""
    file = folder / "hosts.toml"
    text = _read_bounded(file) if file.exists() else b""
    if text:
        return read_hosts_toml(file, text, certificates)
    with naming(folder):
        return (Place(trust=certificates.folder_trust(folder)),)


def read_hosts_toml(file: Path, text: bytes, certificates: CertificateReader) -> tuple[Place, ...]:
    """Returns the places that a registry's file has, the registry itself or its `server` last.

    Raises:
        ConfigError: the file cannot be used; the message names it and the key.
    """
    with naming(file):
        try:
            document = tomllib.loads(text.decode())
        except (ValueError, RecursionError) as exc:  # not only tomllib's: an integer of 5,000 digits is a plain one
            raise ConfigError(f"it is no TOML: {exc}") from exc
        tables = document.pop("host", {})
        if not isinstance(tables, dict):
            raise ConfigError('host: write a table per host, such as [host."https://mirror"]')
        places = []
        for name, table in tables.items():
            with naming(f'host."{name}"'):
                host = _convert(table, _HostKeys)
                root = read_root(name, override_path=host.override_path)
                places.append(_place(file.parent, root, host, certificates))
        keys = _convert(document, _RootKeys)
        with naming("server"):
            server = read_root(keys.server, override_path=keys.override_path) if keys.server else None
        last = _place(file.parent, server, keys, certificates)
    # Without `server`, the last endpoint is the registry itself, with all capabilities, as in containerd.
    return (*places, last if server else msgspec.structs.replace(last, capabilities=CAPABILITIES))


def _place(folder: Path, root: URL | None, keys: _HostKeys, certificates: CertificateReader) -> Place:
    authorities = [folder / name for name in _list_of(keys.ca)]
    clients = [(folder / name, folder / key if key else None) for name, key in map(_pair_of, _list_of(keys.client))]
    return Place(
        root=root,
        capabilities=_read_capabilities(keys.capabilities),
        headers=tuple(_read_headers(keys.header)),
        trust=certificates.trust(authorities, clients, skip_verify=keys.skip_verify),
        connect_seconds=_read_timeout(keys.dial_timeout),
    )


def _read_bounded(file: Path) -> bytes:
    text = read_file(file, _MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{file} has more than {_MOST_BYTES >> 10} KiB")
    return text


def _convert(table: object, kind: type[K]) -> K:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as exc:
        problem, _, path = str(exc).partition(" - at `$.")
        raise ConfigError(": ".join(filter(None, (path.rstrip("`"), problem)))) from exc


def _list_of(value: str | list[Any]) -> list[Any]:
    return [value] if isinstance(value, str) else value


def _pair_of(client: str | tuple[str, str]) -> tuple[str, str]:
    """Returns the files of certificate and key; the key's is empty if one file has both."""
    return (client, "") if isinstance(client, str) else client


def _path_of(url: URL, *, override_path: bool) -> str:
    path = "/" + str(PurePosixPath(url.path.strip("/"))) if url.path.strip("/") else ""
    return path if override_path or path.endswith("/v2") else f"{path}/v2"


def _read_capabilities(names: Sequence[str]) -> frozenset[Capability]:
    """Returns which of `resolve` and `pull` are stated; both if nothing is. Ignores the other known names."""
    lower = {name.lower() for name in names}
    if unknown := sorted(lower - _KNOWN_CAPABILITIES):
        raise ConfigError(f"capabilities: {unknown[0]!r} is none of pull, resolve, push")
    return frozenset(each for each in CAPABILITIES if each in lower) if names else CAPABILITIES


def _read_headers(header: Mapping[str, str | list[str]]) -> Iterable[tuple[str, str]]:
    """Yields names and values. Error messages do not quote values, which may be secrets."""
    for name, value in header.items():
        for each in _list_of(value):
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(each):
                raise ConfigError(f"header.{name}: no header can be made of it")
            yield name, each


def _read_timeout(text: str) -> float | None:
    """Returns the seconds of `dial_timeout`; None, for our own timeout, if it is empty or zero."""
    try:
        seconds = parse_seconds(text) if text else 0.0
    except ValueError:
        seconds = -1.0
    if seconds < 0:
        raise ConfigError(f"dial_timeout: {text!r} is no duration such as 3s or 500ms")
    return seconds or None
