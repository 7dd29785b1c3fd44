"""What an explanation says of images, platforms and nodes: always what the decision itself says."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import pytest

from extender.images.content import Answer, Cause, Content, Evidence, Failure
from extender.images.manifest import Kind
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.reported_v1 import ReportedNode, ReportedNodeSpec
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import REASON, Mode, read_overrides
from extender.placement.facts import facts_of, images_of
from extender.placement.gate import GateSettings, UnknownImages
from extender.placement.mutation import Mutator
from extender.placement.node_images import NodeImages
from extender.placement.nodes import NO_NODES
from extender.placement.patch import apply
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy, PreferenceBy
from extender.placement.scheduling import Decision, Verdict
from extender.reports.audit_report import RunAnswer
from extender.reports.explanation import Explanation, Subject, cluster_nodes, explain, usual_nodes
from tests import builders
from tests.builders import created, decoded, index, pod
from tests.unit.placement.mutating import POLICY, settings

ARM_TAINT = {"key": "kubernetes.io/arch", "value": "arm64", "effect": "NoSchedule"}
AMD64, ARM64 = "linux/amd64", "linux/arm64"
DENIED = Failure(Cause.DENIED, "its registry denies access")


def node(name: str, architecture: str, *taints: Mapping[str, str], **labels: str) -> ReportedNode:
    return decoded(builders.node(name, f"linux/{architecture}", labels, taints=taints), ReportedNode)


def told(
    document: dict[str, Any],
    *answers: Answer,
    nodes: Sequence[ReportedNode] = (),
    policy: Policy = POLICY,
    admission: AdmissionSettings | None = None,
    is_created: bool = True,
    has_waited: bool = False,
    kind: str = "Pod",
    listed: NodeImages = NO_NODES.images,
) -> Explanation:
    pod = created(document)
    overrides = read_overrides(pod.annotations, None)
    evidence = [
        Evidence(answer=answer, digest="sha256:" + "a" * 64, credential="anonymous", age_seconds=3.14159, is_fresh=True)
        for answer in answers
    ]
    subject = Subject(kind=kind, name="p", namespace="ns", document=document, pod=pod, is_created=is_created,
                      has_waited=has_waited)  # fmt: skip
    found = dict(zip(images_of(pod), evidence, strict=True))
    mutator, cluster = Mutator(policy, admission or settings()), cluster_nodes(nodes, listed)
    return explain(subject, found, overrides, policy, mutator, nodes, cluster=cluster)


def answers_of(said: Explanation) -> dict[str, RunAnswer]:
    return {each.platform: each.answer for each in said.nodes}


def test_the_words_are_those_of_the_decision() -> None:
    document = pod(2)
    answers = (index(AMD64, ARM64), index(AMD64))
    said = told(document, *answers)
    images = images_of(created(document))
    decision = Decision(images, facts_of(images, answers, may_be_pending=True), POLICY, read_overrides({}, None))
    assert {each.platform: (each.verdict, each.words) for each in said.nodes} == {
        AMD64: (Verdict.YES, ""),
        ARM64: (Verdict.NO, decision.refusal),
    }
    assert said.refusal == "image app-1:1 is built only for linux/amd64"
    assert answers_of(said) == {AMD64: RunAnswer.YES, ARM64: RunAnswer.NO}
    assert said.answer is RunAnswer.YES


def test_an_image_is_shown_with_its_users_and_its_evidence() -> None:
    document = pod(1, initContainers=[{"name": "s", "image": "app-0:1", "restartPolicy": "Always"}])
    document["spec"]["volumes"] = [{"name": "v", "image": {"reference": "data:1"}}, {"name": "other"}]
    said = told(document, index(AMD64), Content(Kind.ARTIFACT, frozenset(), states_platforms=False))
    first, second = said.images
    assert (first.used_by, first.state, first.platforms) == (["container c0", "sidecar s"], "known", [AMD64])
    assert (first.credential, first.age_seconds, first.is_fresh) == ("anonymous", 3.1, True)
    assert (second.used_by, second.state, second.platforms) == (["image volume v"], "anywhere", None)


@pytest.mark.parametrize("spec", [{"os": {"name": "linux"}}, {"runtimeClassName": "gvisor"}], ids=["os", "handler"])
def test_an_image_is_shown_with_its_users_whatever_its_pod_says_of_all_images(spec: dict[str, Any]) -> None:
    [image] = told(pod(**spec), index(AMD64)).images
    assert image.used_by == ["container c0"]


def test_a_pod_that_would_be_held_is_said_to_be_held() -> None:
    """By the settings, of which the gate controller that lets it go is a part."""
    admission = AdmissionSettings(node_affinity=AffinityMode.REQUIRED, gate=GateSettings(unknown=UnknownImages.GATE))
    unavailable = Failure(Cause.UNAVAILABLE, "its registry does not answer")
    said = told(pod(), unavailable, admission=admission, is_created=False)
    assert said.webhook.outcome == "gated"
    assert said.annotation.endswith("; the pod is held until it is known")
    assert not said.webhook.warnings


@pytest.mark.parametrize(("kind", "answer"), [("DaemonSet", RunAnswer.YES), ("Deployment", RunAnswer.NO)])
def test_a_daemon_sets_pods_tolerate_a_cordon(kind: str, answer: RunAnswer) -> None:
    """Its controller has them do so; the template does not say it."""
    cordon = ReportedNodeSpec(unschedulable=True)
    nodes = [msgspec.structs.replace(each, spec=cordon) for each in usual_nodes()]
    found = told(pod(), index(AMD64), nodes=nodes, kind=kind)
    assert answers_of(found)[AMD64] is answer
    assert any("uncordon" in remedy for remedy in found.remedies) is (kind == "Deployment")


DENIED_CURE = "image app-0:1 is not known (denied): name a pull secret that may read it"
TOO_FEW = [f"linux/{name}: build image app-{at}:1 for linux/{name} too" for name, at in (("amd64", 1), ("arm64", 0))]


@pytest.mark.parametrize(
    ("answers", "answer", "verdicts", "remedies"),
    [
        pytest.param([DENIED], RunAnswer.UNKNOWN, {Verdict.PASSED}, [DENIED_CURE], id="an unknown image"),
        pytest.param([index(AMD64), index(ARM64)], RunAnswer.NO, {Verdict.NO}, TOO_FEW, id="missing platforms"),
    ],
)
def test_what_keeps_a_pod_from_all_nodes_is_told_with_its_cure(
    answers: list[Answer], answer: RunAnswer, verdicts: set[Verdict], remedies: list[str]
) -> None:
    """For each kind of node that refuses, each image that lacks it."""
    said = told(pod(len(answers)), *answers)
    assert answers_of(said) == {AMD64: answer, ARM64: answer}
    assert ({each.verdict for each in said.nodes}, said.answer, said.remedies) == (verdicts, answer, remedies)


def test_every_cause_has_a_cure() -> None:
    for cause in Cause:
        assert any(cause in line for line in told(pod(), Failure(cause, "why")).remedies), cause


def test_a_pending_image_has_the_words_of_the_retry() -> None:
    said = told(pod(), Failure(Cause.MISSING, "its registry has no such tag"))
    assert {each.verdict for each in said.nodes} == {Verdict.RETRY}
    assert {each.words for each in said.nodes} == {said.retry}
    assert said.retry.startswith("image app-0:1 is not known yet (missing: ")


def test_an_image_that_a_pod_has_waited_for_is_unknown() -> None:
    """As kube-scheduler is told from then on; the webhook, which would see the pod anew, holds it as before."""
    missing, gate = Failure(Cause.MISSING, "its registry has no such tag"), GateSettings(unknown=UnknownImages.GATE)
    soon, late = (told(pod(), missing, admission=AdmissionSettings(gate=gate), is_created=False, has_waited=waited)
                  for waited in (False, True))  # fmt: skip
    assert ({each.verdict for each in late.nodes}, late.retry) == ({Verdict.PASSED}, "")
    assert (soon.images[0].state, late.images[0].state, late.images[0].cause) == ("pending", "unknown", "missing")
    assert late.webhook == soon.webhook


@pytest.mark.parametrize("has_waited", [False, True], ids=["retried", "passed"])
def test_nodes_that_have_an_image_for_which_no_registry_answers_take_the_pod(*, has_waited: bool) -> None:
    """And the others are left out as long as the pod itself may go to one of those; the webhook says the same of it."""
    listed = NodeImages()
    listed.put(NodeName("has"), ["docker.io/library/app-0:1"])
    failure, nodes = (
        Failure(Cause.UNAVAILABLE, "its registry does not answer"),
        [node("has", "amd64"), node("not", "arm64")],
    )
    found = told(pod(), failure, nodes=nodes, listed=listed, has_waited=has_waited)
    assert [(each.names, each.verdict, each.words) for each in found.nodes] == [
        (("has",), Verdict.LISTED, ""), (("not",), Verdict.LEFT_OUT, ""),
    ]  # fmt: skip
    assert (found.retry, found.images[0].cause, found.answer) == ("", "on-nodes", RunAnswer.UNKNOWN)
    assert found.remedies[0].startswith("image app-0:1 is not known (on-nodes): ")
    assert "on-nodes" in " ".join((*found.webhook.warnings, found.webhook.verdict, found.annotation))
    kept = told(pod(), failure, nodes=[node("has", "amd64", ARM_TAINT), nodes[1]], listed=listed, has_waited=has_waited)
    unresolved = Verdict.PASSED if has_waited else Verdict.RETRY
    assert ({each.verdict for each in kept.nodes}, bool(kept.retry)) == ({unresolved}, not has_waited)


def test_nodes_that_filter_leaves_out_for_preferred_ones_are_said_to_be() -> None:
    """The pod may run on them; none is left out for preferred nodes to which the pod itself may not go."""
    policy = msgspec.structs.replace(POLICY, preference_by=PreferenceBy.FILTER)
    nodes = [node("a", "amd64"), node("b", "arm64")]
    preferred = told(pod(), index(AMD64, ARM64), nodes=nodes, policy=policy)
    assert [(each.verdict, each.answer) for each in preferred.nodes] == [
        (Verdict.LEFT_OUT, RunAnswer.YES), (Verdict.YES, RunAnswer.YES),
    ]  # fmt: skip
    closed = [nodes[0], node("b", "arm64", ARM_TAINT)]
    [amd64, _] = told(pod(), index(AMD64, ARM64), nodes=closed, policy=policy).nodes
    assert amd64.verdict is Verdict.YES


def test_nodes_that_differ_in_taints_are_different_kinds() -> None:
    nodes = [node("a", "arm64", ARM_TAINT), node("b", "arm64", ARM_TAINT), node("c", "arm64"), node("d", "amd64")]
    said = told(pod(), index(AMD64, ARM64), nodes=nodes)
    assert [(each.platform, each.names, each.answer, each.score) for each in said.nodes] == [
        (AMD64, ("d",), RunAnswer.YES, 0),
        (ARM64, ("c",), RunAnswer.YES, 10),
        (ARM64, ("a", "b"), RunAnswer.NO, 10),
    ]
    assert said.nodes[2].images is RunAnswer.YES
    assert msgspec.json.decode(msgspec.json.encode(said), type=Explanation) == said
    assert said.remedies == ["linux/arm64: tolerate the taint kubernetes.io/arch=arm64:NoSchedule"]


def test_a_pod_that_is_not_created_yet_counts_with_the_patch() -> None:
    nodes = [node("a", "arm64", ARM_TAINT)]
    said = told(pod(), index(AMD64, ARM64), nodes=nodes, is_created=False)
    assert answers_of(said) == {ARM64: RunAnswer.YES}
    assert said.nodes[0].taints == ("kubernetes.io/arch=arm64:NoSchedule",)
    assert any(operation.path.startswith("/spec/tolerations") for operation in said.webhook.patch)


def test_where_affinity_decides_the_words_are_the_annotation_s() -> None:
    said = told(pod(), index(AMD64), admission=settings("required"), is_created=False)
    [amd64, arm64] = said.nodes
    assert (amd64.answer, amd64.words) == (RunAnswer.YES, "")
    assert (arm64.answer, arm64.obstacles) == (RunAnswer.NO, ())
    assert arm64.words == said.annotation == "image app-0:1 is built only for linux/amd64"
    live = pod(metadata={"annotations": {REASON: "as it was"}}, nodeSelector={"kubernetes.io/arch": "amd64"})
    said = told(live, index(AMD64, ARM64))  # its images have changed since
    assert said.annotation == said.nodes[1].words == "as it was"


BUILD = f"{ARM64}: build image app-0:1 for {ARM64} too"


@pytest.mark.parametrize(
    ("authors", "remedies"),
    [
        pytest.param({}, [BUILD], id="nothing"),
        pytest.param({"nodeSelector": {"disk": "ssd"}}, ["disk=ssd", BUILD, "disk=ssd"], id="a selector"),
        pytest.param(
            {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "disk", "operator": "In", "values": ["ssd"]}]}]}}}},
            ["affinity", BUILD, "affinity"],
            id="a term",
        ),
    ],
)  # fmt: skip
def test_what_the_webhook_writes_is_no_obstacle_of_the_authors(authors: dict[str, Any], remedies: list[str]) -> None:
    """Neither what it would write, nor what its record says that it has; the author's own is."""
    admission, document = settings("required"), pod(**authors)
    before = told(document, index(AMD64), admission=admission, is_created=False)
    stored: Any = apply(document, before.webhook.patch)
    assert stored["spec"] != document["spec"]
    for said in (before, told(stored, index(AMD64), admission=admission)):
        assert [wanted in found for wanted, found in zip(remedies, said.remedies, strict=True)] == [True] * len(
            remedies
        )
        assert answers_of(said)[ARM64] is RunAnswer.NO


