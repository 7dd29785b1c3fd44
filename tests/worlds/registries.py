"""Registries in memory: what they serve, to whom, and what is wrong with them.

They answer as distribution does (distribution-spec; its registry/handlers; docker's token specification): an index or a
manifest by tag or digest to HEAD and GET, configurations and layers by digest, errors as the specification's JSON. A
client needs a Bearer token of the host's own token server; docker.io's is auth.docker.io. A host whose name has a port
has no token server: whoever has a right to pull shows it as Basic. docker.io says of what is not there that access is
denied, others that it is not found. A token opens a repository whose login was shown for it, or that anybody may pull.

Real registries speak TLS; here `registry.plain_http` of the service names them (`hosts`), so TLS is not played. Limits:
no pushes over HTTP, redirects, rate limits by count, or mirrors (`?ns=` is not looked at).
"""

import asyncio
import base64
import binascii
import math
import random
from collections.abc import AsyncIterator, Collection, Iterable
from typing import NamedTuple

import msgspec

from extender.images.reference import digest_of
from testbed.images import Bundle, Manifest
from testbed.memory_http import Request, Response, serve_http
from testbed.memory_network import Network
from tests.worlds.image_contents import content_of, document, is_image, is_index, platform_text
from tests.worlds.image_references import read_reference
from tests.worlds.plan import Image

_TOKEN_SECONDS = 300.0
_API_HOSTS = {"docker.io": "registry-1.docker.io"}
_TOKEN_HOSTS = {"docker.io": "auth.docker.io"}
_CODES = {
    401: ("UNAUTHORIZED", "authentication required"),
    403: ("DENIED", "requested access to the resource is denied"),
    404: ("MANIFEST_UNKNOWN", "manifest unknown"),
    429: ("TOOMANYREQUESTS", "You have reached your pull rate limit"),
    500: ("UNKNOWN", "unknown error"),
    503: ("UNAVAILABLE", "service unavailable"),
}
FAULT_STATUSES = {
    "throttled": 429,
    "unavailable": 503,
    "broken": 500,
    "denied": 401,
    "forbidden": 403,
    "missing": 404,
}
"""What `Registries.fault` may be told, beside slow, silent, truncated and refused."""


class Truth(NamedTuple):
    """What a reference means now to whoever has a login, and what its tag meant since when, the oldest first."""

    digest: str
    is_index: bool
    is_image: bool
    platforms: tuple[str, ...]
    """As an index states them, or the configuration of a single manifest."""
    history: tuple[tuple[float, str], ...]
    """Digests are empty while the tag was not there."""


class Fault(NamedTuple):
    """What is wrong, with its seconds: Retry-After of `throttled`, of each answer of `slow`."""

    what: str
    amount: float


class Asked(msgspec.Struct):
    """A request: when it came, from which address, and what it got.

    `name` is a tag or digest, and `token` where one is asked for, to pull the repository. `login` is what it shows,
    empty for nobody's; None where nothing that counts is shown. `status` is 0 while there is no answer.
    """

    at: float
    caller: str
    host: str
    method: str
    repository: str
    name: str
    login: str | None
    answered_at: float = math.inf
    status: int = 0
    retry_after_seconds: float = 0.0


class _Token(NamedTuple):
    login: str
    repository: str
    until: float


