"""The files in deploy on a real control plane: accepted as they are, and asked about the pods that they select.

They are made from the chart, and that the service works with its settings and rights is in `test_chart.py`. What a test
changes is what a test must: addresses on loopback.
"""

import asyncio
import re
import ssl
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import msgspec
import pytest
import yaml
from aiohttp import web
from aiohttp.test_utils import TestServer

from extender.kubernetes.core_v1 import Pod
from extender.placement.mutation import untouched
from extender.placement.policy import Policy, read_overrides
from testbed.api_client import ApiClient, ApiError
from testbed.cluster_provider import running_scheduler
from testbed.control_plane import LocalCluster
from testbed.objects import KubernetesObject, namespace, pod

pytestmark = pytest.mark.e2e

DEPLOY = Path(__file__).parents[2] / "deploy"
CERTIFICATES = Path(__file__).parents[2] / "docs" / "how-to" / "certificates.md"
MODES = ("second-scheduler", "default-scheduler", "webhook", "policy")
OURS = "multiarch-extender"
READY_SECONDS = 60.0

Apply = Callable[[str], Awaitable[dict[str, KubernetesObject]]]


def load(file: str) -> list[KubernetesObject]:
    """The documents of a file in deploy."""
    return list(yaml.safe_load_all((DEPLOY / file).read_text()))


def kinds_of(file: str) -> dict[str, KubernetesObject]:
    """The documents of a file by kind, the last of each."""
    return {document["kind"]: document for document in load(file)}


@pytest.fixture
async def apply(api: ApiClient) -> AsyncIterator[Apply]:
    """Applies a file of manifests and gives its objects by kind; all but the namespace are gone after the test."""
    applied: list[KubernetesObject] = []

    async def apply_file(file: str) -> dict[str, KubernetesObject]:
        for document in load(file):
            applied.append(document)
            await api.apply(document)
        return kinds_of(file)

    yield apply_file
    for document in reversed(applied):
        if document["kind"] != "Namespace":  # which nobody would finalise
            await _forget(api, document)


async def _forget(api: ApiClient, document: KubernetesObject) -> None:
    metadata = document["metadata"]
    try:
        await api.delete(document["kind"], metadata["name"], metadata.get("namespace", ""), document["apiVersion"])
    except ApiError as exc:
        if exc.status != 404:
            raise


# --- what the API server and kube-scheduler say of the files


async def test_every_document_is_accepted_and_applying_a_file_again_changes_nothing(
    api: ApiClient, apply: Apply
) -> None:
    """All files one after the other, and then each again: what they share is the same in each.

    CEL that does not compile would be refused here.
    """
    files = [*(f"manifests/{mode}.yaml" for mode in MODES), "network-policy.yaml"]
    for file in files:
        await apply(file)
    for file in files:
        versions = [await _version(api, document) for document in load(file)]
        await apply(file)
        assert [await _version(api, document) for document in load(file)] == versions, file


async def _version(api: ApiClient, document: KubernetesObject) -> str:
    metadata = document["metadata"]
    found = await api.get(document["kind"], metadata["name"], metadata.get("namespace", ""), document["apiVersion"])
    return f"{document['kind']}/{metadata['name']} {found['metadata']['resourceVersion']}"


