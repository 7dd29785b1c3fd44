"""Where the API server is and how to log in there, as a pod gets it from its kubelet or people from a kubeconfig.

kubernetes-asyncio reads kubeconfigs and runs the credential plugins that they name. Only this file imports it, when a
kubeconfig is read, and without its seven hundred generated models: that saves 40 MB and half a second.
"""

import asyncio
import logging
import os
import ssl
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import aiohttp
import msgspec

from extender.bounded_yaml import InvalidYaml
from extender.errors import ClusterError
from extender.regular_files import check_regular, read_file
from extender.tls_context import new_client_context, unverified_context
from extender.yaml_values import read_yaml

if TYPE_CHECKING:
    from kubernetes_asyncio.client import Configuration

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
TOKEN_SECONDS = 60.0  # after which a pod's token is read again, as Go's clients do; the kubelet replaces it in time
_QUOTED_CHARACTERS = 200  # of a message from a credential plugin
_LOAD_SECONDS = 60.0  # a credential plugin may ask a person, or a slow cloud

# kubernetes-asyncio also raises whatever it logs, and its messages may quote credentials.
logging.getLogger("kubernetes_asyncio").addHandler(logging.NullHandler())
logging.getLogger("kubernetes_asyncio").propagate = False


class Access(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach an API server. `authorize` gives the headers of a request; any exception means that it cannot now.

    `namespace` is that of the process in a cluster, or of the kubeconfig's context, empty if that names none. `context`
    is that context's name, empty in a cluster.
    """

    url: str
    tls: ssl.SSLContext
    authorize: Callable[[], Awaitable[dict[str, str]]]
    namespace: str = ""
    context: str = ""
    proxy: str | None = None
    server_name: str | None = None


async def load_access(mode: Literal["in-cluster", "kubeconfig"], kubeconfig: str, context: str) -> Access:
    """The access of this pod, or that of a kubeconfig's context. Raises ClusterError."""
    if mode == "in-cluster":
        try:
            return _of_pod()
        except (OSError, KeyError) as exc:
            raise ClusterError(f"cannot use the in-cluster configuration: {words_of(exc)}") from exc
    path = kubeconfig or _default_kubeconfig()
    files = _files_of(path)
    if not files:
        raise ClusterError(f"cannot use the kubeconfig {path}: there is no such file")
    try:
        async with asyncio.timeout(_LOAD_SECONDS):
            return await _of_kubeconfig(files, context)
    except Exception as exc:  # a malformed kubeconfig makes the loader fail in any way Python can
        raise ClusterError(f"cannot use the kubeconfig {path}: {words_of(exc)}") from exc


def may_use_pod() -> bool:
    """Whether this process has what every pod gets from its kubelet, as client-go looks for it."""
    variables = ("KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT")
    return all(map(os.environ.get, variables)) and (SERVICE_ACCOUNT / "token").is_file()


def namespace_of_pod() -> str:
    """The namespace of this pod; empty if it is in none."""
    namespace = SERVICE_ACCOUNT / "namespace"
    return namespace.read_text().strip() if namespace.exists() else ""


def names_cluster() -> bool:
    """Whether $KUBECONFIG, or else ~/.kube/config, has a current context; also if only its load can say why not."""
    for file in _files_of(_default_kubeconfig()):
        try:
            found = read_yaml(read_file(file))
        except (OSError, InvalidYaml):
            return True
        if found and not (isinstance(found, dict) and not found.get("current-context")):
            return True
    return False


def _default_kubeconfig() -> str:
    return os.environ.get("KUBECONFIG") or "~/.kube/config"


def _of_pod() -> Access:
    """As every pod gets it from its kubelet: two variables, a CA, a token that is replaced, and the namespace."""
    host, port = os.environ["KUBERNETES_SERVICE_HOST"], os.environ["KUBERNETES_SERVICE_PORT"]
    token, read_at = (SERVICE_ACCOUNT / "token").read_text().strip(), time.monotonic()

    async def authorize() -> dict[str, str]:
        nonlocal token, read_at
        if time.monotonic() >= read_at + TOKEN_SECONDS:
            token, read_at = (SERVICE_ACCOUNT / "token").read_text().strip() or token, time.monotonic()
        return {"Authorization": f"Bearer {token}"}

    return Access(
        url=f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}",
        tls=new_client_context(str(SERVICE_ACCOUNT / "ca.crt")),
        authorize=authorize,
        namespace=namespace_of_pod(),
    )


def _files_of(kubeconfig: str) -> list[Path]:
    """The files that there are; kubectl's users write /dev/null for none."""
    paths = (Path(os.path.expanduser(each)) for each in kubeconfig.split(os.pathsep) if each)  # noqa: PTH111
    return [path for path in paths if path.exists() and str(path) != os.devnull]


async def _of_kubeconfig(files: Sequence[Path], context: str) -> Access:
    # The library knows no bound, and no file without anything in it.
    files = [file for file in files if read_yaml(read_file(file)) is not None]
    if not files:
        raise ValueError("it is empty")
    import_library()
    from kubernetes_asyncio import client, config

    configuration = client.Configuration()
    loader = await config.load_kube_config(os.pathsep.join(map(str, files)), context or None, configuration)
    chosen = loader.current_context or {}
    tls = new_client_context(configuration.ssl_ca_cert) if configuration.verify_ssl else unverified_context()
    if configuration.cert_file:
        for path in filter(None, (configuration.cert_file, configuration.key_file)):
            check_regular(path)
        tls.load_cert_chain(configuration.cert_file, configuration.key_file)
    return Access(
        url=configuration.host or "",
        tls=tls,
        authorize=lambda: _headers_of(configuration),
        namespace=(chosen.get("context") or {}).get("namespace") or "",
        context=str(chosen.get("name") or ""),
        proxy=configuration.proxy,
        server_name=configuration.tls_server_name,
    )


async def _headers_of(configuration: "Configuration") -> dict[str, str]:
    """The headers that kubernetes-asyncio would send; a credential plugin is run again once its token has expired."""
    settings = await configuration.auth_settings()
    return {setting["key"]: setting["value"].strip() for setting in settings.values()}


def import_library() -> None:
    """Imports of kubernetes-asyncio what reads a kubeconfig, by packages that do not run their own `__init__`."""
    if "kubernetes_asyncio" in sys.modules:
        return
    for name in ("kubernetes_asyncio", "kubernetes_asyncio.client", "kubernetes_asyncio.client.models"):
        spec = find_spec(name)
        if spec:
            sys.modules[name] = module_from_spec(spec)
    package = sys.modules["kubernetes_asyncio.client"]
    for module, name in (("configuration", "Configuration"), ("api_client", "ApiClient")):
        setattr(package, name, getattr(import_module(f"{package.__name__}.{module}"), name))


def words_of(exc: Exception) -> str:
    """The error's message without secrets: URLs with passwords, or the user entry that kubernetes-asyncio quotes."""
    if isinstance(exc, OSError) and exc.strerror:
        return exc.strerror
    text = "" if isinstance(exc, aiohttp.ClientResponseError | aiohttp.InvalidURL) else str(exc)
    said = text.partition("{")[0][:_QUOTED_CHARACTERS].strip()
    return f"{type(exc).__name__}: {said}" if said else type(exc).__name__
