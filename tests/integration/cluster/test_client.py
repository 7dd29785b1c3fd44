"""The API client against a server on loopback: credentials of every kind, refusals, and what ends a stream."""

import asyncio
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

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
)
from extender.errors import ClusterError
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, Refusal, node, serve_api

NODES = "/api/v1/nodes"
NODE = f"{NODES}/a"
LIST = {"limit": "250"}
WATCH = {"watch": "true", "resourceVersion": "100"}
SECRET = "s3cr3t-t0ken"


@pytest.fixture
async def api() -> AsyncIterator[ApiServer]:
    async with serve_api() as server:
        server.put(NODES, node("a"))
        yield server


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


async def open_plain(api: ApiServer, folder: Path, clock: Clock | None = None, token: str = SECRET) -> ClusterClient:
    kubeconfig = write_kubeconfig(folder / "config", api.url, {"token": token})
    return await open_cluster("kubeconfig", kubeconfig, clock=clock or Clock())


@pytest.fixture
async def client(api: ApiServer, tmp_path: Path) -> AsyncIterator[ClusterClient]:
    opened = await open_plain(api, tmp_path)
    yield opened
    await opened.close()


async def test_get_gives_the_bytes_of_the_answer(api: ApiServer, client: ClusterClient) -> None:
    """The body comes back undecoded, asked for with the token, the media type and without compression."""
    api.tokens = {SECRET}
    query = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "limit": "5"}
    body = await client.get(NODE, query, accept="application/json;as=Thing")
    assert json.loads(body)["metadata"]["name"] == "a"
    assert api.requests[-1].query == query
    headers = api.requests[-1].headers
    assert headers["Authorization"] == f"Bearer {SECRET}"
    assert headers["Accept"] == "application/json;as=Thing"
    assert headers["Accept-Encoding"] == "identity"


async def test_proxies_of_the_environment_are_not_used(
    api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are for registries: lists and watches reach the API server itself, and no proxy sees a connection."""
    connections = []

    def count(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(writer)
        writer.close()

    async with await asyncio.start_server(count, "127.0.0.1", 0) as proxy:
        monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}")
        opened = await open_plain(api, tmp_path)
        try:
            await opened.get(NODE)
            async with aclosing(opened.stream(NODES, WATCH, stall_seconds=5)) as lines:
                api.bookmark(NODES)
                await anext(lines)
        finally:
            await opened.close()
    assert connections == []


@pytest.mark.parametrize("status", [403, 410, 429, 500, 301])
async def test_refusal_carries_its_status_and_its_words(api: ApiServer, client: ClusterClient, status: int) -> None:
    """Callers tell statuses apart; the operator reads what the API server said."""
    api.refusals.append(("get", Refusal(status, "nodes is forbidden", {"Retry-After": "7", "Location": "/elsewhere"})))
    with pytest.raises(ClusterRefused, match=f"HTTP {status} nodes is forbidden") as caught:
        await client.get(NODE)
    assert (caught.value.status, caught.value.retry_after_seconds) == (status, 7.0)


async def test_long_words_of_a_refusal_are_cut(api: ApiServer, client: ClusterClient) -> None:
    """A message from outside does not fill the log."""
    api.refusals.append(("get", Refusal(500, "x" * 10_000)))
    with pytest.raises(ClusterRefused) as caught:
        await client.get(NODE)
    assert len(str(caught.value)) < 300


async def test_answer_beyond_the_cap_is_refused(api: ApiServer, client: ClusterClient) -> None:
    """A body is read up to the caller's limit and no further."""
    assert len(await client.get(NODE, body_bytes=10_000)) > 100
    with pytest.raises(ClusterError, match="longer than 100 bytes"):
        await client.get(NODE, body_bytes=100)


async def test_slow_answer_is_an_error(api: ApiServer, client: ClusterClient) -> None:
    """A request has a time limit, from the connection to the last byte."""
    api.is_open.clear()
    with pytest.raises(ClusterError, match="TimeoutError"):
        await client.get(NODE, timeout_seconds=0.02)


async def test_cancelled_request_leaves_the_client_usable(api: ApiServer, client: ClusterClient) -> None:
    """A caller that gives up while a list is slow takes nobody with it."""
    api.is_open.clear()
    listing = asyncio.create_task(client.get(NODES, LIST))
    await eventually(lambda: api.received("list"))
    listing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await listing
    api.is_open.set()
    assert await client.get(NODE)


async def test_unreachable_server_is_an_error(closed_port: int, tmp_path: Path) -> None:
    """Nobody listens: a ClusterError that names the host, without a status."""
    kubeconfig = write_kubeconfig(tmp_path / "config", f"http://127.0.0.1:{closed_port}", {"token": SECRET})
    client = await open_cluster("kubeconfig", kubeconfig)
    with pytest.raises(ClusterError, match=r"127\.0\.0\.1") as caught:
        await client.get(NODE)
    assert not isinstance(caught.value, ClusterRefused)
    await client.close()


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


@pytest.mark.parametrize("status", [409, 500])
async def test_refused_change_carries_its_status(api: ApiServer, client: ClusterClient, status: int) -> None:
    """And is sent once."""
    api.refusals.append(("send", Refusal(status, "no")))
    with pytest.raises(ClusterRefused, match=f"HTTP {status} no") as caught:
        await client.send("PATCH", NODE, b"{}", MERGE_PATCH)
    assert caught.value.status == status
    assert len(api.received("send")) == 1


async def test_change_is_sent_again_after_a_401(api: ApiServer, client: ClusterClient) -> None:
    """The API server has changed nothing then."""
    api.refusals.append(("send", Refusal(401)))
    assert await client.send("PATCH", NODE, b"{}", MERGE_PATCH)
    assert len(api.received("send")) == 2


async def test_namespace_is_that_of_the_context(api: ApiServer, tmp_path: Path) -> None:
    """As kubectl takes it; without one `default`."""
    kubeconfig = write_kubeconfig(tmp_path / "config", api.url, {"token": SECRET})
    document = yaml.safe_load(Path(kubeconfig).read_text())
    for namespace in ("default", "shop"):
        client = await open_cluster("kubeconfig", kubeconfig)
        assert client.namespace == namespace
        await client.close()
        document["contexts"][0]["context"]["namespace"] = "shop"
        Path(kubeconfig).write_text(yaml.safe_dump(document))


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


async def test_silent_stream_is_a_loss(client: ClusterClient) -> None:
    """No byte within the stall deadline: the peer may be long gone."""
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=0.05)) as lines:
        await anext(lines)
        with pytest.raises(ClusterError, match="Timeout"):
            await anext(lines)


