"""What a real Kueue does with what the webhooks write: it plans by it, and takes it for what it has planned.

The arm64 flavor is tried first, as the cheaper one. So an amd64-only image comes to amd64 nodes only if Kueue reads
what was written into its template.
"""

import asyncio
import copy
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from testbed.binaries import KUBECTL, Binaries, build, find_kueue
from testbed.control_plane import LocalCluster
from testbed.extender_process import ExtenderProcess
from testbed.kueue import (
    GATE,
    KUEUE,
    QUEUE,
    QUEUED,
    Flavor,
    PodSetsQuestion,
    compare,
    create_definitions,
    create_queue,
    running_kueue,
)
from testbed.objects import KubernetesObject
from testbed.shipped_files import Mode
from tests.e2e.gates import GATE as OUR_GATE
from tests.e2e.pod_makers import OWN, at, put, run, template
from tests.e2e.running import find_or_skip
from tests.e2e.shipped_webhook import ARCHITECTURE
from tests.e2e.world import World, refusal_of

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

ARM = {"key": "arch", "value": "arm64", "effect": "NoSchedule"}
RULE = "admission.tolerations=[{key: arch, operator: Exists, platforms: [linux/arm64]}]"
FOR_AMD = "admission.tolerations=[{key: other, operator: Exists, platforms: [linux/amd64]}]"
ADDED = "multiarch-extender.io/added"
PREBUILT = "kueue.x-k8s.io/prebuilt-workload-name"
CONTROLLERS = ("job-controller", "deployment-controller", "replicaset-controller", "statefulset-controller")
PLANNED_SECONDS = 30.0


class PlannedKind(NamedTuple):
    """A kind that Kueue plans, its spec without templates, and where these are."""

    version: str
    kind: str
    spec: KubernetesObject
    paths: tuple[str, ...]

    def made(self, where: str, name: str, written: KubernetesObject, labels: dict[str, str]) -> KubernetesObject:
        document: KubernetesObject = {
            "apiVersion": self.version, "kind": self.kind,
            "metadata": {"name": name, "namespace": where, "labels": labels}, "spec": copy.deepcopy(self.spec),
        }  # fmt: skip
        for path in self.paths:
            put(document, path, copy.deepcopy(written))
        return document


NEVER = {"restartPolicy": "Never"}
SELECTED = {"replicas": 1, "selector": {"matchLabels": {"app": "it"}}}
PLANNED = (
        PlannedKind("batch/v1", "Job", {"parallelism": 1, "completions": 1}, ("spec.template",)),
        PlannedKind(
            "jobset.x-k8s.io/v1alpha2", "JobSet",
            {"replicatedJobs": [{"name": "a", "replicas": 1, "template": {"spec": {"parallelism": 1}}}]},
            ("spec.replicatedJobs[0].template.spec.template",),
        ),
        PlannedKind(
            "kubeflow.org/v1", "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {"replicas": 1, "restartPolicy": "Never"}}},
            ("spec.pytorchReplicaSpecs.Master.template",),
        ),
        PlannedKind(
            "ray.io/v1", "RayCluster",
            {
                "headGroupSpec": {"rayStartParams": {}},
                "workerGroupSpecs": [
                    {"groupName": "w", "replicas": 1, "minReplicas": 1, "maxReplicas": 1, "rayStartParams": {}}
                ],
            },
            ("spec.headGroupSpec.template", "spec.workerGroupSpecs[0].template"),
        ),
        PlannedKind("apps/v1", "StatefulSet", SELECTED, ("spec.template",)),
        PlannedKind("apps/v1", "Deployment", SELECTED, ("spec.template",)),
)  # fmt: skip


