"""The chart on a real control plane: every preset in every mode is accepted, and what it installs does its work.

What a test changes is what a test must: addresses on loopback, and a kubeconfig where a pod would find its own.
"""

import asyncio
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from testbed.api_client import ApiClient
from testbed.binaries import chosen_kubernetes
from testbed.chart import CHART, objects_of, render
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.eventually import eventually
from testbed.objects import KubernetesObject, fake_node, kept_to, namespace, pod
from tests.e2e.installed_chart import (
    ASKED_FOR,
    GATED,
    MODES,
    OURS,
    PULL_SECRET,
    InstalledChart,
    balanced,
    create_held,
    installed,
)
from tests.e2e.pod_makers import definition, serve
from tests.e2e.policies import GATE, gates_of, has_mutating_policies, until_held
from tests.e2e.rights import ONCE_A_POD_CHANGES, Right, recording, rights_of, used_rights
from tests.unit.deploy.renderings import CASES, leaves

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("helm_program")]

PRESETS = sorted(CHART.glob("values-*.yaml"))
WITH_POLICY = {
    "policy": {"webhook": {"enabled": False}, "policy": {"enabled": True}},
    "policy-and-webhook": {"policy": {"enabled": True}},
    "all-and-policy": {**MODES["all"], "policy": {"enabled": True}},
    "all-but-webhook": {**MODES["all"], "policy": {"enabled": True}, "webhook": {"enabled": False}},
}
EVERYTHING = {
    "monitoring": {
        "labels": {"release": "prometheus"},
        "serviceMonitor": {
            "enabled": True,
            "interval": "15s",
            "labels": {"shard": "a"},
            "relabelings": [{"action": "labeldrop", "regex": "pod"}],
        },
        "prometheusRule": {"enabled": True},
        "dashboard": {"enabled": True, "annotations": {"grafana_folder": "Nodes"}},
    },
    "global": {"imageRegistry": "mirror.example.com", "imagePullSecrets": [{"name": "all"}]},
    "imagePullSecrets": ["pull"],
    "commonLabels": {"team": "a"},
    "podLabels": {"tier": "b"},
    "podAnnotations": {"note": "c"},
    "service": {"annotations": {"note": "d"}, "ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv4"]},
    "tolerations": [{"key": "dedicated", "operator": "Exists"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "pool", "operator": "Exists"}]}]
            }
        },
        "podAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 1, "podAffinityTerm": {"topologyKey": "rack", "labelSelector": {"matchLabels": {"a": "b"}}}}
            ]
        },
    },
    "topologySpreadConstraints": [{"topologyKey": "rack", "maxSkew": 2, "whenUnsatisfiable": "DoNotSchedule"}],
    "podDisruptionBudget": {"minAvailable": "50%", "unhealthyPodEvictionPolicy": "IfHealthyBudget"},
    "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 0}},
    "revisionHistoryLimit": 2,
    "podSecurityContext": {"fsGroupChangePolicy": "OnRootMismatch", "supplementalGroups": [7]},
    "securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"]}, "seccompProfile": {"type": "RuntimeDefault"}},
    "probes": {
        "startup": {"failureThreshold": 90},
        "liveness": {"initialDelaySeconds": 1, "timeoutSeconds": 5},
        "readiness": {"periodSeconds": 3, "successThreshold": 2},
    },
    "dnsPolicy": "None",
    "dnsConfig": {
        "nameservers": ["192.0.2.1"],
        "searches": ["example.com"],
        "options": [{"name": "ndots", "value": "1"}],
    },
    "serviceAccount": {"annotations": {"note": "e"}},
    "extraEnv": [{"name": "HTTPS_PROXY", "value": "http://proxy.example.com:3128"}],
    "extraVolumes": [{"name": "more", "emptyDir": {}}],
    "extraVolumeMounts": [{"name": "more", "mountPath": "/more"}],
    "initContainers": [{"name": "first", "image": "r.example.com/first:1"}],
    "extraContainers": [{"name": "beside", "image": "r.example.com/beside:1"}],
    "extraObjects": [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "more", "namespace": OURS}}],
    "overrides": {
        "webhook": {"serviceAccount": {"create": False, "name": "given"}, "podDisruptionBudget": {"enabled": False}},
        "policy": {"replicas": 3, "affinity": {"podAntiAffinity": {}}},
        "secondScheduler": {"priorityClassName": "", "strategy": {"type": "Recreate"}},
        "defaultScheduler": {"strategy": {"type": "OnDelete"}},
    },
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
    "monitoring.coreos.com": ("ServiceMonitor", "PodMonitor", "PrometheusRule"),
    "cert-manager.io": ("Issuer", "Certificate"),
}


