"""One question to one endpoint: redirected, authenticated, and shown no more than is meant for it.

Knows who may see which header and whose certificates are trusted where. What an answer means is `client`'s business.
"""

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, Credential
from extender.images.media_type import ACCEPTED
from extender.registry.auth import Authenticator
from extender.registry.endpoint import Endpoint
from extender.registry.transport import Response, deadline, follow, send

# Registries refuse to store longer manifests and runtimes to read them (distribution, containerd, containers/image);
# the same limit holds for configs, as in containers/image.
MAX_DOCUMENT_BYTES = 4 * 1024 * 1024
_ACCEPT = ", ".join(ACCEPTED)


class Exchange:
    """Asks endpoints. Beyond the origin of one, nobody is shown its headers, a credential or a client certificate."""

    def __init__(self, session: aiohttp.ClientSession, authenticator: Authenticator, *, timeout_seconds: float) -> None:
        """`timeout_seconds` bounds all there is to one question: challenge, token, redirects, body."""
        self._session = session
        self._authenticator = authenticator
        self._timeout_seconds = timeout_seconds

    async def ask(self, method: str, endpoint: Endpoint, path: str, what: str, credential: Credential) -> Response:
        """The answer about `what` in the repository `path`, which is no redirect.

        Raises:
            RegistryError: there is no answer, or no token to be had.
        """

        async def send_to(hop: URL) -> Response:
            return await self._send(method, hop, endpoint, endpoint.repository_of(path), credential)

        async with deadline(endpoint.name, self._timeout_seconds):
            return await follow(endpoint.url_of(path, what), send_to)

    async def _send(
        self, method: str, url: URL, endpoint: Endpoint, repository: str, credential: Credential
    ) -> Response:
        """The answer to one request, with one more try where a 401 says how to authenticate."""
        own = credential if url.origin() == endpoint.root.origin() else ANONYMOUS
        authorization = await self._authenticator.authorization(url, repository, own, endpoint.trust)
        response = await self._send_once(method, url, endpoint, authorization)
        if response.status == 401:
            answer = await self._authenticator.answer(response, repository, own, authorization, endpoint.trust)
            return await self._send_once(method, url, endpoint, answer) if answer else response
        return response

    async def _send_once(self, method: str, url: URL, endpoint: Endpoint, authorization: str | None) -> Response:
        headers = CIMultiDict(endpoint.headers if url.origin() == endpoint.root.origin() else ())
        headers["Accept"] = _ACCEPT
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
