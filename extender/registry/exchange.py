"""One exchange with one endpoint: a request with its redirects and its authentication.

Decides which host receives which header and which TLS context applies. `client` interprets the response.
"""

from collections.abc import Mapping

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, Credential
from extender.images.manifest import ACCEPTED
from extender.registry.auth import Authenticator
from extender.registry.endpoint import Endpoint
from extender.registry.transport import Response, deadline, follow, send

# Registries refuse to store longer manifests, and runtimes refuse to read them (distribution, containerd,
# containers/image). The same limit applies to configs, as in containers/image.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_ACCEPT = ", ".join(ACCEPTED)
_NONE: Mapping[str, str] = {}


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
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] = _NONE,
    ) -> Response:
        """Returns the response about `what` in the endpoint's repository, after redirects.

        `headers` are sent to every hop besides.

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
