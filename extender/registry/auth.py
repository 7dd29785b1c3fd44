"""Requests to endpoints, with redirects and with the Authorization headers that registries ask for.

That is a Basic login, or a Bearer token from the registry's token server. Decides which host receives which header and
which TLS context applies; a credential is sent only to the registry it was given for and to the token server that this
registry names. Implements the token protocol (distribution: docs/spec/auth/token.md); caches challenges and tokens.
"""

import base64
import math
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import RegistryDenied, RegistryError, RegistryRefusedImage, RegistryUnavailable
from extender.go_json import GoDecoder, InvalidJson
from extender.images.manifest import ACCEPTED
from extender.registry.challenge import Challenge, MalformedChallenge, parse_challenges
from extender.registry.endpoint import Endpoint
from extender.registry.endpoint_tls import SYSTEM_TRUST, Trust
from extender.registry.raw_urls import with_more_query
from extender.registry.refusals import read_refusal
from extender.registry.transport import (
    Response,
    deadline,
    follow,
    host_of,
    is_about_request,
    resolve_url,
    send,
    throttled,
)
from extender.tables import LruTable

# Registries refuse to store longer manifests, and runtimes refuse to read them (distribution, containerd,
# containers/image). The same limit applies to configs, as in containers/image.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_ACCEPT = ", ".join(ACCEPTED)
_NONE: Mapping[str, str] = {}
_MAX_TOKEN_BYTES = 1024 * 1024  # as containers/image has it (internal/iolimits)
_MIN_LIFE_SECONDS = 60.0  # the protocol's default; registries that state less do not hold to it
_RENEW_AFTER = 0.8  # of a token's life, so that no token expires on its way
# Characters that a header may hold, in a length that servers accept: real tokens have a few KB; thousands are cached.
_TOKEN = re.compile(r"[\x21-\x7e]{1,16384}")


# Enough for the repositories of most clusters. Of a challenge only these parameters are kept, in a header of 8 KB at
# most, so that challenges take 8 MB and tokens 16 MB if hosts make all of them as long as they may be.
_PARAMETERS = ("realm", "service", "scope")
_MOST_CHALLENGES, _MOST_TOKENS = 1024, 1024


class _TokenKey(NamedTuple):
    """What a token was issued for. It names the credential by its id, so that keys hold no secret."""

    realm: URL
    service: str
    scope: str
    credential: CredentialId


class _BearerToken(NamedTuple):
    text: str
    renew_at: float


