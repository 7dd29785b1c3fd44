"""Workloads are made of objects and pods, under their top owners."""

import contextlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.images.platform import parse_platform
from extender.placement.facts import Role, RunsOn
from extender.reports.workload_reports import UnreadableWorkload, Workload, WorkloadCollector, WorkloadKey
from tests.builders import REQUIRED
from tests.builders import pod as mutable
from tests.unit.placement.mutating import after, settings

_WORDS = st.sampled_from(
    ["name", "namespace", "image", "resources", "requests", "cpu", "volumes", "conditions", "type", "replicas",
     "parallelism", "suspend", "desiredNumberScheduled", "ownerReferences", "controller", "annotations", "affinity"]
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_WORDS, inner, max_size=4),
    max_leaves=12,
)
AppsKinds = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")


def template(*images: str, **spec: Any) -> dict[str, Any]:
    containers = [{"name": f"c{index}", "image": image} for index, image in enumerate(images)]
    return {"spec": {"containers": containers, **spec}}


def manifest(kind: str, name: str, pod: dict[str, Any], owner: str = "", **spec: Any) -> dict[str, Any]:
    """An object with this pod template; `owner` is written `Kind/name`."""
    metadata: dict[str, Any] = {"name": name, "namespace": "shop"}
    if owner:
        owner_kind, _, owner_name = owner.partition("/")
        metadata["ownerReferences"] = [{"kind": owner_kind, "name": owner_name, "controller": True}]
    return {"apiVersion": "x/v1", "kind": kind, "metadata": metadata, "spec": {"template": pod, **spec}}


def pod(name: str, owner: str = "", *images: str, phase: str = "Running", **spec: Any) -> bytes:
    found = manifest("Pod", name, {}, owner)
    return msgspec.json.encode({**found, "spec": template(*images, **spec)["spec"], "status": {"phase": phase}})


def collected(*objects: dict[str, Any] | bytes, source: str = "") -> list[Workload]:
    collector = WorkloadCollector()
    for each in objects:
        collector.add_pod(each) if isinstance(each, bytes) else collector.add(each, source)
    return collector.workloads()


def names(workloads: list[Workload]) -> list[str]:
    return [str(workload) for workload in workloads]


def images(workload: Workload) -> list[str]:
    return [use.image.reference for use in workload.uses]


@pytest.mark.parametrize("kind", [*AppsKinds, "ReplicationController", "Job", "Rollout", "SpecialSet"])
def test_any_kind_with_a_template_is_a_workload(kind: str) -> None:
    [workload] = collected(manifest(kind, "web", template("app:1")), source="a.yaml, document 1")
    assert (workload.key, workload.source) == (WorkloadKey("shop", kind, "web"), "a.yaml, document 1")
    assert images(workload) == ["app:1"]


def test_objects_of_one_name_from_several_documents_are_workloads_each() -> None:
    """Overlays for two clusters name the same Deployment; a file that is read twice counts once."""
    collector = WorkloadCollector()
    for source, image in (("prod.yaml", "app:1"), ("staging.yaml", "app:2"), ("staging.yaml", "app:2")):
        collector.add(manifest("Deployment", "web", template(image)), f"{source}, document 1")
    found = collector.workloads()
    assert names(found) == ["shop/Deployment/web"] * 2
    assert [(each.source, each.images[0].reference) for each in found] == [
        ("prod.yaml, document 1", "app:1"),
        ("staging.yaml, document 1", "app:2"),
    ]


def test_pods_that_were_saved_from_a_cluster_count_as_there() -> None:
    """`kubectl get pods -o yaml`: pods of one owner are added up with the images of all, and finished ones left out."""
    collector = WorkloadCollector()
    saved = [pod("a", "ReplicaSet/web-1", "app:1"), pod("b", "ReplicaSet/web-1", "app:1", "mesh:1")]
    for each in (*saved, pod("done", "", "job:1", phase="Succeeded"), pod("bare", "", "tool:1")):
        collector.add(msgspec.json.decode(each), "pods.yaml, document 1")
    replicas, bare = sorted(collector.workloads(), key=str, reverse=True)
    assert (str(replicas), replicas.pods) == ("shop/ReplicaSet/web-1", 2)
    assert [image.reference for image in replicas.images] == ["app:1", "mesh:1"]
    assert (str(bare), bare.source) == ("shop/Pod/bare", "pods.yaml, document 1")
    assert collector.finished == 1


def test_an_object_that_a_cluster_lists_twice_counts_once() -> None:
    """A list that expired meanwhile is read again: the later object is the one that counts."""
    [workload] = collected(*(manifest("Deployment", "web", template(image)) for image in ("app:1", "app:2")))
    assert images(workload) == ["app:2"]


def test_an_object_without_pods_is_no_workload() -> None:
    definition = {"kind": "CustomResourceDefinition", "spec": {"template": {"spec": {"x": 1}}}}
    for other in ({"kind": "Service", "spec": {"selector": {}}}, {"kind": "ConfigMap", "data": {}}, definition):
        assert not WorkloadCollector().add(other)
        assert collected(other) == []


