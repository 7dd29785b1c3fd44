"""The API server of the worlds against kube-apiserver: the same requests, and what is answered and stored."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from testbed import api_client
from testbed.memory_http import Client, serve_http
from testbed.memory_network import run_in_memory
from testbed.objects import KubernetesObject
from tests.e2e.world import World
from tests.worlds.api_errors import ApiError
from tests.worlds.api_kinds import KINDS
from tests.worlds.api_requests import ApiRequests
from tests.worlds.api_server import APPLY_PATCH, HOST, JSON_PATCH, MERGE_PATCH, PORT, ApiServer
from tests.worlds.api_server import STRATEGIC_MERGE_PATCH as SMP
from tests.worlds.installation import put_in_place
from tests.worlds.test_api_server import ACCEPTED, ARCH, AT_TERMS, REFUSED, pod, terms
from tests.worlds.test_applying import GPU, OWN, SHAPES, ZONE
from tests.worlds.trace import Trace

pytestmark = pytest.mark.e2e

_SEEN = ("affinity", "tolerations", "nodeSelector", "schedulingGates", "schedulerName", "activeDeadlineSeconds")
_CONTAINER = ("name", "image", "imagePullPolicy", "ports", "env", "resources")
_WHY_CHARACTERS = 100


class Step(NamedTuple):
    """A request; `path` is below the collection of the kind in a namespace."""

    method: str
    path: str
    body: Any
    content_type: str = "application/json"
    kind: str = "Pod"

    def url(self, namespace: str) -> str:
        """Where the collection is."""
        kind = KINDS[self.kind]
        root = f"/apis/{kind.api_version}" if kind.group else "/api/v1"
        return f"{root}/namespaces/{namespace}/{kind.plural}"


class Seen(NamedTuple):
    """What came of a step: its status, the beginning of a refusal's reason, and the pod as it is stored then."""

    status: int
    why: str
    stored: Any


Ask = Callable[[str, str, Any, str], Awaitable[tuple[int, Any]]]
"""Sends a request to a path; the status and what is answered."""


def create(found: KubernetesObject) -> Step:
    return Step("POST", "?fieldManager=author", found)


def apply(manifest: KubernetesObject, manager: str = "author", *, force: bool = False) -> Step:
    whole = {"apiVersion": "v1", "kind": "Pod", **manifest}
    query = f"fieldManager={manager}" + ("&force=true" if force else "")
    return Step("PATCH", f"/x?{query}", whole, APPLY_PATCH)


def patch(body: Any, content_type: str = SMP) -> Step:
    return Step("PATCH", "/x?fieldManager=other", body, content_type)


def labels(**found: str) -> KubernetesObject:
    return {"metadata": {"name": "x", "labels": found}}


def workload(kind: str, **spec: Any) -> KubernetesObject:
    """An object with a template of one container; `spec` goes into the template."""
    template = {"metadata": {"labels": {"app": "x"}}, "spec": {**pod(gated=False)["spec"], **spec}}
    selector = {"selector": {"matchLabels": {"app": "x"}}}
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
        selector = {}
    return {"metadata": {"name": "x"}, "spec": {**selector, "template": template}}


def applied(kind: str, *manifests: KubernetesObject) -> Sequence[Step]:
    api_version = {"apiVersion": KINDS[kind].api_version, "kind": kind}
    return [apply(each)._replace(kind=kind, body={**each, **api_version}) for each in manifests]


def of_job(*steps: Step) -> Sequence[Step]:
    return [each._replace(kind="Job") for each in steps]


def directives(**spec: Any) -> Step:
    return patch({"spec": {"template": {"spec": spec}}}, MERGE_PATCH)


