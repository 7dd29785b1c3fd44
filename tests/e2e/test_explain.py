"""`explain` on a real cluster: it says what kube-scheduler's event says, or the annotation where affinity decides."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import msgspec
import pytest
from aiohttp import web

from extender.demo.registry import EmbeddedRegistry
from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject
from testbed.processes import free_port
from testbed.shipped_files import Mode, identity_manifests
from tests.e2e.world import World

pytestmark = pytest.mark.e2e

REASON = "multiarch-extender.io/reason"
ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}


class CommandResult(NamedTuple):
    """What the command printed, and its exit code."""

    code: int
    output: str
    errors: str

    @property
    def told(self) -> list[dict[str, Any]]:
        """The explanations of `-o json`."""
        return msgspec.json.decode(self.output, type=list[dict[str, Any]])


async def run_command(
    world: World, *arguments: str, stdin: bytes = b"", kubeconfig: Path | None = None, host: str = ""
) -> CommandResult:
    """Runs a command of the package against the world's cluster and registry, or that of `host`."""
    host = host or world.registry.host
    settings = (
        f"registry.plain_http=['{host}']",
        f"registry.allow=['*', '{host}']",
        f"cluster.kubeconfig={kubeconfig or world.cluster.kubeconfig}",
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "extender", *arguments, *(f"--set={each}" for each in settings),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    output, errors = await asyncio.wait_for(process.communicate(stdin), 60)
    assert process.returncode is not None
    return CommandResult(process.returncode, output.decode(), errors.decode())


def answers(told: dict[str, Any]) -> dict[str, list[str]]:
    """The answers for nodes of each platform."""
    found: dict[str, list[str]] = {}
    for kind in told["nodes"]:
        found.setdefault(kind["platform"], []).append(kind["answer"])
    return found


def deployment(name: str, where: str, spec: KubernetesObject) -> KubernetesObject:
    """A Deployment whose pods have this spec."""
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": where},
        "spec": {
            "replicas": 0,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }


async def test_the_words_are_the_event_s(world: World) -> None:
    """A pod that the scheduler verbs refuse: each word of ours in the event is in the explanation."""
    await world.create_nodes("arm64", 2)
    await world.create_nodes("s390x", 1)
    service = await world.start_service(admission=False)
    where = await world.namespace()
    with world.second_scheduler(service):
        await world.create_pods(where, 1, world.images.multi, world.images.amd, scheduler="multiarch-scheduler")
        refusal = await world.wait_refused(where, "pod-0", "is built only for")
        event = await world.api.wait_for_event("pod-0", namespace=where)
    found = await run_command(world, "explain", "pod-0", "-n", where, "-o", "json")
    assert found.code == 1, found.errors
    [told] = found.told
    words = {kind["words"] for kind in told["nodes"]}
    assert words == {f"image {world.images.amd} is built only for linux/amd64"}
    # kube-scheduler writes `0/3 nodes are available: 3 WORDS.`, then what preemption found
    assert f": 3 {words.pop()}." in refusal["message"]
    assert f": 3 {told['refusal']}." in event
    assert answers(told) == {"linux/arm64": ["no"], "linux/s390x": ["no"]}
    assert [image["platforms"] for image in told["images"]] == [["linux/amd64", "linux/arm64"], ["linux/amd64"]]
    assert {image["credential"] for image in told["images"]} == {"anonymous"}


async def test_where_affinity_decides_the_words_are_the_annotation_s(world: World) -> None:
    """The event then says only that the node's affinity does not match."""
    await world.create_nodes("arm64", 2)
    service = await world.start_service("admission.node_affinity=required", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace()
    with world.default_scheduler(None):
        await world.create_pods(where, 1, world.images.amd)
        refusal = await world.wait_refused(where, "pod-0", "didn't match Pod's node affinity/selector")
    assert "built only" not in refusal["message"]
    annotation = (await world.api.get("Pod", "pod-0", where))["metadata"]["annotations"][REASON]
    setting = "--set=admission.node_affinity=required"
    [told] = (await run_command(world, "explain", "pod-0", "-n", where, "-o", "json", setting)).told
    [kind] = told["nodes"]
    assert kind["answer"] == "no"
    assert [each["rule"] for each in kind["obstacles"]] == ["selector"]
    assert kind["words"] == told["annotation"] == annotation
    assert told["webhook"]["patch"] == []  # a second pass changes nothing
    assert "kubernetes.io/arch" in told["added"]


async def test_a_workload_is_explained_as_its_pods_will_be_created(world: World) -> None:
    """With the toleration and affinity that the webhook would write, which a dry run of the real one confirms."""
    await world.create_nodes("arm64", 1, taints=[ARM_TAINT])
    await world.create_nodes("amd64", 1)
    await world.create_nodes("s390x", 1)
    service = await world.start_service("admission.node_affinity=required", mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    where = await world.namespace()
    spec = {"containers": [{"name": "c", "image": world.images.multi}]}
    await world.api.create(deployment("web", where, spec))
    setting = "--set=admission.node_affinity=required"
    live = await run_command(world, "explain", "deploy/web", "-n", where, "-o", "json", setting)
    assert live.code == 0, live.errors
    [told] = live.told
    assert answers(told) == {"linux/amd64": ["yes"], "linux/arm64": ["yes"], "linux/s390x": ["no"]}
    manifest = msgspec.json.encode(deployment("web", where, spec))
    from_file = await run_command(world, "explain", "-f", "-", "-o", "json", setting, stdin=manifest)
    assert from_file.told[0]["nodes"] == told["nodes"]
    assert from_file.told[0]["webhook"] == told["webhook"]
    created = await world.review(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": where}, "spec": spec}
    )
    written = [each["value"] for each in told["webhook"]["patch"] if each["path"].startswith("/spec/affinity")]
    assert written == [created["spec"]["affinity"]]
    shown = await run_command(world, "explain", "deploy/web", "-n", where, setting)
    assert "tolerates kubernetes.io/arch=arm64:NoSchedule" in shown.output
    assert "+    nodeAffinity:" in shown.output


async def test_taints_selectors_and_unknown_images_are_told_apart(world: World) -> None:
    """Each with what would change it; a pod on no node is exit code 1."""
    await world.create_nodes("arm64", 1, taints=[ARM_TAINT])
    await world.create_nodes("amd64", 1)
    where = await world.namespace()
    await world.create_pods(where, 1, world.images.multi, prefix="tainted", spec={"nodeSelector": {"zone": "b"}})
    await world.create_pods(where, 1, world.images.unpushed(), prefix="missing")
    tainted = await run_command(world, "explain", "tainted-0", "-n", where, "-o", "json")
    assert tainted.code == 1
    [told] = tainted.told
    assert {kind["images"] for kind in told["nodes"]} == {"yes"}
    assert answers(told) == {"linux/amd64": ["no"], "linux/arm64": ["no"]}
    assert "linux/arm64: tolerate the taint kubernetes.io/arch=arm64:NoSchedule" in told["remedies"]
    missing = await run_command(world, "explain", "missing-0", "-n", where, "-o", "json")
    assert missing.code == 1
    [told] = missing.told
    assert answers(told) == {"linux/amd64": ["unknown"], "linux/arm64": ["no"]}
    assert told["images"][0]["cause"] == "missing"


async def test_what_cannot_be_explained_is_an_error(world: World) -> None:
    """Exit code 2, one line, with what would be right."""
    where = await world.namespace()
    absent = await run_command(world, "explain", "absent", "-n", where)
    assert (absent.code, absent.output) == (2, "")
    assert "HTTP 404" in absent.errors
    unknown = await run_command(world, "explain", "service/web", "-n", where)
    assert unknown.code == 2
    assert "'service' is no kind with pods" in unknown.errors
    nothing = await run_command(world, "explain", "-f", "-", stdin=b"kind: ConfigMap\n")
    assert nothing.code == 2


class FactsService(NamedTuple):
    """A service whose listener of facts is on, and the tokens of three callers.

    The reader may get the pods of `where`, the auditor those of every namespace, the stranger none.
    """

    service: ExtenderProcess
    url: str
    where: str
    reader: str
    auditor: str
    stranger: str

    async def get(self, path: str, token: str, **query: str) -> tuple[int, dict[str, Any]]:
        """The status and the body of the answer to this caller."""
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        async with (
            aiohttp.ClientSession(self.url, headers=headers) as session,
            session.get(path, params=query) as response,
        ):
            return response.status, await response.json()


async def allow(world: World, name: str, rules: list[KubernetesObject], subject: KubernetesObject, where: str) -> None:
    """Gives the account a role of these rules, in the namespace or, if that is empty, everywhere."""
    prefix = "" if where else "Cluster"
    metadata = {"name": name, **({"namespace": where} if where else {})}
    api_version = "rbac.authorization.k8s.io/v1"
    role = {"apiVersion": api_version, "kind": f"{prefix}Role", "metadata": metadata, "rules": rules}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role["kind"], "name": name}
    binding = {"kind": f"{prefix}RoleBinding", "roleRef": reference, "subjects": [subject]}
    await world.api.apply(role)
    await world.api.apply({"apiVersion": api_version, "metadata": metadata, **binding})


async def account_token(world: World, name: str, where: str) -> tuple[KubernetesObject, str]:
    """A new ServiceAccount as a subject, and a token of it."""
    await world.api.create(
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name, "namespace": where}}
    )
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = f"/api/v1/namespaces/{where}/serviceaccounts/{name}/token"
    token = (await world.api.request("POST", path, request))["status"]["token"]
    return {"kind": "ServiceAccount", "name": name, "namespace": where}, token


