"""The chart on a real control plane: every preset in every mode is accepted, and what it installs does its work.

What a test changes is what a test must: addresses on loopback, and a kubeconfig where a pod would find its own.
"""

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import chosen_kubernetes
from testbed.chart import CHART, objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, fake_node, kept_to, namespace, pod
from tests.e2e.installed_chart import (
    GRACE_SECONDS,
    OURS,
    READY_SECONDS,
    InstalledChart,
    Right,
    balanced,
    installed,
    lead_to,
    recording,
    rights_of,
    used_rights,
)
from tests.e2e.policies import GATE, gates_of, until_held

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

PRESETS = sorted(CHART.glob("values-*.yaml"))
ASKED_FOR: Mapping[str, Any] = {"registry": {"pull_secrets": True}}
GATED: Mapping[str, Any] = {**ASKED_FOR, "admission": {"unknown": "gate"}}
ONCE_A_DAEMON_POD_COMES = Right("nodes", "get", "")  # whether its node runs it: test_workloads_webhook.py
ONCE_A_TAG_MOVES = Right("pods", "list", "")  # test_drift.py moves one, under the shipped rights
ONCE_A_POD_CHANGES = Right("pods", "get", "")  # a held one, as it is let go: test_gates_failures.py
MODES = {
    "webhook": {},
    "second-scheduler": {"webhook": {"enabled": False}, "secondScheduler": {"enabled": True}},
    "default-scheduler": {"webhook": {"enabled": False}, "defaultScheduler": {"enabled": True}},
    "all": {"secondScheduler": {"enabled": True}, "defaultScheduler": {"enabled": True}},
}
WITH_POLICY = {
    "policy": {"webhook": {"enabled": False}, "policy": {"enabled": True}},
    "policy-and-webhook": {"policy": {"enabled": True}},
    "all-and-policy": {**MODES["all"], "policy": {"enabled": True}},
    "all-but-webhook": {**MODES["all"], "policy": {"enabled": True}, "webhook": {"enabled": False}},
}
EVERYTHING = {
    "monitoring": dict.fromkeys(("serviceMonitor", "prometheusRule", "dashboard"), True),
    "certificates": {"source": "certManager"},
    "store": {"keySecret": "k"},
    "registries": {"caConfigMap": "m", "hosts": {"docker.io:443": ""}, "dockerConfigSecret": "d"},
}
POLICIES = {
    "networkPolicy": {
        "ingress": {"enabled": True, "apiServer": ["10.0.0.0/28"], "operations": [{"namespaceSelector": {}}]}
    }
}
FOREIGN = {
    "monitoring.coreos.com": ("servicemonitors", "podmonitors", "prometheusrules"),
    "cert-manager.io": ("issuers", "certificates"),
}
KINDS = {
    "servicemonitors": "ServiceMonitor",
    "podmonitors": "PodMonitor",
    "prometheusrules": "PrometheusRule",
    "issuers": "Issuer",
}


# --- what the API server says of the objects


@pytest.fixture
async def foreign_kinds(api: ApiClient) -> None:
    """Minimal CustomResourceDefinitions of the Prometheus operator and of cert-manager, which stay."""
    for group, plurals in FOREIGN.items():
        for plural in plurals:
            await api.apply(_definition(group, plural))
    async with asyncio.timeout(READY_SECONDS):
        for group, plurals in FOREIGN.items():
            while not set(plurals) <= await _served(api, f"{group}/v1"):
                await asyncio.sleep(0.1)


async def _served(api: ApiClient, version: str) -> set[str]:
    """The names of the resources that the API server serves in that version."""
    try:
        return {each["name"] for each in (await api.request("GET", f"/apis/{version}"))["resources"]}
    except ApiError:
        return set()


