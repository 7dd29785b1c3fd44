"""The API client against a server on loopback: credentials of every kind, refusals, and what ends a stream."""

import asyncio
import json
import ssl
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any, Literal

import msgspec
import pytest
import trustme
import yaml

from extender.cluster import configuration
from extender.cluster.client import (
    MERGE_PATCH,
    STRATEGIC_MERGE_PATCH,
    ClusterClient,
    ClusterRefused,
    open_chosen_cluster,
    open_cluster,
    open_users_cluster,
)
from extender.cluster.gated_pods import read_pod
from extender.errors import ClusterError
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.integration.cluster.api_server import FIRST_VERSION, ApiServer, Refusal, node, serve_api, write_contexts

NODES = "/api/v1/nodes"
NODE = f"{NODES}/a"
LIST = {"limit": "250"}
WATCH = {"watch": "true", "resourceVersion": FIRST_VERSION}
SECRET = "s3cr3t-t0ken"


@pytest.fixture
def api(api: ApiServer) -> ApiServer:
    api.put(NODES, node("a"))
    return api


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


def server_context(authority: trustme.CA, *, client_certificates: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    if client_certificates:
        authority.configure_trust(context)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def write_kubeconfig(path: Path, server: str, user: dict[str, Any], **cluster: Any) -> str:
    document = {
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": server} | cluster}],
        "users": [{"name": "u", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return str(path)


Connect = Callable[..., Awaitable[ClusterClient]]


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Opens clients as `open_cluster` does, and closes them at the end."""
    async with AsyncExitStack() as stack:

        async def opened(*arguments: Any, **options: Any) -> ClusterClient:
            client = await open_cluster(*arguments, **{"clock": time.monotonic, **options})
            stack.push_async_callback(client.close)
            return client

        yield opened


@pytest.fixture
async def client(api: ApiServer, connect: Connect, tmp_path: Path) -> ClusterClient:
    return await connect("kubeconfig", write_kubeconfig(tmp_path / "config", api.url, {"token": SECRET}))


async def test_get_gives_the_bytes_of_the_answer(api: ApiServer, client: ClusterClient) -> None:
    """The body comes back undecoded, asked for with the token, the media type, our name and without compression."""
    api.tokens = {SECRET}
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "limit": "5"}
    body = await client.get(NODE, query, accept="application/json;as=Thing")
    assert json.loads(body)["metadata"]["name"] == "a"
    assert api.requests[-1].query == query
    headers = api.requests[-1].headers
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert headers["Accept"] == "application/json;as=Thing"
    assert headers["Accept-Encoding"] == "identity"
    assert headers["User-Agent"].startswith("multiarch-extender/")


async def test_proxies_of_the_environment_are_not_used(
    api: ApiServer, connect: Connect, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    """They are for registries: lists and watches reach the API server itself."""
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{closed_port}")
    client = await connect("kubeconfig", write_kubeconfig(tmp_path / "config", api.url, {"token": SECRET}))
    assert await client.get(NODE)
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5)) as lines:
        await anext(lines)


async def test_a_right_that_is_missing_is_named_without_a_path(api: ApiServer, client: ClusterClient) -> None:
    words = 'User "alice" cannot list resource "nodes" in API group "" at the cluster scope'
    api.refusals.append(("list", Refusal(403, f"nodes is forbidden: {words}")))
    with pytest.raises(ClusterRefused) as caught:
        await client.get(NODES)
    assert str(caught.value) == f"Forbidden: {words}"
    api.refusals.append(("get", Refusal(503, "")))
    with pytest.raises(ClusterRefused) as caught:
        await client.get(NODE)
    assert str(caught.value) == "nodes/a: HTTP 503"


@pytest.mark.parametrize(
    ("method", "status"),
    [("get", 403), ("get", 410), ("get", 429), ("get", 500), ("get", 301), ("send", 409), ("send", 500)],
)
async def test_refusal_carries_its_status_and_its_words(
    api: ApiServer, client: ClusterClient, method: Literal["get", "send"], status: int
) -> None:
    """Callers tell statuses apart; the operator reads what the API server said, cut. Nothing is sent twice."""
    words = "nodes is forbidden" + "x" * 10_000
    api.refusals.append((method, Refusal(status, words, {"Retry-After": "7", "Location": "/elsewhere"})))
    with pytest.raises(ClusterRefused, match=f"HTTP {status} nodes is forbidden") as caught:
        await (client.get(NODE) if method == "get" else client.send("PATCH", NODE, b"{}", MERGE_PATCH))
    assert (caught.value.status, caught.value.retry_after_seconds) == (status, 7.0)
    assert len(str(caught.value)) < 300
    assert len(api.requests) == 1


async def test_answer_beyond_the_cap_is_refused(client: ClusterClient) -> None:
    """A body is read up to the caller's limit and no further."""
    assert len(await client.get(NODE, body_bytes=10_000)) > 100
    with pytest.raises(ClusterError, match="longer than 100 bytes"):
        await client.get(NODE, body_bytes=100)


async def test_slow_answer_is_an_error(api: ApiServer, client: ClusterClient) -> None:
    """A request has a time limit, from the connection to the last byte. One that was given up takes no other along."""
    api.is_open.clear()
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1:\d+ did not answer in time"):
        await client.get(NODE, timeout_seconds=0.02)
    api.is_open.set()
    assert await client.get(NODE)


async def test_unreachable_server_is_an_error(api: ApiServer, client: ClusterClient) -> None:
    """Nobody listens: a ClusterError that names the host, without a status."""
    await api.stop()
    with pytest.raises(ClusterError, match=r"^the API server 127\.0\.0\.1:\d+ refuses connections$") as caught:
        await client.get(NODE)
    assert not isinstance(caught.value, ClusterRefused)


async def test_send_changes_an_object_and_gives_it_back(api: ApiServer, client: ClusterClient) -> None:
    """The body and its type arrive as they were given, with the token; the answer is the changed object."""
    api.tokens = {SECRET}
    body = b'{"metadata":{"labels":{"a":"b"}}}'
    answer = await client.send("PATCH", NODE, body, STRATEGIC_MERGE_PATCH)
    assert json.loads(answer)["metadata"]["labels"]["a"] == "b"
    request = api.received("send")[-1]
    assert (request.method, request.body) == ("PATCH", body)
    assert request.headers["Content-Type"] == "application/strategic-merge-patch+json"
    assert request.headers["Authorization"] == f"Bearer {SECRET}"
    created = json.dumps({"metadata": {"name": "new"}}).encode()
    assert json.loads(await client.send("POST", NODES, created))["metadata"]["name"] == "new"


async def test_change_is_sent_again_after_a_401(api: ApiServer, client: ClusterClient) -> None:
    """The API server has changed nothing then."""
    api.refusals.append(("send", Refusal(401)))
    assert await client.send("PATCH", NODE, b"{}", MERGE_PATCH)
    assert len(api.received("send")) == 2


async def test_namespace_is_that_of_the_context(api: ApiServer, connect: Connect, tmp_path: Path) -> None:
    """As kubectl takes it; without one `default`."""
    for namespace in ("", "shop"):
        client = await connect("kubeconfig", str(write_contexts(tmp_path, {"x": (api, namespace)})))
        assert client.namespace == (namespace or "default")


async def test_stream_gives_whole_lines(api: ApiServer, client: ClusterClient) -> None:
    """Lines come as they are complete, however the bytes are cut; an unfinished last one is no line."""
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5)) as lines:
        assert json.loads(await anext(lines))["type"] == "ADDED"
        api.send(NODES, b'{"a":1}\n{"b"')
        assert await anext(lines) == b'{"a":1}'  # and so half of the next line has been read too
        api.send(NODES, b':2}\n\n{"c":3}\n{"half')
        assert await anext(lines) == b'{"b":2}'
        api.send(NODES, None)
        assert [line async for line in lines] == [b'{"c":3}']


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (b"", "did not answer in time"),
        (ConnectionError(), "broke off the connection"),
        (b"x" * 1001, "longer than 1000 bytes"),
    ],
    ids=["silent", "broken", "an endless line"],
)
async def test_stream_that_does_not_end_in_order_is_a_loss(
    api: ApiServer, client: ClusterClient, sent: bytes | ConnectionError, words: str
) -> None:
    """It is told apart from a watch that the server ended."""
    stall_seconds = 5.0 if sent else 0.05
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=stall_seconds, line_bytes=1000)) as lines:
        await anext(lines)
        api.send(NODES, sent)
        with pytest.raises(ClusterError, match=words):
            await anext(lines)


