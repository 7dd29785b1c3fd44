"""The webhook for what has pod templates, on a real API server: who is warned, and what stays when it is applied again.

kubectl and helm are the real ones, and so are the controllers of DaemonSets. Custom kinds have small definitions here,
with the paths of the real ones.
"""

import asyncio
import contextlib
import itertools
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from testbed.binaries import HELM, HELM_3, build
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.kueue import QUEUED
from testbed.nodes.programs import NodePrograms
from testbed.objects import KubernetesObject, fake_node, kept_to, pod
from testbed.shipped_files import Mode
from tests.e2e.golden import ROWS, VERSIONS, workload
from tests.e2e.pod_makers import BUILT_IN, CUSTOM, OWN, RUNTIME, at, built_in, custom, run, served, template, two
from tests.e2e.running import Outcome, RealImages, find_or_skip, observe, open_nodes
from tests.e2e.shipped_webhook import ARCHITECTURE
from tests.e2e.world import World, refusal_of

pytestmark = pytest.mark.e2e

GUARD = "admission.guard_daemon_sets=true"
ADDED = "multiarch-extender.io/added"
DAEMONS = "daemonset-controller"


class Clients(NamedTuple):
    kubectl: Path
    helm: Path


@pytest.fixture(scope="session")
def clients(pytestconfig: pytest.Config, kubectl: Path) -> Clients:
    return Clients(kubectl, find_or_skip(pytestconfig, lambda: build(HELM) / "helm"))


@pytest.fixture
async def custom_kinds(world: World) -> AsyncIterator[None]:
    async with served(world.api, *(kind.definition() for kind in CUSTOM)):
        yield


