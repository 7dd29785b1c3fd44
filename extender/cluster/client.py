"""A client of the Kubernetes API: the bytes of a GET, the lines of a watch, and requests that change an object.

kubernetes-asyncio provides configuration, credentials and TLS. Only this file imports it, when a cluster is first used;
`library.py` keeps most of it from being loaded. The one proxy it may go through is `proxy-url` of a kubeconfig:
HTTPS_PROXY and its siblings are for registries. Callers decode the resources; this file decodes only the Status of a
refusal.
"""

import asyncio
import logging
import os
import ssl
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

import aiohttp
import msgspec

from extender.bounded_yaml import check_yaml
from extender.cluster.library import lighten_library
from extender.errors import UNDECODABLE, ClusterError
from extender.kubernetes.meta_v1 import Status
from extender.watched_files import FileSetting, fingerprint, report_loaded, report_refused

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_READ_BUFFER_BYTES = 2 << 20  # the library's; a page has several times aiohttp's 64 KiB
_QUOTED_CHARACTERS = 200  # of a message from a credential plugin or the API server
_DEFAULT_NAMESPACE = "default"
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_LOAD_SECONDS = 60.0  # a credential plugin may ask a person, or a slow cloud

# kubernetes-asyncio also raises whatever it logs, and its messages may quote credentials.
logging.getLogger("kubernetes_asyncio").addHandler(logging.NullHandler())
logging.getLogger("kubernetes_asyncio").propagate = False


Stamp = tuple[bytes | None, ...]
"""The hash of each file's content; None for a file that cannot be read."""


def stamp_of(paths: Sequence[str]) -> Stamp:
    """Returns the stamp of the files as they are now. Blocks."""

    def hash_of(path: str) -> bytes | None:
        try:
            return fingerprint([path])
        except OSError:
            return None

    return tuple(map(hash_of, paths))


class ApiCall(msgspec.Struct, frozen=True):
    """What is asked of the API server: a read of `path`, or a change of it by `body` of `content_type`."""

    path: str
    query: Mapping[str, str] | None = None
    method: str = "GET"
    body: bytes = b""
    content_type: str = ""