async def test_closed_stream_ends_the_watch_at_the_server(api: ApiServer, client: ClusterClient) -> None:
    """A watch nobody reads any more does not stay open."""
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5)) as lines:
        await anext(lines)
        assert len(api.watches(NODES)) == 1
    await eventually(lambda: not api.watches(NODES))


async def test_token_that_was_replaced_is_read_again(api: ApiServer, client: ClusterClient, tmp_path: Path) -> None:
    """A 401 makes us load the configuration anew and ask once more: the caller notices nothing, nor does a watch."""
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5)) as lines:
        await anext(lines)
        api.tokens = {"second"}
        write_kubeconfig(tmp_path / "config", api.url, {"token": "second"})
        assert await client.get(NODE)
        assert [request.headers["Authorization"][7:] for request in api.requests[1:]] == [SECRET, "second"]
        assert len(set(await asyncio.gather(*(client.get(NODE) for _ in range(5))))) == 1
        assert len(api.requests) == 8
        api.send(NODES, b"{}\n")
        assert await anext(lines) == b"{}"


async def test_wrong_token_is_401_and_not_loaded_again_at_once(
    api: ApiServer, connect: Connect, clock: Clock, tmp_path: Path
) -> None:
    """Credentials that are refused are reloaded at most once in ten seconds, whether they can be read or not."""
    kubeconfig = write_kubeconfig(tmp_path / "config", api.url, {"token": "wrong"})
    client = await connect("kubeconfig", kubeconfig, clock=clock)
    api.tokens = {"right"}
    for _ in range(2):
        with pytest.raises(ClusterRefused, match="401 Unauthorized"):
            await client.get(NODE)
    (tmp_path / "config").unlink()
    clock.advance(9)
    with pytest.raises(ClusterRefused):
        await client.get(NODE)
    clock.advance(1)
    with pytest.raises(ClusterError, match="cannot use the kubeconfig"):
        await client.get(NODE)
    write_kubeconfig(tmp_path / "config", api.url, {"token": "right"})
    clock.advance(10)
    assert await client.get(NODE)


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")  # kubernetes-asyncio, Python 3.12
async def test_credential_plugin_is_run_again_when_its_token_is_refused(
    api: ApiServer, tmp_path: Path, connect: Connect
) -> None:
    """An exec plugin, as EKS, GKE and AKS have it, provides the token, and a new one when that expired."""
    credential = tmp_path / "credential.json"
    version = "client.authentication.k8s.io/v1"

    def issue(token: str) -> None:
        status = {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}
        credential.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))

    plugin = {"apiVersion": version, "command": "cat", "args": [str(credential)]}
    issue("first")
    client = await connect("kubeconfig", write_kubeconfig(tmp_path / "config", api.url, {"exec": plugin}))
    api.tokens = {"first"}
    assert await client.get(NODE)
    issue("second")
    api.tokens = {"second"}
    assert await client.get(NODE)
    assert [request.headers["Authorization"][7:] for request in api.requests] == ["first", "first", "second"]