async def test_broken_stream_is_a_loss(api: ApiServer, client: ClusterClient) -> None:
    """A connection that breaks is told apart from a watch that the server ended."""
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5)) as lines:
        await anext(lines)
        api.send(NODES, ConnectionError())
        with pytest.raises(ClusterError):
            await anext(lines)


async def test_endless_line_is_an_error(api: ApiServer, client: ClusterClient) -> None:
    """A line that never ends does not fill the memory."""
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5, line_bytes=1000)) as lines:
        await anext(lines)
        api.send(NODES, b"x" * 1001)
        with pytest.raises(ClusterError, match="longer than 1000 bytes"):
            await anext(lines)


async def test_closed_stream_ends_the_watch_at_the_server(api: ApiServer, client: ClusterClient) -> None:
    """A watch nobody reads any more does not stay open."""
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5)) as lines:
        await anext(lines)
        assert len(api.watchers(NODES)) == 1
    await eventually(lambda: not api.watchers(NODES))


async def test_token_that_was_replaced_is_read_again(api: ApiServer, tmp_path: Path) -> None:
    """A 401 makes us load the configuration anew and ask once more: the caller notices nothing."""
    client = await open_plain(api, tmp_path, token="first")
    api.tokens = {"second"}
    write_kubeconfig(tmp_path / "config", api.url, {"token": "second"})
    assert await client.get(NODE)
    assert [request.headers["Authorization"] for request in api.requests] == ["Bearer first", "Bearer second"]
    assert await client.get(NODE)
    assert len(api.requests) == 3
    await client.close()


async def test_requests_under_way_survive_a_new_token(api: ApiServer, tmp_path: Path) -> None:
    """A watch that was admitted goes on while another request makes us change the credentials."""
    client = await open_plain(api, tmp_path, token="first")
    async with aclosing(client.stream(NODES, WATCH, stall_seconds=5)) as lines:
        await anext(lines)
        api.tokens = {"second"}
        write_kubeconfig(tmp_path / "config", api.url, {"token": "second"})
        bodies = await asyncio.gather(*(client.get(NODE) for _ in range(5)))
        assert len(set(bodies)) == 1
        api.send(NODES, b"{}\n")
        assert await anext(lines) == b"{}"
    await client.close()


async def test_wrong_token_is_401_and_not_loaded_again_at_once(api: ApiServer, tmp_path: Path) -> None:
    """Credentials that are refused are reloaded at most once in ten seconds, whether they can be read or not."""
    clock = Clock()
    client = await open_plain(api, tmp_path, clock, token="wrong")
    api.tokens = {"right"}
    for _ in range(2):
        with pytest.raises(ClusterRefused, match="401 Unauthorized") as caught:
            await client.get(NODE)
        assert caught.value.status == 401
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
    await client.close()


