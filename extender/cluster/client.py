"""A client of the Kubernetes API: the bytes of a GET, the lines of a watch.

kubernetes-asyncio provides configuration, credentials and TLS. The one proxy it may go through is `proxy-url` of a
kubeconfig: HTTPS_PROXY and its siblings are for registries. Only this file imports it, when a cluster is first used;
`library.py` keeps most of it from being loaded. Callers decode the resources; this file decodes only the Status of a
refusal.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Literal

import aiohttp
import msgspec

from extender.cluster.library import lighten_library
from extender.errors import ClusterError
from extender.kubernetes.meta_v1 import Status

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

JSON = "application/json"
TIMEOUT_SECONDS = 30.0
MAX_BODY_BYTES = 64 << 20  # a page of 250 nodes with 50 images each is 3 to 10 MB
MAX_LINE_BYTES = 16 << 20  # objects in etcd have at most 1.5 MiB, as JSON a few times that
_MAX_STATUS_BYTES = 64 << 10
_READ_BUFFER_BYTES = 2 << 20  # the library's; a page has several times aiohttp's 64 KiB
_QUOTED_CHARACTERS = 200  # of a message from the API server or a credential plugin
_CONNECT_SECONDS = 10.0
_LOAD_SECONDS = 60.0  # a credential plugin may ask a person, or a slow cloud
_RENEW_SECONDS = 10.0  # between two loads of the configuration, each of which may run a plugin

# kubernetes-asyncio also raises whatever it logs, and its messages may quote credentials.
logging.getLogger("kubernetes_asyncio").addHandler(logging.NullHandler())
logging.getLogger("kubernetes_asyncio").propagate = False


class ClusterRefused(ClusterError):
    """The API server answered with the error `status`: 401, 403, 404, 410, 429 and so on.

    `retry_after_seconds` is its Retry-After, None if it sent none.
    """

    def __init__(self, message: str, status: int, retry_after_seconds: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds


_STATUS = msgspec.json.Decoder(Status)


async def open_cluster(
    mode: Literal["auto", "in-cluster", "kubeconfig"],
    kubeconfig: str = "",
    context: str = "",
    *,
    clock: Callable[[], float] = time.monotonic,
) -> "ClusterClient":
    """A client of the cluster that `mode` names; sends no request to the API server.

    `kubeconfig` is a path, or several joined as in $KUBECONFIG; empty means $KUBECONFIG, else ~/.kube/config. An empty
    `context` is the current one. `auto` means in-cluster inside a pod, unless a file or a context is given.

    Raises:
        ClusterError: there is no such configuration, it is malformed, or its credential plugin failed.
    """
    if mode == "auto":
        inside = "KUBERNETES_SERVICE_HOST" in os.environ and not (kubeconfig or context)
        mode = "in-cluster" if inside else "kubeconfig"
    chosen = mode

    async def load() -> _ApiConnection:
        return await _load(chosen, kubeconfig, context)

    return ClusterClient(await load(), load, clock)


class ClusterClient:
    """Reads from the API server under one identity. All methods raise ClusterError; for an error status ClusterRefused.

    kubernetes-asyncio reads an in-cluster token again every minute. Anything else that expires or rotates (a credential
    plugin's token, a client certificate, the CA) leads to a 401 or a TLS failure. The client then loads the
    configuration again, at most once in ten seconds. Requests in flight end on the connection they began on.
    """

    def __init__(
        self, connection: "_ApiConnection", load: "Callable[[], Awaitable[_ApiConnection]]", clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._load = load
        self._clock = clock
        self._renewable_at = clock()
        self._renewing = asyncio.Lock()

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
        chunks, size = [], 0
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with self._response(path, query, accept, timeout) as response:
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > body_bytes:
                    raise ClusterError(f"{path}: the answer is longer than {body_bytes} bytes")
        return b"".join(chunks)

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
        async with self._response(path, query, accept, timeout) as response:
            remainder = b""
            async for chunk in response.content.iter_any():
                *lines, remainder = (remainder + chunk).split(b"\n")
                for line in filter(None, lines):
                    yield line
                if len(remainder) > line_bytes:
                    raise ClusterError(f"{path}: a line of the watch is longer than {line_bytes} bytes")

    async def close(self) -> None:
        """Closes every connection, including those still in use."""
        await self._connection.close()

    @asynccontextmanager
    async def _response(
        self, path: str, query: Mapping[str, str] | None, accept: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        for last in (False, True):
            connection = await self._usable_connection()
            async with connection.request(path, query, accept, timeout) as response:
                if response.status == 401:
                    connection.is_doubtful = True
                    if not last:
                        continue
                await _refuse_failure(path, response)
                yield response
                return

    async def _usable_connection(self) -> "_ApiConnection":
        async with self._renewing:
            if self._connection.is_doubtful and self._clock() >= self._renewable_at:
                self._renewable_at = self._clock() + _RENEW_SECONDS
                retired, self._connection = self._connection, await self._load()
                await retired.retire()
        return self._connection


class _ApiConnection:
    """One loaded configuration with its session.

    `is_doubtful`: after a 401 or a TLS failure, the configuration must be loaded again.
    """

    def __init__(self, configuration: "Configuration") -> None:
        from kubernetes_asyncio.client.rest import RESTClientObject

        self.is_doubtful = False
        self._configuration = configuration
        # The library's session would use the proxies of the environment, which are meant for registries. Ours takes
        # over its connector, which has the TLS context.
        library_session: aiohttp.ClientSession = RESTClientObject(configuration).pool_manager
        self._session = aiohttp.ClientSession(
            connector=library_session.connector, trust_env=False, read_bufsize=_READ_BUFFER_BYTES
        )
        library_session.detach()
        self._requests = 0
        self._is_retired = False

    @asynccontextmanager
    async def request(
        self, path: str, query: Mapping[str, str] | None, accept: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a GET, with any status. Transport errors become ClusterErrors."""
        self._requests += 1
        try:
            async with self._session.get(
                f"{self._configuration.host}{path}",
                params=query,
                headers={"Accept": accept, "Accept-Encoding": "identity", **await self._authorization()},
                timeout=timeout,
                proxy=self._configuration.proxy,
                server_hostname=self._configuration.tls_server_name,
                allow_redirects=False,
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            self.is_doubtful |= isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError)
            raise ClusterError(f"{path}: {_words(exc)}") from exc
        finally:
            self._requests -= 1
            if self._is_retired:
                await self.retire()

    async def retire(self) -> None:
        """Closes the session once its last request has ended."""
        self._is_retired = True
        if not self._requests:
            await self.close()

    async def close(self) -> None:
        await self._session.close()

    async def _authorization(self) -> dict[str, str]:
        """The headers kubernetes-asyncio would send, if any; reads an in-cluster token again after a minute."""
        from kubernetes_asyncio.config import ConfigException

        try:
            settings = await self._configuration.auth_settings()
        except ConfigException as exc:
            raise ClusterError(f"cannot read the credentials: {_words(exc)}") from exc
        return {setting["key"]: setting["value"].strip() for setting in settings.values()}


async def _load(mode: Literal["in-cluster", "kubeconfig"], kubeconfig: str, context: str) -> _ApiConnection:
    lighten_library()
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    # From Python 3.13 on, strict verification refuses the CAs of many clusters, which Go's clients accept.
    configuration.disable_strict_ssl_verification = True
    path = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            if mode == "in-cluster":
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # it has no annotations
            else:
                await config.load_kube_config(path, context or None, configuration)
            return _ApiConnection(configuration)
    except Exception as exc:  # a malformed kubeconfig makes the loader fail in any way Python can
        where = "in-cluster configuration" if mode == "in-cluster" else f"kubeconfig {path}"
        raise ClusterError(f"cannot use the {where}: {_words(exc)}") from exc


async def _refuse_failure(path: str, response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    body = await response.content.read(_MAX_STATUS_BYTES)
    try:
        said = _STATUS.decode(body).message or ""
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        said = ""
    retry_after = response.headers.get("Retry-After", "")
    raise ClusterRefused(
        f"{path}: HTTP {response.status} {said[:_QUOTED_CHARACTERS]}".rstrip(),
        response.status,
        float(retry_after) if retry_after.isdecimal() else None,
    )


def _words(exc: Exception) -> str:
    """The error's message without secrets: URLs with passwords, or the user entry that kubernetes-asyncio quotes."""
    text = "" if isinstance(exc, aiohttp.ClientResponseError | aiohttp.InvalidURL) else str(exc)
    said = text.partition("{")[0][:_QUOTED_CHARACTERS].strip()
    return f"{type(exc).__name__}: {said}" if said else type(exc).__name__
