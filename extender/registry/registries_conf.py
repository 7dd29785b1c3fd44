"""`registries.conf`, version 2: where CRI-O and podman ask for an image.

Follows containers-registries.conf(5) and pkg/sysregistriesv2 of go.podman.io/image. Takes the bytes of files and gives
rules. Opens no file and sends no request.

Departures: keys must be written in lower case. No request for `/v2/` comes before the one for an image. A host that is
insecure is shown no client certificate.
"""

import operator
import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

from extender.errors import ConfigError, InvalidReference, RegistryUnavailable, naming
from extender.images.reference import is_domain, parse_reference, split_name
from extender.registry.endpoint import ImageKind, MirrorRule, Place, Routes, upstream_root
from extender.registry.endpoint_tls import CertificateReader
from extender.registry.hosts_toml import host_of_folder, registry_folders
from extender.regular_files import read_file

MOST_BYTES = 1 << 20
"""Of all files together: ten thousand tables have half of it."""


class Mirror(msgspec.Struct, frozen=True, rename="kebab"):
    """A `[[registry.mirror]]`."""

    location: str = ""
    insecure: bool = False
    pull_from_mirror: Literal["", "all", "digest-only", "tag-only"] = ""
    namespace_proxy: str = ""

    def place(self, kind: ImageKind) -> Place:
        """Returns it as the place that the table has it for, unless it says itself for which images it is asked."""
        return Place(
            location=self.location,
            kind=self.pull_from_mirror or kind,
            insecure=self.insecure,
            namespace=self.namespace_proxy,
            credentials="operator",
        )


class RegistryTable(msgspec.Struct, frozen=True, rename="kebab"):
    """A `[[registry]]`."""

    prefix: str = ""
    location: str = ""
    insecure: bool = False
    blocked: bool = False
    mirror_by_digest_only: bool = False
    pull_from_mirror: str = ""
    namespace_proxy: str = ""
    mirror: tuple[Mirror, ...] = ()

    def rule(self) -> MirrorRule:
        """Returns where images of the prefix are asked for: at the mirrors, and then at the own location."""
        own = Mirror(self.location, self.insecure, "", self.namespace_proxy)
        kind: ImageKind = "digest-only" if self.mirror_by_digest_only else "all"
        return MirrorRule(self.prefix, (*(each.place(kind) for each in self.mirror), own.place("all")), self.blocked)


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    registry: tuple[RegistryTable, ...] = ()
    unqualified_search_registries: tuple[str, ...] | None = None
    short_name_mode: Literal["", "enforcing", "permissive", "disabled"] = ""
    aliases: dict[str, str] = {}


def read_registries_conf(files: Iterable[tuple[str, bytes]]) -> Routes:
    """Returns what the main file and its drop-ins say, given by name and content in the order in which they apply.

    Raises:
        ConfigError: one of them is invalid, which makes all of them so. The message names the file and the table.
    """
    tables: dict[str, RegistryTable] = {}
    search: tuple[str, ...] = ()
    aliases: dict[str, str] = {}
    mode = ""
    left = MOST_BYTES
    for name, data in files:
        left -= len(data)
        if left < 0:
            raise ConfigError(f"{name}: the files have more than {MOST_BYTES >> 20} MiB")
        read = _read_file(name, data)
        tables |= {table.prefix: table for table in reversed(read.registry)}  # in one file the first of a prefix counts
        search = search if read.unqualified_search_registries is None else read.unqualified_search_registries
        aliases |= read.aliases
        mode = read.short_name_mode or mode
    return Routes(
        rules=tuple(map(RegistryTable.rule, sorted(tables.values(), key=operator.attrgetter("prefix")))),
        search=search,
        aliases=aliases,
        searches_all=mode in ("permissive", "disabled"),  # nobody is there to be asked which one is meant
    )


def read_main_file(main: Path, certificates: CertificateReader) -> Routes:
    """Returns what the files say, and the folder `certs.d` beside the main one, if there is one.

    Raises:
        ConfigError: one of them cannot be used; the message names it.
        OSError: one cannot be read.
    """
    routes = read_registries_conf((str(path), read_bounded(path)) for path in (main, *drop_ins_of(main)))
    trusts, certs = {}, certificates_beside(main)
    for folder in registry_folders(certs) if certs.is_dir() else ():
        host = host_of_folder(folder.name)
        with naming(folder):
            try:
                upstream_root(host)
            except RegistryUnavailable as exc:
                raise ConfigError("the name of the folder is no host") from exc
            trusts[host] = certificates.folder_trust(folder)
    return msgspec.structs.replace(routes, trust_of=trusts.get)


