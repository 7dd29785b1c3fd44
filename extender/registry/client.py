"""A registry's manifests and blobs: which address to ask, what each status means, and bytes that are what they claim.

Speaks the distribution-spec's pull part to one host at a time. Knows no mirror, no cache and no platform; which
credential to try is the caller's decision, what to do with it `auth`'s.
"""

import asyncio
import ssl
import time
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import aiohttp
from yarl import URL

from extender import __version__
from extender.errors import (
    ConfigError,
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryUnavailable,
)
from extender.images.digest import digest_of, is_digest, matches_digest
from extender.images.media_type import ACCEPTED, media_type_of
from extender.images.reference import ImageReference
from extender.registry.auth import Authenticator
from extender.registry.image import FetchedManifest
from extender.registry.keyring import ANONYMOUS, Credential
from extender.registry.transport import Reply, deadline, follow, host_of, send, throttled

# Registries refuse to store longer manifests and runtimes to read them (distribution, containerd, containers/image);
# the same limit holds for configs, as in containers/image.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_ACCEPT = ", ".join(ACCEPTED)
_HOSTS = {"docker.io": "registry-1.docker.io"}
_NO_HEAD = frozenset({405, 501})
_CONNECTIONS = 256  # over all hosts, so that no reference can use up the file descriptors; each host has its own bound


def open_session(*, ca_files: Sequence[str] = ()) -> aiohttp.ClientSession:
    """A session for `RegistryClient` and `Authenticator`: no cookies, no time-out of its own, nothing from ~/.netrc.

    `ca_files` are PEM bundles trusted besides the system's. Call it with a loop running and close it when done.

    Raises:
        ConfigError: one of `ca_files` cannot be read or holds no certificate.
    """
    context = ssl.create_default_context()
    for path in ca_files:
        try:
            context.load_verify_locations(path)
        except OSError as exc:  # ssl.SSLError is one
            raise ConfigError(f"registry.ca_files: {path} holds no certificates: {exc.strerror or exc}") from exc
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=context, limit=_CONNECTIONS),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None),
        headers={"User-Agent": f"multiarch-extender/{__version__}"},
    )