async def start(world: World, *settings: str) -> ExtenderProcess:
    service = await world.start_service(*settings, mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    return service


def lines_of(err: str) -> list[str]:
    return [line.removeprefix("Warning: ") for line in err.splitlines() if line.startswith("Warning: ")]


# --- who is warned


async def test_the_author_of_every_kind_is_warned_with_the_right_place(
    world: World, clients: Clients, custom_kinds: None
) -> None:
    """kubectl prints the line, and `--dry-run=server --warnings-as-errors` fails; the second apply says nothing."""
    await start(world)
    where, images = await world.namespace(), world.images
    torn = two(images.amd, images.arm)
    expected: dict[str, list[str]] = {kind: [path] for kind, path in BUILT_IN.items()}
    expected |= {kind.kind: list(kind.paths) for kind in CUSTOM}
    documents = [built_in(kind, kind.lower(), where, torn) for kind in BUILT_IN]
    documents += [custom(kind, kind.kind.lower(), where, torn, {}) for kind in CUSTOM]
    kubectl = (clients.kubectl, "--kubeconfig", world.cluster.kubeconfig)
    for document in documents:
        text, places = yaml.safe_dump(document), expected[document["kind"]]
        code, _, err = await run(*kubectl, "apply", "--dry-run=server", "--warnings-as-errors", "-f", "-", stdin=text)
        lines = lines_of(err)
        assert code == 1, (document["kind"], err)
        assert [line.partition(": image ")[0] for line in lines] == places
        assert all(len(line) <= 256 and "runs on linux/amd64 only, " in line for line in lines)
        code, _, err = await run(*kubectl, "apply", "-f", "-", stdin=text)
        assert (code, lines_of(err)) == (0, lines)
        code, _, err = await run(*kubectl, "apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
        assert (code, lines_of(err)) == (0, [])
    world.figure(f"warned with the right place: {len(documents)} kinds, {sum(map(len, expected.values()))} templates")


async def test_the_author_of_an_object_without_a_namespace_is_warned(world: World, clients: Clients) -> None:
    """A runtime of Kubeflow's trainer has templates for every namespace; its pull secrets are nobody's to read."""
    await start(world)
    torn = two(world.images.amd, world.images.arm)
    torn["spec"]["imagePullSecrets"] = [{"name": "elsewhere"}]
    document = custom(RUNTIME, "torn", "", torn, {})
    del document["metadata"]["namespace"]
    command = (clients.kubectl, "--kubeconfig", world.cluster.kubeconfig, "apply", "--dry-run=server", "-f", "-")
    async with served(world.api, RUNTIME.definition()):
        code, _, err = await run(*command, stdin=yaml.safe_dump(document))
    assert code == 0, err
    (line,) = lines_of(err)
    assert line.startswith(f"{RUNTIME.paths[0]}: image ")
    assert len(line) <= 256


async def test_owned_objects_are_never_sent(world: World) -> None:
    """Their controller would fight over them; nor is a change of replicas, of status or of labels."""
    service = await start(world)
    where, images = await world.namespace(), world.images
    sound = built_in("Deployment", "sound", where, template(images.multi), replicas=1)
    made = await world.api.create(sound)
    before = await service.calls("admission")
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "sound", "uid": made["metadata"]["uid"]}
    owned = built_in("ReplicaSet", "owned", where, two(images.amd, images.arm), QUEUED)
    owned["metadata"]["ownerReferences"] = [{**owner, "controller": True}]
    stored = await world.api.create(owned)
    assert at(stored, "spec.template.spec").get("affinity") is None
    await world.api.patch("Deployment", "sound", {"metadata": {"labels": {"a": "b"}}}, where, "apps/v1")
    assert await service.calls("admission") == before
    await world.api.patch("Deployment", "sound", {"spec": {"replicas": 2}}, where, "apps/v1")
    assert await world.api.get("Deployment", "sound", where, "apps/v1")


# --- applying again


RULE = "admission.tolerations=[{key: arch, operator: Exists, platforms: [linux/amd64]}]"
Apply = Callable[[Sequence[KubernetesObject]], Awaitable[None]]


def shapes(world: World, where: str) -> Iterator[KubernetesObject]:
    """Queued Jobs and custom kinds and guarded DaemonSets, of each shape that an author's own words may have."""
    images = (world.images.amd, world.images.multi)
    for (name, own), (index, image) in itertools.product(OWN.items(), enumerate(images)):
        made = template(image, **own)
        for kind in ("Job", "StatefulSet", *(["DaemonSet"] if image == world.images.amd else [])):
            yield built_in(kind, f"{kind.lower()}-{name}-{index}", where, made, QUEUED)
        for kind_of_others in CUSTOM:
            yield custom(kind_of_others, f"{kind_of_others.kind.lower()}-{name}-{index}", where, made, QUEUED)


def by_kubectl(world: World, clients: Clients, *flags: str) -> Apply:

    async def apply(documents: Sequence[KubernetesObject]) -> None:
        text = yaml.safe_dump_all(documents)
        command = (clients.kubectl, "--kubeconfig", world.cluster.kubeconfig)
        code, _, err = await run(*command, "apply", *flags, "-f", "-", stdin=text)
        assert code == 0, err
        # what `kubectl diff` would change: nothing
        code, out, err = await run(*command, "diff", *flags, "-f", "-", stdin=text)
        assert code == 0, (out, err)

    return apply


def by_helm(world: World, helm: Path, folder: Path, where: str) -> Apply:

    async def apply(documents: Sequence[KubernetesObject]) -> None:
        (folder / "templates").mkdir(parents=True, exist_ok=True)
        (folder / "Chart.yaml").write_text("apiVersion: v2\nname: shapes\nversion: 1.0.0\n")
        (folder / "templates" / "all.yaml").write_text(yaml.safe_dump_all(documents))
        code, out, err = await run(
            helm, "upgrade", "--install", "shapes", folder, "-n", where, "--kubeconfig", world.cluster.kubeconfig
        )
        assert code == 0, (out, err)

    return apply


@pytest.mark.parametrize(
    "client", ["kubectl", "kubectl server-side", pytest.param("helm 3", marks=pytest.mark.slow), "helm 4"]
)
async def test_applying_twice_changes_nothing(
    world: World, clients: Clients, custom_kinds: None, tmp_path: Path, pytestconfig: pytest.Config, client: str
) -> None:
    """No diff, no conflict, no *field is immutable*: the stored object stays as it is but for its own version."""
    await world.create_nodes("amd64", 1)
    await world.create_nodes("arm64", 1)
    await start(world, GUARD, RULE)
    where = await world.namespace()
    if client.startswith("kubectl"):
        apply = by_kubectl(world, clients, *(["--server-side"] if client == "kubectl server-side" else []))
    else:
        helm = clients.helm if client == "helm 4" else find_or_skip(pytestconfig, lambda: build(HELM_3) / "helm")
        apply = by_helm(world, helm, tmp_path / "chart", where)
    documents = list(shapes(world, where))
    await apply(documents)
    first = [await stored(world, each) for each in documents]
    assert sum(ADDED in json.dumps(each) for each in first) == len(documents)
    await apply(documents)
    await apply(documents)
    assert [await stored(world, each) for each in documents] == first
    world.figure(f"applied three times by {client}: {len(documents)} objects, none changed")


async def stored(world: World, document: KubernetesObject) -> KubernetesObject:
    metadata = document["metadata"]
    found = await world.api.get(document["kind"], metadata["name"], metadata["namespace"], document["apiVersion"])
    return {"generation": found["metadata"]["generation"], "spec": found["spec"]}


# --- DaemonSets


@contextlib.asynccontextmanager
async def stand_in_kubelets(world: World, where: str) -> AsyncIterator[None]:
    """Says of each bound pod of the namespace that it is ready, as a kubelet would of one that runs."""

    async def run_for_ever() -> None:
        while True:
            for each in await world.api.list("Pod", where):
                conditions = each["status"].get("conditions") or []
                if each["spec"].get("nodeName") and not any(item["type"] == "Ready" for item in conditions):
                    path = f"/api/v1/namespaces/{where}/pods/{each['metadata']['name']}/status"
                    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
                    ready = {"type": "Ready", "status": "True", "lastTransitionTime": now}
                    with contextlib.suppress(Exception):  # it is gone
                        await world.api.request(
                            "PATCH",
                            path,
                            {"status": {"phase": "Running", "conditions": [*conditions, ready]}},
                            content_type="application/merge-patch+json",
                        )
            await asyncio.sleep(0.1)

    task = asyncio.create_task(run_for_ever())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def pods_by_node(world: World, where: str) -> dict[str, str]:
    found = await world.api.list("Pod", where)
    return {
        each["spec"]["nodeName"]: each["spec"]["containers"][0]["image"]
        for each in found
        if each["spec"].get("nodeName") and "deletionTimestamp" not in each["metadata"]
    }


async def test_a_guarded_daemon_set_moves_with_its_image_and_back(
    world: World, control_plane: LocalCluster, controller_manager: Path
) -> None:
    """amd64-only: none on arm64. Multi-arch: on all nodes, additions gone. Rolled back: as before."""
    await world.create_both(2)
    await start(world, GUARD)
    where, images = await world.namespace(), world.images
    amd, multi = {"amd64-0", "amd64-1"}, {"amd64-0", "amd64-1", "arm64-0", "arm64-1"}

    async def set_image(image: str) -> None:
        change = {"spec": {"template": {"spec": {"containers": [{"name": "main", "image": image}]}}}}
        await world.api.patch("DaemonSet", "agent", change, where, "apps/v1")

    def stands(image: str, nodes: set[str]) -> Callable[[], Awaitable[bool]]:
        async def check() -> bool:
            return await pods_by_node(world, where) == dict.fromkeys(nodes, image)

        return check

    with control_plane.running_controllers(controller_manager, DAEMONS), world.default_scheduler(None):
        async with stand_in_kubelets(world, where):
            await world.api.create(built_in("DaemonSet", "agent", where, template(images.amd)))
            await eventually(stands(images.amd, amd))
            first = at(await world.api.get("DaemonSet", "agent", where, "apps/v1"), "spec.template")
            assert kept_to(first["spec"], ARCHITECTURE) == ["amd64"]
            await set_image(images.multi)
            await eventually(stands(images.multi, multi))
            found = at(await world.api.get("DaemonSet", "agent", where, "apps/v1"), "spec.template")
            assert "affinity" not in found["spec"]
            assert ADDED not in (found["metadata"].get("annotations") or {})
            back = {"spec": {"template": {"$patch": "replace", **first}}}
            path = f"/apis/apps/v1/namespaces/{where}/daemonsets/agent"
            await world.api.request("PATCH", path, back, content_type="application/strategic-merge-patch+json")
            await eventually(stands(images.amd, amd))
            assert at(await world.api.get("DaemonSet", "agent", where, "apps/v1"), "spec.template") == first


@pytest.mark.parametrize("guards", [False, True], ids=["warn", "guard"])
async def test_an_existing_daemon_set_is_told_of_when_the_first_arm64_node_joins(
    world: World, control_plane: LocalCluster, controller_manager: Path, guards: bool
) -> None:
    """An event, a counter and a log line; under guard the pod waits with its reason."""
    await world.create_nodes("amd64", 2)
    where, images = await world.namespace(), world.images
    with control_plane.running_controllers(controller_manager, DAEMONS), world.default_scheduler(None):
        async with stand_in_kubelets(world, where):
            await world.api.create(built_in("DaemonSet", "agent", where, template(images.amd)))
            await eventually(lambda: pods_by_node(world, where), lambda found: set(found) == {"amd64-0", "amd64-1"})
            service = await start(world, *([GUARD] if guards else []))
            treatment = "held" if guards else "reported"

            async def told() -> bool:
                counted = await service.metric("multiarch_daemon_pods_misplaced_total", treatment=treatment)
                events = await world.api.list("Event", where, reason="DaemonPodCannotRun")
                named_set = [each for each in events if each["involvedObject"]["kind"] == "DaemonSet"]
                return bool(counted and [each for each in named_set if each["reason"] == "DaemonPodCannotRun"])

            await world.api.create(fake_node("arm64-0", "arm64"))
            await eventually(told)
            assert "daemon_pod.misplaced" in service.tail()
            if guards:
                held = await world.api.wait_for("Pod", lambda each: bool(refusal_of(each)), where)
                assert held["metadata"]["annotations"]["multiarch-extender.io/reason"].endswith("only for linux/amd64")
                assert kept_to(held["spec"], ARCHITECTURE) == ["amd64"]
                restart = {"spec": {"template": {"metadata": {"annotations": {"restarted": "now"}}}}}
                await world.api.patch("DaemonSet", "agent", restart, where, "apps/v1")

                async def rolled() -> bool:
                    found = await world.api.get("DaemonSet", "agent", where, "apps/v1")
                    status = found["status"]
                    return bool(
                        status.get("observedGeneration") == found["metadata"]["generation"]
                        and status.get("desiredNumberScheduled") == 2
                        and status.get("updatedNumberScheduled") == 2
                        and status.get("numberReady") == 2
                    )

                await eventually(rolled)  # which takes the held pod away
                assert set(await pods_by_node(world, where)) == {"amd64-0", "amd64-1"}


async def test_sound_workloads_cause_no_warning(world: World, clients: Clients) -> None:
    """The golden workloads of the audit that some node runs, two of each: not one line."""
    for architecture in ("amd64", "arm64", "s390x"):
        await world.create_nodes(architecture, 2, taints=[POOL] if architecture == "s390x" else [])
    await start(world)
    where = await world.namespace()
    host = world.registry.host
    for name, architectures in BUILT_FOR.items():
        world.images.push(f"{host}/shop/{name}:1.0", *architectures)
    sound = [row for row in ROWS if row["kind"] in VERSIONS and True in row["answers"] and row["name"] not in UNSOUND]
    documents = [
        workload(
            row["kind"],
            f"{row['name']}-{number}",
            where,
            row,
            host,
            {},
        )
        for row in sound
        for number in range(2)
    ]
    text = yaml.safe_dump_all(documents)
    code, out, err = await run(
        clients.kubectl, "--kubeconfig", world.cluster.kubeconfig, "apply", "--dry-run=server", "-f", "-", stdin=text
    )
    assert code == 0, (out, err)
    assert lines_of(err) == []
    world.figure(f"{len(documents)} sound workloads: 0 warnings")


POOL = {"key": "pool", "value": "z", "effect": "NoSchedule"}
BUILT_FOR = {"amd": ("amd64",), "arm": ("arm64",), "multi": ("amd64", "arm64"), "all": ("amd64", "arm64", "s390x")}
UNSOUND = ("agent", "reader")
"""A DaemonSet that crashes on arm64, and a workload of an artifact that the registry here does not have."""


# --- real nodes


async def test_the_arm64_node_joins_a_cluster_with_amd64_daemon_sets(
    world: World,
    control_plane: LocalCluster,
    controller_manager: Path,
    node_programs: NodePrograms,
    real_images: RealImages,
) -> None:
    """A pod of one from before us is Pending there with its reason; of one that was guarded at its creation is none.

    The controller starts once the nodes state what they are: the test bed makes a node before its kubelet runs.
    """
    where, guarded = await world.namespace(), await world.namespace()
    await world.api.create(built_in("DaemonSet", "agent", where, template(real_images.amd)))
    await start(world, GUARD, *real_images.settings)
    probe = pod("probe", real_images.amd, namespace=where)
    await eventually(lambda: world.review(probe), lambda found: kept_to(found["spec"], ARCHITECTURE))
    await world.api.create(built_in("DaemonSet", "agent", guarded, template(real_images.amd)))
    async with open_nodes(control_plane, world.api, node_programs, real_images):
        with control_plane.running_controllers(controller_manager, DAEMONS), world.default_scheduler(None):
            for each in (where, guarded):
                seen = await observe(world.api, each, 1)
                assert Outcome.RUNS in {found.outcome for found in seen.values()}
            held = await world.api.wait_for("Pod", lambda each: bool(refusal_of(each)), where)
            assert held["metadata"]["annotations"]["multiarch-extender.io/reason"].endswith("only for linux/amd64")
            assert set(await pods_by_node(world, guarded)) == {"amd64"}
            assert len(await world.api.list("Pod", guarded)) == 1
