"""The listener of facts as policy engines ask it: several images at once, with a token or Gatekeeper's certificate."""

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import pytest
import trustme
import yaml
from aiohttp import web

from extender.cluster.client import open_cluster
from extender.config.reading import load_config
from extender.demo.registry import EmbeddedRegistry
from extender.kubernetes.externaldata_v1beta1 import API_VERSION
from extender.server import authenticated
from extender.service.cluster_view import NoCluster
from extender.service.process import open_service
from tests.unit.docs.pages import blocks, page

AMD, ARM = "linux/amd64", "linux/arm64"
MAY_GET_PODS = {"auditor": {"", "shop"}, "reader": {"shop"}, "stranger": set[str]()}
Answer = tuple[int, dict[str, Any]]


class PrivateRegistry(EmbeddedRegistry):
    """Images under `team/` are for who has the operator's password."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The image, or a challenge."""
        authorization = request.headers.get("Authorization", "")
        if "/team/" not in request.path or authorization == aiohttp.encode_basic_auth("operator", "s3cret"):
            return await super().answer(request)
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="private"'})


async def review(request: web.BaseRequest) -> web.Response:
    """What an API server says of the tokens and the rights of MAY_GET_PODS."""
    spec = (await request.json())["spec"]
    if request.path.endswith("/tokenreviews"):
        name = spec["token"]
        status = {"authenticated": name in MAY_GET_PODS, "user": {"username": name}}
    else:
        status = {"allowed": spec["resourceAttributes"].get("namespace", "") in MAY_GET_PODS[spec["user"]]}
    return web.json_response({"spec": spec, "status": status})


class Facts:
    """The listener, and who calls it."""

    def __init__(self, url: str, registry: PrivateRegistry, trusted: trustme.CA, gatekeeper: trustme.CA) -> None:
        self.registry, self.gatekeeper = registry, gatekeeper
        self._url, self._trusted = url, trusted

    async def ask(
        self,
        path: str,
        body: object,
        *,
        token: str = "",
        certificate_of: trustme.CA | None = None,
        method: str = "POST",
    ) -> Answer:
        """The status and the body of the answer."""
        context = ssl.create_default_context()
        self._trusted.configure_trust(context)
        if certificate_of:
            certificate_of.issue_cert("gatekeeper-webhook-service.gatekeeper-system.svc").configure_cert(context)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        data = body if isinstance(body, bytes | AsyncIterator) else msgspec.json.encode(body)
        connector = aiohttp.TCPConnector(ssl=context)
        async with (
            aiohttp.ClientSession(connector=connector, headers=headers) as session,
            session.request(method, f"{self._url}{path}", data=data) as response,
        ):
            raw = await response.read()
            return response.status, msgspec.json.decode(raw) if raw.startswith(b"{") else {}

    async def provide(self, *images: str, **how: Any) -> Answer:
        """What Gatekeeper's request about these images is answered."""
        return await self.ask("/facts/gatekeeper", provider_request(*images), **how)

    def image(self, repository: str) -> str:
        """The reference of an image."""
        return f"{self.registry.host}/{repository}:1"


def provider_request(*images: str) -> dict[str, Any]:
    """The request as Gatekeeper sends it."""
    return {"apiVersion": API_VERSION, "kind": "ProviderRequest", "request": {"keys": list(images)}}