def _definition(group: str, plural: str) -> KubernetesObject:
    kind = KINDS.get(plural, "Certificate")
    schema = {
        "type": "object",
        "properties": {"spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}},
    }
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"plural": plural, "singular": kind.lower(), "kind": kind, "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


@pytest.mark.usefixtures("foreign_kinds")
@pytest.mark.parametrize("preset", PRESETS, ids=lambda file: file.stem)
async def test_every_object_of_a_preset_is_accepted(api: ApiClient, preset: Path) -> None:
    """By server-side dry run, as the preset is. That it goes with each mode is in the chart's unit tests."""
    await _accept(api, {}, [preset])


@pytest.mark.usefixtures("foreign_kinds")
@pytest.mark.parametrize("mode", [*MODES, *WITH_POLICY])
async def test_every_object_of_a_mode_is_accepted(api: ApiClient, mode: str) -> None:
    """By server-side dry run, with the defaults, and with everything else switched on as well."""
    if mode in WITH_POLICY and "mutatingadmissionpolicies" not in await _served(api, "admissionregistration.k8s.io/v1"):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    modes = {**MODES, **WITH_POLICY}[mode]
    await _accept(api, {"modes": modes}, [])
    everything: dict[str, Any] = {"modes": modes, **EVERYTHING, **({} if mode == "default-scheduler" else POLICIES)}
    if modes.get("webhook", {}).get("enabled", True):
        everything["modes"] = {**modes, "webhook": {"workloads": "guard"}}
    if "secondScheduler" in modes:
        by = "policy" if "policy" in modes else "webhook"
        everything["modes"] = {**everything["modes"], "secondScheduler": {"enabled": True, "outage": by}}
    await _accept(api, everything, [])


async def _accept(api: ApiClient, values: Mapping[str, Any], files: Sequence[Path]) -> None:
    """Applies what the chart renders, as a dry run but for namespaces, in which the rest must be."""
    found = objects_of(render(values, files, kubernetes=chosen_kubernetes().version, hooks=True))
    assert found
    for name in sorted({OURS, *(each["metadata"].get("namespace", OURS) for each in found)}):  # OpenShift has some
        await api.apply(namespace(name))
    for each in found:
        await api.apply(each, dry_run=each["kind"] != "Namespace")


# --- two replicas on the chart's own configuration, account and rights


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    """A registry with an image for amd64 alone, and one for both architectures."""
    async with EmbeddedRegistry() as running:
        running.add_manifest("team/old", "1", "linux/amd64")
        running.add_index("team/new", "1", ["linux/amd64", "linux/arm64"])
        yield running


PULL_SECRET = {
    "apiVersion": "v1",
    "kind": "Secret",
    "metadata": {"name": "pull", "namespace": "default"},
    "type": "kubernetes.io/dockerconfigjson",
    "data": {".dockerconfigjson": base64.b64encode(b'{"auths": {}}').decode()},
}


async def test_two_replicas_of_the_webhook_use_every_right_they_have_and_no_other(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """A network policy and rights that are asked for: certificate, ports, settings and rights are the chart's own."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)
    policy = {
        "networkPolicy": {"ingress": {"enabled": True, "apiServer": ["127.0.0.1/32"]}},
        "config": GATED,
    }
    async with (
        recording(control_plane) as (recorder, server),
        installed(api, control_plane, server, registry, tmp_path, policy) as chart,
        chart.replicas(2) as replicas,
        balanced(ports := [admission for _, admission, _ in chart.ports]) as port,
    ):
        await create_held(api, registry)
        await lead_to(api, chart.objects, port)
        # An image that no other pod has asked for: what anybody may pull is answered from memory.
        registry.add_manifest("team/first", "1", "linux/amd64")
        with_secret = pod("p", f"{registry.host}/team/first:1", spec={"imagePullSecrets": [{"name": "pull"}]})
        spec = await eventually(lambda: _dry_run(api, with_secret), _architectures)
        assert _architectures(spec) == ["amd64"]
        assert await _answered(chart, 20, api, registry) == [True, True]
        del ports[0]
        ending = asyncio.create_task(asyncio.to_thread(replicas[0].stop, GRACE_SECONDS))
        reviews = 0
        while not ending.done() or reviews < 100:
            assert _is_tolerant(await _dry_run(api, pod("p", f"{registry.host}/team/new:1"))), reviews
            reviews += 1
        async with asyncio.timeout(READY_SECONDS):
            # A canary; and of the held pods one is let go, and an event tells of the other.
            wanted = {Right("pods", "create"), Right("pods", "patch"), Right("events", "create")}
            while not wanted <= used_rights(recorder, chart.objects):
                await asyncio.sleep(0.05)
        assert recorder.refused == set()
        others = {ONCE_A_POD_CHANGES, ONCE_A_DAEMON_POD_COMES}
        assert used_rights(recorder, chart.objects) | others == rights_of(chart.objects)


async def create_held(api: ApiClient, registry: EmbeddedRegistry) -> None:
    """Two pods that our gate holds: of an image that the registry has, and of one that it lacks, as an event tells."""
    for name in ("old", "late"):
        held = pod(f"held-{name}", f"{registry.host}/team/{name}:1", labels={"multiarch-extender.io/gated": "true"})
        held["spec"]["schedulingGates"] = [GATE]
        await api.create(held)


async def _answered(chart: InstalledChart, count: int, api: ApiClient, registry: EmbeddedRegistry) -> list[bool]:
    """Whether each replica has answered reviews, after so many pods at once."""
    pods = [pod(f"p{index}", f"{registry.host}/team/new:1") for index in range(count)]
    specs = await asyncio.gather(*(_dry_run(api, each) for each in pods))
    assert all(map(_is_tolerant, specs))
    found = []
    async with aiohttp.ClientSession() as session:
        for _, _, operations in chart.ports:
            async with session.get(f"http://127.0.0.1:{operations}/metrics") as answer:
                text = await answer.text()
            counted = re.findall(r'^multiarch_requests_total\{endpoint="admission",[^}]*\} (\S+)', text, re.MULTILINE)
            found.append(sum(map(float, counted)) > 0)
    return found


async def test_the_default_schedulers_part_uses_every_right_it_has_and_no_other(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Nodes, pods that wait, namespaces, a node that its watch has not seen, and a pull secret."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)
    values = {"modes": MODES["default-scheduler"], "config": ASKED_FOR}
    async with (
        recording(control_plane) as (recorder, server),
        installed(api, control_plane, server, registry, tmp_path, values) as chart,
        chart.replicas(1),
    ):
        waiting = pod("p", f"{registry.host}/team/old:1", spec={"imagePullSecrets": [{"name": "pull"}]})
        created = await api.create(waiting)
        scheduler = chart.ports[0][0]
        arguments = {"Pod": created, "NodeNames": ["amd64", "arm64", "new"]}
        async with asyncio.timeout(READY_SECONDS), aiohttp.ClientSession() as session:
            while True:
                url = f"http://127.0.0.1:{scheduler}/scheduler/filter"
                async with session.post(url, data=json.dumps(arguments)) as answer:
                    result = await answer.json(content_type=None)
                missing = rights_of(chart.objects) - used_rights(recorder, chart.objects)
                if not missing and result.get("NodeNames") == ["amd64", "new"]:
                    break
                await asyncio.sleep(0.1)
        assert recorder.refused == set()
        assert used_rights(recorder, chart.objects) == rights_of(chart.objects)


async def test_jobs_of_a_queue_are_given_what_their_pods_would_get(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """The service has the API server trust both webhooks of the configuration; with no more rights than that."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    values = {"canary": {"enabled": False}}
    async with (
        recording(control_plane) as (recorder, server),
        installed(api, control_plane, server, registry, tmp_path, values) as chart,
        chart.replicas(1),
    ):
        await lead_to(api, chart.objects, chart.ports[0][1])
        queued = {"kueue.x-k8s.io/queue-name": "team"}
        spec = await eventually(lambda: _template(api, f"{registry.host}/team/old:1", queued), _architectures)
        await eventually(lambda: _dry_run(api, pod("p", f"{registry.host}/team/old:1")), _architectures)
        assert _architectures(spec) == ["amd64"]
        assert _architectures(await _template(api, f"{registry.host}/team/old:1", {})) == []
        assert recorder.refused == set()
        configurations = {right for right in rights_of(chart.objects) if right.resource.startswith("mutating")}
        assert {right.name for right in configurations} == {f"{OURS}-webhook"}
        assert configurations <= used_rights(recorder, chart.objects)


async def _template(api: ApiClient, image: str, labels: dict[str, str]) -> KubernetesObject:
    """The spec of the pods of a Job as it would be created."""
    template = {"spec": {"containers": [{"name": "c", "image": image}], "restartPolicy": "Never"}}
    job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "queued", "namespace": "default", "labels": labels},
        "spec": {"template": template, "suspend": True},
    }
    created = await api.request("POST", "/apis/batch/v1/namespaces/default/jobs?dryRun=All", job)
    spec: KubernetesObject = created["spec"]["template"]["spec"]
    return spec


