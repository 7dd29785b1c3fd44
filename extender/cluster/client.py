"""A client of the Kubernetes API: the bytes of a GET, the lines of a watch, and requests that change an object.

The one proxy it may go through is `proxy-url` of a kubeconfig: HTTPS_PROXY and its siblings are for registries. Callers
decode the resources; this file decodes only the Status of a refusal.
"""

import asyncio
import os
import re
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Literal, TypeVar
from urllib.parse import urlsplit

import aiohttp
import msgspec

from extender import __version__
from extender.cluster.configuration import Access, load_access, may_use_pod, names_cluster, namespace_of_pod, words_of
from extender.errors import UNDECODABLE, ClusterError
from extender.kubernetes.meta_v1 import Status

_READ_BUFFER_BYTES = 2 << 20  # a page has several times aiohttp's 64 KiB
_QUOTED_CHARACTERS = 200  # of a message from the API server


class ApiCall(msgspec.Struct, frozen=True):
    """What is asked of the API server: a read of `path`, or a change of it by `body` of `content_type`."""

    path: str
    query: Mapping[str, str] | None = None
    method: str = "GET"
    body: bytes = b""
    content_type: str = ""


JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Has the API server send the metadata of an object and nothing else of it."""
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
TIMEOUT_SECONDS = 30.0
MAX_BODY_BYTES = 64 << 20  # a page of 250 nodes with 50 images each is 3 to 10 MB
MAX_LINE_BYTES = 16 << 20  # objects in etcd have at most 1.5 MiB, as JSON a few times that
_USER_AGENT = f"multiarch-extender/{__version__}"
"""The API server takes the part before the slash for the manager of the fields that the service writes."""

_MAX_STATUS_BYTES = 64 << 10
_CONNECT_SECONDS = 10.0
_LOAD_AGAIN_SECONDS = 10.0  # between two loads of the configuration, each of which may run a plugin


class ClusterRefused(ClusterError):
    """The API server answered with the error `status`: 401, 403, 404, 410, 429 and so on.

    `retry_after_seconds` is its Retry-After, None if it sent none. `said` is what the API server says of it, of which
    the message has the beginning; it may hold the path of a webhook, and with it a token. `text` is an answer that is
    no Status, as what the API server is a proxy for gives it.
    """

    def __init__(
        self, message: str, status: int, retry_after_seconds: float | None = None, *, said: str = "", text: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.said = said
        self.text = text


_STATUS = msgspec.json.Decoder(Status)
_API = re.compile(r"/(?:api/[^/]+|apis/[^/]+/[^/]+)/")
T = TypeVar("T")


def decode_answer(decoder: msgspec.json.Decoder[T], document: bytes | msgspec.Raw, what: str) -> T:
    """The document as its decoder reads it. Raises ClusterError, which says that the answer is no `what`."""
    try:
        return decoder.decode(document)
    except UNDECODABLE as exc:
        raise ClusterError(f"the API server's answer is no {what}: {exc}") from exc


async def open_cluster(
    mode: Literal["auto", "in-cluster", "kubeconfig"],
    kubeconfig: str = "",
    context: str = "",
    *,
    clock: Callable[[], float],
) -> "ClusterClient":
    """A client of the cluster that `mode` names; sends no request to the API server.

    `kubeconfig` is a path, or several joined as in $KUBECONFIG; empty means $KUBECONFIG, else ~/.kube/config. An empty
    `context` is the current one. `auto` means in-cluster inside a pod, unless a file or a context is given. `clock`
    gives monotonic seconds.

    Raises:
        ClusterError: there is no such configuration, it is malformed, or its credential plugin failed.
    """
    if mode == "auto":
        inside = "KUBERNETES_SERVICE_HOST" in os.environ and not (kubeconfig or context)
        mode = "in-cluster" if inside else "kubeconfig"
    chosen = mode

    async def load() -> Access:
        return await load_access(chosen, kubeconfig, context)

    return ClusterClient(await load(), load, clock)


async def open_chosen_cluster(choice: str, clock: Callable[[], float]) -> "ClusterClient":
    """As `open_cluster`, of the setting `cluster`: `auto` or the path of a kubeconfig, and `#CONTEXT` behind it."""
    path, context = context_of(choice)
    return await open_cluster("auto", "" if path == "auto" else path, context, clock=clock)


async def open_users_cluster(choice: str, clock: Callable[[], float]) -> "ClusterClient":
    """As `open_chosen_cluster`, but `auto` is what kubectl takes: a kubeconfig if there is one, else the pod's cluster.

    So is the namespace: the context's, else the pod's.
    Source: k8s.io/client-go, tools/clientcmd, DeferredLoadingClientConfig.
    """
    path, context = context_of(choice)
    kubeconfig = "" if path == "auto" else path
    is_pods = not (kubeconfig or context) and may_use_pod() and not names_cluster()

    async def load() -> Access:
        access = await load_access("in-cluster" if is_pods else "kubeconfig", kubeconfig, context)
        if access.namespace or not may_use_pod():
            return access
        return msgspec.structs.replace(access, namespace=namespace_of_pod())

    return ClusterClient(await load(), load, clock)


def context_of(choice: str) -> tuple[str, str]:
    """What stands before the last `#`, and the context behind it, empty if there is none."""
    path, separator, context = choice.rpartition("#")
    return (path, context) if separator else (choice, "")


class ClusterClient:
    """Talks to the API server under one identity. All methods raise ClusterError; for an error status ClusterRefused.

    What expires or rotates (a credential plugin's token, a client certificate, the CA) leads to a 401 or a TLS failure.
    The configuration is then loaded again, at most once in ten seconds, and the next request is sent by the new one;
    requests in flight end on the connection they began on.
    """

    def __init__(self, access: Access, load: Callable[[], Awaitable[Access]], clock: Callable[[], float]) -> None:
        self._access = access
        self._load = load
        self._clock = clock
        self._refused: Access | None = None  # by the API server, or by us as its certificate is not trusted
        self._loadable_at = clock()
        self._loading = asyncio.Lock()
        self._headers: dict[str, str] = {}
        self._session = aiohttp.ClientSession(trust_env=False, read_bufsize=_READ_BUFFER_BYTES)

    @property
    def namespace(self) -> str:
        """The namespace of this process in a cluster, or of the kubeconfig's context; `default` if there is none."""
        return self._access.namespace or "default"

    @property
    def context(self) -> str:
        """The name of the kubeconfig's context; empty in a cluster."""
        return self._access.context

    async def get(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = JSON,
        timeout_seconds: float = TIMEOUT_SECONDS,
        body_bytes: int = MAX_BODY_BYTES,
    ) -> bytes:
        """The undecoded body at `path`; one longer than `body_bytes` is an error. Retries once after a 401."""
        return await self._read(ApiCall(path, query), accept, timeout_seconds, body_bytes)

    async def find(
        self, path: str, decoder: msgspec.json.Decoder[T], *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> T | None:
        """The object at `path`; None if there is none."""
        try:
            body = await self.get(path, timeout_seconds=timeout_seconds)
        except ClusterRefused as exc:
            if exc.status == 404:
                return None
            raise
        return decode_answer(decoder, body, "object of its kind")

    async def send(
        self,
        method: Literal["POST", "PUT", "PATCH", "DELETE"],
        path: str,
        body: bytes,
        content_type: str = JSON,
        *,
        accept: str = JSON,
        timeout_seconds: float = TIMEOUT_SECONDS,
    ) -> bytes:
        """Changes what is at `path`, and returns the undecoded answer: as a rule the object as it is then.

        Retries once after a 401, as the API server has then changed nothing. After another ClusterError than
        ClusterRefused the caller cannot know whether the change was made, so it should carry a resourceVersion.
        """
        call = ApiCall(path, None, method, body, content_type)
        return await self._read(call, accept, timeout_seconds, MAX_BODY_BYTES)

    async def stream(
        self,
        path: str,
        query: Mapping[str, str] | None = None,
        *,
        accept: str = JSON,
        stall_seconds: float,
        line_bytes: int = MAX_LINE_BYTES,
    ) -> AsyncGenerator[bytes, None]:
        """The lines of a watch as they arrive, until the server ends it; drops a last line without a line end.

        A line longer than `line_bytes` is an error. So are `stall_seconds` without a byte, since a dead peer looks like
        a cluster without changes. Close the generator with `contextlib.aclosing`.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=stall_seconds)
        async with self._response(ApiCall(path, query), accept, timeout) as response:
            remainder = b""
            async for chunk in response.content.iter_any():
                *lines, remainder = (remainder + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield line
                if len(remainder) > line_bytes:
                    raise ClusterError(f"{_resource_of(path)}: a line of the watch is longer than {line_bytes} bytes")

    async def close(self) -> None:
        """Closes every connection, including those still in use."""
        await self._session.close()

    async def _read(self, call: ApiCall, accept: str, timeout_seconds: float, body_bytes: int) -> bytes:
        chunks, size = [], 0
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with self._response(call, accept, timeout) as response:
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > body_bytes:
                    raise ClusterError(f"{_resource_of(call.path)}: the answer is longer than {body_bytes} bytes")
        return b"".join(chunks)

    @asynccontextmanager
    async def _response(
        self, call: ApiCall, accept: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        for last in (False, True):
            access = await self._usable_access()
            async with self._request(access, call, accept, timeout) as response:
                if response.status == 401:
                    self._refused = access
                    if not last:
                        continue
                await _refuse_failure(call.path, response)
                yield response
                return

    @asynccontextmanager
    async def _request(
        self, access: Access, call: ApiCall, accept: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a request, with any status. Transport errors become ClusterErrors."""
        headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": _USER_AGENT}
        if call.body:
            headers["Content-Type"] = call.content_type
        try:
            async with self._session.request(
                call.method,
                f"{access.url}{call.path}",
                params=call.query,
                data=call.body or None,
                headers={**headers, **await self._authorization(access)},
                timeout=timeout,
                ssl=access.tls,
                proxy=access.proxy,
                server_hostname=access.server_name,
                allow_redirects=False,
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            if isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError):
                self._refused = access
            raise ClusterError(
                f"the API server {urlsplit(access.url).netloc.rpartition('@')[2]} {_fault_of(exc)}"
            ) from exc

    async def _authorization(self, access: Access) -> dict[str, str]:
        """The headers to log in with; the last ones while no others can be had."""
        try:
            self._headers = await access.authorize()
        except Exception as exc:  # of a file, or whatever a plugin's loader raises
            if not self._headers:
                raise ClusterError(f"cannot read the credentials: {words_of(exc)}") from exc
        return self._headers

    async def _usable_access(self) -> Access:
        """The configuration, loaded again if it was refused and that was not done just now. Raises ClusterError."""
        if self._refused is self._access:
            async with self._loading:
                if self._refused is self._access and self._clock() >= self._loadable_at:
                    self._loadable_at = self._clock() + _LOAD_AGAIN_SECONDS
                    self._access = await self._load()
        return self._access


async def _refuse_failure(path: str, response: aiohttp.ClientResponse) -> None:
    if response.status in (200, 201, 202):  # 201 for what was created, 202 for a deletion that has begun
        return
    body = await response.content.read(_MAX_STATUS_BYTES)
    said = text = ""
    try:
        said = _STATUS.decode(body).message or ""
    except UNDECODABLE:
        text = body.decode(errors="replace")
    retry_after = response.headers.get("Retry-After", "")
    raise ClusterRefused(
        _refusal(path, response.status, said),
        response.status,
        float(retry_after) if retry_after.isdecimal() else None,
        said=said,
        text=text,
    )


def _refusal(path: str, status: int, said: str) -> str:
    """What the API server says, as `Forbidden: User "alice" cannot list resource "nodes" …`, or of what it says it."""
    if status == 403 and (who := said.partition(" is forbidden: ")[2]):
        return f"Forbidden: {who[:_QUOTED_CHARACTERS]}"
    return f"{_resource_of(path)}: HTTP {status} {said[:_QUOTED_CHARACTERS]}".rstrip()


def _resource_of(path: str) -> str:
    """`namespaces/shop/pods` of the path of an API."""
    found = _API.match(path)
    return path[found.end() :] if found else path


# The first class that matches an exception gives the words after the API server's name.
_FAULTS: tuple[tuple[type[Exception], str], ...] = (
    (aiohttp.ClientConnectorCertificateError, "shows a certificate that is not trusted"),
    (aiohttp.ClientSSLError, "cannot be reached over TLS"),
    (aiohttp.ClientConnectorDNSError, "has a name that does not resolve"),
    (aiohttp.ClientProxyConnectionError, "cannot be reached: the proxy of the kubeconfig takes no connection"),
    (aiohttp.ClientConnectorError, "cannot be reached"),
    (TimeoutError, "did not answer in time"),
)


def _fault_of(exc: Exception) -> str:
    if isinstance(exc, aiohttp.ClientConnectorError) and isinstance(exc.os_error, ConnectionRefusedError):
        return "refuses connections"
    words = next((words for kind, words in _FAULTS if isinstance(exc, kind)), "broke off the connection")
    match exc:
        case aiohttp.ClientConnectorCertificateError():
            why = getattr(exc.certificate_error, "verify_message", "")
        case aiohttp.ClientConnectorError(os_error=OSError(strerror=str(why))):
            pass
        case _:
            why = ""
    return f"{words}: {why}" if why else words