def test_the_pod_s_own_selector_is_told_apart_from_the_images() -> None:
    said = told(pod(nodeSelector={"kubernetes.io/arch": "arm64"}), index(AMD64, ARM64))
    [amd64, _] = said.nodes
    assert (amd64.answer, amd64.images) == (RunAnswer.NO, RunAnswer.YES)
    assert "nodeSelector asks for kubernetes.io/arch=arm64" in said.remedies[0]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.IGNORE])
def test_the_mode_is_told(mode: Mode) -> None:
    said = told(pod(metadata={"annotations": {"multiarch-extender.io/mode": mode.value}}), index(AMD64))
    assert said.mode is mode
    assert bool(said.skipped) == (mode is Mode.IGNORE)
    arm64 = RunAnswer.YES if mode is Mode.IGNORE else RunAnswer.NO
    assert answers_of(said) == {AMD64: RunAnswer.YES, ARM64: arm64}


def test_a_node_that_states_no_platform_is_unknown() -> None:
    silent = msgspec.convert({"metadata": {"name": "s"}}, ReportedNode)
    [kind] = told(pod(), index(AMD64), nodes=[silent]).nodes
    assert (kind.platform, kind.answer, kind.verdict) == ("", RunAnswer.UNKNOWN, Verdict.UNSTATED)


@pytest.mark.parametrize("mode", ["required", "both"])
def test_a_pod_that_the_webhook_has_just_patched_needs_no_patch(mode: str) -> None:
    nodes = [node("a", "arm64", ARM_TAINT), node("d", "amd64")]
    planned = told(pod(), index(AMD64), nodes=nodes, admission=settings(mode), is_created=False)
    stored = apply(pod(), planned.webhook.patch)
    assert isinstance(stored, dict)
    said = told(stored, index(AMD64), nodes=nodes, admission=settings(mode))
    assert said.webhook.patch == []
    assert (said.nodes, said.annotation, said.remedies) == (planned.nodes, planned.annotation, planned.remedies)


def test_the_gates_of_a_held_pod_are_told() -> None:
    assert told(pod(schedulingGates=[{"name": "example.com/wait"}]), index(AMD64)).gates == ["example.com/wait"]
    assert told(pod(schedulingGates=None), index(AMD64)).gates == []
