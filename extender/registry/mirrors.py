"""Where nodes ask for images, from the files that containerd, CRI-O and k3s read on nodes.

Reads all files of a kind together, and again when one has changed; lookups use the result of the last successful read.
`hosts_toml`, `registries_conf` and `registries_yaml` have the formats. Sends no requests.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from extender.credentials.keyring import Credential, CredentialId
from extender.errors import ConfigError, RegistryNotAsked
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import MirrorObjects, NodeTrust
from extender.registry.crio_endpoints import CrioEndpoints
from extender.registry.endpoint import SYSTEM_TRUST, Endpoint, Trust
from extender.registry.endpoint_tls import Stamp, TlsContexts
from extender.registry.hosts_toml import SETTING, HostsReader, MirrorHost, Position, stamp_of
from extender.registry.openshift_conf import conf_of_objects
from extender.registry.openshift_trust import NodeTrusts, host_problems
from extender.registry.registries_conf import MOST_BYTES, ShortNameMode, read_registries_conf
from extender.registry.registries_yaml import read_registries_yaml
from extender.registry.session import RegistryTrust
from extender.watched_files import Reading, WatchedFiles, report_mirrors_loaded, report_mirrors_refused

_YAML, _CONF = "registry.registries_yaml", "registry.registries_conf"
_UPSTREAM_ONLY = (MirrorHost(),)


class _Folders(NamedTuple):
    """The endpoints by the name of a registry's folder, and the files elsewhere that the folders name."""

    hosts: Mapping[str, tuple[MirrorHost, ...]]
    named: tuple[Path, ...]


class HostsDirectory:
    """containerd's `certs.d` folder: a folder per registry, and `_default` for registries without one."""

    def __init__(self, folder: str, *, ca_files: Sequence[str] = (), is_k3s: bool = False) -> None:
        """Reads the folder. `ca_files` are PEM bundles trusted for all hosts, in addition to the system's.

        `is_k3s`: the files are for the containerd of k3s and rke2.

        Raises:
            ConfigError: a file cannot be read or used; the message names the file and the key.
        """
        self._folder = Path(folder)
        self._is_k3s = is_k3s
        self._ca_files = tuple(ca_files)
        self._contexts = TlsContexts(ca_files)
        self.files = WatchedFiles(
            self._read,
            lambda folders: self._stamps(folders.named),
            loaded=lambda folders: report_mirrors_loaded(folders.hosts),
            refused=report_mirrors_refused,
            name=SETTING,
        )

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `EndpointSource`: mirrors in the order of the file, then the file's `server`."""
        return _chosen(self.files.value.hosts, reference, plain_http)

    def _read(self) -> Reading[_Folders]:
        """Reads all folders. Stamps are from before that, so that the next check notices a change made meanwhile."""
        seen = self._stamps(())
        reader = HostsReader(self._contexts, self._ca_files, is_k3s=self._is_k3s)
        try:
            folders = [entry for entry in self._folder.iterdir() if entry.is_dir() and not entry.name.startswith("..")]
            hosts = {entry.name: reader.read_folder(entry) for entry in folders}
        except OSError as exc:
            raise ConfigError(f"{SETTING}: {exc.filename or self._folder} cannot be read: {exc.strerror}") from exc
        return Reading(_Folders(hosts, tuple(reader.stamps)), seen | frozenset(reader.stamps.values()))

    def _stamps(self, named: Iterable[Path]) -> frozenset[Stamp]:
        """Returns the stamps of everything in the folder and of the `named` files, which may be elsewhere."""
        return frozenset(map(stamp_of, (*self._folder.glob("*"), *self._folder.glob("*/*"), *named)))


class _Yaml(NamedTuple):
    hosts: Mapping[str, tuple[MirrorHost, ...]]
    logins: Mapping[str, tuple[str, str]]
    named: tuple[Path, ...]


