"""The webhook for what has pod templates, over HTTP: warnings to authors, words for queues and DaemonSets."""

import asyncio
import copy
from collections.abc import Iterator
from typing import NamedTuple
from unittest.mock import ANY

import msgspec
import pytest

from extender.cluster.views import WatchedNodes
from testbed.objects import kept_to
from tests.integration.service.caller import Caller, Json, node
from tests.integration.service.conftest import World
from tests.unit.cluster.scripted_api import ScriptedApi
from tests.unit.placement.json_patch import apply

PATH = "/admission/workloads"
REQUIRED = "admission.node_affinity=required"
GUARD = "admission.guard_daemon_sets=true"
QUEUED = {"kueue.x-k8s.io/queue-name": "team"}
ADDED = "multiarch-extender.io/added"
ARCHITECTURE = "kubernetes.io/arch"


def view_of(*nodes: Json) -> WatchedNodes:
    view = WatchedNodes(ScriptedApi(), clock=lambda: 0.0, random=float)
    for each in copy.deepcopy(nodes):
        labels = {ARCHITECTURE: each["status"]["nodeInfo"]["architecture"], "kubernetes.io/os": "linux"}
        each["metadata"]["labels"] = labels | each["metadata"].get("labels", {})
        view.upsert(msgspec.json.encode(each))
    view.keep_only({each["metadata"]["name"] for each in nodes})
    return view


def tainted(name: str, architecture: str, key: str) -> Json:
    return node(name, architecture, spec={"taints": [{"key": key, "value": "yes", "effect": "NoSchedule"}]})


def template(world: World, *images: str, **spec: object) -> Json:
    return {"metadata": {"creationTimestamp": None}, "spec": {**world.pod(*images)["spec"], **spec}}


def workload(kind: str, spec: Json, labels: Json | None = None, **metadata: object) -> Json:
    """An object of a kind that is written with its group and version, such as `apps/v1/Deployment`."""
    version, _, name = kind.rpartition("/")
    named = {"name": "w", "namespace": "shop", **({"labels": labels} if labels else {}), **metadata}
    return {"apiVersion": version, "kind": name, "metadata": named, "spec": spec}


def job_of(made: Json, labels: Json | None = None) -> Json:
    return workload("batch/v1/Job", {"suspend": True, "template": made}, QUEUED if labels is None else labels)


class Review(NamedTuple):
    """What the webhook answers, and the object as the API server would store it."""

    patch: list[Json]
    warnings: list[str]
    stored: Json


async def reviewed(caller: Caller, created: Json, stored: Json | None = None) -> Review:
    """The review of a creation; of an UPDATE if one is stored already."""
    group, _, version = created["apiVersion"].rpartition("/")
    request: Json = {"kind": {"group": group, "version": version, "kind": created["kind"]}, "object": created}
    if stored is not None:
        request |= {"operation": "UPDATE", "oldObject": stored}
    response = await caller.review_at(PATH, {}, **request)
    lines = response.get("warnings", [])
    assert all(len(line) <= 256 and "\n" not in line for line in lines)
    return Review(response["patch"], lines, apply(created, msgspec.json.encode(response["patch"])))


def changed(document: Json, *images: str, metadata: Json | None = None, **spec: object) -> Json:
    """The object with these fields of its template's spec, and images of its containers, and metadata of its own."""
    made = copy.deepcopy(document)
    made["metadata"] |= metadata or {}
    made["spec"]["template"]["spec"] |= spec
    for container, image in zip(made["spec"]["template"]["spec"]["containers"], images, strict=False):
        container["image"] = image
    return made


# --- queues


async def test_templates_of_a_queued_object_get_what_their_pods_would_get(world: World) -> None:
    """The same selector, affinity, tolerations and annotations; a second review, and its pods, change nothing."""
    caller = await world.serve(REQUIRED)
    for name in ("amd", "multi"):
        made = template(world, f"{name}:1")
        alone = {"apiVersion": "v1", "kind": "Pod", **made}
        expected = apply(alone, msgspec.json.encode((await caller.review(alone))["patch"]))
        replicated = {"replicatedJobs": [{"template": {"spec": {"template": made}}}] * 2}
        for created in (job_of(made), workload("jobset.x-k8s.io/v1alpha2/JobSet", replicated, QUEUED)):
            stored = (await reviewed(caller, created)).stored
            found = list(templates_in(stored))
            assert found
            assert all(each == {key: expected[key] for key in ("metadata", "spec")} for each in found)
            assert "affinity" in found[0]["spec"]
            assert (await reviewed(caller, stored)).patch == []
            assert (await caller.review({"apiVersion": "v1", "kind": "Pod", **found[0]}))["patch"] == []