# --- what the API server says of the objects


async def test_every_object_of_every_preset_and_mode_is_accepted(api: ApiClient) -> None:
    """By server-side dry run: presets as they are, modes with the defaults and with everything else switched on.

    So are the cases that are kept, in which every value is set.
    """
    await serve(api, *(definition(f"{group}/v1", kind) for group, kinds in FOREIGN.items() for kind in kinds))
    has_policies = await has_mutating_policies(api)
    for preset in PRESETS:
        await _accept(api, {}, [preset])
    for mode, modes in {**MODES, **(WITH_POLICY if has_policies else {})}.items():
        await _accept(api, {"modes": modes}, [])
        everything: dict[str, Any] = {"modes": modes, **EVERYTHING, **({} if mode == "default-scheduler" else POLICIES)}
        everything["webhook"] = {"annotations": {"note": "f"}}
        if modes.get("webhook", {}).get("enabled", True):
            everything["modes"] = {**modes, "webhook": {"workloads": "guard"}}
        if "secondScheduler" in modes:
            naming = {"enabled": True, "namingPolicy": "policy" in modes}
            everything["modes"] = {**everything["modes"], "secondScheduler": naming}
        await _accept(api, everything, [])
    for name, case in CASES.items():
        if has_policies or not {"policy", "namingPolicy"} & {key for path in leaves(case.values) for key in path}:
            await _accept(api, case.values, [CHART / f"values-{name}.yaml"] if case.preset else [])


async def _accept(api: ApiClient, values: Mapping[str, Any], files: Sequence[Path]) -> None:
    """Applies what the chart renders, as a dry run but for namespaces, in which the rest must be."""
    found = objects_of(render(values, files, kubernetes=chosen_kubernetes().version, hooks=True))
    assert found
    for name in sorted({OURS, *(each["metadata"].get("namespace", OURS) for each in found)}):
        await api.apply(namespace(name))
    for each in found:
        await api.apply(each, dry_run=each["kind"] != "Namespace")


# --- two replicas on the chart's own configuration, account and rights


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
        recording(control_plane, tmp_path) as recorder,
        installed(api, recorder.kubeconfig, registry, tmp_path, policy) as chart,
        chart.replicas(2) as replicas,
        balanced(ports := chart.ports("webhook")) as port,
    ):
        await create_held(api, registry)
        await chart.lead_to(port)
        # An image that no other pod has asked for: what anybody may pull is answered from memory.
        registry.add_manifest("team/first", "1", "linux/amd64")
        with_secret = pod("p", f"{registry.host}/team/first:1", spec={"imagePullSecrets": [{"name": "pull"}]})
        spec = await eventually(lambda: _dry_run(api, with_secret), _architectures)
        assert _architectures(spec) == ["amd64"]
        queued = {"kueue.x-k8s.io/queue-name": "team"}  # Jobs of a queue are given what their pods would get
        spec = await eventually(lambda: _template(api, f"{registry.host}/team/old:1", queued), _architectures)
        assert _architectures(spec) == ["amd64"]
        assert _architectures(await _template(api, f"{registry.host}/team/old:1", {})) == []
        assert await _answered(chart, 20, api, registry) == [True, True]
        del ports[0]
        ending = asyncio.create_task(replicas[0].stop())
        reviews = 0
        while not ending.done() or reviews < 100:
            assert _is_tolerant(await _dry_run(api, pod("p", f"{registry.host}/team/new:1"))), reviews
            reviews += 1
        # Of the held pods one is let go, and an event tells of the other.
        wanted = {Right("pods", "patch"), Right("events", "create")}
        await eventually(lambda: wanted <= used_rights(recorder, chart.objects))
        assert recorder.refused == set()
        assert used_rights(recorder, chart.objects) | {ONCE_A_POD_CHANGES} == rights_of(chart.objects)


