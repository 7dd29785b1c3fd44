"""Requests to endpoints, with redirects and with the Authorization headers that registries ask for.

That is a Basic login, or a Bearer token from the registry's token server. Decides which host receives which header and
which TLS context applies; a credential is sent only to the registry it was given for and to the token server that this
registry names. Implements the token protocol (distribution: docs/spec/auth/token.md) and the grammar of challenges
(RFC 9110 §11.6.1); caches challenges and tokens.
"""

import base64
import math
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import NamedTuple
from urllib.parse import urlencode

import aiohttp
import msgspec
from multidict import CIMultiDict
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import RegistryDenied, RegistryError, RegistryRefusedImage, RegistryUnavailable
from extender.images.manifest import ACCEPTED
from extender.lenient_json import InvalidJson, LenientDecoder
from extender.registry.endpoint import Endpoint, with_more_query
from extender.registry.http import (
    Response,
    follow,
    host_of,
    is_about_request,
    read_refusal,
    resolve_url,
    send,
    throttled,
)
from extender.tables import LruTable, ShareTable

# Registries refuse to store longer manifests, and runtimes refuse to read them (distribution, containerd,
# containers/image). The same limit applies to configs, as in containers/image.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_ACCEPT = ", ".join(ACCEPTED)
_NONE: Mapping[str, str] = {}
_MAX_TOKEN_BYTES = 1024 * 1024  # as containers/image has it (internal/iolimits)
_MIN_LIFE_SECONDS = 60.0  # the protocol's default; registries that state less do not hold to it
_RENEW_AFTER = 0.8  # of a token's life, so that no token expires on its way
_TOKEN = re.compile(r"[\x21-\x7e]{1,65536}")  # real ones have a few KB, and 20 with the groups of a directory


# Enough for the repositories of most clusters. Of a challenge only these parameters are kept, in a header of 8 KB at
# most, so that challenges take 8 MB.
_PARAMETERS = ("realm", "service", "scope")
_MOST_CHALLENGES = 1024
_TOKENS_BYTES, _TOKEN_ROW_BYTES = 8 << 20, 1024  # of all tokens, and of one besides its text


_WORD = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# One list element: a scheme, a parameter, or a scheme with its first parameter (or its token68, as in Negotiate).
# An unquoted value may have characters that a token may not, since `realm=https://…` and `realm=/` occur. Quantifiers
# are possessive (`++`): otherwise a header of many spaces would take time quadratic in its length.
_ELEMENT = re.compile(
    rf"(?:(?P<scheme>{_WORD}+)(?:[ \t]++(?!=)|(?=,|$)))?"
    rf'(?:(?P<key>{_WORD}+)[ \t]*+=[ \t]*+(?:"(?P<quoted>(?:[^"\\]|\\.)*+)"|(?P<plain>[^\s",]*+))'
    r"|(?P<token68>[A-Za-z0-9._~+/-]++=*+))?"
    r"[ \t]*+"
)
_NEXT = re.compile(r",[ \t,]*+|$")
_ESCAPED = re.compile(r"\\(.)")


class Challenge(NamedTuple):
    """One way to authenticate that a server offers. `scheme` and the names of parameters are in lower case."""

    scheme: str
    parameters: Mapping[str, str]


class _Hop(NamedTuple):
    """What a request is sent to, for which endpoint, and with whose credential."""

    url: URL
    endpoint: Endpoint
    credential: Credential
    repository: tuple[URL, str]
    """By what a challenge is kept that is for the endpoint's repository alone."""
    registry: tuple[URL, str]
    """By what one is kept that is for any repository there; of another origin nothing is known but of this one."""

    @property
    def pull_scope(self) -> str:
        """The scope of a token to pull the repository."""
        return f"repository:{self.endpoint.own_repository}:pull"


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
    token: str | None = None
    access_token: str | None = None
    expires_in: object = None  # seconds, which some servers send as a text


_DECODER = LenientDecoder(_TokenReply, most_values=10_000)  # a token server's answer has a handful