def templates_in(value: object) -> Iterator[Json]:
    if isinstance(value, dict):
        if isinstance(value.get("spec"), dict) and "containers" in value["spec"]:
            yield value
        else:
            for inner in value.values():
                yield from templates_in(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from templates_in(inner)


OWN: dict[str, Json] = {
    "nothing": {},
    "tolerations": {"tolerations": [{"key": "own", "operator": "Exists"}]},
    "a selector": {"nodeSelector": {"disk": "ssd"}},
    "terms": {
        "affinity": {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
                }
            }
        }
    },
}
RULE = "admission.tolerations=[{key: arch, operator: Exists, platforms: [linux/amd64]}]"


@pytest.mark.parametrize("own", OWN)
@pytest.mark.parametrize("guarded", [False, True], ids=["queued", "guarded"])
async def test_what_is_added_follows_the_images_and_outlives_an_apply(world: World, own: str, *, guarded: bool) -> None:
    """An apply overwrites atomic fields that its author names; what was added comes back, without a lookup. It is gone
    with a multi-arch image, and back with a rollback.
    """
    settings = [GUARD] if guarded else [REQUIRED, RULE]
    caller = await world.serve(*settings, nodes=view_of(*NODES))
    blind = await world.serve(*settings, "registry.deny=['*']", nodes=view_of(*NODES))

    async def applied_twice(image: str) -> Json:
        made = {"template": template(world, image, **OWN[own])}
        created = workload("apps/v1/DaemonSet", made) if guarded else workload("apps/v1/StatefulSet", made, QUEUED)
        stored = (await reviewed(caller, created)).stored
        for overwritten in (created, stored):  # all, or what the author names
            assert await reviewed(blind, changed(overwritten, **OWN[own]), stored) == (ANY, [], stored)
        return stored

    await applied_twice("multi:1")
    stored = await applied_twice("amd:1")
    spec = stored["spec"]["template"]["spec"]
    assert kept_to(spec, ARCHITECTURE) == ["amd64"]
    assert ("tolerations" in spec) is (own == "tolerations" or not guarded)
    assert ADDED in stored["spec"]["template"]["metadata"]["annotations"]
    moved = (await reviewed(caller, changed(stored, world.image("multi:1")), stored)).stored
    assert kept_to(moved["spec"]["template"]["spec"], ARCHITECTURE) != ["amd64"]
    if guarded:
        assert moved["spec"]["template"]["spec"] == {**template(world, "multi:1")["spec"], **OWN[own]}
        assert ADDED not in moved["spec"]["template"]["metadata"].get("annotations", {})
    back = moved | {"spec": {**moved["spec"], "template": stored["spec"]["template"]}}
    assert (await reviewed(caller, back, moved)).stored["spec"]["template"] == stored["spec"]["template"]


@pytest.mark.parametrize("why", ["ignore", "observe", "unguarded", "multi-arch", "unknown"])
async def test_a_daemon_set_is_put_back_only_where_it_would_get_the_same_today(world: World, why: str) -> None:
    """Its template can be changed, so what holds now counts, and the record where the image is not known."""
    guarding = await world.serve(GUARD, nodes=view_of(*NODES))
    world.registry.add_manifest("moving", "1", "linux/amd64")
    made = template(world, "moving:1")
    stored = (await reviewed(guarding, workload("apps/v1/DaemonSet", {"template": made}))).stored
    assert kept_to(stored["spec"]["template"]["spec"], ARCHITECTURE) == ["amd64"]
    if why in ("ignore", "observe"):
        made["metadata"] = {"annotations": {"multiarch-extender.io/mode": why}}
    if why == "multi-arch":
        world.registry.add_index("moving", "1", ["linux/amd64", "linux/arm64"])
    settings = {"unguarded": [], "unknown": [GUARD, "registry.deny=['*']"]}.get(why, [GUARD])
    later = await world.serve(*settings, nodes=view_of(*NODES))
    applied = workload("apps/v1/DaemonSet", {"template": made})
    after = (await reviewed(later, applied, stored)).stored
    assert after == (stored if why == "unknown" else applied)
    if why == "unguarded":  # and what an apply leaves of it goes
        changed_otherwise = changed(stored, terminationGracePeriodSeconds=3)
        taken = (await reviewed(later, changed_otherwise, stored)).stored["spec"]["template"]
        assert "affinity" not in taken["spec"]
        assert ADDED not in taken["metadata"].get("annotations", {})


