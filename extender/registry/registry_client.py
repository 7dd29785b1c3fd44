"""Fetches manifests and blobs: builds the requests, turns response statuses into errors, and verifies digests.

Implements the pull part of the distribution-spec, without a cache. The caller chooses the credential, and
`mirror_failover` chooses the endpoint. `auth` decides which host receives which header and credential.
"""

import re
from collections.abc import Sequence
from urllib.parse import urlsplit

import aiohttp
import msgspec

from extender.credentials.keyring import Credential
from extender.errors import (
    UNDECODABLE,
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryRefusedImage,
)
from extender.images.manifest import media_type_of
from extender.images.reference import ImageReference, digest_of, is_digest, matches_digest
from extender.lenient_json import InvalidJson, LenientDecoder
from extender.machine import Machine
from extender.registry.addresses import AddressGuard
from extender.registry.auth import MAX_DOCUMENT_BYTES, Authenticator
from extender.registry.endpoint import Capability, Endpoint, EndpointSource, Routes
from extender.registry.endpoint_breakers import EndpointBreakers
from extender.registry.http import Response, is_about_request, read_refusal, throttled
from extender.registry.mirror_failover import AnswerListener, MirrorCredentials, MirrorFailover, nobody
from extender.registry.quota import Quotas

_NO_HEAD = frozenset({405, 501})
_ANYTHING, _JSON = {"Accept": "*/*"}, {"Accept": "application/json"}
_OBJECT = msgspec.json.Decoder(dict[str, msgspec.Raw])
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F][0-9a-fA-F]{2}")  # half of which msgspec refuses where nobody reads it
_KEYS_OF_DOCUMENTS = frozenset({"schemaVersion", "mediaType", "manifests", "config", "layers", "architecture", "os"})
_TAGS_A_PAGE, _MOST_TAG_PAGES = 1000, 20
_LINK = re.compile(r"<([^<>]{1,4096})>\s*;([^,]*)", re.ASCII)


class _TagList(msgspec.Struct):
    """The distribution-spec's list of tags; null where a repository has none."""

    tags: list[str | None] | None = None


_TAG_LIST = LenientDecoder(_TagList, most_values=100_000)  # a thousand are asked for


class FetchedManifest(msgspec.Struct, frozen=True):
    """A manifest as received: `body` hashes to `digest`, `media_type` is the Content-Type without parameters."""

    digest: str
    media_type: str
    body: bytes


