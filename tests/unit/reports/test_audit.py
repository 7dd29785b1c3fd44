"""What the audit makes of workloads, answers and nodes. The golden file of the end-to-end test has each kind once."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, Platform, parse_platform
from extender.kubernetes.apps_v1 import LabelSelector
from extender.kubernetes.core_v1 import NodeMeta, Taint
from extender.kubernetes.reported_v1 import ReportedNode, ReportedNodeSpec
from extender.placement.annotations import Mode, Overrides
from extender.placement.facts import RuntimeClass
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.tolerations import TolerationRule
from extender.placement.webhook_reach import CalledFor, WebhookReach
from extender.reports.audit_findings import (
    AuditInput,
    ImageEvidence,
    audit,
    new_findings,
    new_problems,
    wanted_newer,
    with_newer,
)
from extender.reports.audit_report import Audit, FindingRule, NewerTag, RunAnswer
from extender.reports.running_containers import fault_of
from extender.reports.workload_reports import WorkloadCollector
from tests import builders
from tests.builders import decoded, expression, index, with_terms

AMD, ARM = parse_platform("linux/amd64"), parse_platform("linux/arm64")
S390X = parse_platform("linux/s390x")
TAINT, ARM_TAINT = Taint("pool", "arm", "NoSchedule"), Taint("arch", "arm64", "NoSchedule")
ANSWERS: dict[str, Answer] = {
    "amd": Content(Kind.MANIFEST, frozenset((AMD,)), states_platforms=False),
    "arm": Content(Kind.MANIFEST, frozenset((ARM,)), states_platforms=False),
    "multi": index("linux/amd64", "linux/arm64"),
    "wasm": index("wasi/wasm"),
    "gone": Failure(Cause.MISSING, "the registry has no such image"),
}
ADMISSION = AdmissionSettings(
    tolerations=(TolerationRule(key="arch", value="arm64", effect="NoSchedule", platforms=("linux/arm64",)),)
)
PINNED: Any = {"nodeSelector": {"kubernetes.io/arch": "amd64"}}


def node(architecture: str, name: str = "", *taints: Taint, **labels: str) -> ReportedNode:
    return decoded(builders.node(name or architecture, f"linux/{architecture}", labels, taints=taints), ReportedNode)


def deployment(name: str, *images: str, kind: str = "Deployment", **spec: Any) -> dict[str, Any]:
    """A workload of two pods of half a core each."""
    containers = [{"name": image, "image": image} for image in images]
    template = {"spec": {"resources": {"requests": {"cpu": "500m"}}, "containers": containers, **spec}}
    return {"kind": kind, "metadata": {"name": name}, "spec": {"replicas": 2, "template": template}}


def given(*manifests: dict[str, Any], **fields: Any) -> AuditInput:
    """The input for these manifests, whose images are what `ANSWERS` says by the end of their names."""
    collector = WorkloadCollector()
    for manifest in manifests:
        collector.add(manifest, "x.yaml, document 1")
    workloads = collector.workloads()
    evidence = [
        [ImageEvidence(ANSWERS[image.reference.rpartition("/")[2].partition(":")[0]], "") for image in each.images]
        for each in workloads
    ]
    return AuditInput(workloads=workloads, evidence=evidence, policy=fields.pop("policy", Policy()), **fields)


def messages(report: Audit, rule: FindingRule) -> list[str]:
    return [each.message for each in report.findings if each.rule is rule]


def answers(report: Audit) -> dict[str, list[str]]:
    return {each.name: [platform.answer.value for platform in each.platforms] for each in report.workloads}


@pytest.mark.parametrize(
    ("nodes", "required", "targets"),
    [
        ((), (), ["linux/amd64", "linux/arm64"]),
        ((node("amd64"),), (), ["linux/amd64", "linux/arm64"]),
        ((node("s390x"), node("ppc64le")), (), ["linux/ppc64le", "linux/s390x"]),
        ((node("s390x"),), (ARM,), ["linux/arm64"]),
        ((ReportedNode(),), (), ["linux/amd64", "linux/arm64"]),
    ],
)
def test_the_targets_are_those_required_or_those_of_the_nodes(
    nodes: Sequence[ReportedNode], required: Sequence[Platform], targets: list[str]
) -> None:
    """A cluster of one architecture is asked about both usual ones: it may be about to move."""
    assert audit(given(nodes=nodes, required=required)).targets == targets


def test_an_image_is_weighed_by_all_that_it_blocks_and_by_what_it_alone_blocks() -> None:
    """The second figure is what one new build sets free."""
    report = audit(given(deployment("a", "amd:1"), deployment("b", "amd:1", "own/amd:2"), deployment("c", "multi:1")))
    first, second = (next(each for each in report.images if each.reference == name) for name in ("amd:1", "own/amd:2"))
    assert (first.blocks.workloads, first.blocks.cpu_cores, first.unblocks.workloads) == (2, 2.0, 1)
    assert (second.blocks.workloads, second.unblocks.workloads) == (1, 0)
    [image] = audit(given(deployment("a", "amd:1", **PINNED))).images  # it is to blame, but not alone
    assert (image.blocks.workloads, image.unblocks.workloads) == (1, 0)
    assert [(each.platform, each.yes.workloads, each.no.workloads) for each in report.summary] == [
        ("linux/amd64", 3, 0), ("linux/arm64", 1, 2)
    ]  # fmt: skip


def test_without_nodes_only_what_speaks_of_platforms_blocks() -> None:
    """A selector for disks may be met by any node that is not known here."""
    pinned = {"kubernetes.io/arch": "amd64", "disk": "ssd"}
    report = audit(
        given(deployment("a", "multi:1", nodeSelector={"disk": "ssd"}), deployment("b", "multi:1", nodeSelector=pinned))
    )
    assert answers(report) == {"a": ["yes", "yes"], "b": ["yes", "no"]}
    assert [each.subject for each in report.workloads[1].platforms[1].blockers] == ["kubernetes.io/arch=amd64"]


def test_one_node_that_takes_the_pods_is_enough() -> None:
    """A taint blocks only where every node of the platform has one that is not tolerated."""
    nodes = [node("amd64"), node("arm64", "a", TAINT), node("arm64", "b")]
    assert answers(audit(given(deployment("a", "multi:1"), nodes=nodes))) == {"a": ["yes", "yes"]}
    assert answers(audit(given(deployment("a", "multi:1"), nodes=nodes[:2]))) == {"a": ["yes", "no"]}
    soft = Taint("pool", "arm", "PreferNoSchedule")
    assert answers(audit(given(deployment("a", "multi:1"), nodes=[node("arm64", "a", soft)]))) == {"a": ["yes", "yes"]}


@pytest.mark.parametrize(
    "asked",
    [
        {"nodeSelector": {"role": "db"}},
        {"affinity": with_terms({"matchExpressions": [expression("role", "db")]})},
        {"affinity": with_terms({"matchFields": [expression("metadata.name", "c")]})},
    ],
)
def test_the_one_node_that_is_asked_for_is_found_among_others(asked: Any) -> None:
    nodes = [node("amd64"), node("arm64", "a"), node("arm64", "b"), node("arm64", "c", role="db")]
    assert answers(audit(given(deployment("a", "multi:1", **asked), nodes=nodes)))["a"][1] == "yes"
    assert answers(audit(given(deployment("a", "multi:1", **asked), nodes=nodes[:3])))["a"][1] == "no"


def test_a_daemon_set_is_weighed_by_the_nodes_that_it_targets() -> None:
    """Four nodes, one of which it does not target; and it need not tolerate what its controller does for it."""
    not_ready = Taint("node.kubernetes.io/not-ready", None, "NoExecute")
    tainted = [node("arm64", name, not_ready, TAINT) for name in ("b", "d")]
    nodes = [node("amd64", "a"), *tainted, node("arm64", "c", role="db")]
    affinity = with_terms({"matchExpressions": [{"key": "role", "operator": "DoesNotExist"}]})
    daemon_set = deployment("agent", "amd:1", kind="DaemonSet", affinity=affinity)
    report = audit(given(daemon_set, nodes=nodes))
    assert report.workloads[0].weight.pods == 3
    assert [each.message for each in report.findings if each.rule.startswith("daemonset")] == [
        "DaemonSet/agent targets 2 nodes of linux/arm64, on which its images do not run",
        "DaemonSet/agent targets 2 nodes with the taint pool=arm:NoSchedule, which it does not tolerate",
    ]


@pytest.mark.parametrize(
    ("image", "spec", "found"),
    [
        ("amd:1", {}, [ARM, S390X]),
        ("multi:1", {}, [S390X]),
        ("gone:1", {}, []),
        ("amd:1", {"nodeSelector": {"kubernetes.io/arch": "amd64"}}, []),
        ("amd:1", {"nodeSelector": {"kubernetes.io/arch": "arm64", "disk": "ssd"}}, [ARM]),
        ("amd:1", {"os": {"name": "windows"}}, []),
    ],
)
def test_a_required_platform_counts_as_a_node_for_daemon_sets(
    image: str, spec: dict[str, Any], found: list[Platform]
) -> None:
    """Before the first node of it is there, in a cluster; one that is there counts as it is."""
    daemon_set = deployment("agent", image, kind="DaemonSet", **spec)
    report = audit(given(daemon_set, nodes=[node("amd64")], required=[AMD, ARM, S390X]))
    assert messages(report, FindingRule.DAEMON_SET_LACKS_PLATFORM) == [
        f"DaemonSet/agent will target nodes of {each}, on which its images do not run" for each in found
    ]
    assert {each.level for each in report.findings if each.rule is FindingRule.DAEMON_SET_LACKS_PLATFORM} <= {"error"}
    there = [node("amd64"), node("arm64", "a", role="db")]
    report = audit(given(deployment("agent", "amd:1", kind="DaemonSet"), nodes=there, required=[ARM]))
    assert messages(report, FindingRule.DAEMON_SET_LACKS_PLATFORM) == [
        "DaemonSet/agent targets 1 node of linux/arm64, on which its images do not run"
    ]


@pytest.mark.parametrize(
    ("taint", "spec", "answer"),
    [
        ("unschedulable", {}, "yes"),
        ("memory-pressure", {}, "yes"),
        ("network-unavailable", {"hostNetwork": True}, "yes"),
        ("network-unavailable", {}, "no"),
        ("out-of-service", {}, "no"),
    ],
)
def test_what_its_controller_tolerates_keeps_no_daemon_set_from_a_node(
    taint: str, spec: dict[str, Any], answer: str
) -> None:
    """Cordons and pressure are no findings, and nobody is to uncordon a node for it; a Deployment is kept away."""
    blocked = node("arm64", "a", Taint(f"node.kubernetes.io/{taint}", None, "NoSchedule"))
    if taint == "unschedulable":
        blocked = msgspec.structs.replace(blocked, spec=ReportedNodeSpec(unschedulable=True))
    daemon_set = deployment("agent", "multi:1", kind="DaemonSet", **spec)
    report = audit(given(daemon_set, deployment("web", "multi:1"), nodes=[node("amd64"), blocked]))
    assert answers(report) == {"agent": ["yes", answer], "web": ["yes", "no"]}
    assert bool([each for each in report.findings if each.subject.startswith("DaemonSet/agent")]) is (answer == "no")


def test_a_pods_own_system_blocks_the_others() -> None:
    """Its author asked for it, so it is a note and fails no gate."""
    report = audit(given(deployment("a", "multi:1", os={"name": "windows"})))
    assert answers(report) == {"a": ["no", "no"]}
    assert [(each.rule.value, each.level) for each in report.findings] == [("selector-blocks", "note")] * 2
    assert report.findings[0].message == "Deployment/a on linux/amd64: its spec.os.name is windows"


@pytest.mark.parametrize(
    ("nodes", "freed"),
    [
        ((), "2 pods"),
        ((node("amd64"),), "2 pods"),
        (
            (node("amd64"), *(node("arm64", name, ARM_TAINT) for name in "ac"), node("arm64", "b", TAINT)),
            "2 pods, 2 nodes",
        ),
        ((node("amd64"), node("arm64", "a", TAINT)), ""),
    ],
)
def test_a_constraint_that_no_image_needs_is_told_with_what_it_frees(
    nodes: tuple[ReportedNode, ...], freed: str
) -> None:
    """In place of the note that it blocks; not where every node has something else against the pods."""
    report = audit(given(deployment("web", "multi:1", **PINNED), nodes=nodes, admission=ADMISSION))
    free = f"may run on linux/arm64 too ({freed}): no image needs nodeSelector kubernetes.io/arch=amd64"
    assert messages(report, FindingRule.CONSTRAINT_NOT_NEEDED) == ([f"Deployment/web {free}"] if freed else [])
    assert bool(messages(report, FindingRule.SELECTOR_BLOCKS)) is not bool(freed)
    assert new_findings(report, None) == []


def test_a_toleration_that_the_webhook_gives_is_told() -> None:
    """Not of a DaemonSet, whose controller goes by its template, nor where an image is unknown or lacks a platform."""
    own: Any = {"tolerations": [{"key": "arch", "value": "arm64", "effect": "NoSchedule"}]}
    workloads = [
        deployment("web", "multi:1", **own),
        deployment("agent", "multi:1", kind="DaemonSet", **own),
        deployment("legacy", "amd:1", **own, **PINNED),
        deployment("gone", "gone:1", **own, **PINNED),
    ]
    report = audit(given(*workloads, admission=ADMISSION))
    toleration = "toleration arch=arm64:NoSchedule, which the webhook gives to its pods"
    assert messages(report, FindingRule.CONSTRAINT_NOT_NEEDED) == [f"Deployment/web does not need {toleration}"]


def test_a_toleration_is_not_told_where_no_webhook_gives_it() -> None:
    """In a namespace that is left out, or whose pods are only observed; there a selector goes neither."""
    own: Any = {"tolerations": [{"key": "arch", "value": "arm64", "effect": "NoSchedule"}]}

    def told(**fields: Any) -> list[str]:
        made = [
            {**deployment("web", "multi:1", **own), "metadata": {"name": "web", "namespace": name}}
            for name in ("kube-system", "shop")
        ]
        report = audit(given(*made, admission=ADMISSION, **fields))
        return [each.subject for each in report.findings if each.rule is FindingRule.CONSTRAINT_NOT_NEEDED]

    assert told() == ["shop/Deployment/web"]
    everything = CalledFor(LabelSelector(), LabelSelector())
    names: dict[str, dict[str, str]] = {"shop": {}, "kube-system": {}}
    assert told(reach=WebhookReach([everything], names)) == ["kube-system/Deployment/web", "shop/Deployment/web"]
    assert told(reach=WebhookReach([], names)) == []
    assert told(namespaces={"shop": {"multiarch-extender.io/mode": "observe"}}) == []
    observed = given(deployment("web", "multi:1", **PINNED), policy=Policy(overrides=Overrides(mode=Mode.OBSERVE)))
    assert messages(audit(observed), FindingRule.CONSTRAINT_NOT_NEEDED) == []
    assert messages(audit(observed), FindingRule.SELECTOR_BLOCKS)


def test_no_two_objects_share_a_fingerprint() -> None:
    """Objects of one name in two namespaces, files and documents: a baseline that has one does not pass the other."""
    collector = WorkloadCollector()
    sources = ["a.yaml, document 1", "a.yaml, document 2", "b.yaml, document 1"]
    for namespace, source in [("", source) for source in sources] + [("shop", "c.yaml, document 1")]:
        for kind in ("Deployment", "DaemonSet"):
            manifest = deployment("web", "amd:1", "arm:1", "multi:1", kind=kind)
            collector.add({**manifest, "metadata": {"name": "web", "namespace": namespace}}, source)
            obstructed = deployment("pinned", "multi:1", kind=kind, **PINNED)
            collector.add({**obstructed, "metadata": {"name": "pinned", "namespace": namespace}}, source)
    workloads = collector.workloads()
    evidence = [[ImageEvidence(ANSWERS[image.reference[:-2]]) for image in each.images] for each in workloads]
    nodes = [node("arm64", "a", TAINT)]
    report = audit(AuditInput(workloads=workloads, evidence=evidence, policy=Policy(), nodes=nodes))
    own = [each for each in report.findings if not each.rule.startswith("image-")]
    fingerprints = [each.fingerprint for each in report.findings]
    assert {each.rule.value for each in own} == {
        "no-common-platform", "daemonset-lacks-platform", "daemonset-taint-not-tolerated", "selector-blocks",
        "taint-not-tolerated",
    }  # fmt: skip
    assert len(own) == len({each.fingerprint for each in own}) > 16
    assert len(set(fingerprints)) == len(fingerprints)
    known = msgspec.structs.replace(report, findings=[each for each in report.findings if "@" not in each.fingerprint])
    assert {each.sources[0] for each in new_findings(report, known)} == set(sources[1:])


def test_capacity_that_blocked_workloads_cannot_use_is_told_by_platform() -> None:
    report = audit(given(deployment("a", "amd:1"), nodes=[node("amd64"), node("arm64", "a"), node("arm64", "b")]))
    assert [(each.platform, each.nodes, each.cpu_cores, each.blocked.cpu_cores) for each in report.nodes] == [
        ("linux/amd64", 1, 8.0, 0.0), ("linux/arm64", 2, 16.0, 1.0)
    ]  # fmt: skip


def test_unknown_is_neither_yes_nor_no() -> None:
    """It has a cause, is no blocker of an image's platform, and fails a gate."""
    report = audit(given(deployment("a", "gone:1"), deployment("b", "gone:1", "arm:1")))
    assert answers(report) == {"a": ["unknown", "unknown"], "b": ["no", "unknown"]}
    gone = next(image for image in report.images if image.reference == "gone:1")
    assert (gone.state, gone.cause, gone.lacks, gone.blocks.workloads) == ("unknown", "missing", [], 0)
    assert [each.subject for each in new_findings(report, None)] == ["arm:1", "gone:1"]


