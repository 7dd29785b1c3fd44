"""`registries.conf`, version 2: where CRI-O and podman ask for an image.

Follows containers-registries.conf(5) and pkg/sysregistriesv2 of go.podman.io/image. Takes the bytes of files and gives
candidates. Opens no file and sends no request.

Departures: keys must be written in lower case.
"""

import operator
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from extender.errors import AddressRefused, ConfigError, InvalidReference
from extender.images.reference import ImageReference, is_domain, parse_reference, split_name

MOST_BYTES = 1 << 20
"""Of all files together: ten thousand tables have half of it."""

ShortNameMode = Literal["enforcing", "disabled"]
_PULLS = {"", "all", "digest-only", "tag-only"}


class Mirror(msgspec.Struct, frozen=True, rename="kebab"):
    """A `[[registry.mirror]]`."""

    location: str = ""
    insecure: bool = False
    pull_from_mirror: str = ""
    namespace_proxy: str = ""

    def is_for(self, *, by_digest: bool) -> bool:
        """Whether it is asked for images by digest, or for those by tag."""
        return self.pull_from_mirror != ("tag-only" if by_digest else "digest-only")


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

    def mirrors_for(self, *, by_digest: bool) -> Iterable[Mirror]:
        """Its mirrors for images by digest, or for those by tag, and then its own location."""
        if by_digest or not self.mirror_by_digest_only:
            yield from (mirror for mirror in self.mirror if mirror.is_for(by_digest=by_digest))
        yield Mirror(self.location, self.insecure, "", self.namespace_proxy)


class _V1List(msgspec.Struct, frozen=True):
    registries: tuple[str, ...] | None = None


class _V1(msgspec.Struct, frozen=True):
    search: _V1List = _V1List()
    insecure: _V1List = _V1List()
    block: _V1List = _V1List()


class _File(msgspec.Struct, frozen=True, rename="kebab"):
    registry: tuple[RegistryTable, ...] = ()
    unqualified_search_registries: tuple[str, ...] | None = None
    short_name_mode: str = ""
    aliases: dict[str, str] = {}
    registries: _V1 = _V1()


class Candidate(NamedTuple):
    """An image as one host is asked for it. `is_blocked`: the files forbid that. `namespace`: the parameter `ns`."""

    reference: ImageReference
    is_insecure: bool = False
    is_blocked: bool = False
    namespace: str = ""


class RegistriesConf(msgspec.Struct, frozen=True, kw_only=True):
    """What the files say together. `registries` are in the order of their prefixes."""

    registries: tuple[RegistryTable, ...] = ()
    search: tuple[str, ...] = ()
    aliases: Mapping[str, str] = {}

    def candidates_for(self, reference: ImageReference) -> list[Candidate]:
        """Returns whom CRI-O asks for an image, in order: the mirrors of the longest prefix, then its location.

        A reference with a tag and a digest means that digest as the tag's candidates have it.

        Raises:
            AddressRefused: a location makes no image reference of it, so that CRI-O asks nobody.
        """
        table = self._find(reference.repository)
        if table is None:
            return [Candidate(reference)]
        candidates = []
        for mirror in table.mirrors_for(by_digest=reference.digest != "" and not reference.tag):
            rewritten = _rewrite(reference, table.prefix, mirror.location)
            there = self._find(rewritten.repository)
            is_blocked = there is not None and there.blocked
            candidates.append(Candidate(rewritten, mirror.insecure, is_blocked, mirror.namespace_proxy))
        return candidates

    def full_names_of(self, short: ImageReference, mode: ShortNameMode) -> list[ImageReference]:
        """Returns the names that CRI-O tries for one without a registry: its alias, or one in each search registry.

        `short` has an empty domain.

        Raises:
            AddressRefused: there is neither, or `enforcing` has several registries to choose from.
        """
        alias = self.aliases.get(short.path)
        if alias:
            named = parse_reference(alias)
            return [ImageReference(named.domain, named.path, short.tag, short.digest)]
        if not self.search:
            raise AddressRefused(f"{short.path} has no registry, and the nodes have no alias or search registry for it")
        if mode == "enforcing" and len(self.search) > 1:
            raise AddressRefused(f"{short.path} has no registry, and nodes with several search registries refuse it")
        return [_joined(registry, short) for registry in self.search]

    def _find(self, name: str) -> RegistryTable | None:
        """The table with the longest prefix of a name without tag and digest; of two as long, the first."""
        matching = [table for table in self.registries if _match(name, table.prefix) is not None]
        return max(matching, key=lambda table: len(table.prefix), default=None)