@pytest.mark.parametrize(
    ("mode", "refusal"),
    [
        ("second-scheduler", ""),
        ("webhook", ""),
        ("policy", ""),
        ("default-scheduler", r"restricted:latest\": host namespaces \(hostNetwork=true\), hostPort \([^)]*\)$"),
    ],
    ids=["second-scheduler", "webhook", "policy", "default-scheduler"],
)
async def test_pods_meet_the_restricted_standard_but_for_the_hosts_network(
    api: ApiClient, mode: str, refusal: str
) -> None:
    """Pod Security admission itself judges a pod made from the template."""
    strict = namespace("strict")
    strict["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
    await api.apply(strict)
    (workload,) = (each for each in load(f"manifests/{mode}.yaml") if each["kind"] in ("Deployment", "DaemonSet"))
    template = workload["spec"]["template"]
    made = {"apiVersion": "v1", "kind": "Pod", "metadata": {**template["metadata"], "name": "p"}}
    request = api.request("POST", "/api/v1/namespaces/strict/pods?dryRun=All", {**made, "spec": template["spec"]})
    if refusal:
        with pytest.raises(ApiError, match=f"403: .*{refusal}"):
            await request
    else:
        assert (await request)["metadata"]["name"] == "p"


def test_the_default_schedulers_file_is_loaded_with_kubeadms_flags(control_plane: LocalCluster) -> None:
    """Beside --config kubeadm passes these; kube-scheduler becomes the leader and is ready."""
    configuration = (DEPLOY / "scheduler/default-scheduler.yaml").read_text()
    flags = ["--leader-elect=true", f"--kubeconfig={control_plane.kubeconfig}"]
    with running_scheduler(control_plane, configuration, "default-file", flags):
        pass


def test_the_second_schedulers_file_is_loaded(control_plane: LocalCluster) -> None:
    """The file as it is; only the lease is another, as this identity may hold the default scheduler's alone."""
    configuration = yaml.safe_load((DEPLOY / "scheduler/second-scheduler.yaml").read_text())
    configuration["leaderElection"] = {"leaderElect": False}
    with running_scheduler(control_plane, configuration, "second-file"):
        pass


async def test_the_static_pod_with_what_is_added_to_it_is_a_valid_pod(api: ApiClient) -> None:
    """Lists added to those of a kube-scheduler pod as kubeadm writes it, in short."""
    made = pod("kube-scheduler", "registry.k8s.io/kube-scheduler:v1.36.3", namespace="kube-system")
    (container,), (added,) = made["spec"]["containers"], load("scheduler/static-pod.yaml")
    (more,) = added["spec"]["containers"]
    container |= {"command": ["kube-scheduler", *more["command"]], "volumeMounts": more["volumeMounts"]}
    made["spec"]["volumes"] = added["spec"]["volumes"]
    created = await api.request("POST", "/api/v1/namespaces/kube-system/pods?dryRun=All", made)
    assert created["spec"]["volumes"][0]["hostPath"]["type"] == "Directory"


# --- which pods the API server asks about, by the files' own conditions and selectors


def make_certificate(name: str, folder: Path) -> None:
    """tls.crt and tls.key as the page on certificates says to make them by hand."""
    _run(_fenced("openssl req").replace("name=multiarch-webhook", f"name={name}"), folder)


def _fenced(word: str) -> str:
    """The only block of commands on the page on certificates in which the word occurs."""
    blocks = re.findall(r"```sh\n(.*?)```", CERTIFICATES.read_text(), re.DOTALL)
    (found,) = (block for block in blocks if word in block)
    return str(found)


def _run(script: str, folder: Path) -> str:
    return subprocess.run(["sh", "-ec", script], cwd=folder, check=True, capture_output=True, text=True).stdout


async def _lead_to(api: ApiClient, objects: dict[str, KubernetesObject], port: int, folder: Path) -> None:
    """The Service leads out of the cluster, to a port of this machine, with the certificate in the folder.

    The API server still wants the Service's name in it, and comes to trust it by the page's `kubectl patch`; another
    apply does not undo that.
    """
    service, configuration = objects["Service"], objects["MutatingWebhookConfiguration"]
    outside = {"type": "ExternalName", "externalName": "127.0.0.1", "clusterIP": None, "clusterIPs": None}
    await api.patch("Service", service["metadata"]["name"], {"spec": outside}, OURS)
    for webhook in configuration["webhooks"]:
        webhook["clientConfig"]["service"]["port"] = port
    await api.apply(configuration)
    name = configuration["metadata"]["name"]
    kubectl = 'kubectl() { test "$1" != patch || { printf %s "$6"; echo; }; }'
    patches = _run(f"name={name}\n{kubectl}\n{_fenced('caBundle')}", folder).splitlines()
    path = f"/apis/{configuration['apiVersion']}/mutatingwebhookconfigurations/{name}"
    for patch in patches[: len(configuration["webhooks"])]:  # as the page says, a file has one or two
        await api.request("PATCH", path, msgspec.json.decode(patch), content_type="application/json-patch+json")
    await api.apply(configuration)


CONTROLLER = {
    "apiVersion": "apps/v1",
    "name": "owner",
    "uid": "1b4e28ba-2fa1-11d2-883f-0016d3cca427",
    "controller": True,
}
DAEMON_SET = {**CONTROLLER, "kind": "DaemonSet"}
REPLICA_SET = {**CONTROLLER, "kind": "ReplicaSet"}
NOT_IN_CHARGE = {**DAEMON_SET, "controller": False}


MIRROR = "kubernetes.io/config.mirror"

# Pods by name: metadata, spec, and whether the webhook is asked about them.
PODS: dict[str, tuple[KubernetesObject, KubernetesObject, bool]] = {
    "bare": ({}, {}, True),
    "pinned-to-an-architecture": ({}, {"nodeSelector": {"kubernetes.io/arch": "amd64"}}, True),
    "bound": ({}, {"nodeName": "amd64"}, False),
    "mirror": ({"annotations": {MIRROR: "hash"}}, {"nodeName": "amd64"}, False),
    "ignored": ({"annotations": {"multiarch-extender.io/mode": "ignore"}}, {}, False),
    "observed": ({"annotations": {"multiarch-extender.io/mode": "observe"}}, {}, True),
    "misspelt": ({"annotations": {"multiarch-extender.io/mode": "Ignore"}}, {}, True),
    "foreign-annotation": ({"annotations": {"other": "ignore"}}, {}, True),
    "of-a-daemon-set": ({"ownerReferences": [DAEMON_SET]}, {}, True),
    "of-a-replica-set": ({"ownerReferences": [REPLICA_SET]}, {}, True),
    "not-controlled-by-its-daemon-set": ({"ownerReferences": [NOT_IN_CHARGE, REPLICA_SET]}, {}, True),
}


def pod_of(name: str) -> KubernetesObject:
    """The pod of that name in PODS."""
    metadata, spec, _ = PODS[name]
    made = pod(name, "registry.example.com/app:1", spec=spec)
    made["metadata"] |= metadata
    return made


class Recorder:
    """A webhook that allows everything, and remembers which pods it was asked about."""

    def __init__(self) -> None:
        self.reviewed: set[str] = set()

    async def handle(self, request: web.Request) -> web.Response:
        """AdmissionReview for AdmissionReview."""
        review = await request.json()
        created = review["request"]
        self.reviewed.add(f"{created['namespace']}/{created['name']}")
        return web.json_response({**review, "request": None, "response": {"uid": created["uid"], "allowed": True}})


@pytest.fixture
async def recorder(tmp_path: Path) -> AsyncIterator[tuple[Recorder, Callable[[str], Awaitable[int]]]]:
    """A recorder, and what starts it as the Service of a name; that gives its port."""
    recorder, servers = Recorder(), []

    async def serve_as(name: str) -> int:
        make_certificate(name, tmp_path)
        context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        context.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
        application = web.Application()
        application.router.add_post("/admission/pods", recorder.handle)
        server = TestServer(application, scheme="https")
        await server.start_server(ssl=context)
        servers.append(server)
        return server.port or 0

    yield recorder, serve_as
    for server in servers:
        await server.close()


async def dry_run(api: ApiClient, made: KubernetesObject) -> KubernetesObject:
    """The pod as it would be created."""
    return await api.request("POST", f"/api/v1/namespaces/{made['metadata']['namespace']}/pods?dryRun=All", made)


async def test_the_api_server_asks_about_the_pods_that_the_service_looks_at(
    api: ApiClient, apply: Apply, recorder: tuple[Recorder, Callable[[str], Awaitable[int]]], tmp_path: Path
) -> None:
    """By conditions and selectors it comes to what the service itself would have said."""
    await api.apply(namespace("conditions"))
    objects = await apply("manifests/webhook.yaml")
    webhook, serve_as = recorder
    await _lead_to(api, objects, await serve_as(objects["Service"]["metadata"]["name"]), tmp_path)
    await _asked_about(api, webhook, "conditions")
    for name in PODS:
        made = pod_of(name)
        made["metadata"]["namespace"] = "conditions"
        await dry_run(api, made)
    mirror = pod("unbound-mirror", "registry.example.com/app:1", namespace="conditions", annotations={MIRROR: "hash"})
    with pytest.raises(ApiError, match=r"must set spec\.nodeName"):  # said after all webhooks have been asked
        await dry_run(api, mirror)
    for name in ("default", "kube-system", "kube-public", "kube-node-lease", OURS):
        await dry_run(api, pod("p", "registry.example.com/app:1", namespace=name))
    expected = {name for name, (_, _, reviewed) in PODS.items() if reviewed}
    assert webhook.reviewed - {"conditions/probe"} == {"default/p", *(f"conditions/{name}" for name in expected)}
    told_of_only = {"of-a-daemon-set"}  # its node is chosen already
    assert {name for name in PODS if looked_at(pod_of(name))} == expected - told_of_only


async def _asked_about(api: ApiClient, webhook: Recorder, name: str) -> None:
    """Returns when the API server, which learns of webhooks by a watch, asks about pods of the namespace."""
    async with asyncio.timeout(READY_SECONDS):
        while f"{name}/probe" not in webhook.reviewed:
            await dry_run(api, pod("probe", "registry.example.com/app:1", namespace=name))


def looked_at(made: KubernetesObject) -> bool:
    """Whether the service would look at the pod's images when asked."""
    read = msgspec.convert(made, Pod)
    overrides = read_overrides(made["metadata"].get("annotations"), None)
    return untouched(read, overrides, Policy()) is None