class RegistryClient:
    """Asks registries for manifests and blobs. Every method raises only RegistryError leaves and InvalidManifest."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        authenticator: Authenticator,
        timeout_seconds: float,
        concurrency_per_host: int,
        plain_http: frozenset[str],
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        """`timeout_seconds` bounds a whole exchange (challenge, token, redirects, body) from when its turn has come.

        `plain_http` are the `host[:port]` that are asked without TLS. `wall_clock` reads a Retry-After that is a date.
        """
        self._session = session
        self._authenticator = authenticator
        self._timeout_seconds = timeout_seconds
        self._concurrency_per_host = concurrency_per_host
        self._plain_http = plain_http
        self._wall_clock = wall_clock
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # hosts in use only

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        """The digest the registry states for the reference: a hint that nothing has changed, not a verified digest.

        None where it does not say: it knows no HEAD, or sends no digest, or not the one that was asked for.
        """
        reply = await self._ask("HEAD", reference, f"manifests/{_manifest_name(reference)}", credential)
        if reply.status in _NO_HEAD:
            return None
        self._check(reply, reference)
        stated = reply.headers.get("Docker-Content-Digest", "")
        return stated if is_digest(stated) and reference.digest in ("", stated) else None

    async def fetch_manifest(self, reference: ImageReference, credential: Credential) -> FetchedManifest:
        """The manifest by digest, or by tag where the reference has no digest.

        The digest is the one asked for, or computed from the body: the header is not trusted, since registries have
        sent wrong ones (google/go-containerregistry: pkg/v1/remote/descriptor.go).
        """
        reply = await self._ask("GET", reference, f"manifests/{_manifest_name(reference)}", credential)
        body = self._body_of(reply, reference, reference.digest)
        media_type = media_type_of(reply.headers.get("Content-Type", ""))
        return FetchedManifest(reference.digest or digest_of(body), media_type, body)

    async def fetch_blob(self, reference: ImageReference, digest: str, credential: Credential) -> bytes:
        """The blob `digest` of the reference's repository. By GET: public.ecr.aws denies a HEAD where a GET works."""
        return self._body_of(await self._ask("GET", reference, f"blobs/{digest}", credential), reference, digest)

    async def _ask(self, method: str, reference: ImageReference, what: str, credential: Credential) -> Reply:
        """The answer about `what` in the repository, after redirects. Other origins are never shown the credential."""
        url = self._url_of(reference, what)
        turn = self._turns.setdefault(host_of(url), asyncio.Semaphore(self._concurrency_per_host))

        async def send_to(hop: URL) -> Reply:
            own = hop.origin() == url.origin()
            return await self._send(method, hop, reference.path, credential if own else ANONYMOUS)

        async with turn, deadline(reference.domain, self._timeout_seconds):
            return await follow(url, send_to)

    async def _send(self, method: str, url: URL, repository: str, credential: Credential) -> Reply:
        """The answer to one request, with one more try where a 401 says how to authenticate."""
        authorization = await self._authenticator.authorization(url, repository, credential)
        reply = await self._send_once(method, url, authorization)
        if reply.status == 401:
            answer = await self._authenticator.answer(reply, repository, credential, authorization)
            return await self._send_once(method, url, answer) if answer else reply
        return reply

    async def _send_once(self, method: str, url: URL, authorization: str | None) -> Reply:
        headers = {"Accept": _ACCEPT} | ({"Authorization": authorization} if authorization else {})
        return await send(self._session, method, url, headers=headers, limit_bytes=MAX_DOCUMENT_BYTES)

    def _url_of(self, reference: ImageReference, what: str) -> URL:
        scheme = "http" if reference.domain in self._plain_http else "https"
        host = _HOSTS.get(reference.domain, reference.domain)
        try:
            url = URL(f"{scheme}://{host}/v2/{reference.path}/{what}")
        except ValueError as exc:
            raise RegistryUnavailable(f"{reference.domain} is no address to connect to") from exc
        if not url.raw_host:
            raise RegistryUnavailable(f"{reference.domain or reference.path} is no address to connect to")
        return url

    def _body_of(self, reply: Reply, reference: ImageReference, digest: str) -> bytes:
        """The body, if it is all there and hashes to `digest`, where that is not empty."""
        self._check(reply, reference)
        if reply.truncated:
            raise InvalidManifest(f"{reference.domain} sent a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB")
        if digest and not matches_digest(reply.body, digest):
            raise InvalidManifest(f"{reference.domain} sent bytes that do not have the digest {digest}")
        return reply.body

    def _check(self, reply: Reply, reference: ImageReference) -> None:
        """Raise what the answer's status means, unless it is a 200 that is no web page."""
        if reply.status == 200 and media_type_of(reply.headers.get("Content-Type", "")) != "text/html":
            return
        raise self._refusal(reply, reference)

    def _refusal(self, reply: Reply, reference: ImageReference) -> RegistryError:
        host = reference.domain
        match reply.status:
            case 200:
                return RegistryUnavailable(f"{host} answered with a web page instead of a registry's document")
            case 401 | 403:
                return RegistryDenied(f"{host} denies access to {reference.path} ({reply.status})")
            case 404:
                mark = "@" if reference.digest else ":"
                return ManifestNotFound(f"{host} has no {reference.path}{mark}{_manifest_name(reference)}")
            case 429:
                return throttled(reply, self._wall_clock)
            case status:
                return RegistryUnavailable(f"{host} answered {status}")


def _manifest_name(reference: ImageReference) -> str:
    """What the manifest is called in its repository: the digest decides, as for the kubelet."""
    return reference.digest or reference.tag
