"""Where nodes ask for images by the files that they read, which are read again when one changes.

`hosts_toml`, `registries_conf` and `registries_yaml` have the formats. Sends no requests.
"""

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from extender.credentials.keyring import Credential, CredentialId
from extender.errors import ConfigError, naming
from extender.images.reference import ImageReference, host_of_registry
from extender.registry.endpoint import Endpoint
from extender.registry.endpoint_tls import CertificateReader
from extender.registry.hosts_toml import read_folder
from extender.registry.registries_conf import certificates_beside, drop_ins_of, read_bounded, read_main_file
from extender.registry.registries_yaml import NodeRegistries, read_registries_yaml
from extender.watched_files import FileSetting, Stamps, WatchedFiles


class _FileKind(NamedTuple):
    """How a kind of files is read, and what may change besides the path itself and the certificates that are named."""

    read: Callable[[Path, CertificateReader], NodeRegistries]
    others: Callable[[Path], Iterable[Path]]


class _Reading(NamedTuple):
    """What one reading of the files found. Its number is a part of the ids of its logins, which may be others next."""

    registries: NodeRegistries
    number: int


class MirrorFiles:
    """A node's files: a `.yaml` is that of k3s and rke2, a `.conf` CRI-O's, anything else containerd's folder."""

    def __init__(self, path: str, *, ca_files: Sequence[str] = ()) -> None:
        """Reads the files. `ca_files` are PEM bundles trusted for all hosts, in addition to the system's.

        Raises:
            ConfigError: a file cannot be read or used; the message names the file and the key.
        """
        self._path = Path(path)
        self._ca_files = ca_files
        self._kind = _KINDS.get(self._path.suffix, _FOLDER)
        self._numbers = itertools.count()
        self.files = WatchedFiles(FileSetting.MIRRORS, self._paths, self._read)

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `Routes`."""
        return self.files.value.registries.routes.endpoints_for(reference, plain_http)

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns what the files have for the reference's host, by a name that images or endpoints have."""
        host = reference.domain
        names = dict.fromkeys((host, host_of_registry(host)))
        found = self.files.value
        logins: Mapping[str, tuple[str, str]] = found.registries.logins
        return tuple(
            Credential(*logins[name], CredentialId(f"registries.yaml {found.number} {name}"))
            for name in names
            if name in logins
        )

    def _read(self, stamps: Stamps) -> _Reading:
        certificates = CertificateReader(self._ca_files, stamps)
        with naming(FileSetting.MIRRORS.value):
            try:
                registries = self._kind.read(self._path, certificates)
            except OSError as exc:
                raise ConfigError(f"{exc.filename or self._path} cannot be read: {exc.strerror}") from exc
        return _Reading(registries, next(self._numbers))

    def _paths(self) -> Iterable[Path]:
        return (self._path, *self._kind.others(self._path))


def _read_yaml(file: Path, certificates: CertificateReader) -> NodeRegistries:
    data = read_bounded(file)
    with naming(file):
        return read_registries_yaml(data, certificates)


def _below(folder: Path) -> Iterator[Path]:
    yield from folder.glob("*")
    yield from folder.glob("*/*")


_FOLDER = _FileKind(lambda folder, certificates: NodeRegistries(read_folder(folder, certificates), {}), _below)
_KINDS = {
    ".yaml": _FileKind(_read_yaml, lambda _: ()),
    ".conf": _FileKind(
        lambda main, certificates: NodeRegistries(read_main_file(main, certificates), {}),
        lambda main: (*drop_ins_of(main), *_below(certificates_beside(main))),
    ),
}
