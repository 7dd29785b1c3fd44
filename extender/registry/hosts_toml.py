"""Reads a registry's folder in containerd's format: the registry's endpoints and how TLS is checked for each.

Follows containerd (docs/hosts.md; core/remotes/docker/config/hosts.go). Reads files and tries certificates; `mirrors`
decides which folder is read, and when.

Departures: a malformed file is an error, where containerd logs it and uses the registry without mirrors. Plain HTTP is
not assumed for `localhost`. Of several client certificates OpenSSL keeps one per type of key.
"""

import re
import ssl
import tomllib
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, TypeVar

import msgspec
from yarl import URL

from extender.durations import parse_seconds
from extender.errors import ConfigError, RegistryUnavailable
from extender.images.reference import ImageReference
from extender.registry.endpoint import CAPABILITIES, Capability, Endpoint, Trust, upstream_root
from extender.registry.endpoint_tls import Certificates, MakeContext, Stamp, TlsContexts, load_client
from extender.registry.go_rewrites import InvalidRewrite, Rewrite, read_rewrites, rewritten

SETTING = "registry.hosts_directory"
_MOST_BYTES = 256 << 10  # of a file: ten thousand hosts take a second to read
_KNOWN_CAPABILITIES = frozenset({"resolve", "pull", "push", "referrers"})
# k3s' and rke2's embedded mirror on each node, as they write it.
_EMBEDDED = frozenset({URL("https://127.0.0.1:6443"), URL("https://127.0.0.1:9345"), URL("https://[::1]:6443")})
_EMBEDDED_REASON = "it is the embedded mirror, which only the node itself reaches"
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


class _K3sHostKeys(_HostKeys):
    rewrite: dict[str, str] = {}


class _RootKeys(_HostKeys):
    server: str = ""


class MirrorHost(NamedTuple):
    """One endpoint in a registry's file. `root` is None for the registry itself."""

    root: URL | None = None
    capabilities: frozenset[Capability] = CAPABILITIES
    headers: tuple[tuple[str, str], ...] = ()
    own: MakeContext | None = None
    elsewhere: MakeContext | None = None
    connect_seconds: float | None = None
    rewrites: tuple[Rewrite, ...] = ()
    not_asked: str = ""

    def endpoint(self, reference: ImageReference, plain_http: Collection[str]) -> Endpoint:
        """Returns the endpoint for an image. containerd sends a pod's credentials to mirrors as well."""
        domain = reference.domain
        upstream = upstream_root(domain, plain_http)
        root = self.root or upstream
        is_upstream = root.origin() == upstream.with_scheme(root.scheme).origin()
        return Endpoint(
            name=domain if is_upstream else (root.host_port_subcomponent or ""),
            root=root,
            repository=rewritten(reference.path, self.rewrites),
            mirror_of="" if is_upstream else domain,
            namespace="" if is_upstream else domain,
            credentials="image" if is_upstream else "both",
            capabilities=self.capabilities,
            headers=self.headers,
            trust=Trust(root.origin(), self.own, self.elsewhere),
            connect_seconds=self.connect_seconds,
            not_asked=self.not_asked,
        )