class ApiConnection:
    """One loaded configuration with its session.

    `namespace` is that of the process in a cluster, or of the kubeconfig's context, as kubectl takes it.
    `is_doubtful`: after a 401 or a TLS failure, the configuration must be loaded again. `stamp` is that of the files at
    `paths` from before they were read.
    """

    def __init__(
        self, configuration: "Configuration", paths: Sequence[str], stamp: Stamp, namespace: str = _DEFAULT_NAMESPACE
    ) -> None:
        from kubernetes_asyncio.client.rest import RESTClientObject

        self.namespace = namespace
        self.is_doubtful = False
        self.paths = paths
        self.stamp = stamp
        self._headers: dict[str, str] | None = None
        self._has_old_headers = False
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
        self, call: ApiCall, accept: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The response to a request, with any status. Transport errors become ClusterErrors."""
        self._requests += 1
        headers = {"Accept": accept, "Accept-Encoding": "identity"}
        if call.body:
            headers["Content-Type"] = call.content_type
        try:
            async with self._session.request(
                call.method,
                f"{self._configuration.host}{call.path}",
                params=call.query,
                data=call.body or None,
                headers={**headers, **await self._authorization()},
                timeout=timeout,
                proxy=self._configuration.proxy,
                server_hostname=self._configuration.tls_server_name,
                allow_redirects=False,
            ) as response:
                yield response
        except (aiohttp.ClientError, OSError, TimeoutError) as exc:
            self.is_doubtful |= isinstance(exc, aiohttp.ClientSSLError | ssl.SSLError)
            raise ClusterError(f"{call.path}: {_words(exc)}") from exc
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
        """The headers kubernetes-asyncio would send, if any; reads an in-cluster token again after a minute.

        Returns the last ones while the token's file cannot be read.
        """
        from kubernetes_asyncio.config import ConfigException

        try:
            settings = await self._configuration.auth_settings()
        except (ConfigException, OSError) as exc:
            if self._headers is None:
                raise ClusterError(f"cannot read the credentials: {_words(exc)}") from exc
            if not self._has_old_headers:
                report_refused(FileSetting.CLUSTER, f"cannot read the credentials: {_words(exc)}")
            self._has_old_headers = True
            return self._headers
        self._has_old_headers = False
        self._headers = {setting["key"]: setting["value"].strip() for setting in settings.values()}
        return self._headers


async def load_connection(mode: Literal["in-cluster", "kubeconfig"], kubeconfig: str, context: str) -> ApiConnection:
    lighten_library()
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    # From Python 3.13 on, strict verification refuses the CAs of many clusters, which Go's clients accept.
    configuration.disable_strict_ssl_verification = True
    path = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    if mode == "kubeconfig" and not _exists(path):
        raise ClusterError(f"cannot use the kubeconfig {path}: there is no such file")
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            paths = [] if mode == "in-cluster" else _paths_in(path)
            stamp = stamp_of(paths)
            _check_kubeconfig(paths)
            if mode == "in-cluster":
                config.load_incluster_config(configuration)  # type: ignore[no-untyped-call]  # it has no annotations
                namespace = _read_namespace(_NAMESPACE_FILE)
            else:
                loader = await config.load_kube_config(path, context or None, configuration)
                namespace = ((loader.current_context or {}).get("context") or {}).get("namespace") or _DEFAULT_NAMESPACE
            named = list(filter(None, (configuration.ssl_ca_cert, configuration.cert_file, configuration.key_file)))
            return ApiConnection(configuration, [*paths, *named], stamp + stamp_of(named), namespace)
    except Exception as exc:  # a malformed kubeconfig makes the loader fail in any way Python can
        where = "in-cluster configuration" if mode == "in-cluster" else f"kubeconfig {path}"
        raise ClusterError(f"cannot use the {where}: {_words(exc)}") from exc


def _check_kubeconfig(paths: Sequence[str]) -> None:
    """Raises InvalidYaml for a file that the library, which knows no bound, had better not read."""
    for path in map(Path, paths):
        if path.exists():
            check_yaml(path.read_text("utf-8"))


def _read_namespace(file: Path) -> str:
    """The namespace of the pod that this process runs in; `default` outside of one, as for kubectl."""
    try:
        return file.read_text().strip() or _DEFAULT_NAMESPACE
    except OSError:
        return _DEFAULT_NAMESPACE


def _exists(joined: str) -> bool:
    """Whether one of the files is there; the library would miss a key in an empty configuration instead."""
    return any(Path(path).exists() for path in _paths_in(joined))


def _paths_in(joined: str) -> list[str]:
    return [str(Path(path).expanduser()) for path in joined.split(os.pathsep) if path]


def _words(exc: Exception) -> str:
    """The error's message without secrets: URLs with passwords, or the user entry that kubernetes-asyncio quotes."""
    text = "" if isinstance(exc, aiohttp.ClientResponseError | aiohttp.InvalidURL) else str(exc)
    said = text.partition("{")[0][:_QUOTED_CHARACTERS].strip()
    return f"{type(exc).__name__}: {said}" if said else type(exc).__name__


JSON = "application/json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Has the API server send the metadata of an object and nothing else of it."""
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_MERGE_PATCH = "application/strategic-merge-patch+json"
TIMEOUT_SECONDS = 30.0
MAX_BODY_BYTES = 64 << 20  # a page of 250 nodes with 50 images each is 3 to 10 MB
MAX_LINE_BYTES = 16 << 20  # objects in etcd have at most 1.5 MiB, as JSON a few times that
_MAX_STATUS_BYTES = 64 << 10
_CONNECT_SECONDS = 10.0
_RENEW_SECONDS = 10.0  # between two loads of the configuration, each of which may run a plugin