def read_registries_conf(files: Iterable[tuple[str, bytes]]) -> RegistriesConf:
    """Returns what the main file and its drop-ins say, given by name and content in the order in which they apply.

    Raises:
        ConfigError: one of them is invalid, which makes all of them so. The message names the file and the table.
    """
    tables: dict[str, RegistryTable] = {}
    search: tuple[str, ...] = ()
    aliases: dict[str, str] = {}
    left = MOST_BYTES
    for name, data in files:
        left -= len(data)
        if left < 0:
            raise ConfigError(f"{name}: the files have more than {MOST_BYTES >> 20} MiB")
        read = _read_file(name, data)
        tables |= {table.prefix: table for table in reversed(read.registry)}  # in one file the first of a prefix counts
        search = search if read.unqualified_search_registries is None else read.unqualified_search_registries
        aliases |= read.aliases
    return conf_of(tables.values(), search, aliases)


def conf_of(
    tables: Iterable[RegistryTable], search: Sequence[str] = (), aliases: Mapping[str, str] | None = None
) -> RegistriesConf:
    """Returns the tables, of which each has another prefix, as one configuration."""
    ordered = tuple(sorted(tables, key=operator.attrgetter("prefix")))
    return RegistriesConf(registries=ordered, search=tuple(search), aliases=aliases or {})


def normalized(name: str, tables: Iterable[RegistryTable]) -> list[RegistryTable]:
    """Returns one file's tables with prefixes and without final slashes, in the file's order.

    Raises:
        ConfigError: one of them is invalid, or two contradict each other. `name` is the file's.
    """
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
    if any(each.registries is not None for each in (read.registries.search, read.registries.insecure)) or (
        read.registries.block.registries is not None
    ):
        raise ConfigError(f"{name}: [registries] is of version 1, which CRI-O refuses; write [[registry]] tables")
    if read.short_name_mode not in ("", "enforcing", "permissive", "disabled"):
        raise ConfigError(
            f"{name}: short-name-mode: {read.short_name_mode!r} is none of enforcing, permissive, disabled"
        )
    search = read.unqualified_search_registries
    if search is not None:
        search = tuple(_location(name, registry) for registry in search)
        for registry in search:
            if not is_domain(registry):
                raise ConfigError(f"{name}: unqualified-search-registries: {registry!r} is no host or host:port")
    for alias, target in read.aliases.items():
        _check_alias(name, alias, target)
    return _File(tuple(normalized(name, read.registry)), search, "", read.aliases)


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
    if mirror.pull_from_mirror not in _PULLS:
        raise ConfigError(f"{of}: pull-from-mirror: {mirror.pull_from_mirror!r} is none of all, digest-only, tag-only")
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


def _match(name: str, prefix: str) -> int | None:
    """Returns how many characters of the name the prefix stands for; None if it does not match."""
    if prefix.startswith("*."):
        start = name.find(prefix[1:])
        if start < 0 or "/" in name[:start]:
            return None
        end = start + len(prefix) - 1
    else:
        if not name.startswith(prefix):
            return None
        end = len(prefix)
    return end if end == len(name) or name[end] in ":/@" else None


def _rewrite(reference: ImageReference, prefix: str, location: str) -> ImageReference:
    if not location:
        return reference
    matched = _match(reference.repository, prefix)
    name = location + reference.repository[matched:]
    try:
        there = parse_reference(name)
    except InvalidReference as exc:
        raise AddressRefused(f"the nodes' files make {name} of {reference.repository}, which is no image") from exc
    if there.repository != name:
        raise AddressRefused(f"the nodes' files make {name} of {reference.repository}, which is no full name")
    return ImageReference(there.domain, there.path, reference.tag, reference.digest)


def _joined(registry: str, short: ImageReference) -> ImageReference:
    named = parse_reference(f"{registry}/{short.path}")
    return ImageReference(named.domain, named.path, short.tag, short.digest)