class HostsReader:
    """Reads registries' folders. `stamps` has the certificate and key files read for them, as before reading."""

    def __init__(self, contexts: TlsContexts, ca_files: Sequence[str] = (), *, is_k3s: bool = False) -> None:
        """`contexts` trust `ca_files` for all hosts. `is_k3s`: containerd is that of k3s and rke2.

        That one has the keys `rewrite`, and adds no upstream to a file with hosts and without `server`.
        """
        self.stamps: dict[Path, Stamp] = {}
        self._contexts = contexts
        self._ca_files = tuple(Path(file) for file in ca_files)
        self._is_k3s = is_k3s

    def read_folder(self, folder: Path) -> tuple[MirrorHost, ...]:
        """Returns the endpoints in `hosts.toml`; without that file, the registry with the folder's certificates."""
        file = folder / "hosts.toml"
        text = _read_bounded(file) if file.exists() else b""
        return self._read_file(file, text) if text else (self._read_certificates(folder),)

    def read_trusts(self, folder: Path) -> dict[str, Trust]:
        """Returns the TLS contexts of all hosts that have a folder of certificates, by `host[:port]`.

        Raises OSError and ConfigError.

        A folder `host_port_` stands for `host:port`.
        """
        trusts = {}
        for entry in folder.iterdir():
            if entry.is_dir() and not entry.name.startswith(".."):
                host = re.sub(r"_([0-9]+)_$", r":\1", entry.name)
                certificates = self._read_certificates(entry)
                try:
                    origin = upstream_root(host).origin()
                except RegistryUnavailable as exc:
                    raise ConfigError(f"{SETTING}: {entry}: the name of the folder is no host") from exc
                trusts[host] = Trust(origin, certificates.own, certificates.elsewhere)
        return trusts

    def _read_file(self, file: Path, text: bytes) -> tuple[MirrorHost, ...]:
        try:
            document = tomllib.loads(text.decode())
        except (ValueError, RecursionError) as exc:  # not only tomllib's: an integer of 5,000 digits is a plain one
            raise ConfigError(f"{SETTING}: {file} is no TOML: {exc}") from exc
        return self.read_document(Position(file, ""), document)

    def read_document(self, position: "Position", document: dict[str, Any]) -> tuple[MirrorHost, ...]:
        """Returns the endpoints that a registry's document has. Raises ConfigError, which names the position."""
        tables = document.pop("host", {})
        if not isinstance(tables, dict):
            raise position.error("host", 'write a table per host, such as [host."https://mirror"]')
        hosts = [self._read_host(position.at(f'host."{name}"'), name, table) for name, table in tables.items()]
        if self._is_k3s and hosts and "server" not in document:
            return tuple(hosts)
        keys = _convert(position, document, _RootKeys)
        host = self._host(position, keys.server, keys)
        # Without `server`, the last endpoint is the registry itself, with all capabilities, as in containerd.
        return (*hosts, host if keys.server else host._replace(capabilities=CAPABILITIES))

    def _read_host(self, section: "Position", address: str, table: object) -> MirrorHost:
        if not self._is_k3s:
            return self._host(section, address, _convert(section, table, _HostKeys))
        keys = _convert(section, table, _K3sHostKeys)
        host = self._host(section, address, keys)
        try:
            rewrites = read_rewrites(keys.rewrite)
        except InvalidRewrite as exc:
            raise section.error("rewrite", str(exc)) from exc
        is_embedded = host.root is not None and host.root.origin() in _EMBEDDED
        return host._replace(rewrites=rewrites, not_asked=_EMBEDDED_REASON if is_embedded else "")

    def _host(self, section: "Position", address: str, keys: _HostKeys) -> MirrorHost:
        own, elsewhere = self._trust(
            section, _list_of(keys.ca), [_pair_of(each) for each in _list_of(keys.client)], skip_verify=keys.skip_verify
        )
        return MirrorHost(
            _read_address(section, address, override_path=keys.override_path) if address else None,
            _read_capabilities(section, keys.capabilities),
            tuple(_read_headers(section, keys.header)),
            own,
            elsewhere,
            _read_timeout(section, keys.dial_timeout),
        )

    def _read_certificates(self, folder: Path) -> MirrorHost:
        """Returns the registry itself, with the certificates of a folder in Docker's certs.d layout.

        `*.crt` are authorities. `*.cert` and `*.key` of the same name are a client certificate.
        """
        names = sorted(entry.name for entry in folder.iterdir())
        authorities = [name for name in names if name.endswith(".crt")]
        stems = [name.removesuffix(".cert") for name in names if name.endswith(".cert")]
        pairs = [(f"{stem}.cert", f"{stem}.key" if f"{stem}.key" in names else "") for stem in stems]
        own, elsewhere = self._trust(Position(folder, ""), authorities, pairs, skip_verify=False)
        return MirrorHost(own=own, elsewhere=elsewhere)

    def _trust(
        self, section: "Position", authorities: Sequence[str], pairs: Sequence[tuple[str, str]], *, skip_verify: bool
    ) -> tuple[MakeContext | None, MakeContext | None]:
        """Returns what makes the TLS contexts for the host itself and for other hosts; None is the session's own.

        Raises ConfigError if one could not be made.
        """
        if not authorities and not pairs and not skip_verify:
            return None, None
        files = tuple(section.folder / name for name in authorities)
        clients = tuple((section.folder / name, section.folder / key if key else None) for name, key in pairs)
        for path in files:
            self._try_authority(section, path)
        for certificate, key in clients:
            self._try_client(section, certificate, key)
        paths = (*self._ca_files, *files, *(path for pair in clients for path in pair if path))
        elsewhere = Certificates(files, stamps=tuple(map(self._note, paths)))
        own = elsewhere._replace(clients=clients, is_unverified=skip_verify)
        return self._contexts.of(own), self._contexts.of(elsewhere) if files else None

    def _try_authority(self, section: "Position", path: Path) -> None:
        if path in self.stamps:
            return
        self._note(path)
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except (OSError, ValueError) as exc:  # ssl.SSLError is an OSError; a NUL in the name gives a ValueError
            raise section.error("ca", f"{path} holds no certificates: {_why(exc)}") from exc

    def _try_client(self, section: "Position", certificate: Path, key: Path | None) -> None:
        for path in filter(None, (certificate, key)):
            self._note(path)
        try:
            load_client(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key)
        except (OSError, ValueError) as exc:
            raise section.error("client", f"{certificate} and its key cannot be used: {_why(exc)}") from exc

    def _note(self, path: Path) -> Stamp:
        return self.stamps.setdefault(path, stamp_of(path))