def test_pods_count_for_the_top_owner() -> None:
    """Through ReplicaSets and Jobs, whose own templates are not shown beside it, in any order."""
    found = collected(
        pod("web-1-a", "ReplicaSet/web-1", "app:1"),
        manifest("ReplicaSet", "web-1", template("app:1"), "Deployment/web"),
        manifest("Deployment", "web", template("app:1"), replicas=3),
        manifest("Job", "nightly-1", template("job:1"), "CronJob/nightly"),
        manifest("CronJob", "nightly", {}, jobTemplate={"spec": {"template": template("job:1"), "parallelism": 2}}),
    )
    assert [(str(each), each.pods) for each in found] == [("shop/CronJob/nightly", 2), ("shop/Deployment/web", 3)]


def test_pods_of_one_template_share_what_is_read_of_them() -> None:
    """The volume of a service account has another name in each; a program's own volume is kept."""
    collector = WorkloadCollector()
    for name in ("a", "b"):
        mounts = [{"name": f"token-{name}", "mountPath": "/token"}, {"name": "tools", "mountPath": "/tools"}]
        document = msgspec.json.decode(pod(f"web-{name}", "ReplicaSet/web", "app:1"))
        document["spec"]["volumes"] = [{"name": f"token-{name}", "projected": {}}, {"name": "tools", "emptyDir": {}}]
        document["spec"]["containers"][0] |= {"command": ["/tools/run"], "volumeMounts": mounts}
        collector.add_pod(msgspec.json.encode(document))
    (found,) = collector.workloads()
    assert [(use.image.reference, use.image.role) for use in found.uses] == [("app:1", Role.DATA)]
    assert len(collector._specs) == 1  # noqa: SLF001 - memory that nothing else shows


def test_an_owner_that_nobody_listed_stands_by_its_pods() -> None:
    """An Argo Rollout has ReplicaSets: the pods of several of them are added up."""
    sets = [manifest("ReplicaSet", f"web-{each}", template(f"app:{each}"), "Rollout/web") for each in (1, 2)]
    pods = [pod(f"web-{each}-a", f"ReplicaSet/web-{each}", f"app:{each}") for each in (1, 2)]
    found = collected(*sets, *pods, pod("ray-head", "RayCluster/ray", "ray:2"))
    assert [(str(each), each.pods) for each in found] == [("shop/RayCluster/ray", 1), ("shop/Rollout/web", 2)]
    assert {*images(found[1])} == {"app:1", "app:2"}


def test_an_unlisted_owner_scaled_to_zero_is_told_by_its_replica_sets() -> None:
    """It has no pods now; a ReplicaSet that wants none is an old one."""
    [workload] = collected(
        manifest("ReplicaSet", "web-1", template("app:1"), "Rollout/web", replicas=0),
        manifest("ReplicaSet", "web-2", template("app:2"), "Rollout/web", replicas=1),
    )
    assert images(workload) == ["app:2"]


def test_what_other_webhooks_inject_is_marked() -> None:
    """A sidecar in pods that the template lacks; an image that a container had before a rollout does not count."""
    [workload] = collected(
        manifest("Deployment", "web", template("app:2")),
        manifest("ReplicaSet", "web-1", template("app:1"), "Deployment/web"),
        pod("web-1-a", "ReplicaSet/web-1", "app:1", "mesh:1"),
    )
    assert [(use.image.reference, use.is_injected) for use in workload.uses] == [("app:2", False), ("mesh:1", True)]


def test_finished_pods_and_jobs_count_for_nothing() -> None:
    """Nothing of theirs will run again."""
    collector = WorkloadCollector()
    collector.add_pod(pod("done", "", "app:1", phase="Succeeded"))
    job = manifest("Job", "once", template("app:1"))
    collector.add({**job, "status": {"conditions": [{"type": "Complete", "status": "True"}]}})
    assert collector.workloads() == []
    assert collector.finished == 2


def test_static_pods_are_workloads_of_their_own() -> None:
    """Their owner is the node."""
    assert names(collected(pod("etcd-node-1", "Node/node-1", "etcd:3"))) == ["shop/Pod/etcd-node-1"]


@pytest.mark.parametrize(
    ("kind", "spec", "wanted"),
    [("Deployment", {}, 1), ("Deployment", {"replicas": 0}, 0), ("Job", {"suspend": True}, 0),
     ("Job", {"parallelism": 4}, 4), ("DaemonSet", {}, None), ("Deployment", {"replicas": 10**400}, 1),
     ("Deployment", {"replicas": -1}, 1), ("Deployment", {"replicas": "3"}, 1)],
)  # fmt: skip
def test_how_many_pods_an_object_wants(kind: str, spec: dict[str, Any], wanted: int | None) -> None:
    assert [each.pods for each in collected(manifest(kind, "web", template("app:1"), **spec))] == [wanted]


