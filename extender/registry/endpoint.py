"""The endpoints of a registry's API, on the registry itself or on a mirror, and the settings for requests to them.

Sends no requests and reads no files.
"""

import ssl
from collections.abc import Collection, Mapping
from typing import Literal

import msgspec
from yarl import URL

from extender.errors import RegistryUnavailable

Capability = Literal["resolve", "pull"]
CAPABILITIES: frozenset[Capability] = frozenset({"resolve", "pull"})
_HOSTS = {"docker.io": "registry-1.docker.io"}


class Trust(msgspec.Struct, frozen=True):
    """The TLS contexts for an endpoint; True stands for the session's own.

    `own` is for the endpoint's origin. Only `own` has a client certificate or skips verification. `elsewhere` trusts
    the same authorities, and is for the token server and for the targets of redirects.
    """

    origin: URL | None = None
    own: ssl.SSLContext | bool = True
    elsewhere: ssl.SSLContext | bool = True

    def context_for(self, url: URL) -> ssl.SSLContext | bool:
        """Returns the TLS context for a request to `url`."""
        return self.own if url.origin() == self.origin else self.elsewhere


SYSTEM_TRUST = Trust()


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One endpoint for the images of a registry. `capabilities`: may resolve tags, serve digests, or both."""

    name: str
    """The name in messages, metrics and logs."""
    root: URL
    """The root of the API, with `/v2` if it has that, and without a slash at the end."""
    namespace: str = ""
    """The registry that it mirrors; empty if it is the registry itself, which may receive the image's credentials."""
    capabilities: frozenset[Capability] = CAPABILITIES
    headers: tuple[tuple[str, str], ...] = ()
    trust: Trust = SYSTEM_TRUST
    connect_seconds: float | None = None

    def url_of(self, path: str, what: str, query: Mapping[str, str] | None = None) -> URL:
        """Returns the URL of `what` (`manifests/…`, `blobs/…`, `tags/list`) in the repository `path`.

        For a mirror, the parameter `ns` names the registry.
        """
        url = self.root.joinpath(f"{path}/{what}", encoded=True)
        parameters = {**(query or {}), **({"ns": self.namespace} if self.namespace else {})}
        return url.with_query(parameters) if parameters else url

    def repository_of(self, path: str) -> str:
        """Returns the endpoint's own name of the repository `path`: a root such as `/v2/hub-proxy` adds a prefix."""
        _, _, prefix = f"{self.root.raw_path}/".partition("/v2/")
        return prefix + path


def upstream_root(domain: str, plain_http: Collection[str] = ()) -> URL:
    """Returns the root of the registry's own API.

    Raises:
        RegistryUnavailable: the domain is not an address.
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
    """Returns the registry's own endpoint, with default settings. Raises RegistryUnavailable as `upstream_root`."""
    return Endpoint(name=domain, root=upstream_root(domain, plain_http))