class RegistryClient:
    """Fetches manifests and blobs from registries. Raises only InvalidManifest and subclasses of RegistryError."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        timeout_seconds: float,
        plain_http: frozenset[str],
        machine: Machine,
        mirrors: EndpointSource | None = None,
        mirror_credentials: MirrorCredentials = nobody,
        guard: AddressGuard | None = None,
        on_answer: AnswerListener | None = None,
    ) -> None:
        """`timeout_seconds` bounds each request, to a registry or a token server, with its body.

        `plain_http` has the `host[:port]` that are contacted without TLS, unless `mirrors` says otherwise.
        `mirror_credentials` returns the operator's own credentials for a repository on a mirror, in the order to try
        them. `guard` decides which registries and mirrors may be contacted (None: all). `on_answer` receives what each
        endpoint answered.
        """
        self._authenticator = Authenticator(
            session, timeout_seconds=timeout_seconds, clock=machine.clock, wall_clock=machine.wall_clock
        )
        self._plain_http = plain_http
        self._mirrors = mirrors or Routes()
        self._wall_clock = machine.wall_clock
        self._quotas = Quotas(clock=machine.clock, random=machine.random)
        self._failover = MirrorFailover(
            self.endpoints_for,
            mirror_credentials=mirror_credentials,
            guard=guard,
            breakers=EndpointBreakers(clock=machine.clock, random=machine.random),
            on_answer=on_answer,
        )

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        """Returns the digest that the registry states for the reference: an unverified hint that nothing has changed.

        None if the registry does not support HEAD, refuses the image, since only the answer to a GET says why, sends no
        digest, or sends another digest than was asked for. A mirror that refuses it is passed over.
        """

        async def head(endpoint: Endpoint, login: Credential) -> str | None:
            response = await self._ask_manifest("HEAD", endpoint, reference, login)
            if response.status in _NO_HEAD:
                return None
            try:
                self._check(response, endpoint, reference)
            except RegistryRefusedImage:
                if endpoint.mirror_of:
                    raise
                return None
            stated = response.headers.get("Docker-Content-Digest", "")
            return stated if is_digest(stated) and reference.digest in ("", stated) else None

        return await self._failover.first_answer(_capability(reference), reference, credential, head)

    async def fetch_manifest(self, reference: ImageReference, credential: Credential) -> FetchedManifest:
        """Returns the manifest by digest, or by tag if the reference has none.

        Its digest is the one asked for, or is computed from the body. The header is not trusted, since registries have
        sent wrong ones (google/go-containerregistry: pkg/v1/remote/descriptor.go).
        """

        async def fetch(endpoint: Endpoint, login: Credential) -> FetchedManifest:
            await self._keep_reserve(endpoint, reference, login)
            response = await self._ask_manifest("GET", endpoint, reference, login)
            body = self._body_of(response, endpoint, reference, reference.digest)
            digest = reference.digest or digest_of(body)
            if response.headers.get("Docker-Content-Digest") != digest and not is_whole(body):
                raise throttled(response, self._wall_clock) or RegistryFailed(
                    f"{endpoint.name} sent something that is no manifest"
                )
            media_type = media_type_of(response.headers.get("Content-Type", ""))
            return FetchedManifest(digest, media_type, body)

        return await self._failover.first_answer(_capability(reference), reference, credential, fetch)

    async def fetch_blob(self, reference: ImageReference, digest: str, credential: Credential) -> bytes:
        """Returns the blob `digest` of the reference's repository.

        Uses GET without a HEAD before it: public.ecr.aws denies a HEAD where a GET works.
        """

        async def fetch(endpoint: Endpoint, login: Credential) -> bytes:
            response = await self._authenticator.ask("GET", endpoint, f"blobs/{digest}", login, headers=_ANYTHING)
            return self._body_of(response, endpoint, reference, digest)

        return await self._failover.first_answer("pull", reference, credential, fetch)

    async def fetch_blob_part(
        self, reference: ImageReference, digest: str, credential: Credential, start: int, end: int
    ) -> bytes:
        """Returns the bytes of a blob from `start` up to `end`, or fewer at its end; nobody can check their digest.

        Reads 4 MiB at most. A registry that knows no ranges sends the whole blob, which is taken if it is that small.
        """

        async def fetch(endpoint: Endpoint, login: Credential) -> bytes:
            wanted = {**_ANYTHING, "Range": f"bytes={start}-{end - 1}"}
            response = await self._authenticator.ask("GET", endpoint, f"blobs/{digest}", login, headers=wanted)
            if response.status == 206 and not response.truncated:
                if not response.headers.get("Content-Range", "").startswith(f"bytes {start}-"):
                    raise RegistryFailed(f"{endpoint.name} sent another part of a layer than was asked for")
                return response.body[: end - start]
            body = self._body_of(response, endpoint, reference, digest)
            return body[start:end]

        return await self._failover.first_answer("pull", reference, credential, fetch)

    async def fetch_tags(self, reference: ImageReference, credential: Credential) -> list[str]:
        """Returns the tags of the reference's repository, as the registry orders them: the first 20,000 at most.

        Follows the `Link` of each page (distribution-spec, "Listing Tags"), and asks nothing but the page it names.
        """

        async def fetch(endpoint: Endpoint, login: Credential) -> list[str]:
            tags: list[str] = []
            query = f"n={_TAGS_A_PAGE}"
            for _ in range(_MOST_TAG_PAGES):
                response = await self._authenticator.ask("GET", endpoint, "tags/list", login, query, _JSON)
                page = _read_tags(self._body_of(response, endpoint, reference, ""), endpoint.name)
                tags += page
                query = next_page(response.headers.getall("Link", []))
                if not query or not page:
                    break
            return tags

        return await self._failover.first_answer("resolve", reference, credential, fetch)

    def endpoints_for(self, reference: ImageReference) -> Sequence[Endpoint]:
        """Returns whom nodes ask for the image, in order. Raises RegistryError if they ask nobody."""
        return self._mirrors.endpoints_for(reference, self._plain_http)

    def resolves_elsewhere(self, reference: ImageReference) -> bool:
        """Whether nodes ask another for the digest of the image's tag than for the bytes behind that.

        Such a mirror spares the registry's quota. Raises RegistryError as `endpoints_for`.
        """
        if reference.digest:
            return False
        endpoints = self.endpoints_for(reference)
        by_tag, by_digest = (
            next((each for each in endpoints if capability in each.capabilities), None)
            for capability in ("resolve", "pull")
        )
        return by_tag != by_digest

    async def _ask_manifest(
        self, method: str, endpoint: Endpoint, reference: ImageReference, login: Credential
    ) -> Response:
        what = f"manifests/{reference.digest or reference.tag}"
        response = await self._authenticator.ask(method, endpoint, what, login)
        if (
            response.status == 200 or "RateLimit-Remaining" in response.headers
        ):  # an error without the header does not mean that there is no quota
            self._quotas.note(endpoint.name, endpoint.root.origin(), login.id, response.headers)
        return response

    async def _keep_reserve(self, endpoint: Endpoint, reference: ImageReference, login: Credential) -> None:
        """Raises RegistryThrottled while the quota is low, which a HEAD tells for free where that is not known now."""
        account = (endpoint.root.origin(), login.id)
        if self._quotas.is_old(endpoint.name, *account):
            response = await self._ask_manifest("HEAD", endpoint, reference, login)
            if too_many := throttled(response, self._wall_clock):
                raise too_many
        if self._quotas.is_reserved(*account):
            raise self._quotas.reservation_error(endpoint.name, *account)

    def _body_of(self, response: Response, endpoint: Endpoint, reference: ImageReference, digest: str) -> bytes:
        """Returns the body if it is complete and hashes to `digest`; an empty `digest` is not checked."""
        self._check(response, endpoint, reference)
        if response.truncated:
            raise InvalidManifest(f"{endpoint.name} sent a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB")
        if digest and not matches_digest(response.body, digest):
            if response.body.lstrip()[:1] in (b"", b"{") and not is_whole(response.body):
                raise throttled(response, self._wall_clock) or RegistryFailed(
                    f"{endpoint.name} sent something else than {digest}"
                )
            raise InvalidManifest(f"{endpoint.name} sent bytes that do not have the digest {digest}")
        return response.body

    def _check(self, response: Response, endpoint: Endpoint, reference: ImageReference) -> None:
        """Raises the error for the response, unless it is a 200 that is not a web page."""
        if response.status == 200 and media_type_of(response.headers.get("Content-Type", "")) != "text/html":
            return
        raise throttled(response, self._wall_clock) or self._refusal(response, endpoint, reference)

    def _refusal(self, response: Response, endpoint: Endpoint, reference: ImageReference) -> RegistryError:
        host, repository = endpoint.name, endpoint.repository
        match response.status:
            case 200:
                return RegistryFailed(f"{host} answered with a web page instead of a registry's document")
            case 401 | 403:
                return RegistryDenied(f"{host} denies access to {repository} ({response.status})")
            case 404:
                name = f"@{reference.digest}" if reference.digest else f":{reference.tag}"
                return ManifestNotFound(f"{host} has no {repository}{name}")
            case status if is_about_request(status):
                said = read_refusal(response.body)
                return RegistryRefusedImage(f"{host} refuses {repository} ({status})", status, said)
            case status:
                return RegistryFailed(f"{host} answered {status}")


def is_whole(body: bytes) -> bool:
    """Whether a body can be a document of an image at all: neither empty nor cut, nor something else.

    What cannot is not what the registry has under that name, and another request may bring it.
    """
    try:
        keys = _OBJECT.decode(_SURROGATE.sub(rb"\\u0020", body)).keys()
    except UNDECODABLE:
        return False
    return bool(keys & _KEYS_OF_DOCUMENTS)


def next_page(links: Sequence[str]) -> str:
    """Returns the query of the next page of a list, to the byte; empty without one.

    Only the query is taken of the address, so that a registry cannot send us, and a credential, anywhere else.
    """
    for address, parameters in (found for link in links for found in _LINK.findall(link)):
        if re.search(r"""\brel\s*=\s*["']?next\b""", parameters, re.IGNORECASE):
            try:
                return str(urlsplit(address).query)
            except ValueError:
                return ""
    return ""


def _read_tags(body: bytes, host: str) -> list[str]:
    try:
        return [tag for tag in _TAG_LIST.decode(body).tags or () if tag]
    except InvalidJson as exc:
        raise InvalidManifest(f"{host} sent a list of tags that cannot be read") from exc


def _capability(reference: ImageReference) -> Capability:
    """Returns the capability that an endpoint needs: `resolve` to look up a tag, `pull` to fetch by digest."""
    return "pull" if reference.digest else "resolve"