WORKLOADS = ("Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "Job")
SELECTED = {"nodeSelector": {"kubernetes.io/arch": "amd64"}}
SUSPENDED = {**workload("Job"), "spec": {**workload("Job")["spec"], "suspend": True}}
UNGATED = {"schedulingGates": [{"$patch": "delete", "name": "multiarch-extender.io/platforms"}]}
CASES: dict[str, Sequence[Step]] = {
    **{f"takes {name}": (create(case[0]), patch(*case[1:3])) for name, case in ACCEPTED.items()},
    **{f"refuses {name}": (create(case[0]), patch(*case[1:3])) for name, case in REFUSED.items()},
    **{f"applies {name}": (apply(found),) * 2 for name, found in SHAPES.items()},
    "takes fields away": (apply(pod() | labels(a="b", c="d")), apply(labels(c="d"), "other"), apply(pod())),
    "conflicts": (
        apply(pod(tolerations=[OWN])),
        patch({"spec": {"affinity": terms(ZONE), "tolerations": [OWN, GPU]}}),
        apply(pod(tolerations=[OWN])),
        apply(pod(tolerations=[OWN, GPU]), force=True),
        apply(pod(tolerations=[OWN, GPU])),
    ),
    "two conflicts": (
        apply(pod(tolerations=[OWN], affinity=terms(ZONE))),
        patch(
            [
                {"op": "add", "path": f"{AT_TERMS}/0/matchExpressions/-", "value": ARCH},
                {"op": "add", "path": "/spec/tolerations/-", "value": GPU},
            ],
            JSON_PATCH,
        ),
        apply(pod(tolerations=[OWN], affinity=terms(ZONE))),
    ),
    "conflicts in terms": (
        apply(pod(affinity=terms(ZONE))),
        patch([{"op": "add", "path": f"{AT_TERMS}/0/matchExpressions/-", "value": ARCH}], JSON_PATCH),
        apply(pod(affinity=terms(ZONE))),
        apply(pod()),
    ),
    "gate that is gone": (apply(pod()), patch({"spec": UNGATED}), apply(pod())),
    **{
        f"applies {kind}": applied(
            kind,
            workload(kind, tolerations=[OWN]),
            workload(kind, tolerations=[OWN]),
            workload(kind, tolerations=[OWN, GPU], affinity=terms(ZONE)),
            workload(kind, tolerations=[OWN, GPU], affinity=terms(ZONE)),
            workload(kind),
        )
        for kind in WORKLOADS
    },
    "Job that is suspended": of_job(
        create(SUSPENDED),
        directives(**SELECTED, tolerations=[OWN], affinity=terms(ZONE)),
        directives(containers=[{"name": "app", "image": "b"}]),
        patch({"spec": {"suspend": False, "template": {"spec": {"nodeSelector": {"a": "b"}}}}}, MERGE_PATCH),
        directives(**SELECTED),
    ),
    "Job that is not": of_job(create(workload("Job")), directives(**SELECTED), patch({"spec": {"parallelism": 2}})),
    "labels": (
        create(pod() | labels(a="b")),
        patch({"metadata": {"labels": None}}, MERGE_PATCH),
        patch({"metadata": {"annotations": {"e": "f"}}}),
        patch({"metadata": {"annotations": {"e": None, "g": "h"}}}),
        patch([{"op": "add", "path": "/metadata/labels/a", "value": "b"}], JSON_PATCH),
    ),
}


async def follow(steps: Sequence[Step], namespace: str, ask: Ask) -> list[Seen]:
    """Takes the steps one after the other."""
    seen = []
    for step in steps:
        status, answer = await ask(step.method, f"{step.url(namespace)}{step.path}", step.body, step.content_type)
        _, stored = await ask("GET", f"{step.url(namespace)}/x", None, "application/json")
        why = str(answer.get("message", "")).partition(": ")[2].partition(" {")[0] if status >= 400 else ""
        seen.append(Seen(status, why[:_WHY_CHARACTERS], gist(stored)))
    return seen


def gist(found: KubernetesObject) -> KubernetesObject | None:
    """What both have of a pod or of an object with a template; real ones have volumes and labels of Jobs beside."""
    if found.get("kind") not in KINDS:
        return None
    metadata, spec = found["metadata"], found["spec"].get("template", found)["spec"]
    containers = [{key: each.get(key) for key in _CONTAINER} for each in spec["containers"]]
    written = ("labels", "annotations", "generation") if found["kind"] == "Pod" else ("generation",)
    of_both = {key: metadata.get(key) for key in written}
    own = {key: found["spec"].get(key) for key in ("replicas", "suspend", "parallelism", "completions")}
    return {**{key: spec.get(key) for key in _SEEN}, "containers": containers, **of_both, **own}


def played(steps: Sequence[Step]) -> list[Seen]:
    """What the API server of the worlds makes of them."""

    async def main(network: Any) -> list[Seen]:
        api = ApiServer(network, Trace(network.loop.time), random.Random(1))
        serve_http(network, HOST, PORT, ApiRequests(api, random.Random(2), lambda _: "author").answer)
        put_in_place(api, "Namespace", {"metadata": {"name": "default"}})
        client = Client(network, "10.0.0.9")

        async def ask(method: str, path: str, body: Any, content_type: str) -> tuple[int, Any]:
            url, headers = f"http://{HOST}:{PORT}{path}", {"Content-Type": content_type}
            data = b"" if body is None else msgspec.json.encode(body)
            answer = await client.request(method, url, data, headers, timeout_seconds=10)
            return answer.status, msgspec.json.decode(answer.body)

        return await follow(steps, "default", ask)

    return run_in_memory(main)


@pytest.mark.parametrize("name", CASES)
async def test_played_api_server_does_what_the_real_one_does(world: World, name: str) -> None:
    async def ask(method: str, path: str, body: Any, content_type: str) -> tuple[int, Any]:
        try:
            answer = await world.api.request(method, path, body, content_type=content_type)
        except api_client.ApiError as exc:
            return exc.status, {"message": str(exc).partition(": ")[2]}
        return 201 if method == "POST" else 200, answer

    where = await world.namespace()
    real = await follow(CASES[name], where, ask)

    assert await asyncio.to_thread(played, CASES[name]) == real


CHANGES: dict[str, Sequence[KubernetesObject]] = {
    **{name: (found, found) for name, found in SHAPES.items()},
    "another image": (pod(), pod(containers=[{"name": "app", "image": "b:2"}])),
    "another toleration": (pod(tolerations=[OWN]), pod(tolerations=[GPU, OWN]), pod(tolerations=[GPU])),
    "no labels": (pod() | labels(a="b"), pod() | labels()),
    "no gate": (pod(), pod(gated=False)),
    "another container": (pod(), pod(containers=[*pod()["spec"]["containers"], {"name": "more", "image": "b"}])),
}


@pytest.mark.parametrize("name", CHANGES)
async def test_played_kubectl_apply_does_what_the_real_one_does(world: World, kubectl: Path, name: str) -> None:
    where, real = await world.namespace(), []
    for manifest in CHANGES[name]:
        whole = {"apiVersion": "v1", "kind": "Pod", **manifest}
        command = (kubectl, f"--kubeconfig={world.cluster.kubeconfig}", f"--namespace={where}", "apply", "-f", "-")
        process = await asyncio.create_subprocess_exec(*command, stdin=-1, stdout=-1, stderr=-2)
        await process.communicate(msgspec.json.encode(whole))
        real.append((process.returncode == 0, without_applied(await world.api.get("Pod", "x", where))))

    assert await asyncio.to_thread(played_applies, CHANGES[name]) == real


def without_applied(found: KubernetesObject) -> KubernetesObject | None:
    """The gist of a pod, without what was applied: kubectl writes the namespace of the pod there."""
    seen = gist(found)
    assert seen is not None
    return {key: value for key, value in seen.items() if key != "annotations"}


def played_applies(manifests: Sequence[KubernetesObject]) -> list[tuple[bool, Any]]:
    async def main(network: Any) -> list[tuple[bool, Any]]:
        api = ApiServer(network, Trace(network.loop.time), random.Random(1))
        put_in_place(api, "Namespace", {"metadata": {"name": "default"}})
        seen = []
        for manifest in manifests:
            try:
                await api.client_apply("Pod", manifest, user="author")
                is_applied = True
            except ApiError:
                is_applied = False
            seen.append((is_applied, without_applied(api.get("Pod", "default", "x") or {})))
        return seen

    return run_in_memory(main)
