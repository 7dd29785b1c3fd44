"""The mirrors of registries, from the files that containerd reads on nodes, so that lookups use the same endpoints.

Maps each registry to its folder. Reads all folders together, and again when a file has changed; lookups use the result
of the last successful read. `hosts_toml` parses a folder. Sends no requests.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import structlog

from extender.errors import ConfigError
from extender.images.reference import ImageReference
from extender.registry.endpoint import Endpoint
from extender.registry.hosts_toml import SETTING, HostsReader, MirrorHost, Stamp, stamp_of
from extender.watched_files import RELOADS, FileSetting, Reading, WatchedFiles

log = structlog.get_logger()

_UPSTREAM_ONLY = (MirrorHost(),)


class _Folders(NamedTuple):
    """The endpoints by the name of a registry's folder, and the files elsewhere that the folders name."""

    hosts: Mapping[str, tuple[MirrorHost, ...]]
    named: tuple[Path, ...]


class HostsDirectory:
    """containerd's `certs.d` folder: a folder per registry, and `_default` for registries without one."""

    def __init__(self, folder: str, *, ca_files: Sequence[str] = ()) -> None:
        """Reads the folder. `ca_files` are PEM bundles trusted for all hosts, in addition to the system's.

        Raises:
            ConfigError: a file cannot be read or used; the message names the file and the key.
        """
        self._folder = Path(folder)
        self._ca_files = tuple(ca_files)
        self.files = WatchedFiles(
            self._read,
            lambda folders: self._stamps(folders.named),
            loaded=self._report_loaded,
            refused=self._report_refused,
        )

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `EndpointSource`: mirrors in the order of the file, then the file's `server`."""
        known = self.files.value.hosts
        hosts = next((known[name] for name in _names_of(reference.domain) if name in known), _UPSTREAM_ONLY)
        return tuple(host.endpoint(reference, plain_http) for host in hosts)

    def _report_loaded(self, folders: _Folders) -> None:
        RELOADS[FileSetting.MIRRORS]["loaded"].inc()
        log.info("mirrors.reloaded", registries=sorted(folders.hosts))

    def _report_refused(self, why: str) -> None:
        RELOADS[FileSetting.MIRRORS]["refused"].inc()
        log.warning("mirrors.refused", why=why)

    def _read(self) -> Reading[_Folders]:
        """Reads all folders. Stamps are from before that, so that the next check notices a change made meanwhile."""
        seen = self._stamps(())
        reader = HostsReader(self._ca_files)
        try:
            folders = [entry for entry in self._folder.iterdir() if entry.is_dir() and not entry.name.startswith("..")]
            hosts = {entry.name: reader.read_folder(entry) for entry in folders}
        except OSError as exc:
            raise ConfigError(f"{SETTING}: {exc.filename or self._folder} cannot be read: {exc.strerror}") from exc
        return Reading(_Folders(hosts, tuple(reader.stamps)), seen | frozenset(reader.stamps.values()))

    def _stamps(self, named: Iterable[Path]) -> frozenset[Stamp]:
        """Returns the stamps of everything in the folder and of the `named` files, which may be elsewhere."""
        return frozenset(map(stamp_of, (*self._folder.glob("*"), *self._folder.glob("*/*"), *named)))


def _names_of(domain: str) -> Iterator[str]:
    """Yields the possible names of a registry's folder; the first that exists is used.

    `host_port_` stands for `host:port`, since not every system allows a colon in a path.
    """
    host, colon, port = domain.rpartition(":")
    if colon and host:
        yield f"{host}_{port}_"
    yield domain
    yield "_default"