class RegistriesYaml:
    """The `registries.yaml` of k3s and rke2, as their containerd has it."""

    def __init__(self, file: str, *, ca_files: Sequence[str] = (), default_endpoint: bool) -> None:
        """Reads the file, and the certificates that it names.

        `default_endpoint`: registries are asked themselves after their mirrors. `ca_files` are PEM bundles trusted for
        all hosts, in addition to the system's.

        Raises:
            ConfigError: a file cannot be read or used; the message names the file and the key.
        """
        self._file = Path(file)
        self._ca_files = tuple(ca_files)
        self._contexts = TlsContexts(ca_files)
        self._default_endpoint = default_endpoint
        self.files = WatchedFiles(
            self._read,
            lambda read: self._stamps(read.named),
            loaded=lambda read: report_mirrors_loaded(read.hosts),
            refused=report_mirrors_refused,
            name=_YAML,
        )

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `EndpointSource`."""
        return _chosen(self.files.value.hosts, reference, plain_http)

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns what the file has for the reference's host, by a name that images or endpoints have."""
        host = reference.domain
        names = (host, "registry-1.docker.io") if host == "docker.io" else (host,)
        logins = self.files.value.logins
        return tuple(
            Credential(*logins[name], CredentialId(f"registries.yaml {self.files.generation} {name}"))
            for name in names
            if name in logins
        )

    def _read(self) -> Reading[_Yaml]:
        seen = self._stamps(())
        reader = HostsReader(self._contexts, self._ca_files, is_k3s=True)
        position = Position(self._file, "", _YAML)
        try:
            rendered = read_registries_yaml(read_bounded(self._file), default_endpoint=self._default_endpoint)
        except OSError as exc:
            raise ConfigError(f"{_YAML}: {self._file} cannot be read: {exc.strerror}") from exc
        except ConfigError as exc:
            raise ConfigError(f"{_YAML}: {self._file}: {exc}") from exc
        hosts = {
            name: reader.read_document(position.at(f'mirrors."{name}"'), dict(document))
            for name, document in rendered.hosts.items()
        }
        stamps = seen | frozenset(reader.stamps.values())
        return Reading(_Yaml(hosts, rendered.logins, tuple(reader.stamps)), stamps)

    def _stamps(self, named: Iterable[Path]) -> frozenset[Stamp]:
        return frozenset(map(stamp_of, (self._file, *named)))


class _Conf(NamedTuple):
    endpoints: CrioEndpoints
    named: tuple[Path, ...]


