"""Where the API of a registry is served, by the registry or by a mirror, and how requests to it are made.

Knows addresses and what goes with them. Asks nothing, and reads no file.
"""

import ssl
from collections.abc import Collection
from typing import Literal

import msgspec
from yarl import URL

from extender.errors import RegistryUnavailable

Capability = Literal["resolve", "pull"]
CAPABILITIES: frozenset[Capability] = frozenset({"resolve", "pull"})
_HOSTS = {"docker.io": "registry-1.docker.io"}


class Trust(msgspec.Struct, frozen=True):
    """How the TLS of an endpoint is checked; True stands for the session's own way.

    Its token server and what it redirects to may show certificates of the same authorities (`elsewhere`). A client
    certificate, and doing without a check, are for the endpoint's own origin alone.
    """

    origin: URL | None = None
    own: ssl.SSLContext | bool = True
    elsewhere: ssl.SSLContext | bool = True

    def context_for(self, url: URL) -> ssl.SSLContext | bool:
        """What a request to `url` is checked with."""
        return self.own if url.origin() == self.origin else self.elsewhere


SYSTEM_TRUST = Trust()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One root to ask for the images of a registry. `capabilities`: its word on tags counts, on digests, or both."""

    name: str
    """To be named in messages, metrics and log."""
    root: URL
    """The root of the API, with `/v2` where it has that, and no slash at its end."""
    namespace: str = ""
    """The registry it is a mirror of; empty where it is that registry, and may see the credentials for it."""
    capabilities: frozenset[Capability] = CAPABILITIES
    headers: tuple[tuple[str, str], ...] = ()
    trust: Trust = SYSTEM_TRUST
    connect_seconds: float | None = None

    def url_of(self, path: str, what: str) -> URL:
        """The address of `what` (`manifests/…`, `blobs/…`) in the repository `path`; mirrors are told of whom."""
        url = self.root.joinpath(f"{path}/{what}", encoded=True)
        return url.with_query(ns=self.namespace) if self.namespace else url

    def repository_of(self, path: str) -> str:
        """The endpoint's own name of the repository `path`: a root such as `/v2/hub-proxy` puts a prefix before it."""
        _, _, prefix = f"{self.root.raw_path}/".partition("/v2/")
        return prefix + path


def upstream_root(domain: str, plain_http: Collection[str] = ()) -> URL:
    """The root of the API of the registry itself.

    Raises:
        RegistryUnavailable: the domain is no address.
    """
    scheme = "http" if domain in plain_http else "https"
    try:
        root = URL(f"{scheme}://{_HOSTS.get(domain, domain)}/v2")
        usable = root.raw_host and URL(str(root)).raw_host == root.raw_host  # yarl loses the brackets of `[::zz]`
    except ValueError as exc:
        raise RegistryUnavailable(f"{domain} is no address to connect to") from exc
    if not usable:
        raise RegistryUnavailable(f"{domain or 'an empty name'} is no address to connect to")
    return root


def upstream_of(domain: str, plain_http: Collection[str] = ()) -> Endpoint:
    """The registry itself, to be asked in the usual way. RegistryUnavailable as `upstream_root`."""
    return Endpoint(name=domain, root=upstream_root(domain, plain_http))
