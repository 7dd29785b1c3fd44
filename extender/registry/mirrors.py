"""The mirrors of registries, from the files that containerd reads on the nodes, so that we ask whom nodes pull from.

Knows which folder is a registry's, and reads all of them at once and again when they have changed; a lookup meets what
was read last. What a folder says is `hosts_toml`'s business. Asks no one.
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
    """containerd's `certs.d` folder: a folder per registry, and `_default` for those that have none."""

    def __init__(self, folder: str, *, ca_files: Sequence[str] = ()) -> None:
        """Reads the folder. `ca_files` are PEM bundles trusted everywhere, besides the system's.

        Raises:
            ConfigError: a file cannot be read or used; the message names the file and the key.
        """
        self._folder = Path(folder)
        self._ca_files = tuple(ca_files)
        self._seen: frozenset[Stamp] = frozenset()
        self._load()

    def endpoints_for(self, domain: str, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """The places to ask for images of `domain` (`host[:port]`), in order: mirrors, then the file's `server`.

        `plain_http` are the registries that are asked without TLS where no file says otherwise.

        Raises:
            RegistryUnavailable: the domain is no address.
        """
        hosts = next((self._hosts[name] for name in _names_of(domain) if name in self._hosts), _UPSTREAM_ONLY)
        return tuple(host.endpoint(domain, plain_http) for host in hosts)

    def reload_if_changed(self) -> bool:
        """Go by what the files say now; while they cannot be used, by what they said before."""
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
        """Look at the files again and again until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            await asyncio.to_thread(self.reload_if_changed)

    def _load(self) -> None:
        """All or nothing."""
        seen = self._stamps(())
        reader = HostsReader(self._ca_files)
        try:
            folders = [entry for entry in self._folder.iterdir() if entry.is_dir() and not entry.name.startswith("..")]
            self._hosts = {entry.name: reader.read_folder(entry) for entry in folders}
        except OSError as exc:
            raise ConfigError(f"{SETTING}: {exc.filename or self._folder} cannot be read: {exc.strerror}") from exc
        finally:
            # Stamps are taken before the reading, so that a change in between is seen as one the next time.
            self._named, self._seen = tuple(reader.stamps), seen | frozenset(reader.stamps.values())

    def _stamps(self, named: Iterable[Path]) -> frozenset[Stamp]:
        """What tells that a file has changed: of everything in the folder, and of `named` files elsewhere."""
        return frozenset(map(stamp_of, (*self._folder.glob("*"), *self._folder.glob("*/*"), *named)))


def _names_of(domain: str) -> Iterator[str]:
    """The folders that may be a registry's, the first that exists being it; no path has a colon on every system."""
    host, colon, port = domain.rpartition(":")
    if colon and host:
        yield f"{host}_{port}_"
    yield domain
    yield "_default"
