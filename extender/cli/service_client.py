"""Asks a running service what it has in memory: to explain a pod, or what it has observed."""

import asyncio
import ssl
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import msgspec

from extender.cli.subjects import Explained, ExplainTarget, find_subjects, list_nodes, on_nodes
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.config.checks import is_loopback
from extender.config.tree import Config
from extender.errors import ConfigError
from extender.kubernetes.reported_v1 import ReportedNode
from extender.reports.explanation import Explanation

_OPTION = "--service"
_SECONDS = 30.0
_BUSY = 503
_RETRY_SECONDS = (1.0, 2.0)  # after which a busy service is asked again
_EXPLANATION = msgspec.json.Decoder(Explanation)


class _Problem(msgspec.Struct):
    error: str = ""


def read_token(path: str | None) -> str:
    """The token in the file; empty without a file.

    Raises:
        ConfigError: the file cannot be read, or is empty.
    """
    if path is None:
        return ""
    try:
        token = Path(path).read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"--token-file {path}: {exc}") from exc
    if not token:
        raise ConfigError(f"--token-file {path}: it is empty")
    return token


async def ask_service(
    target: ExplainTarget, url: str, token: str, ca_file: str | None, client: ClusterClient, settings: Config
) -> Explained:
    """The service's explanation of the pod, with the cluster's nodes as far as the caller may list them.

    Raises:
        ConfigError: the service refuses, cannot be reached, or would get the token in the clear.
        ClusterError: the pod cannot be read.
    """
    if target.kind not in ("", "Pod"):
        raise ConfigError(f"--service explains pods, and {target.kind}/{target.name} is none; name one of its pods")
    _require_safe(_OPTION, url)
    if not token:
        raise ConfigError("--service needs a token, and the kubeconfig has none; give --token-file FILE")
    [item] = await find_subjects(target, client)
    query = {"namespace": target.namespace, "pod": target.name}
    told = _read(url, await fetch_json(_OPTION, url, "/explain", token, ca_file, query))
    return Explained(on_nodes(told, item, await _nodes(client), settings), item.pod)


async def _nodes(client: ClusterClient) -> list[ReportedNode]:
    try:
        return await list_nodes(client)
    except ClusterRefused as exc:
        if exc.status == 403:
            return []
        raise


def _require_safe(option: str, url: str) -> None:
    """Raises ConfigError for a URL that would send the token in the clear."""
    parts = urlsplit(url)
    is_local = is_loopback(f"{parts.hostname}:{parts.port or 80}")
    if parts.scheme != "https" and not (parts.scheme == "http" and is_local):
        raise ConfigError(
            f"{option} {url}: give https://, or http:// on a loopback address as kubectl port-forward has"
        )


async def fetch_json(
    option: str, url: str, path: str, token: str, ca_file: str | None, query: Mapping[str, str]
) -> bytes:
    """What the service at `url` answers at the path, as JSON. `option` is what named it.

    Raises:
        ConfigError: it refuses, cannot be reached, or would get the token in the clear.
    """
    _require_safe(option, url)
    address = f"{url.rstrip('/')}{path}"
    try:
        trust = ssl.create_default_context(cafile=ca_file) if url.startswith("https:") else True
        timeout = aiohttp.ClientTimeout(total=_SECONDS)
        async with aiohttp.ClientSession(timeout=timeout, headers={"Authorization": f"Bearer {token}"}) as session:
            status, body = await _get(session, address, query, trust)
            for seconds in _RETRY_SECONDS:
                if status == _BUSY:
                    await asyncio.sleep(seconds)
                    status, body = await _get(session, address, query, trust)
    except (aiohttp.ClientError, OSError, TimeoutError) as exc:
        raise ConfigError(f"{option} {url}: {str(exc) or type(exc).__name__}") from exc
    if status == 200:
        return body
    try:
        why = msgspec.json.decode(body, type=_Problem).error
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _no_answer(option, url, status, exc) from exc
    raise ConfigError(f"{option} {url}: HTTP {status} {why}")


async def _get(
    session: aiohttp.ClientSession, address: str, query: Mapping[str, str], trust: ssl.SSLContext | bool
) -> tuple[int, bytes]:
    async with session.get(address, params=query, ssl=trust, allow_redirects=False) as response:
        return response.status, await response.read()


def _read(url: str, body: bytes) -> Explanation:
    try:
        return _EXPLANATION.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _no_answer(_OPTION, url, 200, exc) from exc


def _no_answer(option: str, url: str, status: int, exc: Exception) -> ConfigError:
    return ConfigError(f"{option} {url}: HTTP {status}, and no answer of this service: {exc}")