def test_a_baseline_hides_what_it_knows_by_platform() -> None:
    old = audit(given(deployment("a", "amd:1"), required=[ARM]))
    assert new_findings(old, old) == []
    wider = audit(given(deployment("a", "amd:1"), required=[ARM, parse_platform("linux/s390x")]))
    assert [each.platform for each in new_findings(wider, old)] == ["linux/s390x"]


def test_what_could_not_be_read_fails_a_gate_unless_the_baseline_says_so() -> None:
    old = audit(msgspec.structs.replace(given(deployment("a", "amd:1")), problems=["jobs cannot be listed"]))
    new = audit(msgspec.structs.replace(given(deployment("a", "amd:1")), problems=["jobs cannot be listed", "x.yaml"]))
    assert new_problems(new, None) == ["jobs cannot be listed", "x.yaml"]
    assert new_problems(new, old) == ["x.yaml"]


def test_newer_tags_are_wanted_for_what_blocks_most_first() -> None:
    found = given(deployment("a", "amd:1"), deployment("b", "amd:2"), deployment("c", "amd:2"), required=[ARM])
    assert wanted_newer(audit(found)) == [("amd:2", "linux/arm64"), ("amd:1", "linux/arm64")]
    newer = {("amd:2", "linux/arm64"): NewerTag("linux/arm64", "3")}
    report = with_newer(audit(given(deployment("b", "amd:2"), required=[ARM])), newer)
    assert report.findings[0].message.endswith("; the first newer tag that does is 3")