def test_every_use_of_an_image_is_listed() -> None:
    spec = {
        "initContainers": [
            {"name": "i", "image": "init:1"},
            {"name": "s", "image": "mesh:1", "restartPolicy": "Always"},
        ],
        "ephemeralContainers": [{"name": "e", "image": "debug:1"}],
        "volumes": [{"name": "v", "image": {"reference": "data:1"}}, {"name": "tmp", "emptyDir": {}}],
    }
    [workload] = collected(manifest("Deployment", "web", template("app:1", **spec)))
    assert [(use.used_as, use.name, use.image.reference) for use in workload.uses] == [
        ("container", "c0", "app:1"),
        ("init container", "i", "init:1"),
        ("sidecar", "s", "mesh:1"),
        ("ephemeral container", "e", "debug:1"),
        ("image volume", "v", "data:1"),
    ]


@given(_JSON, _JSON, _JSON, st.sampled_from(["Deployment", "Job", "CronJob", "DaemonSet", "Pod", "PodTemplate", "Own"]))
def test_no_manifest_crashes_the_collector(metadata: object, spec: object, status: object, kind: str) -> None:
    collector = WorkloadCollector()
    pod = (
        template("app:1")
        if not isinstance(spec, dict)
        else {"metadata": metadata, "spec": {**spec, "containers": [spec]}}
    )
    inner = {"template": pod, "jobTemplate": {"spec": {"template": pod}}, "containers": [spec]}
    body = {**(spec if isinstance(spec, dict) else {}), **inner}
    with contextlib.suppress(UnreadableWorkload):
        collector.add({"kind": kind, "metadata": metadata, "spec": body, "status": status, "template": pod}, "a.yaml")
    with contextlib.suppress(UnreadableWorkload):
        collector.add({"kind": kind, "metadata": metadata, "spec": spec, "status": status})
    collector.workloads()


def test_a_field_of_the_wrong_type_is_named() -> None:
    with pytest.raises(UnreadableWorkload, match=r"Deployment web: .*\$\.spec\.nodeSelector"):
        WorkloadCollector().add(manifest("Deployment", "web", template("app:1", nodeSelector=["x"])), "a.yaml")


def test_pods_count_for_a_deployment_config_of_openshift() -> None:
    """Through its ReplicationController; an image that a trigger fills in is none yet."""
    triggered, workload = collected(
        manifest("DeploymentConfig", "web", template("app:1"), replicas=2),
        manifest("ReplicationController", "web-1", template("app:1"), "DeploymentConfig/web"),
        pod("web-1-a", "ReplicationController/web-1", "app:1"),
        manifest("DeploymentConfig", "triggered", template(" ")),
    )
    assert (str(workload), workload.pods, workload.missing) == ("shop/DeploymentConfig/web", 2, ())
    assert (images(triggered), triggered.missing) == ([], ("c0",))


def test_live_pods_have_the_image_that_their_template_gets_later() -> None:
    """An injected proxy: what its pods have counts; a pod's own image is an image, whatever it looks like."""
    partly = manifest("Deployment", "web", template("app:1", "auto"))
    replicas = manifest("ReplicaSet", "web-1", template("app:1", "auto"), "Deployment/web")
    [waiting] = collected(partly)
    assert (images(waiting), waiting.missing) == (["app:1"], ("c1",))
    [running] = collected(partly, replicas, pod("web-1-a", "ReplicaSet/web-1", "app:1", "proxy:2"))
    assert (images(running), running.missing) == (["app:1", "proxy:2"], ())
    [slip] = collected(pod("slip", "", "app:1", "IMAGE"))
    assert (images(slip), slip.missing) == (["app:1", "IMAGE"], ())


def test_what_our_webhook_added_is_not_the_authors() -> None:
    """Its own terms stay, and so do tolerations: whoever gave one, the pod is let onto the node."""
    fact = RunsOn(frozenset({parse_platform("linux/amd64")}))
    own: dict[str, Any] = {"key": "disk", "operator": "In", "values": ["ssd"]}
    affinity: Any = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [own]}]}}}
    collector = WorkloadCollector()
    specs: dict[str, dict[str, Any]] = {"plain": {}, "choosy": {"affinity": affinity}}
    for name, spec in specs.items():
        patched = after(mutable(metadata={"name": name}, **spec), fact, admission=settings("required"))
        assert "added" in str(patched["metadata"]["annotations"])
        collector.add_pod(msgspec.json.encode(patched))
        patched["metadata"]["name"] += "-job"
        collector.add({"kind": "Job", "metadata": patched["metadata"], "spec": {"template": patched}})
    by_name = {each.key.name: each.spec for each in collector.workloads()}
    assert len(by_name) == 4
    for name, written in by_name.items():
        assert not written.node_selector
        required = written.affinity and written.affinity.node_affinity and written.affinity.node_affinity.required
        terms = required.node_selector_terms if required else None
        assert [each.key for term in terms or () for each in term.match_expressions or ()] == (
            ["disk"] if name.startswith("choosy") else []
        )