def items(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The items of a ProviderResponse."""
    assert (answer["apiVersion"], answer["kind"]) == (API_VERSION, "ProviderResponse")
    assert "systemError" not in answer["response"]
    found: list[dict[str, Any]] = answer["response"]["items"]
    return found


@pytest.fixture
async def facts(tmp_path: Path) -> AsyncIterator[Facts]:
    """A service with a public image for both architectures, and a private one for arm64."""
    async with AsyncExitStack() as stack:
        runner = web.ServerRunner(web.Server(review))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        registry = await stack.enter_async_context(PrivateRegistry())
        registry.add_index("library/multi", "1", [AMD, ARM])
        registry.add_manifest("team/app", "1", ARM)
        (tmp_path / "docker.json").write_bytes(
            msgspec.json.encode({"auths": {registry.host: {"username": "operator", "password": "s3cret"}}})
        )
        own, gatekeeper = trustme.CA(), trustme.CA()
        leaf = own.issue_cert("127.0.0.1")
        leaf.private_key_pem.write_to_path(tmp_path / "tls.key")
        leaf.cert_chain_pems[0].write_to_path(tmp_path / "tls.crt")
        gatekeeper.cert_pem.write_to_path(tmp_path / "gatekeeper.crt")
        files = {name: str(tmp_path / f"tls.{end}") for name, end in (("certificate", "crt"), ("key", "key"))}
        tls = {**files, "gatekeeper_ca": str(tmp_path / "gatekeeper.crt")}
        config = load_config(
            None,
            [
                "scheduler.listen=''", "admission.listen=''", "operations.listen=''", "facts.listen=127.0.0.1:0",
                f"facts.tls={tls}", "cache.url='memory:'", "shutdown.grace_seconds=0.5",
                "shutdown.linger_seconds=0.05", f"registry.plain_http=['{registry.host}']",
                f"registry.allow=['*', '{registry.host}']", f"registry.docker_config={tmp_path / 'docker.json'}",
            ],
        )  # fmt: skip
        view = NoCluster()
        view.client = await open_cluster("kubeconfig", str(kubeconfig(tmp_path, runner.addresses[0][1])))
        stack.push_async_callback(view.client.close)
        service = await stack.enter_async_context(open_service(config, view))
        yield Facts(service.urls["facts"], registry, own, gatekeeper)


def kubeconfig(folder: Path, port: int) -> Path:
    """A kubeconfig for a plain server on loopback."""
    path = folder / "kubeconfig"
    document = {
        "apiVersion": "v1", "kind": "Config", "current-context": "c", "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
    }  # fmt: skip
    path.write_bytes(msgspec.json.encode(document))
    return path


async def test_a_policy_asks_about_several_images_at_once(facts: Facts) -> None:
    """In order, each with its state; what the operator's credentials open only to who may read pods everywhere."""
    multi, private, missing = (facts.image(name) for name in ("library/multi", "team/app", "library/missing"))
    body = {"images": [multi, private, missing]}
    status, told = await facts.ask("/facts", body, token="auditor")
    assert status == 200
    assert [each["image"] for each in told["images"]] == [multi, private, missing]
    assert [each["architectures"] for each in told["images"]] == [["amd64", "arm64"], ["arm64"], []]
    assert [each["state"] for each in told["images"]] == ["known", "known", "pending"]
    status, told = await facts.ask("/facts", {**body, "namespace": "shop"}, token="reader")
    assert status == 200
    assert [(each["state"], each["cause"], each["digest"]) for each in told["images"]][1] == ("unknown", "denied", "")
    assert (await facts.ask("/facts", body, token="reader"))[0] == 403
    assert (await facts.ask("/facts", {**body, "namespace": "bank"}, token="reader"))[0] == 403
    assert (await facts.ask("/facts", {**body, "namespace": "shop"}, token="stranger"))[0] == 403
    assert (await facts.ask("/facts", body))[0] == 401


async def test_gatekeeper_is_told_what_anybody_may_know(facts: Facts) -> None:
    """By its certificate alone: a private image is an error, also while the service knows it for others."""
    multi, private = facts.image("library/multi"), facts.image("team/app")
    status, told = await facts.provide(private, token="auditor")
    assert (status, items(told)[0]["value"]["platforms"]) == (200, [ARM])
    status, told = await facts.provide(multi, private, "not an image", certificate_of=facts.gatekeeper)
    assert status == 200
    known, denied, invalid = items(told)
    assert (known["key"], known["value"]["state"], known["value"]["platforms"]) == (multi, "known", [AMD, ARM])
    assert known["value"]["digest"].startswith("sha256:")
    assert denied.keys() == {"key", "error"}
    assert denied["error"].startswith("unknown: denied: ")
    assert ARM not in denied["error"]
    assert invalid["error"].startswith("unknown: invalid-reference: ")


async def test_a_certificate_opens_nothing_else(facts: Facts) -> None:
    """The other paths need a token, and a certificate of another authority ends the handshake."""
    multi = facts.image("library/multi")
    own = facts.gatekeeper
    assert (await facts.ask("/facts", {"images": [multi]}, certificate_of=own))[0] == 401
    assert (await facts.ask(f"/facts?image={multi}", b"", certificate_of=own, method="GET"))[0] == 401
    assert (await facts.ask("/explain?namespace=shop&pod=p", b"", certificate_of=own, method="GET"))[0] == 401
    status, told = await facts.provide(multi)
    assert (status, told["response"].keys()) == (401, {"systemError"})
    status, told = await facts.provide(multi, token="reader")
    assert (status, "every namespace" in told["response"]["systemError"]) == (403, True)
    with pytest.raises((aiohttp.ClientError, ssl.SSLError, OSError)):
        await facts.provide(multi, certificate_of=trustme.CA())


@pytest.mark.parametrize(
    ("path", "body", "status", "complaint"),
    [
        ("/facts", b"{", 400, "the body cannot be read"),
        ("/facts", {"images": ["a"], "namespaces": ""}, 400, "unknown field"),
        ("/facts", {"images": ["a"] * 65}, 400, "65 images are asked about; give 64 at most"),
        ("/facts", {"images": ["a" * 1025]}, 400, "an image has more than 1024 characters"),
        ("/facts", b" " * 200_000, 413, "the body has more than 131072 bytes"),
        ("/facts/gatekeeper", {"kind": "ProviderRequest", "apiVersion": "v9"}, 400, "send a ProviderRequest of exter"),
        ("/facts/gatekeeper", provider_request(*["a"] * 65), 400, "give 64 at most"),
    ],
)
async def test_other_bodies_are_refused_with_what_would_be_right(
    facts: Facts, path: str, body: object, status: int, complaint: str
) -> None:
    """In the form that the caller reads: Gatekeeper's policies look at a systemError, and would miss another."""
    found, told = await facts.ask(path, body, token="auditor")
    assert found == status
    why = told["response"]["systemError"] if path.endswith("gatekeeper") else told["error"]
    assert complaint in why


async def test_a_body_that_does_not_arrive_ends_the_request(facts: Facts, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody keeps a request open by sending slowly."""
    monkeypatch.setattr(authenticated, "BODY_SECONDS", 0.1)
    assert (await facts.ask("/facts", {"images": []}, token="auditor"))[0] == 200
    before = asyncio.all_tasks()

    async def endless() -> AsyncIterator[bytes]:
        yield b'{"images": ['
        await asyncio.sleep(60)

    status, told = await facts.ask("/facts", endless(), token="auditor")
    assert (status, told["error"]) == (408, "the body has not arrived within 0.1 s")
    async with asyncio.timeout(10):  # the service waits a moment longer for the end of the body, and then for none
        while asyncio.all_tasks() - before:
            await asyncio.sleep(0.05)


def policies() -> dict[str, Any]:
    """The policies of the page about them, by kind."""
    documents = map(yaml.safe_load, blocks(page("how-to/ask-from-a-policy.md"), "yaml"))
    return {document["kind"]: document for document in documents}


async def test_the_documented_policies_ask_what_is_answered(facts: Facts) -> None:
    """Their paths exist, Kyverno's fields are those of the body and of the answer, and Gatekeeper's parts fit."""
    found = policies()
    [rule] = found["ClusterPolicy"]["spec"]["rules"]
    call, lacking = rule["context"]
    [data] = call["apiCall"]["data"]
    path = urlsplit(call["apiCall"]["service"]["url"]).path
    status, told = await facts.ask(path, {data["key"]: [facts.image("library/multi")]}, token="auditor")
    assert status == 200
    selected = re.search(r"facts\.(\w+)\[\?(\w+) == '(\w+)' && !contains\((\w+), ", lacking["variable"]["jmesPath"])
    assert selected
    [first] = told[selected[1]]
    assert first[selected[2]] == selected[3]
    assert "arm64" in first[selected[4]]
    provider, template, constraint = (found[each] for each in ("Provider", "ConstraintTemplate", "ImagesRunOn"))
    assert provider["apiVersion"] == API_VERSION
    path = urlsplit(provider["spec"]["url"]).path
    assert (await facts.ask(path, provider_request("a"), certificate_of=facts.gatekeeper))[0] == 200
    [target] = template["spec"]["targets"]
    assert f'"provider": "{provider["metadata"]["name"]}"' in target["rego"]
    names = template["spec"]["crd"]["spec"]
    assert names["names"]["kind"] == constraint["kind"]
    properties = names["validation"]["openAPIV3Schema"]["properties"]
    assert constraint["spec"]["parameters"].keys() == properties.keys()


async def test_lookups_have_a_budget_for_each_user(facts: Facts) -> None:
    """Who asks about more new images than it may is refused, others are not, and what is known costs nothing of it."""
    multi = facts.image("library/multi")
    assert (await facts.ask("/facts", {"images": [multi]}, token="auditor"))[0] == 200

    def question(round_: int) -> dict[str, Any]:
        return {"images": [facts.image(f"library/new-{round_}-{number}") for number in range(60)], "namespace": "shop"}

    found = await asyncio.gather(*(facts.ask("/facts", question(number), token="auditor") for number in range(4)))
    assert sorted(status for status, _ in found) == [200, 200, 503, 503]
    [why, _] = [told["error"] for status, told in found if status == 503]
    assert why == "60 images are to be looked up, and too many others are; try again"
    assert (await facts.ask("/facts", {"images": [multi] * 64}, token="auditor"))[0] == 200
    one = {"images": [facts.image("library/other")], "namespace": "shop"}
    assert (await facts.ask("/facts", one, token="reader"))[0] == 200