@pytest.mark.filterwarnings("ignore:datetime.datetime.utcnow:DeprecationWarning")  # kubernetes-asyncio, Python 3.12
async def test_credential_plugin_is_run_again_when_its_token_is_refused(api: ApiServer, tmp_path: Path) -> None:
    """An exec plugin, as EKS, GKE and AKS have it, provides the token, and a new one when that expired."""
    credential = tmp_path / "credential.json"
    version = "client.authentication.k8s.io/v1"

    def issue(token: str) -> None:
        status = {"token": token, "expirationTimestamp": "2100-01-01T00:00:00Z"}
        credential.write_text(json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status}))

    plugin = {"apiVersion": version, "command": "cat", "args": [str(credential)]}
    issue("first")
    client = await open_cluster("kubeconfig", write_kubeconfig(tmp_path / "config", api.url, {"exec": plugin}))
    api.tokens = {"first"}
    assert await client.get(NODE)
    issue("second")
    api.tokens = {"second"}
    assert await client.get(NODE)
    assert [request.headers["Authorization"][7:] for request in api.requests] == ["first", "first", "second"]
    await client.close()


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


async def test_in_cluster_uses_the_service_account(pod: tuple[ApiServer, Path]) -> None:
    """Inside a pod, `auto` takes host, CA and token from where the kubelet puts them, and a rotated token in time."""
    api, folder = pod
    api.tokens = {"first"}
    client = await open_cluster("auto")
    assert await client.get(NODE)
    assert client.namespace == "shop"
    (folder / "token").write_text("second")
    api.tokens = {"second"}
    assert await client.get(NODE)
    await client.close()


async def test_in_cluster_token_that_cannot_be_read_leaves_the_last_one_in_use(
    pod: tuple[ApiServer, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Empty in the middle of a change, or gone: no request fails for it."""
    monkeypatch.setattr(configuration, "TOKEN_SECONDS", 0.0)
    api, folder = pod
    token = folder / "token"
    client = await open_cluster("auto")
    assert await client.get(NODE)
    token.write_text("")
    assert await client.get(NODE)
    token.unlink()
    assert await client.get(NODE)
    token.write_text("second")
    assert await client.get(NODE)
    assert [request.headers["Authorization"][7:] for request in api.requests] == ["first"] * 3 + ["second"]
    await client.close()


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


async def test_replaced_authority_is_loaded_again(authority: trustme.CA, tmp_path: Path) -> None:
    """A server certificate we cannot verify makes us read the CA again: it may have been rotated."""
    (tmp_path / "ca.crt").write_bytes(trustme.CA().cert_pem.bytes())
    async with serve_api(server_context(authority)) as api:
        api.put(NODES, node("a"))
        kubeconfig = write_kubeconfig(
            tmp_path / "config", api.url, {"token": SECRET}, **{"certificate-authority": str(tmp_path / "ca.crt")}
        )
        client = await open_cluster("kubeconfig", kubeconfig)
        with pytest.raises(ClusterError, match="CertificateError"):
            await client.get(NODE)
        (tmp_path / "ca.crt").write_bytes(authority.cert_pem.bytes())
        assert await client.get(NODE)
        await client.close()


async def test_client_certificate_is_presented(authority: trustme.CA, tmp_path: Path) -> None:
    """A kubeconfig with certificates works where the server insists on one."""
    identity = authority.issue_cert("admin@example.com")
    identity.private_key_pem.write_to_path(tmp_path / "key.pem")
    identity.cert_chain_pems[0].write_to_path(tmp_path / "cert.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    user = {"client-certificate": "cert.pem", "client-key": "key.pem"}
    async with serve_api(server_context(authority, client_certificates=True)) as api:
        api.put(NODES, node("a"))
        kubeconfig = write_kubeconfig(
            tmp_path / "config", api.url, user, **{"certificate-authority": str(tmp_path / "ca.pem")}
        )
        client = await open_cluster("kubeconfig", kubeconfig)
        assert await client.get(NODE)
        await client.close()


async def test_context_chooses_the_cluster(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that is named beats the current one, and $KUBECONFIG is where it is sought by default."""
    kubeconfig = {
        "current-context": "other",
        "contexts": [
            {"name": "other", "context": {"cluster": "nowhere", "user": "u"}},
            {"name": "wanted", "context": {"cluster": "here", "user": "u"}},
        ],
        "clusters": [
            {"name": "nowhere", "cluster": {"server": "http://127.0.0.1:1"}},
            {"name": "here", "cluster": {"server": api.url}},
        ],
        "users": [{"name": "u", "user": {"token": SECRET}}],
    }
    (tmp_path / "config").write_text(yaml.safe_dump(kubeconfig))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "127.0.0.1")
    for choice in ("auto#wanted", f"{tmp_path / 'config'}#wanted"):
        client = await open_chosen_cluster(choice)
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
        await open_cluster("kubeconfig", str(path))
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
        await open_cluster("kubeconfig", kubeconfig)
    assert SECRET not in str(caught.value)


async def test_in_cluster_outside_a_pod_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """The mode was forced, and there is no service account."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(ClusterError, match="cannot use the in-cluster configuration"):
        await open_cluster("in-cluster")