async def _answered(chart: InstalledChart, count: int, api: ApiClient, registry: EmbeddedRegistry) -> list[bool]:
    """Whether each replica has answered reviews, after so many pods at once."""
    pods = [pod(f"p{index}", f"{registry.host}/team/new:1") for index in range(count)]
    specs = await asyncio.gather(*(_dry_run(api, each) for each in pods))
    assert all(map(_is_tolerant, specs))
    found = []
    async with aiohttp.ClientSession() as session:
        for operations in chart.ports("operations"):
            async with session.get(f"http://127.0.0.1:{operations}/metrics") as answer:
                text = await answer.text()
            counted = re.findall(r'^multiarch_requests_total\{endpoint="admission",[^}]*\} (\S+)', text, re.MULTILINE)
            found.append(sum(map(float, counted)) > 0)
    return found


async def test_the_default_schedulers_part_uses_every_right_it_has_and_no_other(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """Nodes, pods that wait, namespaces, and a pull secret."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)
    values = {"modes": MODES["default-scheduler"], "config": ASKED_FOR}
    async with (
        recording(control_plane, tmp_path) as recorder,
        installed(api, recorder.kubeconfig, registry, tmp_path, values) as chart,
        chart.replicas(1),
    ):
        waiting = pod("p", f"{registry.host}/team/old:1", spec={"imagePullSecrets": [{"name": "pull"}]})
        created = await api.create(waiting)
        [scheduler] = chart.ports("scheduler")
        arguments = {"Pod": created, "NodeNames": ["amd64", "arm64"]}
        await eventually(
            lambda: _filtered(f"http://127.0.0.1:{scheduler}/scheduler/filter", arguments),
            lambda found: found == ["amd64"] and rights_of(chart.objects) <= used_rights(recorder, chart.objects),
        )
        assert recorder.refused == set()
        assert used_rights(recorder, chart.objects) == rights_of(chart.objects)


async def _filtered(url: str, arguments: KubernetesObject) -> list[str]:
    async with aiohttp.ClientSession() as session, session.post(url, data=json.dumps(arguments)) as answer:
        result = await answer.json(content_type=None)
        return result.get("NodeNames") or []


async def _template(api: ApiClient, image: str, labels: dict[str, str]) -> KubernetesObject:
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


async def test_the_policys_part_lets_pods_go_and_uses_every_right_it_has_and_no_other(
    api: ApiClient, control_plane: LocalCluster, registry: EmbeddedRegistry, tmp_path: Path
) -> None:
    """The API server holds a pod, and two replicas let it go under their own account's policy; none listens for it."""
    if not await has_mutating_policies(api):
        pytest.skip("Kubernetes serves MutatingAdmissionPolicy from 1.36 on")
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.apply(PULL_SECRET)
    async with (
        recording(control_plane, tmp_path) as recorder,
        installed(
            api, recorder.kubeconfig, registry, tmp_path, {"modes": WITH_POLICY["policy"], "config": ASKED_FOR}
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
    created = await api.request("POST", "/api/v1/namespaces/default/pods?dryRun=All", made)
    spec: KubernetesObject = created["spec"]
    return spec


def _is_tolerant(spec: KubernetesObject) -> bool:
    return any(each.get("key") == "kubernetes.io/arch" for each in spec["tolerations"])


def _architectures(spec: KubernetesObject) -> list[str]:
    return kept_to(spec, "kubernetes.io/arch")
