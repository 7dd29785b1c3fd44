"""What every answer of a registry means: one row per thing that can go wrong, and what must not go wrong with it."""

import asyncio
import gzip
import json
import ssl
from collections.abc import Iterator, Mapping
from types import SimpleNamespace

import aiohttp
import pytest
from aiohttp import web
from aiohttp.client_reqrep import ConnectionKey
from aioresponses import aioresponses
from yarl import URL

from extender import errors
from extender.credentials.keyring import ANONYMOUS
from extender.images.reference import ImageReference, digest_of, parse_reference
from extender.metrics import REGISTRY
from testbed.faulty_registry import Fault, FaultyRegistry
from testbed.images import OCI
from tests.integration.registry.conftest import APP, INDEX, MakeClient, answers, app_at, deaf_host, stall

SECRET, LATER = "body-of-a-stranger", "Tue, 14 Nov 2023 22:15:20 GMT"


def sends(status: int, headers: Mapping[str, str] | None = None, body: bytes = SECRET.encode()) -> Fault:
    return answers(status, headers, body)


async def send_half(request: web.BaseRequest) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"{")
    assert request.transport is not None
    request.transport.close()
    return response


async def break_off(request: web.BaseRequest) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.close()
    return web.Response()


async def talk_nonsense(request: web.BaseRequest) -> web.StreamResponse:
    assert isinstance(request.transport, asyncio.WriteTransport)
    request.transport.write(b"SSH-2.0-OpenSSH_9.2\r\n\r\n")
    request.transport.close()
    return web.Response()


JSON, OTHER = {"Content-Type": OCI.index}, digest_of(b"another")
GZIP = JSON | {"Content-Encoding": "gzip"}


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        pytest.param(sends(400), errors.RegistryRefusedImage, "refuses team/app (400)", id="400"),
        pytest.param(sends(403), errors.RegistryDenied, "denies access to team/app (403)", id="403"),
        pytest.param(sends(404), errors.ManifestNotFound, "has no team/app:1", id="404"),
        pytest.param(sends(408), errors.RegistryFailed, "answered 408", id="408"),
        pytest.param(sends(412), errors.RegistryRefusedImage, "refuses team/app (412)", id="412"),
        pytest.param(sends(451), errors.RegistryRefusedImage, "refuses team/app (451)", id="451"),
        pytest.param(sends(429, {"Retry-After": LATER}), errors.RegistryThrottled, "come back later (429)", id="429"),
        pytest.param(sends(500), errors.RegistryFailed, "answered 500", id="500"),
        pytest.param(sends(204, body=b""), errors.RegistryFailed, "answered 204", id="204"),
        pytest.param(sends(206), errors.RegistryFailed, "answered 206", id="206"),
        pytest.param(
            sends(200, {"Content-Type": "text/html; charset=utf-8"}), errors.RegistryFailed, "a web page", id="web-page"
        ),
        pytest.param(sends(302), errors.RegistryUnavailable, "an address that is none", id="redirect-to-no-place"),
        pytest.param(break_off, errors.RegistryUnavailable, "broke off", id="no-answer"),
        pytest.param(talk_nonsense, errors.RegistryUnavailable, "no HTTP answer", id="no-http"),
        pytest.param(send_half, errors.RegistryUnavailable, "broke off", id="half-a-body"),
        pytest.param(sends(200, GZIP, gzip.compress(b"{}")), errors.RegistryFailed, "an encoded body", id="gzip"),
        pytest.param(
            sends(401, {"WWW-Authenticate": 'Bearer realm="x'}),
            errors.RegistryUnavailable,
            "malformed challenge",
            id="malformed-challenge",
        ),
        pytest.param(
            sends(401, {"WWW-Authenticate": "Negotiate"}),
            errors.RegistryDenied,
            "(401)",
            id="challenge-of-another-kind",
        ),
        pytest.param(
            sends(401, {"WWW-Authenticate": "Basic realm=x"}), errors.RegistryDenied, "(401)", id="login-wanted"
        ),
    ],
)
async def test_outcome_of_a_fetch(make_client: MakeClient, fault: Fault, error: type[Exception], words: str) -> None:
    """The error says whose fault it is, in a short sentence that holds nothing of what the registry sent."""
    async with FaultyRegistry(fault) as registry:
        with pytest.raises(error) as caught:
            await make_client(registry.host).fetch_manifest(app_at(registry), ANONYMOUS)
    assert type(caught.value) is error
    assert words in str(caught.value)
    assert str(caught.value).startswith(registry.host)
    assert SECRET not in str(caught.value)
    assert len(str(caught.value)) < 150
    if isinstance(caught.value, errors.RegistryThrottled):  # a date is measured by the clock that was given
        assert caught.value.retry_after_seconds == 120