def written(image: str, kind: str, **spec: object) -> KubernetesObject:
    made = template(image, **spec)
    made["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "1"}}
    if kind in ("Job", "JobSet"):
        made["spec"] |= NEVER
    return made


@pytest.fixture(scope="module")
def kueue(pytestconfig: pytest.Config) -> tuple[Path, ...]:
    """The folders of Kueue and of the kinds that it plans, which are built when a test first asks for them."""
    found: list[Path] = []

    def find() -> Path:
        found.extend(find_kueue())
        return found[0]

    find_or_skip(pytestconfig, find)
    return tuple(found)


@pytest.fixture(scope="module")
def control_plane(binaries: Binaries) -> Iterator[LocalCluster]:
    """A control plane of its own, as Kueue leaves its definitions and objects there."""
    with LocalCluster(binaries) as cluster:
        yield cluster


@pytest.fixture
async def queue(
    world: World, control_plane: LocalCluster, controller_manager: Path, kueue: tuple[Path, ...], tmp_path: Path
) -> AsyncIterator[str]:
    """A namespace with a queue, amd64 nodes and tainted arm64 nodes, controllers and the default scheduler."""
    async with running_kueue(kueue, world.api, control_plane.kubeconfig, tmp_path):
        await world.create_nodes("amd64", 2)
        await world.create_nodes("arm64", 2, taints=[ARM])
        where = await world.namespace()
        await create_queue(world.api, where, flavors())
        with control_plane.running_controllers(controller_manager, *CONTROLLERS), world.default_scheduler(None):
            yield where


def flavors() -> Sequence[Flavor]:
    """Those of the two kinds of nodes, the cheaper one first; pods tolerate its taint by what the webhook adds."""
    return [Flavor("arm64", {ARCHITECTURE: "arm64"}), Flavor("amd64", {ARCHITECTURE: "amd64"})]


async def start(world: World, *settings: str) -> ExtenderProcess:
    service = await world.start_service(RULE, *settings, mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    return service


# --- what Kueue's own functions say


async def test_its_own_comparison_takes_what_is_stored_for_what_it_planned(
    world: World, kueue: tuple[Path, ...]
) -> None:
    """Of every kind and each shape of an author's words: after an apply the plan of the first is that of the second.

    Without the label of a prebuilt plan a toleration is added that the plan of another cluster does not have, which
    Kueue does not take; with it, it does.
    """
    await create_definitions(kueue, world.api)
    await start(world, FOR_AMD)
    where, images = await world.namespace(), world.images
    asked, changed, elsewhere = list[PodSetsQuestion](), list[PodSetsQuestion](), list[PodSetsQuestion]()
    rows = list(itertools.product(PLANNED, OWN.items(), (images.amd, images.multi), (False, True)))
    for number, (kind, (_, own), image, is_prebuilt) in enumerate(rows):
        labels = QUEUED | ({PREBUILT: "plan"} if is_prebuilt else {})
        document = kind.made(where, f"it-{number}", written(image, kind.kind, **own), labels)
        if kind.kind == "Job":
            document["spec"]["suspend"] = True
        bare = await world.api.apply({**document, "metadata": {**document["metadata"], "labels": {}}}, dry_run=True)
        first = await world.api.apply(document)
        second = await world.api.apply(document)
        plan, stored, again = ([at(each, path) for path in kind.paths] for each in (bare, first, second))
        assert all(ADDED in json.dumps(each) for each in stored)
        asked.append(PodSetsQuestion(stored, again))
        (elsewhere if is_prebuilt else changed).append(PodSetsQuestion(plan, stored))
    assert all(answer.same and answer.same_admitted for answer in compare(kueue[0], asked))
    assert all(answer.same for answer in compare(kueue[0], elsewhere))
    assert not any(answer.same for answer in compare(kueue[0], changed))
    assert all(answer.same_admitted for answer in compare(kueue[0], changed))
    world.figure(
        f"Kueue's own comparison: {len(asked)} objects of {len(PLANNED)} kinds are as planned after an apply; "
        f"{len(elsewhere)} with a plan of another cluster fit it, {len(changed)} without that label would not"
    )


# --- what a real Kueue does


async def test_it_plans_by_the_images_and_stays_with_its_plan(
    world: World, queue: str, pytestconfig: pytest.Config
) -> None:
    """amd64-only: nodes of amd64; multi-arch: the first flavor. Applied again twice: one plan, no eviction, no new pod.

    Evicted and admitted again it runs as before.
    """
    await start(world)
    kubectl = find_or_skip(pytestconfig, lambda: build(KUBECTL) / "kubectl")
    command = (kubectl, "--kubeconfig", world.cluster.kubeconfig, "apply", "-f", "-")
    chosen = {"amd": (world.images.amd, "amd64"), "multi": (world.images.multi, "arm64")}

    async def apply(planned: PlannedKind, name: str, image: str) -> KubernetesObject:
        """Returns the plan, once it is admitted."""
        document = planned.made(queue, name, written(image, planned.kind), QUEUED)
        code, _, err = await run(*command, stdin=yaml.safe_dump(document).replace("app: it", f"app: {name}"))
        assert code == 0, err
        return await admitted(world, queue, name)

    async def tell(planned: PlannedKind, name: str, image: str, architecture: str) -> None:
        workload = await apply(planned, name, image)
        assert assigned(workload) == {f"{queue}-{architecture}"}
        has_pods = planned.kind in WITH_PODS
        pods = await ready_pods(world, queue, name, architecture) if has_pods else set()
        for _ in range(2):
            await apply(planned, name, image)
        await apply(planned, f"{name}later", image)  # once this one is admitted, Kueue has seen the two before it
        now = await admitted(world, queue, name)
        assert now["metadata"]["uid"] == workload["metadata"]["uid"]
        assert not any(each["type"] in ("Evicted", "Finished") for each in now["status"]["conditions"])
        assert pods == (await ready_pods(world, queue, name, architecture) if has_pods else set())
        if planned.kind in ("Deployment", "StatefulSet"):
            return  # Kueue ends their pods, and their controllers make others
        for active in (False, True):
            await world.api.patch("Workload", now["metadata"]["name"], {"spec": {"active": active}}, queue, KUEUE)
            await until_suspended(world, planned, queue, name, suspended=not active)
        again = await admitted(world, queue, name)
        assert (again["metadata"]["uid"], assigned(again)) == (now["metadata"]["uid"], assigned(now))

    stories = [(planned, f"{planned.kind.lower()}{name}", *of) for planned in PLANNED for name, of in chosen.items()]
    await asyncio.gather(*(tell(*story) for story in stories))
    kinds = ", ".join(planned.kind for planned in PLANNED)
    world.figure(f"Kueue planned {kinds} by their images; applied three times, each has one plan")


async def test_a_plan_of_another_cluster_stays_in_sync(world: World, queue: str) -> None:
    """A Job with a plan that MultiKueue has copied is admitted by it, though pods of the image get a toleration.

    One that was made without our words, and comes to nodes of a wrong platform, is ended by Kueue, which says so.
    """
    right = await world.namespace()
    await create_queue(world.api, right, flavors()[::-1])
    jobs = {}
    for where in (right, queue):
        labels = QUEUED | {PREBUILT: "plan"}
        job = jobs[where] = PLANNED[0].made(where, "copied", written(world.images.amd, "Job"), labels)
        there = await world.api.apply(job, dry_run=True)  # as the other cluster has it, where we are not
        pod_set = {"name": "main", "count": 1, "template": at(there, "spec.template")}
        plan: KubernetesObject = {
            "apiVersion": KUEUE, "kind": "Workload", "metadata": {"name": "plan", "namespace": where},
            "spec": {"queueName": QUEUE, "podSets": [pod_set]},
        }  # fmt: skip
        await world.api.create(plan)
    await start(world, FOR_AMD)
    for job in jobs.values():
        stored = await world.api.create(job)
        assert "tolerations" not in at(stored, "spec.template.spec")
        assert ADDED in stored["spec"]["template"]["metadata"]["annotations"]
    await until_suspended(world, PLANNED[0], right, "copied", suspended=False)
    ended = await world.api.wait_for("Workload", lambda each: bool(finish_of(each)), queue, KUEUE)
    assert "conflict for key=kubernetes.io/arch" in finish_of(ended)
    found = await world.api.get("Workload", "plan", right, KUEUE)  # which was there before the one that is ended
    assert assigned(found) == {f"{right}-amd64"}
    assert not finish_of(found)


async def test_a_pod_held_by_both_gates_comes_to_the_right_nodes(world: World, queue: str) -> None:
    """Once the image is known the pod gets a toleration, which Kueue compares: it plans anew, by the affinity too."""
    await start(world, FOR_AMD, "admission.unknown=gate")
    image = world.images.unpushed()
    await world.api.patch("ClusterQueue", queue, {"spec": {"stopPolicy": "Hold"}}, "", KUEUE)
    await world.api.wait_for("ClusterQueue", lambda each: is_stopped(each, queue), "", KUEUE)
    metadata = {"name": "held", "namespace": queue, "labels": dict(QUEUED)}
    made = await world.api.create({"apiVersion": "v1", "kind": "Pod", **written(image, "Pod"), "metadata": metadata})
    assert gates_of(made) >= {GATE, OUR_GATE}
    world.images.push(image, "amd64")
    await world.api.wait_for("Pod", lambda each: GATE in gates_of(each) and OUR_GATE not in gates_of(each), queue)
    await world.api.patch("ClusterQueue", queue, {"spec": {"stopPolicy": "None"}}, "", KUEUE)
    assert (await world.api.wait_until_bound("held", queue)).startswith("amd64")
    now = await world.api.get("Pod", "held", queue)
    assert now["metadata"]["uid"] == made["metadata"]["uid"]
    assert assigned(await admitted(world, queue, "held")) == {f"{queue}-amd64"}


async def test_a_pod_planned_before_its_image_is_known_waits_with_its_reason(world: World, queue: str) -> None:
    """Kueue neither waits for our gate nor compares affinity. What it plans for wrong nodes is not started there."""
    await start(world, "admission.unknown=gate")
    image = world.images.unpushed()
    metadata = {"name": "early", "namespace": queue, "labels": dict(QUEUED)}
    await world.api.create({"apiVersion": "v1", "kind": "Pod", **written(image, "Pod"), "metadata": metadata})
    assert assigned(await admitted(world, queue, "early")) == {f"{queue}-arm64"}
    planned = await world.api.wait_for("Pod", lambda each: GATE not in gates_of(each), queue)
    assert gates_of(planned) == {OUR_GATE}
    assert planned["spec"]["nodeSelector"] == {ARCHITECTURE: "arm64"}
    world.images.push(image, "amd64")
    refused = await world.api.wait_for("Pod", lambda each: bool(refusal_of(each)) and not gates_of(each), queue)
    assert refused["metadata"]["annotations"]["multiarch-extender.io/reason"].endswith("only for linux/amd64")
    assert "nodeName" not in refused["spec"]


WITH_PODS = ("Job", "StatefulSet", "Deployment")
"""The kinds whose controllers run here."""


def finish_of(workload: KubernetesObject) -> str:
    conditions = (workload.get("status") or {}).get("conditions") or []
    return "".join(each["message"] for each in conditions if each["type"] == "Finished")


def is_stopped(found: KubernetesObject, name: str) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or []
    return found["metadata"]["name"] == name and any(
        (each["type"], each["status"], each["reason"]) == ("Active", "False", "Stopped") for each in conditions
    )


def gates_of(pod: KubernetesObject) -> set[str]:
    return {each["name"] for each in pod["spec"].get("schedulingGates") or []}


async def admitted(world: World, where: str, name: str) -> KubernetesObject:
    """The only Workload of the object of that name, once it is admitted."""

    def is_it(workload: KubernetesObject) -> bool:
        conditions = (workload.get("status") or {}).get("conditions") or []
        return f"-{name}-" in workload["metadata"]["name"] and any(
            (each["type"], each["status"]) == ("Admitted", "True") for each in conditions
        )

    found = await world.api.wait_for("Workload", is_it, where, KUEUE, PLANNED_SECONDS)
    every = [each for each in await world.api.list("Workload", where, KUEUE) if f"-{name}-" in each["metadata"]["name"]]
    assert [each["metadata"]["name"] for each in every] == [found["metadata"]["name"]]
    return found


def assigned(workload: KubernetesObject) -> set[str]:
    assignments: list[dict[str, Any]] = workload["status"]["admission"]["podSetAssignments"]
    return {each["flavors"]["cpu"] for each in assignments}


async def ready_pods(world: World, where: str, name: str, architecture: str) -> set[str]:
    """The uids of the object's pods, once one is bound; each is on a node of the architecture."""
    await world.api.wait_for(
        "Pod",
        lambda each: each["metadata"]["name"].startswith(f"{name}-") and bool(each["spec"].get("nodeName")),
        where,
        timeout_seconds=PLANNED_SECONDS,
    )
    found = [each for each in await world.api.list("Pod", where) if each["metadata"]["name"].startswith(f"{name}-")]
    assert all(each["spec"]["nodeName"].startswith(architecture) for each in found)
    return {each["metadata"]["uid"] for each in found}


async def until_suspended(world: World, kind: PlannedKind, where: str, name: str, *, suspended: bool) -> None:

    def is_it(found: KubernetesObject) -> bool:
        policy = (found["spec"].get("runPolicy") or {}) if kind.kind == "PyTorchJob" else found["spec"]
        return found["metadata"]["name"] == name and bool(policy.get("suspend")) is suspended

    await world.api.wait_for(kind.kind, is_it, where, kind.version, PLANNED_SECONDS)