async def test_the_scheduler_is_named_by_a_webhook_of_its_own(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Without the other webhook of that part; no pod is created in an outage."""
    second = {"enabled": True, "outage": "webhook"}
    values = {"modes": {"webhook": {"enabled": False}, "secondScheduler": second}, "canary": {"enabled": False}}
    labelled = namespace("labelled")
    labelled["metadata"]["labels"]["multiarch-extender.io/scheduler"] = "multiarch-scheduler"
    await api.apply(labelled)
    async with (
        recording(control_plane) as (recorder, server),
        installed(api, control_plane, server, registry, tmp_path, values) as chart,
    ):
        async with chart.replicas(1):
            await lead_to(api, chart.objects, chart.ports[0][1])
            await eventually(
                lambda: _scheduler_name(api, "labelled", registry.host), lambda found: found == "multiarch-scheduler"
            )
            version = "admissionregistration.k8s.io/v1"
            await api.patch("MutatingWebhookConfiguration", f"{OURS}-scheduler", {"webhooks": []}, api_version=version)
            await asyncio.sleep(2)  # until the API server has taken notice
            assert await _scheduler_name(api, "labelled", registry.host) == "multiarch-scheduler"
            assert await _scheduler_name(api, "default", registry.host) == "default-scheduler"
            assert recorder.refused == set()
        assert "failed calling webhook" in await _scheduler_name(api, "labelled", registry.host)
        assert await _scheduler_name(api, "default", registry.host) == "default-scheduler"


async def _scheduler_name(api: ApiClient, where: str, host: str) -> str:
    """The scheduler of a pod as it would be created there, or why it would not be."""
    made = pod("p", f"{host}/team/new:1", namespace=where)
    try:
        found = await api.request("POST", f"/api/v1/namespaces/{where}/pods?dryRun=All", made)
    except ApiError as exc:
        return str(exc)
    return str(found["spec"]["schedulerName"])


async def test_the_policys_part_lets_pods_go_and_uses_every_right_it_has_and_no_other(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """The API server holds a pod, and two replicas let it go under their own account's policy; none listens for it."""
    if "mutatingadmissionpolicies" not in await _served(api, "admissionregistration.k8s.io/v1"):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)
    async with (
        recording(control_plane) as (recorder, server),
        installed(
            api, control_plane, server, registry, tmp_path, {"modes": WITH_POLICY["policy"], "config": ASKED_FOR}
        ) as chart,
        chart.replicas(2),
    ):
        await until_held(api)
        spec = {"imagePullSecrets": [{"name": "pull"}]}
        created = await api.create(pod("p", f"{registry.host}/team/old:1", spec=spec))
        assert gates_of(created) == [GATE]
        await api.create(pod("waiting", f"{registry.host}/team/late:1"))  # an event tells why
        found = await eventually(lambda: api.get("Pod", "p"), lambda found: not gates_of(found))
        await eventually(lambda: Right("events", "create") in recorder.used)
        assert gates_of(await api.get("Pod", "waiting")) == [GATE]
        assert _architectures(found["spec"]) == ["amd64"]
        assert recorder.refused == set()
        rights = rights_of(chart.objects)
        assert used_rights(recorder, chart.objects) | {ONCE_A_POD_CHANGES} == rights


async def _dry_run(api: ApiClient, made: KubernetesObject) -> KubernetesObject:
    """The spec of the pod as it would be created."""
    created = await api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", made)
    spec: KubernetesObject = created["spec"]
    return spec


def _is_tolerant(spec: KubernetesObject) -> bool:
    """Whether the webhook has given the pod a toleration for tainted pools."""
    return any(each.get("key") == "kubernetes.io/arch" for each in spec["tolerations"])


def _architectures(spec: KubernetesObject) -> list[str]:
    """The architectures that nodeSelector or required node affinity allows."""
    return kept_to(spec, "kubernetes.io/arch")