async def start_facts_service(world: World, *settings: str, reviews: bool = True) -> FactsService:
    """Starts the service with the rights that docs/security.md names, and makes the callers."""
    where = await world.namespace()
    own = next(each["metadata"] for each in identity_manifests(Mode.SECOND) if each["kind"] == "ServiceAccount")
    subject = {"kind": "ServiceAccount", "name": own["name"], "namespace": own["namespace"]}
    await world.account(Mode.SECOND)
    rules: list[KubernetesObject] = [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
        {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    ]
    await allow(world, "multiarch-facts", rules if reviews else rules[2:], subject, "")
    listen = f"127.0.0.1:{free_port()}"
    service = await world.start_service(f"facts.listen={listen}", *settings, admission=False)
    reading: list[KubernetesObject] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
    tokens = []
    for name, namespace in (("reader", where), ("auditor", ""), ("stranger", None)):
        account, token = await account_token(world, name, where)
        if namespace is not None:
            await allow(world, f"{name}-{where}", reading, account, namespace)
        tokens.append(token)
    return FactsService(service, f"http://{listen}", where, *tokens)


async def test_a_service_explains_a_pod_to_who_may_read_it(world: World, tmp_path: Path) -> None:
    """From its memory; its words are those of the event, and everybody else learns nothing."""
    await world.create_nodes("arm64", 1)
    facts = await start_facts_service(world)
    with world.second_scheduler(facts.service):
        await world.create_pods(facts.where, 1, world.images.amd, scheduler="multiarch-scheduler")
        refusal = await world.wait_refused(facts.where, "pod-0", "is built only for")
    requests = world.registry.requests.total()
    query = {"namespace": facts.where, "pod": "pod-0"}
    status, told = await facts.get("/explain", facts.reader, **query)
    assert status == 200, told
    assert told["source"] == "the memory of the service"
    assert f": 1 {told['refusal']}." in refusal["message"]
    assert told["images"][0]["credential"] == "anonymous"
    refused = {
        "no token": await facts.get("/explain", "", **query),
        "no token of the cluster": await facts.get("/explain", "invented", **query),
        "no right": await facts.get("/explain", facts.stranger, **query),
        "no right elsewhere": await facts.get("/explain", facts.reader, namespace="kube-system", pod="pod-0"),
        "no such pod": await facts.get("/explain", facts.reader, namespace=facts.where, pod="absent"),
        "no pod named": await facts.get("/explain", facts.reader, namespace=facts.where),
        "a parameter of its own": await facts.get("/explain", facts.reader, **query, secret="x"),
    }
    assert {why: found for why, (found, _) in refused.items()} == {
        "no token": 401,
        "no token of the cluster": 401,
        "no right": 403,
        "no right elsewhere": 403,
        "no such pod": 404,
        "no pod named": 400,
        "a parameter of its own": 400,
    }
    assert not any(world.images.amd in body["error"] or "linux/" in body["error"] for _, body in refused.values())
    assert world.registry.requests.total() == requests  # nobody made it ask a registry
    await check_command(world, facts, tmp_path)
    log = world.logs()
    assert not any(token in log for token in (facts.reader, facts.auditor, facts.stranger))


async def check_command(world: World, facts: FactsService, folder: Path) -> None:
    """`explain --service` says what the service says, and adds the nodes that its own caller may list."""
    token = folder / "token"
    token.write_text(facts.reader)
    arguments = ("explain", "pod-0", "-n", facts.where, "-o", "json", "--service", facts.url, "--token-file")
    found = await run_command(world, *arguments, str(token))
    assert found.code == 1, found.errors
    [told] = found.told
    assert told["source"] == "the memory of the service"
    assert answers(told) == {"linux/arm64": ["no"]}
    assert told["nodes"][0]["words"] == f"image {world.images.amd} is built only for linux/amd64"
    token.write_text(facts.stranger)
    refused = await run_command(world, *arguments, str(token))
    assert (refused.code, refused.output) == (2, "")
    assert "HTTP 403" in refused.errors
    clear = await run_command(
        world,
        "explain",
        "pod-0",
        "-n",
        facts.where,
        "--service",
        "http://facts.example.com",
        "--token-file",
        str(token),
    )
    assert clear.code == 2
    assert "give https://" in clear.errors


class PrivateRegistry(EmbeddedRegistry):
    """A registry that serves only who has the operator's password."""

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """The image, or a challenge."""
        if request.headers.get("Authorization") == aiohttp.encode_basic_auth("operator", "s3cret"):
            return await super().answer(request)
        return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="private"'})


async def test_facts_of_an_image_are_told_to_who_may_read_pods(world: World, tmp_path: Path) -> None:
    """With what the operator's credentials open only to those who may read the pods of every namespace."""
    async with PrivateRegistry() as registry:
        registry.add_manifest("team/app", "1", "linux/arm64")
        private, hosts = f"{registry.host}/team/app:1", [registry.host, world.registry.host]
        login = {"username": "operator", "password": "s3cret"}
        file = tmp_path / "docker.json"
        file.write_bytes(msgspec.json.encode({"auths": {registry.host: login}}))
        facts = await start_facts_service(
            world,
            f"registry.docker_config={file}",
            f"registry.plain_http={hosts}",
            f"registry.allow={hosts}",
        )
        status, told = await facts.get("/facts", facts.auditor, image=world.images.multi)
        assert (status, told["state"], told["architectures"]) == (200, "known", ["amd64", "arm64"])
        status, told = await facts.get("/facts", facts.reader, image=world.images.multi, namespace=facts.where)
        assert (status, told["platforms"]) == (200, ["linux/amd64", "linux/arm64"])
        assert (await facts.get("/facts", facts.reader, image=world.images.multi))[0] == 403
        assert (await facts.get("/facts", facts.stranger, image=world.images.multi, namespace=facts.where))[0] == 403
        assert (await facts.get("/facts", "", image=world.images.multi))[0] == 401
        status, told = await facts.get("/facts", facts.auditor, image=private)
        assert (status, told["platforms"]) == (200, ["linux/arm64"])
        status, told = await facts.get("/facts", facts.reader, image=private, namespace=facts.where)
        assert (status, told["state"], told["platforms"], told["digest"]) == (200, "unknown", [], "")
        await world.create_pods(facts.where, 1, private)
        status, told = await facts.get("/explain", facts.reader, namespace=facts.where, pod="pod-0")
        assert told["images"][0]["credential"] == "the operator's Docker configuration"
        assert "s3cret" not in str(told)


async def test_a_service_without_the_right_to_review_tells_nobody(world: World) -> None:
    """It cannot know who asks, says so to nobody in detail, and goes on."""
    facts = await start_facts_service(world, reviews=False)
    await world.create_pods(facts.where, 1, world.images.amd)
    status, told = await facts.get("/explain", facts.reader, namespace=facts.where, pod="pod-0")
    assert (status, told) == (503, {"error": "the cluster cannot be asked now; try again"})
    assert await facts.service.is_ready()
