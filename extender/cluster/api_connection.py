"""One loaded configuration of the Kubernetes API, with the session that its requests use.

kubernetes-asyncio provides configuration, credentials and TLS. Only this file imports it, when a cluster is first used;
`library.py` keeps most of it from being loaded.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import aiohttp
import msgspec

from extender.cluster.library import lighten_library
from extender.errors import ClusterError
from extender.watched_files import FileSetting, fingerprint, report_refused

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

_READ_BUFFER_BYTES = 2 << 20  # the library's; a page has several times aiohttp's 64 KiB
_QUOTED_CHARACTERS = 200  # of a message from a credential plugin
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