async def test_a_stored_job_without_additions_gets_none(world: World) -> None:
    """It was created while we were away, and its template is immutable."""
    caller = await world.serve(REQUIRED)
    stored = job_of(template(world, "amd:1"))
    assert (await reviewed(caller, changed(stored, nodeSelector={"disk": "ssd"}), stored)).patch == []


async def test_other_templates_are_left_as_they_are(world: World) -> None:
    """No gate and no annotation is put into a template either, even where pods are held."""
    caller = await world.serve(REQUIRED, "admission.wait_seconds=0.2")
    for labels, spec, image in (
        ({}, {}, "amd:1"),
        ({"kueue.x-k8s.io/queue-name": ""}, {}, "amd:1"),
        (QUEUED, {"nodeName": "n"}, "amd:1"),
        (QUEUED, {}, "absent:1"),
    ):
        assert (await reviewed(caller, job_of(template(world, image, **spec), labels))).patch == [], (labels, spec)


@pytest.mark.parametrize("image", [None, "$(IMAGE)"])
async def test_a_template_that_gets_an_image_later_is_left_as_it_is(world: World, image: str | None) -> None:
    """What the other container requires could contradict it; the pod is decided about when it has its images."""
    caller = await world.serve(REQUIRED)
    made = template(world, "amd:1")
    made["spec"]["containers"].append({"name": "later", **({} if image is None else {"image": image})})
    created = job_of(made)
    assert await reviewed(caller, created) == ([], [], created)
    made["spec"]["containers"][1]["image"] = world.image("multi:1")
    assert (await reviewed(caller, job_of(made))).patch != []


@pytest.mark.parametrize("annotations", [{}, {"multiarch-extender.io/unknown": "assume"}], ids=["setting", "author"])
async def test_no_assumption_is_put_into_a_template(world: World, annotations: Json) -> None:
    """A queue plans by the template for as long as the Job waits; pods are decided about when they are created."""
    settings = [] if annotations else ["admission.unknown=assume"]
    caller = await world.serve(REQUIRED, "admission.wait_seconds=0.2", *settings)
    made = template(world, "absent:1")
    made["metadata"]["annotations"] = annotations
    assert (await reviewed(caller, job_of(made))).patch == []
    assert (await caller.review({"apiVersion": "v1", "kind": "Pod", **made}))["patch"] != []


async def test_places_that_take_no_words_get_warnings_only(world: World) -> None:
    """Knative refuses them; a PodSpec without metadata has nowhere to record them."""
    caller = await world.serve(REQUIRED)
    torn = template(world, "amd:1", "arm:1")
    knative = workload("serving.knative.dev/v1/Service", {"template": torn}, QUEUED)
    bare = workload("serving.kserve.io/v1beta1/InferenceService", {"predictor": torn["spec"]}, QUEUED)
    for created, place in ((knative, "spec.template"), (bare, "spec.predictor")):
        review = await reviewed(caller, created)
        assert review.patch == []
        assert review.warnings[0].startswith(f"{place}: image ")


# --- warnings


NODES = (node("a", "amd64"), node("b", "arm64"), node("c", "arm64"), tainted("d", "arm64", "gpu"))


WARNED: list[tuple[str, list[str], Json, str]] = [
    ("Deployment", ["amd:1"], {}, ""),  # the pod webhook mends it
    ("Deployment", ["multi:1"], {"nodeSelector": {"pool": "new"}}, ""),  # a pool that may come
    (
        "Deployment", ["amd:1", "arm:1"], {},
        "image HOST/amd:1 runs on linux/amd64 only, image HOST/arm:1 on linux/arm64",
    ),
    (
        "Deployment", ["amd:1"], {"nodeSelector": {ARCHITECTURE: "arm64"}},
        "image HOST/amd:1 runs on linux/amd64 only: its selector, affinity or tolerations allow none",
    ),
    ("Deployment", ["absent:1"], {}, "image HOST/absent:1 does not exist in its registry"),
    ("Deployment", ["Upper:1"], {}, "image HOST/Upper:1 is no image reference"),
    ("DaemonSet", ["amd:1"], {}, "image HOST/amd:1 runs on linux/amd64 only, but 2 linux/arm64 nodes match"),
    (
        "DaemonSet", ["amd:1"], {"tolerations": [{"operator": "Exists"}]},
        "image HOST/amd:1 runs on linux/amd64 only, but 3 linux/arm64 nodes match",
    ),
    ("DaemonSet", ["arm:1"], {}, "image HOST/arm:1 runs on linux/arm64 only, but 1 linux/amd64 node matches"),
    ("DaemonSet", ["amd:1"], {"nodeSelector": {ARCHITECTURE: "amd64"}}, ""),
    ("DaemonSet", ["multi:1"], {}, ""),
]  # fmt: skip