@pytest.fixture
async def pod(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[ApiServer, Path]]:
    """An API server and the folder of a pod's service account, as the kubelet makes it: its token is `first`."""
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("shop")
    monkeypatch.setattr(configuration, "SERVICE_ACCOUNT", tmp_path)
    async with serve_api(server_context(authority)) as api:
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        monkeypatch.setenv("KUBERNETES_SERVICE_PORT", api.url.rpartition(":")[2])
        api.put(NODES, node("a"))
        yield api, tmp_path


async def test_in_cluster_uses_the_service_account(
    pod: tuple[ApiServer, Path], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inside a pod, `auto` takes host, CA and token from where the kubelet puts them, and a rotated token in time.

    One that cannot be read, empty in the middle of a change or gone, leaves the last one in use.
    """
    api, folder = pod
    api.tokens = {"first"}
    client = await connect("auto")
    assert await client.get(NODE)
    assert client.namespace == "shop"
    (folder / "token").write_text("second")
    api.tokens = {"second"}
    assert await client.get(NODE)
    monkeypatch.setattr(configuration, "TOKEN_SECONDS", 0.0)
    for text in ("", "third"):
        (folder / "token").write_text(text)
        assert await client.get(NODE)
        (folder / "token").unlink()
        assert await client.get(NODE)
        api.tokens.add("third")
    used = [request.headers["Authorization"][7:] for request in api.requests]
    assert used == ["first", "first", "second", "second", "second", "third", "third"]


@pytest.mark.parametrize(
    ("kubeconfig", "namespace", "is_pods"),
    [
        pytest.param("{contexts}", "home", False, id="a kubeconfig"),
        pytest.param("{bare}", "shop", False, id="a context without a namespace"),
        pytest.param("/nowhere/at/all", "shop", True, id="no such file"),
        pytest.param("~nosuchuser/config", "shop", True, id="nobody's home"),
        pytest.param("{empty}", "shop", True, id="an empty file"),
        pytest.param("{none}", "shop", True, id="a kubeconfig without a context"),
        pytest.param("/dev/null", "shop", True, id="none by intention"),
        pytest.param("{empty}:/dev/null:{contexts}", "home", False, id="the last of several files"),
    ],
)
async def test_in_a_pod_commands_take_a_kubeconfig_first_as_kubectl_does(
    pod: tuple[ApiServer, Path], monkeypatch: pytest.MonkeyPatch, kubeconfig: str, namespace: str, *, is_pods: bool
) -> None:
    """And the service its own cluster, whatever there is. Source: client-go, DeferredLoadingClientConfig."""
    inside, folder = pod
    async with serve_api() as other:
        other.put(NODES, node("a"))
        for name, where in (("contexts", "home"), ("bare", "")):
            (folder / f"of-{name}").mkdir()
            write_contexts(folder / f"of-{name}", {"x": (other, where)}).rename(folder / name)
        (folder / "empty").touch()
        (folder / "none").write_text("apiVersion: v1\nkind: Config\nclusters: []\ncurrent-context: ''\n")
        names = {name: folder / name for name in ("contexts", "bare", "empty", "none")}
        monkeypatch.setenv("KUBECONFIG", kubeconfig.format(**names))
        for client, asked in (
            (await open_users_cluster("auto", time.monotonic), inside if is_pods else other),
            (await open_chosen_cluster("auto", time.monotonic), inside),
        ):
            before = len(asked.requests)
            assert await client.get(NODE)
            assert len(asked.requests) == before + 1
            assert client.namespace == (namespace if asked is other or is_pods else "shop")
            await client.close()


async def test_a_refusal_that_is_no_status_keeps_its_text(client: ClusterClient, api: ApiServer) -> None:
    """Of a proxy in between, or of a check such as /readyz."""
    api.refusals.append(("get", Refusal(502, "", text="<html>bad gateway")))
    with pytest.raises(ClusterRefused, match=r"HTTP 502$") as caught:
        await client.get(NODE)
    assert (caught.value.said, caught.value.text) == ("", "<html>bad gateway")


async def test_commands_and_pods_import_no_kubernetes_library_and_a_kubeconfig_none_of_its_models(
    pod: tuple[ApiServer, Path], tmp_path: Path
) -> None:
    """The library has seven hundred modules, 40 MB and half a second."""
    folder = pod[1]
    kubeconfig = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", {"token": SECRET})
    program = f"""
import asyncio, sys
from pathlib import Path
from extender.cli.main import commands
from extender.cluster import configuration
assert commands()
configuration.SERVICE_ACCOUNT = Path({str(folder)!r})
asyncio.run(configuration.load_access("in-cluster", "", ""))
assert "kubernetes_asyncio" not in sys.modules
access = asyncio.run(configuration.load_access("kubeconfig", {kubeconfig!r}, ""))
assert asyncio.run(access.authorize())["authorization"] == "Bearer {SECRET}"
assert not [name for name in sys.modules if name.startswith("kubernetes_asyncio.client.models.")]
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-W", "error", "-c", program)
    assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_object_that_is_not_there_is_none(client: ClusterClient) -> None:
    """As often it need not be."""
    decoder = msgspec.json.Decoder(dict[str, Any])
    assert (await client.find(NODE, decoder) or {})["metadata"]["name"] == "a"
    assert await client.find(f"{NODES}/absent", decoder) is None
    assert await read_pod(client, "default", "absent") is None


async def test_replaced_authority_is_loaded_again(authority: trustme.CA, tmp_path: Path, connect: Connect) -> None:
    """A server certificate we cannot verify makes us read the CA again: it may have been rotated."""
    (tmp_path / "ca.crt").write_bytes(trustme.CA().cert_pem.bytes())
    async with serve_api(server_context(authority)) as api:
        api.put(NODES, node("a"))
        ca = {"certificate-authority": "ca.crt"}
        kubeconfig = write_kubeconfig(tmp_path / "config", api.url, {"token": SECRET}, **ca)
        client = await connect("kubeconfig", kubeconfig)
        with pytest.raises(ClusterError, match="shows a certificate that is not trusted: "):
            await client.get(NODE)
        (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
        assert await client.get(NODE)


async def test_client_certificate_is_presented(authority: trustme.CA, tmp_path: Path, connect: Connect) -> None:
    """A kubeconfig with certificates works where the server insists on one."""
    identity = authority.issue_cert("admin@example.com")
    identity.private_key_pem.write_to_path(tmp_path / "key.pem")
    identity.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    async with serve_api(server_context(authority, client_certificates=True)) as api:
        api.put(NODES, node("a"))
        ca = {"certificate-authority": "ca.pem"}
        kubeconfig = write_kubeconfig(tmp_path / "config", api.url, user, **ca)
        client = await connect("kubeconfig", kubeconfig)
        assert await client.get(NODE)


async def test_context_chooses_the_cluster(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that is named beats the current one, and $KUBECONFIG is where it is sought by default."""
    async with serve_api() as other:
        kubeconfig = str(write_contexts(tmp_path, {"other": (other, ""), "wanted": (api, "")}))
        monkeypatch.setenv("KUBECONFIG", kubeconfig)
        monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
        for choice in ("auto#wanted", f"{kubeconfig}#wanted"):
            client = await open_chosen_cluster(choice, time.monotonic)
            assert await client.get(NODE)
            await client.close()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("", "cannot use the kubeconfig", id="empty"),
        pytest.param("[]", "cannot use the kubeconfig", id="list"),
        pytest.param(f"users: [{SECRET}", "cannot use the kubeconfig", id="no YAML"),
        pytest.param(f"users: [{{name: u, token: {SECRET}}}]", "Expected key current-context", id="no context"),
    ],
)
async def test_malformed_kubeconfig_is_an_error_without_its_secrets(text: str, expected: str, tmp_path: Path) -> None:
    """The message says which file, and quotes none of its credentials."""
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ClusterError, match=expected) as caught:
        await open_cluster("kubeconfig", str(path), clock=time.monotonic)
    assert str(path) in str(caught.value)
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    "user",
    [
        {"exec": {"command": "cat"}, "token": SECRET},
        {"auth-provider": {"name": "oidc", "config": {"refresh-token": SECRET}}},
        {"exec": {"apiVersion": "v1", "command": "sh", "args": ["-c", f"echo '{{{SECRET}' >&2; exit 3"]}},
        {"exec": {"apiVersion": "v1", "command": "/absent/plugin"}},
        {"client-certificate-data": "%%%"},
    ],
    ids=["incomplete plugin", "incomplete provider", "failing plugin", "absent plugin", "no certificate"],
)
async def test_unusable_credentials_are_an_error_without_them(user: dict[str, Any], tmp_path: Path) -> None:
    """Whatever kubernetes-asyncio quotes of a user's entry stays out of our message."""
    kubeconfig = write_kubeconfig(tmp_path / "config", "https://127.0.0.1:1", user)
    with pytest.raises(ClusterError, match="cannot use the kubeconfig") as caught:
        await open_cluster("kubeconfig", kubeconfig, clock=time.monotonic)
    assert SECRET not in str(caught.value)


async def test_in_cluster_outside_a_pod_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode was forced, and there is no service account."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="cannot use the in-cluster configuration"):
        await open_cluster("in-cluster", clock=time.monotonic)