def drop_ins_of(main: Path) -> list[Path]:
    """Returns the files that add to the main one, in the order in which they apply."""
    return sorted(main.with_name(main.name + ".d").glob("*.conf"))


def certificates_beside(main: Path) -> Path:
    """Returns the folder that has a folder of certificates per host, if there is one."""
    return main.with_name("certs.d")


def read_bounded(path: Path) -> bytes:
    """Returns the file's content, or one byte more than such files may have. Raises OSError."""
    return read_file(path, MOST_BYTES + 1)


def _normalized_tables(name: str, tables: Iterable[RegistryTable]) -> list[RegistryTable]:
    """Returns one file's tables with prefixes and without final slashes, in the file's order."""
    made = [_normalized(name, table) for table in tables]
    known: dict[str, RegistryTable] = {}
    for table in made:
        first = known.setdefault(table.location or table.prefix, table)
        for key in ("insecure", "blocked"):
            if getattr(first, key) != getattr(table, key):
                raise ConfigError(f"{name}: two tables for {table.location or table.prefix} differ in {key}")
    return made


def _read_file(name: str, data: bytes) -> _File:
    try:
        read = msgspec.convert(tomllib.loads(data.decode()), _File)
    except msgspec.ValidationError as exc:
        raise ConfigError(f"{name}: {exc}") from exc
    except (ValueError, RecursionError) as exc:
        raise ConfigError(f"{name} is no TOML: {exc}") from exc
    search = read.unqualified_search_registries
    if search is not None:
        search = tuple(_location(name, registry) for registry in search)
        for registry in search:
            if not is_domain(registry):
                raise ConfigError(f"{name}: unqualified-search-registries: {registry!r} is no host or host:port")
    for alias, target in read.aliases.items():
        _check_alias(name, alias, target)
    return _File(tuple(_normalized_tables(name, read.registry)), search, read.short_name_mode, read.aliases)


def _normalized(name: str, table: RegistryTable) -> RegistryTable:
    location, prefix = _location(name, table.location), _location(name, table.prefix)
    if not (prefix or location):
        raise ConfigError(f"{name}: a [[registry]] has neither prefix nor location")
    is_wildcard = prefix.startswith("*.")
    if table.prefix and not is_wildcard and not location:
        raise ConfigError(f"{name}: registry {table.prefix!r}: a prefix that does not begin with *. needs a location")
    prefix = prefix if table.prefix else location
    if prefix.startswith("*.") and any(mark in prefix for mark in "/@:"):
        raise ConfigError(f"{name}: registry {prefix!r}: a wildcard is like *.example.com, without port and path")
    if table.pull_from_mirror:
        raise ConfigError(f"{name}: registry {prefix!r}: pull-from-mirror is for mirrors")
    mirrors = tuple(_normalized_mirror(name, table, mirror) for mirror in table.mirror)
    return msgspec.structs.replace(table, prefix=prefix, location=location, mirror=mirrors)


def _normalized_mirror(name: str, table: RegistryTable, mirror: Mirror) -> Mirror:
    of = f"{name}: registry {table.prefix or table.location!r}: mirror {mirror.location!r}"
    location = _location(name, mirror.location)
    if not location:
        raise ConfigError(f"{of}: it has no location")
    if table.mirror_by_digest_only and mirror.pull_from_mirror:
        raise ConfigError(f"{of}: pull-from-mirror and the registry's mirror-by-digest-only exclude each other")
    return msgspec.structs.replace(mirror, location=location)


def _location(name: str, text: str) -> str:
    trimmed = text.rstrip("/")
    if trimmed.startswith(("http://", "https://")):
        raise ConfigError(f"{name}: {text!r}: leave out the scheme")
    return trimmed


def _check_alias(name: str, alias: str, target: str) -> None:
    split = split_name(alias)
    if split is None or _is_host(split[0]):
        raise ConfigError(f"{name}: aliases: {alias!r} is no name without registry, tag and digest")
    split = split_name(target) if target else None
    try:
        usable = not target or (split is not None and _is_host(split[0]) and bool(parse_reference(target)))
    except InvalidReference:
        usable = False
    if not usable:
        raise ConfigError(f"{name}: aliases: {alias}: {target!r} is no name with registry, and without tag and digest")


def _is_host(first: str) -> bool:
    return "." in first or ":" in first or first == "localhost"