@pytest.mark.parametrize(
    ("reference", "own", "owner"),
    [
        ("amd:1", (), "vendor"),
        ("quay.io/x/amd:1", (), "vendor"),
        ("registry.example.com/x/amd:1", (), "own"),
        ("registry.example.com/x/amd:1", ("registry.example.com/y/",), "vendor"),
        ("ghcr.io/us/amd:1", ("ghcr.io/us/",), "own"),
    ],
)
def test_whose_image_it_is(reference: str, own: Sequence[str], owner: str) -> None:
    [image] = audit(given(deployment("a", reference), own=own)).images
    assert image.owner == owner


def test_a_runtime_class_of_which_nothing_is_said_may_run_web_assembly() -> None:
    """Then nothing is known of it, as the scheduler verbs have it, and a container that runs has no fault."""
    [plain, handled] = audit(
        given(deployment("a", "wasm:1"), deployment("b", "wasm:1", runtimeClassName="slight"))
    ).workloads
    assert {each.answer for each in plain.platforms} == {RunAnswer.NO}
    assert {each.answer for each in handled.platforms} == {RunAnswer.UNKNOWN}
    status = {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]}
    collector = WorkloadCollector({"n": AMD})
    for name, runtime_class in (("plain", None), ("handled", "slight")):
        document = builders.pod(metadata={"name": name}, nodeName="n", runtimeClassName=runtime_class)
        collector.add_pod(msgspec.json.encode({**document, "status": status}))
    faults = {
        str(each): [fault_of(running, ANSWERS["wasm"], None, Compatibility()) for running in each.running]
        for each in collector.workloads()
    }
    assert faults["Pod/handled"] == [None]
    assert faults["Pod/plain"] != [None]