class Registries:
    """Every registry of a world. A host without a port listens at port 80 of an address of its own."""

    def __init__(
        self, network: Network, images: Iterable[Image], chance: random.Random, *, inner: Collection[str] = ()
    ) -> None:
        """`inner` are the hosts at an address of the cluster's network; others have public ones."""
        self.asked: list[Asked] = []
        """Every request, as it came."""
        self.addresses: dict[str, str] = {}
        """By host."""
        self._network = network
        self._chance = chance
        self._inner = inner
        self._tags: dict[tuple[str, str], dict[str, Manifest]] = {}
        self._manifests: dict[tuple[str, str], dict[str, Manifest]] = {}
        self._blobs: dict[tuple[str, str], dict[str, bytes]] = {}
        self._logins: dict[tuple[str, str], str] = {}
        self._history: dict[tuple[str, str, str], list[tuple[float, str]]] = {}
        self._faults: dict[tuple[str, str], list[Fault]] = {}
        self._tokens: dict[str, _Token] = {}
        for image in images:
            self.push(image)

    @property
    def hosts(self) -> tuple[str, ...]:
        """As they stand in references: what `registry.plain_http` has to name."""
        return tuple(self.addresses)

    def push(self, image: Image) -> str:
        """Has the tag serve this content from now on. Returns its digest."""
        return self.put(image.host, image.repository, image.tag, content_of(image), login=image.login)

    def put(self, host: str, repository: str, tag: str, content: Bundle, *, login: str = "") -> str:
        """As `push`, with any documents. `login` opens the repository, without one everybody does."""
        self.open(host)
        place = (host, repository)
        self._logins[place] = login
        self._tags.setdefault(place, {})[tag] = content.manifests[-1]
        self._manifests.setdefault(place, {}).update({each.digest: each for each in content.manifests})
        self._blobs.setdefault(place, {}).update({digest_of(blob): blob for blob in content.blobs})
        self._note(*place, tag, content.digest)
        return content.digest

    def remove(self, host: str, repository: str, tag: str) -> None:
        """Deletes a tag. What it named stays, by digest."""
        if self._tags.get((host, repository), {}).pop(tag, None):
            self._note(host, repository, tag, "")

    def open(self, host: str) -> None:
        """Has a registry of this name, empty unless something is pushed."""
        if host in self.addresses:
            return
        number = len(self.addresses) + 1
        address = self.addresses[host] = f"10.2.0.{number}" if host in self._inner else f"44.0.0.{number}"
        for name in (_API_HOSTS.get(host, host), _TOKEN_HOSTS.get(host, host)):
            self._network.names[name.partition(":")[0]] = address

        async def answer(request: Request) -> Response:
            return await self._answer(host, request)

        serve_http(self._network, address, int(host.partition(":")[2] or 80), answer)

    def fault(self, host: str, what: str, amount: float = 0.0, *, repository: str = "") -> None:
        """Has a host, or one repository of it, be wrong until `heal`. Of several faults the last one shows.

        `what` is one of `FAULT_STATUSES`, `slow`, `silent` (accepts and never answers), `truncated` (half a body), or
        `refused` (nobody listens; of a whole host).
        """
        if what == "refused":
            self._network.refuse(self.addresses[host], True)
        self._faults.setdefault((host, repository), []).append(Fault(what, amount))

    def heal(self, host: str, what: str = "", *, repository: str = "") -> None:
        """Ends the oldest fault of this kind, or all of them. What was silent stays so for the requests that wait."""
        faults = self._faults.get((host, repository), [])
        ended = [each for each in faults if what in ("", each.what)][: 1 if what else None]
        for each in ended:
            faults.remove(each)
        if any(each.what == "refused" for each in ended) and all(each.what != "refused" for each in faults):
            self._network.refuse(self.addresses[host], False)

    def fault_of(self, host: str, repository: str) -> Fault | None:
        """What is wrong with the repository or its host now."""
        faults = self._faults.get((host, repository)) or self._faults.get((host, ""))
        return faults[-1] if faults else None

    def may_pull(self, host: str, repository: str, login: str | None) -> bool:
        """Whether `user:password`, or None for nobody, opens the repository."""
        return self._logins.get((host, repository), "") in ("", login)

    def manifest(self, host: str, repository: str, name: str) -> Manifest | None:
        """What the tag or digest means now."""
        found = self._manifests if name.startswith("sha256:") else self._tags
        return found.get((host, repository), {}).get(name)

    def blob(self, host: str, repository: str, digest: str) -> bytes | None:
        """The configuration or layer of that digest."""
        return self._blobs.get((host, repository), {}).get(digest)

    def truth(self, reference: str, login: str | None = None) -> Truth | None:
        """What the reference means to this login, None if it opens nothing. Raises ValueError: it is none.

        It does not count what is wrong with the host.
        """
        host, repository, tag, digest = read_reference(reference)
        manifest = self.manifest(host, repository, digest or tag)
        if manifest is None or not self.may_pull(host, repository, login):
            return None
        history = [] if digest else self._history.get((host, repository, tag), [])
        return Truth(
            manifest.digest,
            is_index(manifest),
            is_image(manifest),
            tuple(self._platforms(host, repository, manifest)),
            tuple(history),
        )

    def _platforms(self, host: str, repository: str, manifest: Manifest) -> Iterable[str]:
        if is_index(manifest):
            return [platform_text(each.get("platform") or {}) for each in document(manifest)["manifests"]]
        if not is_image(manifest):
            return []
        config = self.blob(host, repository, document(manifest)["config"]["digest"])
        return [platform_text(msgspec.json.decode(config))] if config else []

    def _note(self, host: str, repository: str, tag: str, digest: str) -> None:
        self._history.setdefault((host, repository, tag), []).append((self._network.loop.time(), digest))

    async def _answer(self, host: str, request: Request) -> Response:
        """What one request gets, which is noted."""
        asked = self._note_request(host, request)
        response = await self._answer_asked(asked, request)
        asked.answered_at, asked.status = self._network.loop.time(), response.status
        asked.retry_after_seconds = float(response.headers.get("Retry-After", 0.0))
        return response

    def _note_request(self, host: str, request: Request) -> Asked:
        login: str | None
        repository, _, name = _parts(request.path)
        if request.path == "/token":
            repository = request.query.get("scope", "").removeprefix("repository:").removesuffix(":pull")
            name, login = "token", _basic(request.headers.get("authorization", ""))
        else:
            login = self._login_of(host, request, repository)
        at = self._network.loop.time()
        asked = Asked(at, request.caller, host, request.method, repository, name, login)
        self.asked.append(asked)
        return asked

    async def _answer_asked(self, asked: Asked, request: Request) -> Response:
        """The answer, after what is wrong with the host."""
        host, is_token = asked.host, asked.name == "token"
        repository, kind, name = _parts(request.path)
        fault = self.fault_of(host, repository)
        if fault and fault.what == "silent":
            await asyncio.get_running_loop().create_future()
        if fault and fault.what == "slow":
            await asyncio.sleep(fault.amount * self._chance.uniform(0.8, 1.2))
        if fault and fault.what in FAULT_STATUSES and not (is_token and fault.what in ("denied", "forbidden")):
            return self._refuse(host, repository, FAULT_STATUSES[fault.what], fault.amount)
        response = self._issue(host, request) if is_token else self._serve(host, request, repository, kind, name)
        if fault and fault.what == "truncated" and request.method == "GET" and response.status == 200:
            response.stream = _half(response.body)
        return response

    def _serve(self, host: str, request: Request, repository: str, kind: str, name: str) -> Response:
        login = self._login_of(host, request, repository)
        if request.method not in ("GET", "HEAD"):
            return _error(405, "UNSUPPORTED", "only GET and HEAD are served")
        if not kind:
            known = login is not None or ":" in host
            return Response(200, b"{}") if known else self._refuse(host, repository, 401)
        place = (host, repository)
        hides = host in _TOKEN_HOSTS and place not in self._tags
        if login is None or hides or not self.may_pull(host, repository, login or None):
            return self._refuse(host, repository, 401)
        if kind == "blobs":
            blob = self.blob(host, repository, name)
            if blob is None:
                return _error(404, "BLOB_UNKNOWN", "blob unknown to registry")
            return Response(200, blob, {"Content-Type": "application/octet-stream", "Docker-Content-Digest": name})
        manifest = self.manifest(host, repository, name)
        if manifest is None:
            return self._refuse(host, repository, 404)
        tag = f'"{manifest.digest}"'
        headers = {"Content-Type": manifest.media_type, "Docker-Content-Digest": manifest.digest, "ETag": tag}
        if request.headers.get("if-none-match") == tag:
            return Response(304, b"", headers)
        return Response(200, manifest.body, headers)

    def _login_of(self, host: str, request: Request, repository: str) -> str | None:
        """The login that the request shows, empty for none that counts; None if it may not ask at all."""
        shown = request.headers.get("authorization", "")
        if ":" in host:
            return _basic(shown)
        token = self._tokens.get(shown.removeprefix("Bearer "))
        if token is None or token.until < self._network.loop.time() or repository not in ("", token.repository):
            return None
        return token.login

    def _issue(self, host: str, request: Request) -> Response:
        """A token for the scope that is asked for, if the login is one of the host's, or none is shown."""
        login = _basic(request.headers.get("authorization", ""))
        known = {each for (of, _), each in self._logins.items() if of == host}
        if login and login not in known:
            return self._refuse(host, "", 401)
        repository = request.query.get("scope", "").removeprefix("repository:").removesuffix(":pull")
        text = f"token-{len(self._tokens)}"
        self._tokens[text] = _Token(login, repository, self._network.loop.time() + _TOKEN_SECONDS)
        body = {"token": text, "access_token": text, "expires_in": int(_TOKEN_SECONDS)}
        return Response(200, msgspec.json.encode(body), {"Content-Type": "application/json"})

    def _refuse(self, host: str, repository: str, status: int, amount: float = 0.0) -> Response:
        response = _error(status, *_CODES[status])
        if status == 429:
            response.headers["Retry-After"] = str(round(amount))
        if status == 401 and ":" in host:
            response.headers["WWW-Authenticate"] = f'Basic realm="{host}"'
        elif status == 401:
            realm = f"http://{_TOKEN_HOSTS.get(host, host)}/token"
            challenge = f'Bearer realm="{realm}",service="{host}"'
            scope = f',scope="repository:{repository}:pull"' if repository else ""
            response.headers["WWW-Authenticate"] = challenge + scope
        return response


def _parts(path: str) -> tuple[str, str, str]:
    """Repository, `manifests` or `blobs`, and the name; empty for other paths."""
    start, _, name = path.removeprefix("/v2/").rpartition("/")
    repository, _, kind = start.rpartition("/")
    return (repository, kind, name) if kind in ("manifests", "blobs") and repository else ("", "", "")


def _basic(header: str) -> str:
    """The `user:password` of a header, empty if it has none."""
    try:
        return base64.b64decode(header.removeprefix("Basic "), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""


def _error(status: int, code: str, message: str) -> Response:
    body = msgspec.json.encode({"errors": [{"code": code, "message": message, "detail": None}]})
    return Response(status, body, {"Content-Type": "application/json"})


async def _half(body: bytes) -> AsyncIterator[bytes]:
    yield body[: len(body) // 2]
    raise ConnectionResetError("the registry's process ended")
