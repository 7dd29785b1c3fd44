"""The mirrors of registries, from the files that containerd reads on nodes, so that lookups use the same endpoints.

Maps each registry to its folder. Reads all folders together, and again when a file has changed; lookups use the result
of the last successful read. `hosts_toml` parses a folder. Sends no requests.
"""

import asyncio
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

import structlog

from extender.errors import ConfigError
from extender.metrics import counter
from extender.registry.endpoint import Endpoint
from extender.registry.hosts_toml import SETTING, HostsReader, MirrorHost, Stamp, stamp_of

log = structlog.get_logger()

READS = counter(
    "multiarch_mirrors_reloads_total",
    "Changes of the files in registry.hosts_directory, by what became of them.",
    "outcome",
    ("loaded", "refused"),
)

_UPSTREAM_ONLY = (MirrorHost(),)


class HostsDirectory:
    """containerd's `certs.d` folder: a folder per registry, and `_default` for registries without one."""

    def __init__(self, folder: str, *, ca_files: Sequence[str] = ()) -> None:
        """Reads the folder. `ca_files` are PEM bundles trusted for all hosts, in addition to the system's.

        Raises:
            ConfigError: a file cannot be read or used; the message names the file and the key.
        """
        self._folder = Path(folder)
        self._ca_files = tuple(ca_files)
        self._seen: frozenset[Stamp] = frozenset()
        self._load()

    def endpoints_for(self, domain: str, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """Returns the endpoints for images of `domain` (`host[:port]`), in order: mirrors, then the file's `server`.

        `plain_http` has the registries that are contacted without TLS unless a file says otherwise.

        Raises:
            RegistryUnavailable: the domain is not an address.
        """
        hosts = next((self._hosts[name] for name in _names_of(domain) if name in self._hosts), _UPSTREAM_ONLY)
        return tuple(host.endpoint(domain, plain_http) for host in hosts)

    def reload_if_changed(self) -> bool:
        """Reads the files again if one has changed; returns whether they were loaded.

        If they cannot be used, the endpoints stay as they were.
        """
        if self._stamps(self._named) == self._seen:
            return False
        try:
            self._load()
        except ConfigError as exc:
            READS["refused"].inc()
            log.warning("mirrors.refused", why=str(exc))
            return False
        READS["loaded"].inc()
        log.info("mirrors.reloaded", registries=sorted(self._hosts))
        return True

    async def watch(self, every_seconds: float) -> None:
        """Calls `reload_if_changed` every `every_seconds` until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            await asyncio.to_thread(self.reload_if_changed)

    def _load(self) -> None:
        """Reads all folders. An error leaves all endpoints as they were; the files then count as seen."""
        seen = self._stamps(())
        reader = HostsReader(self._ca_files)
        try:
            folders = [entry for entry in self._folder.iterdir() if entry.is_dir() and not entry.name.startswith("..")]
            self._hosts = {entry.name: reader.read_folder(entry) for entry in folders}
        except OSError as exc:
            raise ConfigError(f"{SETTING}: {exc.filename or self._folder} cannot be read: {exc.strerror}") from exc
        finally:
            # Stamps are taken before reading, so that the next check notices a change made meanwhile.
            self._named, self._seen = tuple(reader.stamps), seen | frozenset(reader.stamps.values())

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