async def test_stalling_registry_is_given_up(make_client: MakeClient) -> None:
    async with FaultyRegistry(stall) as registry:
        client = make_client(registry.host, timeout_seconds=0.05)
        with pytest.raises(errors.RegistryUnavailable, match=r"did not answer within 0\.05 s"):
            await client.fetch_manifest(app_at(registry), ANONYMOUS)


async def test_host_that_drops_packets_is_unreachable(make_client: MakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sooner than a host is given up that hangs, and to the blame of the host: it is asked no more for a while."""
    monkeypatch.setattr("extender.registry.http._CONNECT_SECONDS", 0.05)
    with deaf_host() as host, pytest.raises(errors.RegistryUnreachable, match="does not accept connections in time"):
        await make_client(host, timeout_seconds=1000).fetch_manifest(parse_reference(f"{host}/{APP}:1"), ANONYMOUS)


@pytest.mark.parametrize("host", ["127.0.0.1:99999", "[:]", "127.1:80", "a" * 64 + ".example"])
async def test_host_that_is_no_address(make_client: MakeClient, host: str) -> None:
    """Hosts that the grammar of references lets through end as the registry's fault, never as a crash."""
    reference = ImageReference(host, APP, "1", "")
    for client in (make_client(), make_client(host)):
        with pytest.raises(errors.RegistryUnavailable):
            await client.fetch_manifest(reference, ANONYMOUS)


@pytest.mark.parametrize(
    ("fault", "stated"),
    [
        pytest.param(None, INDEX.digest, id="digest"),
        pytest.param(sends(405), None, id="405-knows-no-head"),
        pytest.param(sends(200, JSON, b""), None, id="no-digest-header"),
        pytest.param(sends(200, JSON | {"Docker-Content-Digest": OTHER}, b""), OTHER, id="another"),
    ],
)
async def test_what_a_head_states(make_client: MakeClient, fault: Fault | None, stated: str | None) -> None:
    """The digest, or None where the registry does not say: then a GET must be asked."""
    async with FaultyRegistry(fault) as registry:
        client = make_client(registry.host)
        assert await client.head_manifest(app_at(registry), ANONYMOUS) == stated
        assert registry.requests == {"HEAD manifests": 1}
        by_digest = app_at(registry).with_digest(INDEX.digest)  # which states only that digest
        assert await client.head_manifest(by_digest, ANONYMOUS) == (stated if stated != OTHER else None)


async def test_bytes_decide_what_a_tag_is(make_client: MakeClient) -> None:
    """The digest is computed from the body; a header that contradicts it is not believed."""
    manifest = INDEX.manifests[-1]
    lie = {"Docker-Content-Digest": digest_of(b"another"), "Content-Type": f"{OCI.index}; charset=utf-8"}
    async with FaultyRegistry(sends(200, lie, manifest.body)) as registry:
        fetched = await make_client(registry.host).fetch_manifest(app_at(registry), ANONYMOUS)
    assert (fetched.digest, fetched.media_type, fetched.body) == (manifest.digest, OCI.index, manifest.body)


async def test_what_is_asked_for(make_client: MakeClient) -> None:
    """No encoding, whatever packages for other purposes teach aiohttp to decode, and each thing as what it is.

    All four types of manifests are accepted, so that no registry falls back to the amd64 child of a Docker list; some
    answer 406 to whoever accepts manifests alone.
    """
    manifest, asked = INDEX.manifests[-1], dict[str, list[str]]()

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        asked[request.path.split("/")[4]] = sorted(request.headers["Accept"].split(", "))
        assert request.headers.getall("Accept-Encoding") == ["identity"]
        body = b'{"tags": ["1"]}' if "tags" in request.path else manifest.body
        return web.Response(body=body, headers=JSON | {"Content-Encoding": "Identity"})

    async with FaultyRegistry(answer) as registry:
        client, reference = make_client(registry.host), app_at(registry).with_digest(manifest.digest)
        fetched = await client.fetch_manifest(reference, ANONYMOUS)
        assert (fetched.digest, fetched.body) == (manifest.digest, manifest.body)
        assert await client.fetch_tags(reference, ANONYMOUS) == ["1"]
        assert await client.fetch_blob(reference, manifest.digest, ANONYMOUS) == manifest.body
    types = ("docker.distribution.manifest.list.v2", "docker.distribution.manifest.v2", "oci.image.index.v1")
    accepted = [f"application/vnd.{each}+json" for each in (*types, "oci.image.manifest.v1")]
    assert asked == {"manifests": accepted, "tags": ["application/json"], "blobs": ["*/*"]}


@pytest.mark.parametrize(
    "body",
    [b"", INDEX.manifests[-1].body[:-1], b'{"errors":[{"code":"UNKNOWN"}]}', b"<html></html>"],
    ids=["empty", "cut", "error", "web-page"],
)
@pytest.mark.parametrize("headers", [{}, {"Docker-Content-Digest": INDEX.digest}], ids=["bare", "with-digest"])
async def test_answer_that_is_no_document_is_the_registrys_failure(
    make_client: MakeClient, body: bytes, headers: dict[str, str]
) -> None:
    """The image is not invalid: another request may bring it."""
    async with FaultyRegistry(sends(200, JSON | headers, body)) as registry:
        client = make_client(registry.host)
        with pytest.raises(errors.RegistryFailed, match="sent something that is no manifest"):
            await client.fetch_manifest(app_at(registry), ANONYMOUS)


@pytest.mark.parametrize("body", [b'{"layers":[],"x":"\\ud800"}', b'{"schemaVersion":2,"errors":[]}', b"{}", b"[]"])
async def test_document_that_the_registry_vouches_for_is_read(make_client: MakeClient, body: bytes) -> None:
    """What is wrong with it then is the image's fault."""
    async with FaultyRegistry(sends(200, JSON | {"Docker-Content-Digest": digest_of(body)}, body)) as registry:
        assert (await make_client(registry.host).fetch_manifest(app_at(registry), ANONYMOUS)).body == body


@pytest.mark.parametrize("body", [b"{}", b'{"status":"ok"}', b"[]", b"null"])
@pytest.mark.parametrize("digest", ["", INDEX.digest], ids=["by-tag", "by-digest"])
async def test_what_is_a_document_of_nothing_is_the_registrys_failure(
    make_client: MakeClient, body: bytes, digest: str
) -> None:
    """Once: the next answer may be the document."""
    async with FaultyRegistry(sends(200, JSON, body)) as registry:
        reference = app_at(registry).with_digest(digest) if digest else app_at(registry)
        with pytest.raises((errors.RegistryFailed, errors.InvalidManifest)) as caught:
            await make_client(registry.host).fetch_manifest(reference, ANONYMOUS)
        is_list = not body.startswith(b"{")  # of which the first byte says that it is no document, cut or not
        assert isinstance(caught.value, errors.InvalidManifest if digest and is_list else errors.RegistryFailed)


@pytest.mark.parametrize("code", ["TOOMANYREQUESTS", "toomanyrequests", "TOO_MANY_REQUEST"])
@pytest.mark.parametrize("status", [200, 400, 401, 403, 404, 412, 429, 500, 503])
async def test_too_many_requests_is_what_the_body_calls_so(make_client: MakeClient, status: int, code: str) -> None:
    """Whatever the status says; a challenge beside it is not answered."""
    body = json.dumps({"errors": [{"code": "OTHER"}, {"code": code, "message": "later"}]}).encode()
    headers = JSON | {"Retry-After": "7", "WWW-Authenticate": 'Bearer realm="/token"'}
    async with FaultyRegistry(sends(status, headers, body)) as registry:
        with pytest.raises(errors.RegistryThrottled) as caught:
            await make_client(registry.host).fetch_manifest(app_at(registry), ANONYMOUS)
        assert caught.value.retry_after_seconds == 7
        assert len(registry.shown) == 1


async def test_config_that_is_cut_is_the_registrys_failure(make_client: MakeClient) -> None:
    """As a manifest that is; other bytes under a digest are not."""
    config = b'{"os":"linux","architecture":"amd64"}'
    async with FaultyRegistry(sends(200, JSON, config[:-4])) as registry:
        client, reference = make_client(registry.host), app_at(registry)
        with pytest.raises(errors.RegistryFailed, match="sent something else than sha256:"):
            await client.fetch_blob(reference, digest_of(config), ANONYMOUS)
        registry.fault = sends(200, JSON, config)
        assert await client.fetch_blob(reference, digest_of(config), ANONYMOUS) == config


async def test_bytes_that_are_not_the_digests_are_refused(make_client: MakeClient) -> None:
    async with FaultyRegistry(sends(200, JSON, b'{"schemaVersion":2,"os":"linux"}')) as registry:
        client, reference = make_client(registry.host), app_at(registry).with_digest(INDEX.digest)
        with pytest.raises(errors.InvalidManifest, match=INDEX.digest):
            await client.fetch_manifest(reference, ANONYMOUS)
        with pytest.raises(errors.InvalidManifest, match=INDEX.digest):
            await client.fetch_blob(reference, INDEX.digest, ANONYMOUS)


def counted(code: str) -> float:
    return REGISTRY.get_sample_value("multiarch_registry_requests_total", {"code": code}) or 0.0


@pytest.mark.parametrize(
    ("fault", "code"),
    [(sends(200, JSON, b"{}"), "2xx"), (sends(404), "404"), (sends(418), "4xx"), (sends(700), "error"),
     (break_off, "error"), (stall, "error")],
    ids=["200", "404", "418", "700", "broken", "stalled"],
)  # fmt: skip
async def test_every_request_is_counted(make_client: MakeClient, fault: Fault, code: str) -> None:
    before = counted(code)
    async with FaultyRegistry(fault) as registry:
        client = make_client(registry.host, timeout_seconds=0.05 if fault is stall else 10)
        fetching = client.fetch_manifest(app_at(registry), ANONYMOUS)
        await asyncio.gather(fetching, return_exceptions=True)
    assert counted(code) == before + 1


POLICY = {"errors": [{"code": "PROJECTPOLICYVIOLATION", "message": "3 vulnerabilities"}]}


async def test_why_a_registry_refuses_an_image_is_read_of_the_answer_to_a_get(make_client: MakeClient) -> None:
    """That to a HEAD has no body."""

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(POLICY, status=412)

    async with FaultyRegistry(refuse) as registry:
        client, reference = make_client(registry.host), app_at(registry)
        assert await client.head_manifest(reference, ANONYMOUS) is None
        with pytest.raises(errors.RegistryRefusedImage) as caught:
            await client.fetch_manifest(reference, ANONYMOUS)
    assert (caught.value.status, caught.value.said) == (412, "3 vulnerabilities")


async def test_refusal_whose_text_never_ends_is_a_refusal_of_that_image(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would have said is not waited for, and the host is not to blame."""
    monkeypatch.setattr("extender.registry.http._REASON_SECONDS", 0.05)

    async def drip(request: web.BaseRequest) -> web.StreamResponse:
        response = web.StreamResponse(status=412)
        await response.prepare(request)
        await response.write(b'{"errors": [')
        await asyncio.Event().wait()
        return response

    async with FaultyRegistry(drip) as registry:
        with pytest.raises(errors.RegistryRefusedImage) as caught:
            await make_client(registry.host).fetch_manifest(app_at(registry), ANONYMOUS)
    assert (caught.value.status, caught.value.said) == (412, "")


async def test_name_server_that_hangs_blames_no_host(monkeypatch: pytest.MonkeyPatch, make_client: MakeClient) -> None:
    """The exchange's time is over before the C library gives up, which waits in a thread."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    client = make_client(timeout_seconds=0.05)
    for repository in ("one", "two", "three", "four"):  # a host to blame would rest after three
        with pytest.raises(errors.RegistryUnavailable, match=r"registry.example.com did not answer within 0\.05 s"):
            await client.head_manifest(parse_reference(f"registry.example.com/{repository}:1"), ANONYMOUS)


# What goes wrong on the way, and no server on loopback can bring about.
REMOTE = parse_reference("registry.example.com:5000/team/app:1")
KEY = ConnectionKey(
    "registry.example.com", 5000, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None
)
REQUEST = aiohttp.RequestInfo(URL("https://registry.example.com:5000"), "GET", SimpleNamespace(), URL())  # type: ignore[arg-type]  # only shown
DETAIL = "detail-of-the-network"


@pytest.fixture
def network() -> Iterator[aioresponses]:
    with aioresponses() as faked:
        yield faked


FAULTS = {
    "closed before headers": (aiohttp.ServerDisconnectedError(DETAIL), "broke off the connection"),
    "reset before headers": (aiohttp.ClientOSError(104, DETAIL), "broke off the connection"),
    "payload": (aiohttp.ClientPayloadError(DETAIL), "broke off the connection"),
    "name": (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, DETAIL)), "has a name that does not resolve"),
    "certificate": (
        aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError(1, DETAIL)),
        "shows a certificate that is not trusted",
    ),
    "tls": (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, DETAIL)), "cannot be reached over TLS"),
    "proxy is down": (aiohttp.ClientProxyConnectionError(KEY, OSError(111, DETAIL)), "the proxy does not accept"),
    "proxy says 407": (aiohttp.ClientHttpProxyError(REQUEST, (), status=407, message=DETAIL), "through the proxy"),
    "connect": (aiohttp.ConnectionTimeoutError(DETAIL), "does not accept connections in"),
    "bare time-out": (TimeoutError(DETAIL), "did not answer in time"),
    "no URL": (aiohttp.InvalidUrlClientError(DETAIL), "is no address to connect to"),
    "no HTTP": (aiohttp.ClientResponseError(REQUEST, (), message=DETAIL), "is no HTTP answer"),
    "anything else": (aiohttp.ClientError(DETAIL), "broke off the connection"),
}