class _TokenReply(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: object = None  # seconds, which some servers send as a text


_DECODER = GoDecoder(_TokenReply, most_values=10_000)  # a token server's answer has a handful


class Authenticator:
    """Makes the Authorization header of each request from the challenges that registries have sent so far."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        timeout_seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """`timeout_seconds` bounds one token request; `clock` is monotonic, `wall_clock` counts from the epoch."""
        self._session = session
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._challenges: LruTable[tuple[URL, str], Challenge] = LruTable(_MOST_CHALLENGES)
        self._tokens: LruTable[_TokenKey, _BearerToken] = LruTable(_MOST_TOKENS)

    async def authorization(
        self, url: URL, repository: str, credential: Credential, trust: Trust = SYSTEM_TRUST
    ) -> str | None:
        """Returns the header value for the last challenge of `url`'s host about `repository`; None without one.

        `trust` says how the token server's TLS is checked.

        Raises:
            RegistryError: as `answer`.
        """
        key = (url.origin(), repository)
        challenge = self._challenges.get(key)
        if challenge is None:
            return None
        try:
            return await self._respond(challenge, url, repository, credential, trust)
        except RegistryError:
            if self._challenges.get(key) is challenge:
                self._challenges.remove(key)  # the next request then gets a new one: the token server may have moved
            raise

    async def answer(
        self,
        response: Response,
        repository: str,
        credential: Credential,
        sent: str | None,
        trust: Trust = SYSTEM_TRUST,
    ) -> str | None:
        """Returns the header value that answers a 401; None if there is no value other than `sent`.

        Raises:
            RegistryDenied: the token server refuses the credential.
            RegistryRefusedImage: the token server refuses the request with another 4xx.
            RegistryThrottled: the token server answers 429.
            RegistryUnavailable: the challenge is malformed, or the token server fails.
        """
        challenge = _choose(response)
        if challenge is None:
            return None
        if challenge.scheme == "bearer":
            self._forget(_token_key(challenge, response.url, repository, credential), sent)
        authorization = await self._respond(challenge, response.url, repository, credential, trust)
        self._challenges.put((response.url.origin(), repository), challenge)
        return authorization if authorization != sent else None

    def _forget(self, key: _TokenKey, sent: str | None) -> None:
        """Drops the token that was refused, unless another request has renewed it meanwhile."""
        token = self._tokens.get(key)
        if token and sent == f"Bearer {token.text}":
            self._tokens.remove(key)

    async def _respond(
        self, challenge: Challenge, url: URL, repository: str, credential: Credential, trust: Trust
    ) -> str | None:
        if challenge.scheme == "bearer":
            return f"Bearer {await self._token(_token_key(challenge, url, repository, credential), credential, trust)}"
        return _basic(credential) if credential != ANONYMOUS else None

    async def _token(self, key: _TokenKey, credential: Credential, trust: Trust) -> str:
        """Returns the cached token, or a new one. Those who need one at the same time ask for one each."""
        token = self._tokens.get(key)
        if token and self._clock() < token.renew_at:
            return token.text
        return await self._fetch_token(key, credential, trust)

    async def _fetch_token(self, key: _TokenKey, credential: Credential, trust: Trust) -> str:
        url = _token_url(key)
        headers = {"Authorization": _basic(credential)} if credential != ANONYMOUS else {}

        async def send_to(hop: URL) -> Response:
            shown = headers if hop.origin() == url.origin() else {}
            tls = trust.context_for(hop)
            return await send(self._session, "GET", hop, headers=shown, limit_bytes=_MAX_TOKEN_BYTES, tls=tls)

        async with deadline(host_of(url), self._timeout_seconds):
            response = await follow(url, send_to)
        if response.status != 200:
            raise self._refusal(response)
        text, life_seconds = _read_token(response)
        self._tokens.put(key, _BearerToken(text, self._clock() + life_seconds * _RENEW_AFTER))
        return text

    def _refusal(self, response: Response) -> RegistryError:
        host = host_of(response.url)
        if response.status in (401, 403):
            return RegistryDenied(f"the token server {host} gives no token ({response.status})")
        if response.status == 429:
            return throttled(response, self._wall_clock)
        if is_about_request(response.status):
            words = f"the token server {host} gives no token ({response.status})"
            return RegistryRefusedImage(words, response.status, read_refusal(response.body))
        return RegistryUnavailable(f"the token server {host} answered {response.status}")


class Exchange:
    """Sends requests to endpoints.

    Redirects to another origin carry no credential, no client certificate and none of the endpoint's headers.
    """

    def __init__(self, session: aiohttp.ClientSession, authenticator: Authenticator, *, timeout_seconds: float) -> None:
        """`timeout_seconds` bounds a whole exchange: challenge, token, redirects and body."""
        self._session = session
        self._authenticator = authenticator
        self._timeout_seconds = timeout_seconds

    async def ask(
        self,
        method: str,
        endpoint: Endpoint,
        what: str,
        credential: Credential,
        query: str = "",
        headers: Mapping[str, str] = _NONE,
    ) -> Response:
        """Returns the response about `what` in the endpoint's repository, after redirects.

        `query` is encoded; `headers` are sent to every hop besides.

        Raises:
            RegistryError: there is no response, or no token can be obtained.
        """

        async def send_to(hop: URL) -> Response:
            return await self._send(method, hop, endpoint, credential, headers)

        async with deadline(endpoint.name, self._timeout_seconds):
            return await follow(endpoint.url_of(what, query), send_to)

    async def _send(
        self, method: str, url: URL, endpoint: Endpoint, credential: Credential, more: Mapping[str, str]
    ) -> Response:
        """Sends one request, and once more if a 401 says how to authenticate; returns the last response."""
        repository = endpoint.own_repository
        own = credential if url.origin() == endpoint.root.origin() else ANONYMOUS
        authorization = await self._authenticator.authorization(url, repository, own, endpoint.trust)
        response = await self._send_once(method, url, endpoint, authorization, more)
        if response.status == 401:
            answer = await self._authenticator.answer(response, repository, own, authorization, endpoint.trust)
            return await self._send_once(method, url, endpoint, answer, more) if answer else response
        return response

    async def _send_once(
        self, method: str, url: URL, endpoint: Endpoint, authorization: str | None, more: Mapping[str, str]
    ) -> Response:
        headers = CIMultiDict(endpoint.headers if url.origin() == endpoint.root.origin() else ())
        headers["Accept"] = _ACCEPT
        headers.update(more)
        if authorization:
            headers["Authorization"] = authorization
        return await send(
            self._session,
            method,
            url,
            headers=headers,
            limit_bytes=MAX_DOCUMENT_BYTES,
            tls=endpoint.trust.context_for(url),
            connect_seconds=endpoint.connect_seconds,
        )


def _choose(response: Response) -> Challenge | None:
    """Returns the challenge to answer, Bearer before Basic; None if the registry offers neither."""
    try:
        challenges = parse_challenges(response.headers.getall("WWW-Authenticate", ()))
    except MalformedChallenge as exc:
        raise RegistryUnavailable(f"{host_of(response.url)} sent a malformed challenge") from exc
    known = {challenge.scheme: challenge for challenge in reversed(challenges)}
    chosen = known.get("bearer") or known.get("basic")
    if chosen is None:
        return None
    return Challenge(
        chosen.scheme, {name: chosen.parameters[name] for name in _PARAMETERS if name in chosen.parameters}
    )


def _token_key(challenge: Challenge, url: URL, repository: str, credential: Credential) -> _TokenKey:
    """Returns the key of the token to request; the scope is the challenge's, or to pull `repository` if it has none."""
    parameters = challenge.parameters
    if not parameters.get("realm"):
        raise RegistryUnavailable(f"{host_of(url)} sent a malformed challenge")
    realm = resolve_url(url, parameters["realm"])
    return _TokenKey(
        realm,
        parameters.get("service", ""),
        parameters.get("scope") or f"repository:{repository}:pull",
        credential.id,
    )


def _token_url(key: _TokenKey) -> URL:
    """Returns the realm's URL with service and scopes; several scopes become several parameters."""
    parameters = [("service", key.service)] if key.service else []
    parameters += [("scope", scope) for scope in key.scope.split()]
    return with_more_query(key.realm, urlencode(parameters, safe=":/"))


def _read_token(response: Response) -> tuple[str, float]:
    """Returns the token and its lifetime in seconds."""
    try:
        answer = _DECODER.decode(response.body)
        life_seconds = msgspec.convert(answer.expires_in or 0, float, strict=False)
    except (InvalidJson, msgspec.ValidationError) as exc:
        raise RegistryUnavailable(f"the token server {host_of(response.url)} sent no token") from exc
    text = answer.token or answer.access_token
    if not _TOKEN.fullmatch(text):
        raise RegistryUnavailable(f"the token server {host_of(response.url)} sent no token")
    return text, max(life_seconds if math.isfinite(life_seconds) else 0.0, _MIN_LIFE_SECONDS)


def _basic(credential: Credential) -> str:
    pair = f"{credential.username}:{credential.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"