class Authenticator:
    """Sends requests to endpoints, each with the header that answers the last challenge of its host.

    Redirects to another origin carry no credential, no client certificate and none of the endpoint's headers.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        timeout_seconds: float,
        clock: Callable[[], float],
        wall_clock: Callable[[], float],
    ) -> None:
        """`timeout_seconds` bounds each request, to a registry or a token server, with its body.

        `clock` is monotonic, `wall_clock` counts from the epoch.
        """
        self._session = session
        self._timeout_seconds = timeout_seconds
        self._clock = clock
        self._wall_clock = wall_clock
        self._challenges: LruTable[tuple[URL, str], Challenge] = LruTable(_MOST_CHALLENGES)
        self._tokens: ShareTable[_TokenKey, _BearerToken] = ShareTable(
            _TOKENS_BYTES,
            owner_of=lambda key, _: key.realm.raw_host or "",
            cost_of=lambda _, token: _TOKEN_ROW_BYTES + len(token.text),
        )

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
            RegistryDenied: the token server refuses the credential.
            RegistryRefusedImage: the token server refuses the request with another 4xx.
            RegistryThrottled: the token server has been asked too often.
            RegistryUnavailable: there is no response, the challenge is malformed, or the token server fails.
        """
        return await follow(endpoint.url_of(what, query), partial(self._send, method, endpoint, credential, headers))

    async def _send(
        self, method: str, endpoint: Endpoint, credential: Credential, more: Mapping[str, str], url: URL
    ) -> Response:
        """Sends one request, and once more if a 401 says how to authenticate; returns the last response."""
        origin, own = url.origin(), endpoint.own_repository
        is_endpoint = origin == endpoint.root.origin()
        login = credential if is_endpoint else ANONYMOUS
        hop = _Hop(url, endpoint, login, (origin, own), (origin, "" if is_endpoint else own))
        headers = CIMultiDict(endpoint.headers if is_endpoint else ())
        headers["Accept"] = _ACCEPT
        headers.update(more)
        send_once = partial(
            send, self._session, method, url, headers=headers, limit_bytes=MAX_DOCUMENT_BYTES,
            seconds=self._timeout_seconds, tls=endpoint.tls_for(url), connect_seconds=endpoint.connect_seconds,
        )  # fmt: skip
        expected = self._expected(hop)
        sent, refusal = await self._respond_at_once(expected, hop) if expected else (None, None)
        if sent:
            headers["Authorization"] = sent
        response = await send_once()
        if response.status != 401 or throttled(response, self._wall_clock):
            return response
        chosen = _choose(response)
        if chosen is None:
            return response
        challenge = _completed(chosen, hop)
        if refusal and challenge == expected:
            raise refusal
        if sent and challenge.scheme == "bearer":
            self._tokens.remove(_token_key(challenge, hop))
        answer = await self._respond(challenge, hop)
        self._expect(challenge, hop)
        if answer is None or answer == sent:
            return response
        headers["Authorization"] = answer
        return await send_once()

    def _expected(self, hop: _Hop) -> Challenge | None:
        """Returns the challenge that is to be expected: the last one of the repository, or of another of its registry.

        So a registry that has asked for a token to pull one repository is shown one for the next at once.
        """
        kept = self._challenges.get(hop.repository) or self._challenges.get(hop.registry)
        return _completed(kept, hop) if kept else None

    def _expect(self, challenge: Challenge, hop: _Hop) -> None:
        """Keeps a challenge: of its repository alone if it asks for more than to pull that."""
        parameters = dict(challenge.parameters)
        is_common = parameters.pop("scope", hop.pull_scope) == hop.pull_scope
        kept = challenge._replace(parameters=parameters) if is_common else challenge
        self._challenges.remove(hop.repository)
        self._challenges.put(hop.registry if is_common else hop.repository, kept)

    async def _respond_at_once(self, expected: Challenge, hop: _Hop) -> tuple[str | None, RegistryDenied | None]:
        """Returns the answer, or why there is none: the repository may want none, which the registry then says."""
        try:
            return await self._respond(expected, hop), None
        except RegistryDenied as exc:
            return None, exc
        except RegistryError:
            for each in (hop.repository, hop.registry):
                self._challenges.remove(each)  # the next request gets a new one: the token server may move
            raise

    async def _respond(self, challenge: Challenge, hop: _Hop) -> str | None:
        if challenge.scheme == "bearer":
            return f"Bearer {await self._token(challenge, hop)}"
        return _basic(hop.credential) if hop.credential != ANONYMOUS else None

    async def _token(self, challenge: Challenge, hop: _Hop) -> str:
        """Returns the cached token, or a new one. Those who need one at the same time ask for one each."""
        key = _token_key(challenge, hop)
        token = self._tokens.get(key)
        if token and self._clock() < token.renew_at:
            return token.text
        url = _token_url(key)
        login = {"Authorization": _basic(hop.credential)} if hop.credential != ANONYMOUS else {}

        async def send_to(there: URL) -> Response:
            shown = login if there.origin() == url.origin() else {}
            tls = hop.endpoint.tls_for(there)
            return await send(
                self._session, "GET", there, headers=shown, limit_bytes=_MAX_TOKEN_BYTES,
                seconds=self._timeout_seconds, tls=tls,
            )  # fmt: skip

        response = await follow(url, send_to)
        if response.status != 200:
            raise self._refusal(response)
        text, life_seconds = _read_token(response)
        self._tokens.put(key, _BearerToken(text, self._clock() + life_seconds * _RENEW_AFTER))
        return text

    def _refusal(self, response: Response) -> RegistryError:
        host = host_of(response.url)
        if too_many := throttled(response, self._wall_clock):
            return too_many
        if response.status in (401, 403):
            return RegistryDenied(f"the token server {host} gives no token ({response.status})")
        if is_about_request(response.status):
            words = f"the token server {host} gives no token ({response.status})"
            return RegistryRefusedImage(words, response.status, read_refusal(response.body))
        return RegistryUnavailable(f"the token server {host} answered {response.status}")