class ClusterRefused(ClusterError):
    """The API server answered with the error `status`: 401, 403, 404, 410, 429 and so on.

    `retry_after_seconds` is its Retry-After, None if it sent none. `said` is what the API server says of it, of which
    the message has the beginning; it may hold the path of a webhook, and with it a token.
    """

    def __init__(self, message: str, status: int, retry_after_seconds: float | None = None, *, said: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.retry_after_seconds = retry_after_seconds
        self.said = said


_STATUS = msgspec.json.Decoder(Status)
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

    async def load() -> ApiConnection:
        return await load_connection(chosen, kubeconfig, context)

    return ClusterClient(await load(), load, clock)


class ClusterClient:
    """Talks to the API server under one identity. All methods raise ClusterError; for an error status ClusterRefused.

    kubernetes-asyncio reads an in-cluster token again every minute. Anything else that expires or rotates (a credential
    plugin's token, a client certificate, the CA) leads to a 401 or a TLS failure. The client then loads the
    configuration again, as it does for `watch` when a file has changed, at most once in ten seconds. Requests in flight
    end on the connection they began on.
    """

    def __init__(
        self, connection: ApiConnection, load: Callable[[], Awaitable[ApiConnection]], clock: Callable[[], float]
    ) -> None:
        self._connection = connection
        self._load = load
        self._clock = clock
        self._renewable_at = clock()
        self._renewing = asyncio.Lock()
        self._refusal: tuple[str, Stamp] | None = None

    @property
    def namespace(self) -> str:
        """The namespace of this process in a cluster, or of the kubeconfig's context; `default` if there is none."""
        return self._connection.namespace

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
                    raise ClusterError(f"{path}: a line of the watch is longer than {line_bytes} bytes")

    async def watch(self, every_seconds: float) -> None:
        """Calls `reload_if_changed` every `every_seconds` until cancelled."""
        while True:
            await asyncio.sleep(every_seconds)
            await self.reload_if_changed()

    async def reload_if_changed(self) -> None:
        """Loads the configuration again if one of its files has changed; reports a failure once and keeps the old one.

        The files are the kubeconfig and the certificates and keys that it names; in a cluster, the CA.
        """
        current = self._connection
        stamp = await asyncio.to_thread(stamp_of, current.paths)
        if stamp == current.stamp:
            self._refusal = None
            return
        async with self._renewing:
            if current is not self._connection or self._clock() < self._renewable_at:
                return
            try:
                await self._renew()
            except ClusterError as exc:
                if self._refusal != (str(exc), stamp):
                    report_refused(FileSetting.CLUSTER, str(exc))
                self._refusal = str(exc), stamp
            else:
                self._refusal = None
                report_loaded(FileSetting.CLUSTER)

    async def close(self) -> None:
        """Closes every connection, including those still in use."""
        await self._connection.close()

    async def _read(self, call: ApiCall, accept: str, timeout_seconds: float, body_bytes: int) -> bytes:
        chunks, size = [], 0
        timeout = aiohttp.ClientTimeout(total=timeout_seconds)
        async with self._response(call, accept, timeout) as response:
            async for chunk in response.content.iter_any():
                chunks.append(chunk)
                size += len(chunk)
                if size > body_bytes:
                    raise ClusterError(f"{call.path}: the answer is longer than {body_bytes} bytes")
        return b"".join(chunks)

    @asynccontextmanager
    async def _response(
        self, call: ApiCall, accept: str, timeout: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        for last in (False, True):
            connection = await self._usable_connection()
            async with connection.request(call, accept, timeout) as response:
                if response.status == 401:
                    connection.is_doubtful = True
                    if not last:
                        continue
                await _refuse_failure(call.path, response)
                yield response
                return

    async def _usable_connection(self) -> ApiConnection:
        connection = self._connection
        if connection.is_doubtful:
            async with self._renewing:
                if connection is self._connection and self._clock() >= self._renewable_at:
                    await self._renew()
        return self._connection

    async def _renew(self) -> None:
        self._renewable_at = self._clock() + _RENEW_SECONDS
        retired, self._connection = self._connection, await self._load()
        await retired.retire()


async def _refuse_failure(path: str, response: aiohttp.ClientResponse) -> None:
    if response.status in (200, 201, 202):  # 201 for what was created, 202 for a deletion that has begun
        return
    body = await response.content.read(_MAX_STATUS_BYTES)
    try:
        said = _STATUS.decode(body).message or ""
    except UNDECODABLE:
        said = ""
    retry_after = response.headers.get("Retry-After", "")
    raise ClusterRefused(
        f"{path}: HTTP {response.status} {said[:_QUOTED_CHARACTERS]}".rstrip(),
        response.status,
        float(retry_after) if retry_after.isdecimal() else None,
        said=said,
    )