async def test_authors_are_warned_of_what_they_must_mend(world: World) -> None:
    """Once a change of a template, by its place and image; what the pods' webhook mends is no warning."""
    caller = await world.serve(REQUIRED, nodes=view_of(*NODES))
    for kind, names, spec, says in WARNED:
        made = template(world, *names, **spec)
        created = workload(f"apps/v1/{kind}", {"template": made})
        expected = [f"spec.template: {says.replace('HOST', world.host)}"] if says else []
        assert (await reviewed(caller, created)).warnings == expected
        scaled = created | {"spec": {**created["spec"], "replicas": 3}}
        silent = changed(created, metadata={"annotations": {"multiarch-extender.io/mode": "ignore"}})
        owned = changed(created, metadata={"ownerReferences": [{"kind": "Thing", "name": "t", "controller": True}]})
        for quiet, stored in ((scaled, created), (silent, None), (owned, None)):
            assert (await reviewed(caller, quiet, stored)).warnings == []


async def test_taints_that_leave_no_node_are_said_unless_the_webhook_gives_the_toleration(world: World) -> None:
    """An arm64-only image, and arm64 nodes behind a taint."""
    nodes = (node("a", "amd64"), tainted("b", "arm64", "pool"))
    created = workload("apps/v1/Deployment", {"template": template(world, "arm:1")})
    caller = await world.serve(REQUIRED, nodes=view_of(*nodes))
    [line] = (await reviewed(caller, created)).warnings
    assert line.endswith("runs on linux/arm64 only: its selector, affinity or tolerations allow none")
    rule = "admission.tolerations=[{key: pool, operator: Exists, platforms: [linux/arm64]}]"
    mending = await world.serve(REQUIRED, rule, nodes=view_of(*nodes))
    assert (await reviewed(mending, created)).warnings == []


async def test_an_object_that_cannot_be_read_is_allowed_with_a_warning(world: World) -> None:
    """And one without templates, a deletion and a subresource are none of our business."""
    caller = await world.serve(REQUIRED)
    odd = await reviewed(caller, job_of(template(world, "amd:1", tolerations="none")))
    assert odd.patch == []
    assert odd.warnings[0].startswith("multiarch-extender cannot read a pod template here: ")
    assert (await reviewed(caller, workload("apps/v1/Deployment", {"replicas": 1}))).patch == []
    for request in ({"operation": "DELETE", "object": None}, {"subResource": "scale"}):
        assert (await caller.review_at(PATH, {}, **request))["patch"] == []


# --- DaemonSets


def daemon_set(world: World, *images: str, **spec: object) -> Json:
    return workload("apps/v1/DaemonSet", {"template": template(world, *images, **spec)})


async def test_an_existing_daemon_set_is_guarded_only_when_its_template_changes(world: World) -> None:
    """A patch of its own would replace all pods; a restart replaces them anyway."""
    caller = await world.serve(GUARD, nodes=view_of(*NODES))
    stored = daemon_set(world, "amd:1")
    other = changed(stored, metadata={"annotations": {"note": "x"}})
    other["spec"]["minReadySeconds"] = 3
    assert (await reviewed(caller, other, stored)).patch == []
    restarted = changed(stored)
    restarted["spec"]["template"]["metadata"]["annotations"] = {"kubectl.kubernetes.io/restartedAt": "now"}
    after = (await reviewed(caller, restarted, stored)).stored
    assert kept_to(after["spec"]["template"]["spec"], ARCHITECTURE) == ["amd64"]


async def test_without_guard_a_daemon_set_is_left_as_it_is(world: World) -> None:
    """And with it, one that no node is right for, or whose image is not known."""
    caller = await world.serve(REQUIRED, nodes=view_of(*NODES))
    assert (await reviewed(caller, daemon_set(world, "amd:1"))).patch == []
    guarding = await world.serve(GUARD, nodes=view_of(*NODES))
    for created in (daemon_set(world, "amd:1", "arm:1"), daemon_set(world, "absent:1")):
        assert (await reviewed(guarding, created)).patch == []