def _choose(response: Response) -> Challenge | None:
    """Returns the challenge to answer, Bearer before Basic; None if the registry offers neither."""
    headers = response.headers.getall("WWW-Authenticate", ())
    challenges = parse_challenges(headers)
    if not challenges and any(header.strip(" \t,") for header in headers):
        raise RegistryUnavailable(f"{host_of(response.url)} sent a malformed challenge")
    known = {challenge.scheme: challenge for challenge in reversed(challenges)}
    chosen = known.get("bearer") or known.get("basic")
    if chosen is None:
        return None
    return Challenge(
        chosen.scheme, {name: chosen.parameters[name] for name in _PARAMETERS if name in chosen.parameters}
    )


def parse_challenges(headers: Iterable[str]) -> tuple[Challenge, ...]:
    """Returns every challenge in the values of a response's WWW-Authenticate headers, in order. O(characters).

    Of a value that does not follow the grammar it is what stands before that, as in the runtimes.
    """
    return tuple(challenge for header in headers for challenge in _parse_header(header.strip(" \t,")))


def _parse_header(header: str) -> list[Challenge]:
    found: list[tuple[str, dict[str, str]]] = []
    position = 0
    while position < len(header):
        element = _ELEMENT.match(header, position)
        if element is None or not (element["scheme"] or (found and element["key"])):
            break
        if element["scheme"]:
            found.append((element["scheme"].lower(), {}))
        if element["key"]:
            found[-1][1][element["key"].lower()] = _value_of(element)
        behind = _NEXT.match(header, element.end())
        if behind is None:
            break
        position = behind.end()
    return [Challenge(scheme, parameters) for scheme, parameters in found]


def _value_of(element: re.Match[str]) -> str:
    return element["plain"] if element["quoted"] is None else _ESCAPED.sub(r"\1", element["quoted"])


def _completed(challenge: Challenge, hop: _Hop) -> Challenge:
    """Returns the challenge with a scope, which is to pull the repository where it states none."""
    if challenge.scheme != "bearer" or challenge.parameters.get("scope"):
        return challenge
    return challenge._replace(parameters={**challenge.parameters, "scope": hop.pull_scope})


def _token_key(challenge: Challenge, hop: _Hop) -> _TokenKey:
    """Returns the key of the token to request."""
    parameters = challenge.parameters
    if not parameters.get("realm"):
        raise RegistryUnavailable(f"{host_of(hop.url)} sent a malformed challenge")
    return _TokenKey(
        resolve_url(hop.url, parameters["realm"]),
        parameters.get("service", ""),
        parameters["scope"],
        hop.credential.id,
    )


def _token_url(key: _TokenKey) -> URL:
    """Returns the realm's URL with service and scopes; several scopes become several parameters."""
    parameters = [("service", key.service)] if key.service else []
    parameters += [("scope", scope) for scope in key.scope.split()]
    return with_more_query(key.realm, urlencode(parameters, safe=":/", errors="surrogateescape"))


def _read_token(response: Response) -> tuple[str, float]:
    """Returns the token and its lifetime in seconds."""
    try:
        answer = _DECODER.decode(response.body)
        life_seconds = msgspec.convert(answer.expires_in or 0, float, strict=False)
    except (InvalidJson, msgspec.ValidationError) as exc:
        raise RegistryUnavailable(f"the token server {host_of(response.url)} sent no token") from exc
    text = answer.token or answer.access_token or ""
    if not _TOKEN.fullmatch(text):
        raise RegistryUnavailable(f"the token server {host_of(response.url)} sent no token")
    return text, max(life_seconds if math.isfinite(life_seconds) else 0.0, _MIN_LIFE_SECONDS)


def _basic(credential: Credential) -> str:
    pair = f"{credential.username}:{credential.password}".encode()
    return f"Basic {base64.b64encode(pair).decode()}"