@pytest.mark.parametrize(("fault", "words"), FAULTS.values(), ids=FAULTS)
async def test_fault_on_the_way_is_the_hosts(
    make_client: MakeClient, network: aioresponses, fault: Exception, words: str
) -> None:
    """Each has its words after the host's name, is counted, and keeps what caused it out of the message."""
    before = REGISTRY.get_sample_value("multiarch_registry_requests_total", {"code": "error"})
    assert before is not None
    network.get("https://registry.example.com:5000/v2/team/app/manifests/1", exception=fault)
    with pytest.raises(errors.RegistryUnavailable, match=words) as caught:
        await make_client().fetch_manifest(REMOTE, ANONYMOUS)
    assert str(caught.value).startswith("registry.example.com:5000 ")
    assert DETAIL not in str(caught.value)
    assert caught.value.__cause__ is fault
    assert REGISTRY.get_sample_value("multiarch_registry_requests_total", {"code": "error"}) == before + 1


@pytest.mark.parametrize(
    ("status", "part", "body", "read"),
    [(206, "bytes 2-4/9", b"cde", b"cde"), (206, "bytes 2-8/9", b"cdefghi", b"cde"), (206, "bytes 0-2/9", b"abc", None),
     (206, "", b"cde", None), (200, "", b"abcdefghi", b"cde")],
)  # fmt: skip
async def test_part_of_a_layer_is_the_one_that_was_asked_for(
    make_client: MakeClient, status: int, part: str, body: bytes, read: bytes | None
) -> None:
    """Nobody can check its digest. A registry that knows no ranges sends the whole."""
    async with FaultyRegistry(answers(status, {"Content-Range": part} if part else {}, body)) as registry:
        asked = make_client(registry.host).fetch_blob_part(app_at(registry), digest_of(b"abcdefghi"), ANONYMOUS, 2, 5)
        if read is not None:
            assert await asked == read
        else:
            with pytest.raises(errors.RegistryFailed, match="sent another part of a layer than was asked for"):
                await asked