class Position(NamedTuple):
    """A position in a file, for error messages. `file` is the folder if there is no file."""

    file: Path
    table: str
    setting: str = SETTING

    @property
    def folder(self) -> Path:
        """The folder that relative paths start from."""
        return self.file.parent if self.file.suffix in (".toml", ".yaml") else self.file

    def at(self, table: str) -> "Position":
        """Returns the position of a table below this one."""
        return self._replace(table=".".join(filter(None, (self.table, table))))

    def error(self, key: str, problem: str) -> ConfigError:
        where = ".".join(filter(None, (self.table, key)))
        return ConfigError(f"{self.setting}: {self.file}: {where}: {problem}")


def stamp_of(path: Path) -> Stamp:
    try:
        status = path.stat()
    except (OSError, ValueError):  # a path with a NUL names no file
        return str(path), 0, 0, 0
    return str(path), status.st_ino, status.st_mtime_ns, status.st_size


def _read_bounded(file: Path) -> bytes:
    with file.open("rb") as opened:
        text = opened.read(_MOST_BYTES + 1)
    if len(text) > _MOST_BYTES:
        raise ConfigError(f"{SETTING}: {file} has more than {_MOST_BYTES >> 10} KiB")
    return text


def _why(exc: OSError | ValueError) -> str:
    return (exc.strerror if isinstance(exc, OSError) else "") or str(exc)


def _convert(section: Position, table: object, kind: type[K]) -> K:
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as exc:
        problem, _, path = str(exc).partition(" - at `$.")
        raise section.error(path.rstrip("`"), problem) from exc


def _list_of(value: str | list[Any]) -> list[Any]:
    return [value] if isinstance(value, str) else value


def _pair_of(client: str | tuple[str, str]) -> tuple[str, str]:
    """Returns the files of certificate and key; the key's is empty if one file has both."""
    return (client, "") if isinstance(client, str) else client


def _read_address(section: Position, text: str, *, override_path: bool) -> URL:
    """Returns the root of the API: appends `/v2` if the path lacks it, unless `override_path` is set."""
    try:
        url = URL(text if "://" in text else f"https://{text}")
        if url.scheme in ("http", "https") and url.host and url.port:
            path = _path_of(url, override_path=override_path)
            return URL.build(scheme=url.scheme, host=url.host, port=url.explicit_port, path=path)
    except (ValueError, LookupError):  # `https://[]@` is an IndexError in yarl
        pass
    raise section.error("" if section.table else "server", f"{text!r} is no http or https address")


def _path_of(url: URL, *, override_path: bool) -> str:
    path = "/" + str(PurePosixPath(url.path.strip("/"))) if url.path.strip("/") else ""
    return path if override_path or path.endswith("/v2") else f"{path}/v2"


def _read_capabilities(section: Position, names: Sequence[str]) -> frozenset[Capability]:
    """Returns which of `resolve` and `pull` are stated; both if nothing is. Ignores the other known names."""
    lower = {name.lower() for name in names}
    if unknown := sorted(lower - _KNOWN_CAPABILITIES):
        raise section.error("capabilities", f"{unknown[0]!r} is none of pull, resolve, push")
    return frozenset(each for each in CAPABILITIES if each in lower) if names else CAPABILITIES


def _read_headers(section: Position, header: Mapping[str, str | list[str]]) -> Iterator[tuple[str, str]]:
    """Yields names and values. Error messages do not quote values, which may be secrets."""
    for name, value in header.items():
        for each in _list_of(value):
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(each):
                raise section.error(f"header.{name}", "no header can be made of it")
            yield name, each


def _read_timeout(section: Position, text: str) -> float | None:
    """Returns the seconds of `dial_timeout`; None, for our own timeout, if it is empty or zero."""
    try:
        seconds = parse_seconds(text) if text else 0.0
    except ValueError:
        seconds = -1.0
    if seconds < 0:
        raise section.error("dial_timeout", f"{text!r} is no duration such as 3s or 500ms")
    return seconds or None
