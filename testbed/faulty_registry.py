"""Registries that do what distribution does not: refuse, stall, lie, redirect, and issue tokens."""

import asyncio
import base64
import ssl
from collections.abc import Awaitable, Callable

import trustme
from aiohttp import web

from testbed.embedded_registry import EmbeddedRegistry

Fault = Callable[[web.BaseRequest], Awaitable[web.StreamResponse | None]]


class FaultyRegistry(EmbeddedRegistry):
    """A registry that calls `fault` for each request first. If that returns None, it answers as it should.

    `shown` is the Authorization header of each request, empty if there was none. With an `authority` it speaks TLS, and
    with `clients` it wants to see a certificate of these.
    """

    def __init__(
        self, fault: Fault | None = None, *, authority: trustme.CA | None = None, clients: trustme.CA | None = None
    ) -> None:
        tls = None
        if authority:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            authority.issue_cert("127.0.0.1", "registry.example").configure_cert(tls)
            if clients:
                tls.verify_mode = ssl.CERT_REQUIRED
                clients.configure_trust(tls)
        super().__init__(tls=tls)
        self.fault = fault
        self.shown: list[str] = []

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers with the fault's response, or else with the right one."""
        self.shown.append(request.headers.get("Authorization", ""))
        response = await self.fault(request) if self.fault else None
        return response or await super().answer(request)


class HoldingRegistry(EmbeddedRegistry):
    """A registry that holds back answers about what has `held` in its path, until `released` is set.

    `reached` is set when the first such request has come.
    """

    def __init__(self, held: str = "/") -> None:
        super().__init__()
        self.held = held
        self.reached, self.released = asyncio.Event(), asyncio.Event()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers in its time."""
        if self.held in request.path:
            self.reached.set()
            await self.released.wait()
        return await super().answer(request)


class GuardedRegistry(FaultyRegistry):
    """A registry that requires a Bearer token, and the server at `/token` that issues it.

    `logins` are the `name:password` that get a token, "" is anonymous. `challenges` are the WWW-Authenticate headers,
    in which `{url}` is the registry's own URL and `{path}` the requested repository. `token_fault` may answer a token
    request first. `desk` records the token requests: the path with its query, and the login. The repositories that are
    `opened` require no token.
    """

    def __init__(self, *logins: str, token_fault: Fault | None = None, authority: trustme.CA | None = None) -> None:
        super().__init__(authority=authority)
        self.logins = set(logins)
        self.challenges = ['Bearer realm="{url}/token",service="desk",scope="repository:{path}:pull"']
        self.token_fault = token_fault
        self.token_reply: dict[str, object] = {"expires_in": 300}
        self.token_field = "token"
        self.desk: list[tuple[str, str]] = []
        self.valid: set[str] = set()
        self.opened: set[str] = set()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers with a token, a challenge, or what was requested."""
        if request.path == "/token":
            return await self._give_token(request)
        if request.headers.get("Authorization", "").removeprefix("Bearer ") in self.valid:
            return await super().answer(request)
        path = request.path.removeprefix("/v2/").rpartition("/manifests/")[0]
        if path in self.opened:
            return await super().answer(request)
        self.shown.append(request.headers.get("Authorization", ""))
        response = web.Response(status=401, text="who are you?")
        for challenge in self.challenges:
            response.headers.add("WWW-Authenticate", challenge.format(url=self.url, path=path))
        return response

    async def _give_token(self, request: web.BaseRequest) -> web.StreamResponse:
        login = login_of(request)
        self.desk.append((request.path_qs, login))
        response = await self.token_fault(request) if self.token_fault else None
        if response is not None:
            return response
        if login not in self.logins:
            return web.Response(status=401)
        token = f"token-{len(self.desk)}"
        self.valid.add(token)
        return web.json_response({self.token_field: token} | self.token_reply)


def login_of(request: web.BaseRequest) -> str:
    """Returns the `name:password` of a request; empty if it has none."""
    shown = request.headers.get("Authorization", "")
    return base64.b64decode(shown.removeprefix("Basic ")).decode() if shown.startswith("Basic ") else ""