def test_what_is_ignored_is_listed_and_not_judged() -> None:
    policy = Policy(runtime_classes={"wasm": RuntimeClass("wasm", frozenset())})
    report = audit(given(deployment("a", "amd:1", runtimeClassName="wasm"), policy=policy))
    [workload] = report.workloads
    assert (workload.platforms, workload.skipped) == (
        [], "placement.runtime_classes leaves its RuntimeClass wasm alone"
    )  # fmt: skip
    report = audit(given(deployment("a", "amd:1"), namespaces={"": {"multiarch-extender.io/mode": "ignore"}}))
    assert report.workloads[0].skipped == "the annotation multiarch-extender.io/mode is ignore"


def test_a_workload_that_gets_an_image_later_is_named_and_not_judged() -> None:
    """Nobody knows what its pods will be, whatever runs beside. A gate fails for it, as for an unknown image."""
    partly = deployment("web", "multi:1", "REPLACE_ME")
    report = audit(given(partly, deployment("agent", "REPLACE_ME", kind="DaemonSet"), required=[ARM]))
    assert answers(report) == {"web": [], "agent": []}
    assert [each.skipped for each in report.workloads] == ["partly given: container REPLACE_ME gets an image later"] * 2
    assert [(each.rule, each.subject) for each in new_findings(report, None)] == [
        (FindingRule.PARTLY_GIVEN, "DaemonSet/agent"), (FindingRule.PARTLY_GIVEN, "Deployment/web")
    ]  # fmt: skip
    assert new_findings(report, report) == []
    assert [(each.reference, each.lacks) for each in report.images] == [("multi:1", [])]
    ignored = audit(given(partly, namespaces={"": {"multiarch-extender.io/mode": "ignore"}}))
    assert (ignored.workloads[0].skipped, ignored.findings) == (
        "the annotation multiarch-extender.io/mode is ignore", []
    )  # fmt: skip
    blocked = audit(given(deployment("web", "amd:1", "REPLACE_ME", nodeSelector={"kubernetes.io/arch": "arm64"})))
    assert {each.rule for each in blocked.findings} == {FindingRule.PARTLY_GIVEN}