class RegistriesFiles:
    """CRI-O's `registries.conf`, the `*.conf` in the folder of that name with `.d`, and its folders of certificates."""

    def __init__(
        self, main: str, *, certificates: str = "", ca_files: Sequence[str] = (), short_names: ShortNameMode
    ) -> None:
        """Reads the files. `certificates` is a folder with a folder of certificates per host; empty: there is none.

        `ca_files` are PEM bundles trusted for all hosts, in addition to the system's.

        Raises:
            ConfigError: a file cannot be read or used; the message names the file.
        """
        self._main = Path(main)
        self._certificates = Path(certificates) if certificates else None
        self._ca_files = tuple(ca_files)
        self._contexts = TlsContexts(ca_files)
        self._short_names = short_names
        self.files = WatchedFiles(
            self._read,
            lambda conf: self._stamps(conf.named),
            loaded=lambda conf: report_mirrors_loaded(table.prefix for table in conf.endpoints.conf.registries),
            refused=report_mirrors_refused,
            name=_CONF,
        )

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `CrioEndpoints`."""
        return self.files.value.endpoints.endpoints_for(reference, plain_http)

    def _read(self) -> Reading[_Conf]:
        seen = self._stamps(())
        reader = HostsReader(self._contexts, self._ca_files)
        try:
            conf = read_registries_conf(
                (str(path), read_bounded(path)) for path in (self._main, *sorted(self._drop_ins.glob("*.conf")))
            )
            trusts = reader.read_trusts(self._certificates) if self._certificates else {}
        except OSError as exc:
            problem = f"{exc.filename or self._main} cannot be read: {exc.strerror}"
            raise ConfigError(f"{_CONF}: {problem}") from exc
        except ConfigError as exc:
            raise ConfigError(f"{_CONF}: {exc}") from exc
        endpoints = CrioEndpoints(
            conf, short_names=self._short_names, trust_of=lambda host: trusts.get(host, SYSTEM_TRUST)
        )
        return Reading(_Conf(endpoints, tuple(reader.stamps)), seen | frozenset(reader.stamps.values()))

    @property
    def _drop_ins(self) -> Path:
        return self._main.with_name(self._main.name + ".d")

    def _stamps(self, named: Iterable[Path]) -> frozenset[Stamp]:
        folder = self._certificates
        certificates = (*folder.glob("*"), *folder.glob("*/*")) if folder else ()
        return frozenset(map(stamp_of, (self._main, *self._drop_ins.glob("*.conf"), *certificates, *named)))


class OpenShiftMirrors:
    """Where OpenShift's nodes ask, by the objects that `update` was given last and that can be used."""

    def __init__(self, trust: RegistryTrust) -> None:
        """`trust` is the session's, to which nodes' authorities are added."""
        self._session_trust = trust
        self._updates = 0
        self._told_trust = NodeTrust()
        self._renew_trusts()
        self._endpoints: CrioEndpoints | None = None

    def update(self, objects: MirrorObjects) -> None:
        """Goes by these objects.

        Where nodes ask stays as it was if the machine-config operator refuses that, which is logged and counted.
        """
        if objects.trust != self._told_trust:
            self._updates += 1
            self._told_trust = objects.trust
            self._renew_trusts()
            if problems := "; ".join(host_problems(objects.trust)):
                report_mirrors_refused(problems)
        try:
            conf = conf_of_objects(objects)
        except ConfigError as exc:
            report_mirrors_refused(str(exc))
            return
        self._endpoints = CrioEndpoints(
            conf.registries, short_names="disabled", trust_of=self._trust_of, refusal_of=conf.refusal_of
        )
        report_mirrors_loaded(table.prefix for table in conf.registries.registries)

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns what the nodes log in with at a mirror."""
        return self._trusts.credentials_for(reference)

    def _trust_of(self, domain: str) -> Trust:
        if self._session_trust.files.generation != self._trusted_generation:
            self._renew_trusts()
        return self._trusts.trust_of(domain)

    def _renew_trusts(self) -> None:
        self._trusted_generation = self._session_trust.files.generation
        self._trusts = NodeTrusts(self._told_trust, TlsContexts(self._session_trust.ca_files), self._updates)

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `CrioEndpoints`.

        Raises:
            RegistryNotAsked: the objects are not known yet.
        """
        if self._endpoints is None:
            raise RegistryNotAsked(f"{reference.domain} was not asked: it is not known yet where the nodes pull from")
        return self._endpoints.endpoints_for(reference, plain_http)


def _chosen(
    known: Mapping[str, tuple[MirrorHost, ...]], reference: ImageReference, plain_http: Collection[str]
) -> tuple[Endpoint, ...]:
    hosts = next((known[name] for name in _names_of(reference.domain) if name in known), _UPSTREAM_ONLY)
    return tuple(host.endpoint(reference, plain_http) for host in hosts)


def read_bounded(path: Path) -> bytes:
    """Returns the file's content, or one byte more than files of this kind may have. Raises OSError."""
    with path.open("rb") as file:
        return file.read(MOST_BYTES + 1)


def _names_of(domain: str) -> Iterator[str]:
    """Yields the possible names of a registry's folder; the first that exists is used.

    `host_port_` stands for `host:port`, since not every system allows a colon in a path.
    """
    host, colon, port = domain.rpartition(":")
    if colon and host:
        yield f"{host}_{port}_"
    yield domain
    yield "_default"