def daemon_pod(world: World, name: str, *images: str, **annotations: str) -> Json:
    """A pod as the controller of a DaemonSet makes it for that node."""
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": "agents", "uid": "u", "controller": True}
    made = world.pod(*images, ownerReferences=[owner], annotations=annotations)
    field = {"key": "metadata.name", "operator": "In", "values": [name]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    made["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    return made


@pytest.mark.parametrize("guards", [True, False])
async def test_a_daemon_pod_for_a_node_that_does_not_run_it_is_counted_and_held_under_guard(
    world: World, guards: bool
) -> None:
    """Its selector leaves it Pending there, with its reason; pods of other nodes are left alone, and none is denied."""
    settings = [GUARD] if guards else []
    caller = await world.serve(*settings, nodes=view_of(*NODES))
    series = 'multiarch_daemon_pods_misplaced_total{treatment="' + ("held" if guards else "reported") + '"}'
    before = await caller.metric(series)
    for name, image, is_wrong in (("a", "amd:1", False), ("b", "amd:1", True), ("b", "multi:1", False)):
        created = {"apiVersion": "v1", "kind": "Pod", **daemon_pod(world, name, image)}
        response = await caller.review(created)
        assert bool(response["patch"]) == (is_wrong and guards)
        if response["patch"]:
            stored = apply(created, msgspec.json.encode(response["patch"]))
            assert kept_to(stored["spec"], ARCHITECTURE) == ["amd64"]
            assert stored["metadata"]["annotations"]["multiarch-extender.io/reason"].endswith("only for linux/amd64")
    assert await caller.metric(series) - before == 1


HELD, REPORTED = (f'multiarch_daemon_pods_misplaced_total{{treatment="{each}"}}' for each in ("held", "reported"))
MODE = "multiarch-extender.io/mode"
LONG = "x" * 70_000


@pytest.mark.parametrize(
    ("settings", "images", "change", "is_held"),
    [
        (("admission.impossible=deny",), ["amd:1"], {}, True),
        (("admission.impossible=deny",), ["amd:1", "arm:1"], {}, True),
        ((), ["amd:1", "arm:1"], {}, True),
        (("placement.mode=observe",), ["amd:1"], {}, False),
        ((), ["amd:1", "arm:1"], {"annotations": {MODE: "observe"}}, False),
        ((), ["amd:1"], {"tolerations": [{"key": LONG, "operator": "Exists"}]}, False),
    ],
    ids=["deny", "deny, of no platform", "of no platform", "observe", "its own observe", "too long"],
)
async def test_a_guarded_daemon_pod_is_never_refused_and_reported_as_what_was_done(
    world: World, settings: tuple[str, ...], images: list[str], change: Json, is_held: bool
) -> None:
    caller = await world.serve(GUARD, *settings, nodes=view_of(*NODES))
    for image in images:
        await caller.review(world.pod(image, annotations={MODE: "enforce"}))  # which waits for the image
    created = daemon_pod(world, "b", *images, **change.get("annotations", {}))
    created["spec"] |= {key: value for key, value in change.items() if key != "annotations"}
    async with caller.growth(HELD, REPORTED) as grown:
        response = await caller.review(created)
    assert response["allowed"] is True
    assert (bool(response["patch"]), grown) == (is_held, [is_held, not is_held])


async def test_a_daemon_pod_of_another_system_than_its_node_is_reported_with_its_reason(world: World) -> None:
    """Its image is data that runs anywhere, as its program is in a volume; its kubelet would refuse it."""
    caller = await world.serve(nodes=view_of(*NODES))
    created = daemon_pod(world, "b", "amd:1")
    created["spec"]["containers"][0] |= {"command": ["/t/run"], "volumeMounts": [{"name": "t", "mountPath": "/t"}]}
    created["spec"] |= {"os": {"name": "windows"}, "volumes": [{"name": "t", "emptyDir": {}}]}
    [verdict] = (await caller.review(created))["auditAnnotations"].values()
    assert verdict.endswith("is in a pod for windows (spec.os.name)")


async def test_a_guarded_daemon_pod_is_held_whose_node_has_only_now_joined(world: World) -> None:
    """The controller may see a node before the service does."""
    view = view_of(*NODES)
    caller = await world.serve(GUARD, nodes=view)
    joined = node(
        "new", "arm64", metadata={"name": "new", "labels": {ARCHITECTURE: "arm64", "kubernetes.io/os": "linux"}}
    )
    asyncio.get_running_loop().call_later(0.2, view.upsert, msgspec.json.encode(joined))
    assert (await caller.review(daemon_pod(world, "new", "amd:1")))["patch"]


async def test_a_daemon_pod_for_an_unknown_node_or_of_an_unknown_image_is_left_alone(world: World) -> None:
    """Not knowing is no reason to hold it."""
    caller = await world.serve(GUARD, "admission.wait_seconds=0.2", nodes=view_of(*NODES))
    for name, image in (("z", "amd:1"), ("b", "absent:1")):
        assert (await caller.review(daemon_pod(world, name, image)))["patch"] == []
