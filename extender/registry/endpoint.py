"""Rules that say where nodes ask for images, and the endpoints that they give for one image.

The readers of containerd's, k3s' and CRI-O's files make the rules. Reads no file and sends no request. A pod's
credentials go to the image's own host, and to a mirror if the rule's runtime sends them there.
"""

import ssl
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Literal, Protocol
from urllib.parse import urlencode

import msgspec
from yarl import URL

from extender.errors import AddressRefused, InvalidReference, RegistryUnavailable
from extender.images.reference import ImageReference, host_of_registry, parse_reference
from extender.registry.endpoint_tls import Certificates, tls_context_of
from extender.registry.go_rewrites import Rewrite, rewritten

Capability = Literal["resolve", "pull"]
CAPABILITIES: frozenset[Capability] = frozenset({"resolve", "pull"})
CredentialScope = Literal["image", "operator", "both"]
"""Whose credentials an endpoint may receive: those found for the image, the operator's for that endpoint, or both."""


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint for one image. `capabilities`: may resolve tags, serve digests, or both."""

    name: str
    """The name in messages, metrics and logs."""
    root: URL
    """The root of the API, with `/v2` if it has that, and without a slash at the end."""
    repository: str
    """The path of the image's repository below the root."""
    mirror_of: str = ""
    """The registry that it mirrors; empty if it is the registry itself."""
    namespace: str = ""
    """The value of the parameter `ns`, by which containerd names the registry to its mirrors; empty: none is sent."""
    credentials: CredentialScope = "image"
    not_asked: str = ""
    """Why it is not asked; empty if it is."""
    plain_root: URL | None = None
    """The root over plain HTTP that is asked if no connection to `root` comes about; None: there is none."""
    capabilities: frozenset[Capability] = CAPABILITIES
    headers: tuple[tuple[str, str], ...] = ()
    trust: Certificates | None = None
    connect_seconds: float | None = None

    def url_of(self, what: str, query: str = "") -> URL:
        """Returns the URL of `what` (`manifests/…`, `blobs/…`, `tags/list`) in the repository; `query` is encoded."""
        url = self.root.joinpath(f"{self.repository}/{what}", encoded=True)
        namespace = urlencode({"ns": self.namespace}, safe=":/") if self.namespace and "ns=" not in query else ""
        return with_more_query(url, "&".join(filter(None, (query, namespace)))) if query or namespace else url

    def tls_for(self, url: URL) -> ssl.SSLContext | bool:
        """Returns the TLS context for a request to `url`, a hop of one to the endpoint; True is the session's own.

        Raises as `tls_context_of`.
        """
        certificates = self.trust
        if certificates and url.origin() != self.root.origin():
            certificates = certificates.elsewhere
        return tls_context_of(certificates) if certificates else True

    @property
    def own_repository(self) -> str:
        """The host's own name of the repository: a root such as `/v2/hub-proxy` adds a prefix."""
        _, _, prefix = f"{self.root.raw_path}/".partition("/v2/")
        return prefix + self.repository


class EndpointSource(Protocol):
    """What knows where nodes ask for images."""

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """Returns the endpoints for an image, in the order in which nodes ask them.

        A reference with a tag and a digest means that digest as the tag's endpoints have it. `plain_http` has the
        registries that are contacted without TLS unless a file says otherwise.

        Raises:
            RegistryUnavailable: the image's registry is not an address.
        """
        ...


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


def upstream_root(domain: str, plain_http: Collection[str] = ()) -> URL:
    """Returns the root of the registry's own API.

    Raises:
        RegistryUnavailable: the domain is not an address.
    """
    scheme = "http" if domain in plain_http else "https"
    try:
        root = URL(f"{scheme}://{host_of_registry(domain)}/v2")
        usable = root.raw_host and URL(str(root)).raw_host == root.raw_host  # yarl loses the brackets of `[::zz]`
    except ValueError as exc:
        raise RegistryUnavailable(f"{domain} is no address to connect to") from exc
    if not usable:
        raise RegistryUnavailable(f"{domain or 'an empty name'} is no address to connect to")
    return root


def with_more_query(url: URL, more: str) -> URL:
    """Returns the URL with encoded parameters behind those that it has."""
    query = "&".join(filter(None, (url.raw_query_string, more)))
    authority = url.raw_authority
    return URL.build(scheme=url.scheme, authority=authority, path=url.raw_path, query_string=query, encoded=True)


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
