"""The endpoints that nodes ask for an image, on its registry or on mirrors, and the settings for requests to them.

This is all that lookups know of mirrors; `routes` makes endpoints of what the runtimes' files say. Sends no requests
and reads no files.
"""

import ssl
from collections.abc import Collection
from typing import Literal, Protocol
from urllib.parse import urlencode

import msgspec
from yarl import URL

from extender.errors import RegistryUnavailable
from extender.images.reference import ImageReference, host_of_registry
from extender.registry.endpoint_tls import Certificates, tls_context_of

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
