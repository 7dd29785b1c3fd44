"""Rules that say where nodes ask for images, and the endpoints that they give for one image.

The readers of containerd's, k3s' and CRI-O's files make the rules. Reads no file and sends no request. A pod's
credentials go to the image's own host, and to a mirror if the rule's runtime sends them there.
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal

import msgspec
from yarl import URL

from extender.errors import AddressRefused, InvalidReference
from extender.images.reference import ImageReference, parse_reference
from extender.registry.endpoint import CAPABILITIES, Capability, CredentialScope, Endpoint, upstream_root
from extender.registry.endpoint_tls import Certificates
from extender.registry.go_rewrites import Rewrite, rewritten

ImageKind = Literal["all", "digest-only", "tag-only"]


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """One place where the images of a rule are asked for; without any setting, the image's own registry."""

    root: URL | None = None
    """The root of the API; None: that of the host in the image's name, which `location` may have changed."""
    location: str = ""
    """What the rule's prefix becomes in the image's name; empty: the name stays as it is."""
    kind: ImageKind = "all"
    """Whether it is asked for images by tag, by digest, or for both."""
    capabilities: frozenset[Capability] = CAPABILITIES
    insecure: bool = False
    """Certificates are not checked, and plain HTTP follows if there is no TLS."""
    namespace: str | None = None
    """The value of the parameter `ns`; None: the name of the registry, where it is asked in its place."""
    credentials: CredentialScope = "both"
    """Whose credentials it may receive where it is not the image's own registry."""
    headers: tuple[tuple[str, str], ...] = ()
    trust: Certificates | None = None
    """None: as `Routes.trust_of` has it."""
    connect_seconds: float | None = None
    rewrites: tuple[Rewrite, ...] = ()


OWN_REGISTRY = Place()


class MirrorRule(msgspec.Struct, frozen=True):
    """Where images are asked for whose name without tag and digest begins with the prefix.

    A prefix ends where a part of the name does. `host/` is a host with this very port, `*.host` what is below a host,
    and the empty one everything.
    """

    prefix: str
    places: tuple[Place, ...]
    """In the order in which nodes ask."""
    is_blocked: bool = False
    """Nodes ask for no image by a name that this is the rule for."""


class Routes(msgspec.Struct, frozen=True, kw_only=True):
    """All rules of a node. Of rules with prefixes that are as long, the first counts."""

    rules: tuple[MirrorRule, ...] = ()
    search: tuple[str, ...] = ()
    """The registries for names without one."""
    aliases: Mapping[str, str] = {}
    """The names with a registry for some without."""
    searches_all: bool = False
    """Whether all registries are searched, where there are several, instead of none."""
    trust_of: Callable[[str], Certificates | None] = lambda _: None
    """What a host, as images name it, is trusted by where its place does not say that."""

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `EndpointSource`.

        Raises:
            AddressRefused: nodes ask nobody for it; the message says why.
            RegistryUnavailable: a registry is not an address.
        """
        names = [reference] if reference.domain else self.full_names_of(reference)
        endpoints: list[Endpoint] = []
        for name in names:
            try:
                endpoints += list(self._endpoints_of(name, plain_http))
            except AddressRefused:
                if name is names[-1] and not endpoints:
                    raise
        return tuple(endpoints)

    def full_names_of(self, short: ImageReference) -> list[ImageReference]:
        """Returns the names that are tried for one with an empty domain: its alias, or one in each search registry.

        Raises:
            AddressRefused: there is neither, or there are several registries to choose from.
        """
        if alias := self.aliases.get(short.path):
            return [_with_version_of(short, alias)]
        if not self.search:
            raise AddressRefused(f"{short.path} has no registry, and the nodes have no alias or search registry for it")
        if len(self.search) > 1 and not self.searches_all:
            raise AddressRefused(f"{short.path} has no registry, and nodes with several search registries refuse it")
        return [_with_version_of(short, f"{registry}/{short.path}") for registry in self.search]

    def _endpoints_of(self, name: ImageReference, plain_http: Collection[str]) -> Iterator[Endpoint]:
        rule = self._rule_for(name.repository)
        # A reference with a tag and a digest means that digest as the tag's places have it.
        other = "tag-only" if name.digest and not name.tag else "digest-only"
        for place in rule.places if rule else (OWN_REGISTRY,):
            if place.kind == other:
                continue
            there, rule_there = name, rule
            if rule and place.location:
                there = _relocated(name, rule.prefix, place.location)
                rule_there = self._rule_for(there.repository)
            endpoint = self._endpoint(place, name, there, plain_http)
            if rule_there and rule_there.is_blocked:
                endpoint = msgspec.structs.replace(endpoint, not_asked="registries.conf blocks it")
            yield endpoint

    def _endpoint(
        self, place: Place, name: ImageReference, there: ImageReference, plain_http: Collection[str]
    ) -> Endpoint:
        """Returns the endpoint for the image `name`, which the place has as `there`."""
        host = upstream_root(there.domain, plain_http)
        root = place.root or host
        is_host = root.origin() == host.with_scheme(root.scheme).origin()
        mirror_of = "" if is_host and there.domain == name.domain else name.domain
        trust = place.trust or self.trust_of(there.domain)
        if place.insecure:
            trust = (trust or Certificates())._replace(clients=(), is_unverified=True)
        return Endpoint(
            name=there.domain if is_host else (root.host_port_subcomponent or ""),
            root=root,
            repository=rewritten(there.path, place.rewrites) if place.rewrites else there.path,
            mirror_of=mirror_of,
            namespace=mirror_of if place.namespace is None else place.namespace,
            credentials=place.credentials if mirror_of else "image",
            plain_root=root.with_scheme("http") if place.insecure and root.scheme == "https" else None,
            capabilities=place.capabilities,
            headers=place.headers,
            trust=trust,
            connect_seconds=place.connect_seconds,
        )

    def _rule_for(self, name: str) -> MirrorRule | None:
        """The rule with the longest prefix of a name without tag and digest."""
        matching = [rule for rule in self.rules if _matched(name, rule.prefix) is not None]
        return max(matching, key=lambda rule: len(rule.prefix), default=None)


def _matched(name: str, prefix: str) -> int | None:
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
    is_whole = end == len(name) or name[end] in ":/@" or not prefix or prefix.endswith("/")
    return end if is_whole else None


def _relocated(name: ImageReference, prefix: str, location: str) -> ImageReference:
    relocated = location + name.repository[_matched(name.repository, prefix) :]
    try:
        there = parse_reference(relocated)
    except InvalidReference as exc:
        raise AddressRefused(f"the nodes' files make {relocated} of {name.repository}, which is no image") from exc
    if there.repository != relocated:
        raise AddressRefused(f"the nodes' files make {relocated} of {name.repository}, which is no full name")
    return ImageReference(there.domain, there.path, name.tag, name.digest)


def _with_version_of(short: ImageReference, name: str) -> ImageReference:
    named = parse_reference(name)
    return ImageReference(named.domain, named.path, short.tag, short.digest)