def test_a_gate_does_not_fail_for_images_that_only_ignored_workloads_use() -> None:
    """Neither for what they lack nor for what is unknown; an image that a judged workload uses too counts for that."""
    policy = Policy(runtime_classes={"wasm": RuntimeClass("wasm", frozenset())})
    ignored = (deployment("a", "amd:1", "gone:1", runtimeClassName="wasm"),)
    report = audit(given(*ignored, policy=policy))
    assert ([each.lacks for each in report.images], report.findings) == ([[], []], [])
    assert wanted_newer(report) == []
    report = audit(given(*ignored, deployment("b", "amd:1"), policy=policy))
    assert [(each.subject, each.platform, each.workloads) for each in new_findings(report, None)] == [
        ("amd:1", "linux/arm64", ["Deployment/b"])
    ]


def test_an_image_that_is_known_in_one_namespace_is_unknown_to_the_workloads_of_another() -> None:
    """Their pull secrets differ; the finding names who does not know it."""
    known, unknown = (
        {**deployment("web", "amd:1"), "metadata": {"name": "web", "namespace": name}} for name in ("known", "unknown")
    )
    asked = given(known, unknown)
    evidence = [asked.evidence[0], [ImageEvidence(ANSWERS["gone"])]]
    report = audit(msgspec.structs.replace(asked, evidence=evidence))
    assert [(each.rule.value, each.workloads) for each in report.findings] == [
        ("image-lacks-platform", ["known/Deployment/web"]), ("image-unknown", ["unknown/Deployment/web"])
    ]  # fmt: skip


def test_a_node_whose_labels_contradict_its_kubelet_is_told() -> None:
    """Affinity goes by labels, and programs by the kubelet's machine. One that states nothing contradicts nothing."""
    right, wrong, silent = node("arm64", "right"), node("arm64", "wrong"), ReportedNode(metadata=NodeMeta("silent", {}))
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux"}
    wrong = msgspec.structs.replace(wrong, metadata=NodeMeta("wrong", labels))
    report = audit(given(deployment("a", "multi:1"), nodes=[right, wrong, silent]))
    said = "node wrong: its labels say linux/amd64, its kubelet linux/arm64"
    assert messages(report, FindingRule.NODE_LABELS) == [said]
    assert new_findings(report, None) == []
