"""The whole decision about random pods, against kube-scheduler's own rules: 1,000 of them, the same each time.

No node is lost on which a pod's images run and that its author allows, and none is left on which they do not. The
webhook twice is the webhook once, and so is `fix`; a pod that a gate has held may go to the same nodes. `make fuzz`
takes 20,000, by the variable DECISIONS.
"""

import os
import random
from collections.abc import Iterable, Iterator
from itertools import product

import msgspec
import pytest

from extender.images.content import RETRYABLE, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, Platform, parse_platform
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.kubernetes.pod_templates import pod_templates
from extender.placement.annotations import REASON, Choice, Overrides
from extender.placement.gate import GATE, GATED_LABEL, ImpossiblePods, UnknownImages
from extender.placement.mutation import AdmissionOutcome, Mutation
from extender.placement.node_match import demands_of, obstacles
from extender.placement.nodes import LABELS
from extender.placement.planning import AdmissionSettings
from extender.placement.templates import ChangedTemplate, TemplateOwner, TemplateQuestion
from tests.builders import ARCH, OS, PREFERRED, REQUIRED, Json, decoded
from tests.unit.placement.held_pods import check_allowed, merged
from tests.unit.placement.json_patch import apply
from tests.unit.placement.kube_scheduler import allows, is_tolerated
from tests.unit.placement.random_cases import RULES, Case, Outlets, draw, random_node
from tests.unit.placement.terms import NO_NODE

CASES, SLICES = int(os.environ.get("DECISIONS", "1000")), 8
AMD64, ARM64, WINDOWS = map(parse_platform, ("linux/amd64", "linux/arm64", "windows/amd64"))


class Truth:
    """What is right for a case, by the images' platforms and the author's words, whatever the package says."""

    def __init__(self, case: Case) -> None:
        self.case = case
        usual = [random_node(random.Random(0), str(each), str(each)) | {"spec": {}} for each in (AMD64, ARM64)]
        self.nodes = {node["metadata"]["name"]: node for node in (*case.nodes, *usual)}
        self.labelled = {name: node for name, node in self.nodes.items() if ARCH in node["metadata"]["labels"]}
        self.os = (case.pod["spec"].get("os") or {}).get("name", "")
        self.assume = frozenset(it for it in case.settings.policy.assume if self.os in ("", it.os))

    def known(self) -> list[Content]:
        spec = self.case.pod["spec"]
        containers = [*spec["containers"], *spec.get("initContainers", ())]
        answers = [(each, self.case.answers[each["image"]]) for each in containers]
        return [
            answer
            for container, answer in answers
            if isinstance(answer, Content) and not ("command" in container and answer.kind is Kind.MANIFEST)
        ]

    @property
    def unknown(self) -> list[Failure | None]:
        return [answer for answer in self.case.answers.values() if not isinstance(answer, Content)]

    def runs(self, platforms: frozenset[Platform], name: str) -> bool:
        node = self.nodes[name]["status"]["nodeInfo"]
        return runs(platforms, node["operatingSystem"], node["architecture"], self._compatibility)

    @property
    def _compatibility(self) -> Compatibility:
        return self.case.settings.policy.compatibility

    def is_right(self, name: str) -> bool:
        system = self.nodes[name]["status"]["nodeInfo"]["operatingSystem"]
        has_answer = any(isinstance(answer, Content) for answer in self.case.answers.values())
        return all(self.runs(it.platforms, name) for it in self.known()) and (not has_answer or self.os in ("", system))

    def is_assumed(self, name: str) -> bool:
        """Whether what the operator assumes of images that are not known lets the pod onto the node."""
        return self.runs(self.assume, name)

    def runs_on(self, rule: Iterable[Platform]) -> bool:
        known = self.known()
        return (
            not self.unknown
            and bool(known)
            and all(
                all(runs(it.platforms, each.os, each.architecture, self._compatibility) for it in known)
                and self.os in ("", each.os)
                for each in rule
            )
        )

    def may_allow(self, platform: Platform) -> bool:
        """Whether the author's selector and terms allow some node of the platform, of any name and other labels."""
        spec = self.case.pod["spec"]
        return not {"nodeSelector", "affinity"} & spec.keys() or any(allows(spec, it) for it in nodes_of(platform))

    def wrong_nodes(self, cluster: Iterable[Platform]) -> list[Json]:
        """Nodes of these platforms, or of the usual ones, that the author allows and the images do not run on."""
        found = {(it.os, it.architecture): it for it in (*cluster, AMD64, ARM64)}
        return [
            node
            for (os, architecture), platform in found.items()
            for node in nodes_of(platform)
            if allows(self.case.pod["spec"], node) and not self.runs_on([Platform(os, architecture)])
        ]

    def architectures(self) -> set[str]:
        platforms = [Platform(os, each) for os in ("linux", "windows") for each in ("amd64", "arm64", "arm", "s390x")]
        return {each.architecture for each in platforms if self.runs_on((each,)) and self.may_allow(each)}

    def is_product(self) -> bool:
        """Whether every node that there may be of the systems and architectures of right nodes is right."""
        there = {(it.os, it.architecture) for it in (*map(platform_of, self.nodes.values()), WINDOWS)}
        systems, architectures = ("linux", "windows"), ("amd64", "arm64", "arm", "s390x", "386")
        right = {
            (os, architecture)
            for os, architecture in product(systems, architectures)
            if self.os in ("", os)
            and all(runs(it.platforms, os, architecture, self._compatibility) for it in self.known())
        }
        return all(it in right for it in product(*({*words} for words in zip(*right, strict=True))) if it in there)


def platform_of(node: Json) -> Platform:
    info = node["status"]["nodeInfo"]
    return Platform(info["operatingSystem"], info["architecture"])


def nodes_of(platform: Platform) -> Iterator[Json]:
    os, architecture = platform.os, platform.architecture
    labels = {OS: os, ARCH: architecture, f"beta.{OS}": os, f"beta.{ARCH}": architecture}
    zones = [{}, *({"zone": value} for value in ("a", "b", "7", "1"))]
    for name, zone in product(("n0", "n"), zones):
        yield {"metadata": {"name": name, "labels": labels | zone}}


def runs(platforms: frozenset[Platform], os: str, architecture: str, compatibility: Compatibility) -> bool:
    """Whether an image of these platforms runs on a node."""
    for it in platforms:
        if it.os != os:
            continue
        if it.architecture == architecture == "arm" and it.variant <= "v7":
            return True
        if it.architecture == architecture and not it.variant:
            return True
        if architecture == "amd64" and it.architecture == "386" and compatibility.run_386_on_amd64:
            return True
        if architecture == "arm64" and it.architecture == "arm" and compatibility.run_arm_on_arm64:
            return True
    return False


def queued(outlets: Outlets) -> Json:
    """The spec of a queued workload's template after the webhook."""
    case = outlets.case
    spec = case.pod["spec"]
    [template] = pod_templates({"apiVersion": "batch/v1", "kind": "Job", "spec": {"template": {"spec": spec}}})
    pod = decoded({"spec": spec}, CreatedPod)
    question, owner = TemplateQuestion(pod, Overrides(), outlets.images), TemplateOwner(is_queued=True)
    changed = ChangedTemplate(template, owner, question)
    answer = case.settings.templates.review(changed, outlets.facts, outlets.cluster)
    stored: Json = apply({"spec": spec}, msgspec.json.encode(answer.operations))["spec"]
    return stored


def right_for(
    admission: AdmissionSettings, truth: Truth, mutation: Mutation, author: dict[str, bool]
) -> dict[str, bool]:
    """The nodes of the author on which the images run, and those that are not known where that leaves a node."""
    may_assume = admission.gate.unknown is UnknownImages.ASSUME and bool(truth.assume)
    right = {name: it and truth.is_right(name) for name, it in author.items()}
    if not (truth.unknown and may_assume and admission.node_affinity.required):
        return right
    assumed = {name: it and truth.is_assumed(name) for name, it in right.items()}
    if mutation.outcome is AdmissionOutcome.ASSUMED:
        return assumed
    assert not any(assumed[name] for name in truth.labelled)
    return right


def check_webhook(case: Case, truth: Truth, mutation: Mutation, stored: Json) -> None:
    """The nodes of the stored pod are those of its author on which its images run, with the taints it may bear."""
    admission, own = case.settings.admission, case.pod["spec"]
    author = {name: allows(own, node) for name, node in truth.nodes.items()}
    right = right_for(admission, truth, mutation, author)
    after = {name: allows(stored["spec"], node) for name, node in truth.nodes.items()}
    if mutation.outcome in (AdmissionOutcome.REFUSED, AdmissionOutcome.IMPOSSIBLE):
        assert not any(right[name] for name in truth.labelled)
    if mutation.outcome is AdmissionOutcome.REFUSED:
        assert admission.impossible is ImpossiblePods.DENY
        assert not mutation.patch
        return
    is_kept = admission.node_affinity.required
    if is_kept and not truth.is_product():  # a pod has one operating system
        assert not any(after[name] and not right[name] for name in truth.labelled)
        is_sure = truth.labelled == truth.nodes and not names_others(own)
        assert any(after.values()) or not any(right.values()) or not is_sure
        right = {name: it and (after[name] or name not in truth.labelled) for name, it in right.items()}
    for name in truth.nodes:
        if name in truth.labelled or not is_kept:
            assert after[name] is (right if is_kept else author)[name], name
        elif case.is_watched and not {"nodeSelector", "affinity"} & own.keys():
            assert right[name] or not after[name], name
    rules = [rule for rule, platforms in zip(admission.tolerations, RULES[admission.tolerations], strict=True)
             if truth.runs_on(platforms) and any(map(truth.may_allow, platforms))]  # fmt: skip
    earned = [{key: word for key, word in msgspec.to_builtins(it.toleration).items() if word} for it in rules]
    given = {"tolerations": [*own.get("tolerations", ()), *earned]}
    written = (stored["spec"].get("tolerations") or [])[len(own.get("tolerations", ())) :]
    assert all(it in earned for it in written) or not any(map(truth.may_allow, map(platform_of, case.nodes)))
    for name, node in truth.nodes.items():
        if after[name]:
            assert is_tolerated(stored["spec"], node) is is_tolerated(given, node)


def terms_in(spec: Json) -> list[Json]:
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    return required.get("nodeSelectorTerms") or []


def names_others(spec: Json) -> bool:
    items = [item for term in terms_in(spec) for part in term.values() for item in part]
    return not {*spec.get("nodeSelector", ()), *(item["key"] for item in items)} <= LABELS.keys()


def check_needed(case: Case, truth: Truth, outlets: Outlets, mutation: Mutation, stored: Json) -> None:
    """Requirements are written where they keep the pod off some node on which its images do not run."""
    own, is_kept = case.pod["spec"], case.settings.admission.node_affinity.required
    if mutation.outcome is AdmissionOutcome.PATCHED and is_kept and case.is_watched and not truth.unknown:
        wrong = truth.wrong_nodes(outlets.cluster.platforms)
        before = [item for term in terms_in(own) for item in term["matchExpressions"]]
        items = (item for term in terms_in(stored["spec"]) for item in term.get("matchExpressions", ()))
        assert all(it in (*before, NO_NODE) for it in items) or any(allows(own, node) for node in wrong)


def check_preference(case: Case, truth: Truth, stored: Json) -> None:
    """A preference is written where it can matter: for a pod that runs on several architectures and may choose."""
    if not case.settings.admission.node_affinity.preferred or not case.settings.policy.preference:
        return
    affinity, own = ((it["spec"].get("affinity") or {}).get("nodeAffinity") or {} for it in (stored, case.pod))
    is_given = len(affinity.get(PREFERRED, ())) > len(own.get(PREFERRED, ()))
    found = truth.architectures()
    named = [item["key"] for term in own.get(PREFERRED, ()) for item in term["preference"]["matchExpressions"]]
    matters = "arm64" in found and len(found) > 1 and not {ARCH, f"beta.{ARCH}"} & {*named}
    assert matters or not is_given
    is_by_name = case.settings.policy.compatibility == Compatibility()  # others' images are no reason to prefer
    assert not (matters and is_by_name) or is_given


def check_fix(case: Case, truth: Truth, outlets: Outlets) -> None:
    """A template of the pod is fixed once, and then allows the nodes that its author allows and its images run on.

    It gets what the webhook gives its pods, and the webhook adds nothing more.
    """
    fixed, change = outlets.fix(case.pod["spec"])
    assert outlets.fix(fixed)[1].operations == ()
    reviewed, alone = outlets.mutate({**case.pod, "spec": fixed}), outlets.mutate(case.pod)
    impossible = (AdmissionOutcome.IMPOSSIBLE, AdmissionOutcome.REFUSED)
    if not change.unknown and alone.outcome not in impossible:
        assert apply({**case.pod, "spec": fixed}, reviewed.patch)["spec"] == fixed
        assert apply(case.pod, alone.patch)["spec"] == fixed
    if truth.unknown or not case.settings.admission.node_affinity.required:
        return
    for name, node in truth.labelled.items():
        is_right = allows(case.pod["spec"], node) and truth.is_right(name)
        assert not is_right or allows(fixed, node) or not truth.is_product()
        assert is_right or not change.operations or not allows(fixed, node)


def check_queued(truth: Truth, outlets: Outlets, alone: Json) -> None:
    """A queue plans by what the webhook would give the pods."""
    if not truth.unknown:
        assert {**queued(outlets), "schedulerName": ""} == {**alone["spec"], "schedulerName": ""}


def check_gate(case: Case, truth: Truth, outlets: Outlets, alone: Json, seed: int) -> None:
    """A pod that the policy holds goes, once it is let go, to the nodes to which it would have gone without."""
    ours, others = {"name": GATE}, {"name": "kueue.x-k8s.io/admission"}
    gates = [[ours], [ours, others], [others, ours]][seed % 3]
    held = outlets.held(*gates)
    reviewed = outlets.mutate(held, may_hold=True)
    if reviewed.outcome not in (AdmissionOutcome.GATED, AdmissionOutcome.REFUSED):
        ungated = apply(held, reviewed.patch)
        left = ungated["spec"].pop("schedulingGates", [])
        assert left == [gate for gate in gates if gate == others]
        assert ungated["spec"] == alone["spec"]
        assert GATED_LABEL not in ungated["metadata"]["labels"]
        assert REASON not in ungated["metadata"]["annotations"] or REASON in alone["metadata"]["annotations"]
    release = outlets.plan_release(held, expired=True)
    released = merged(held, msgspec.json.decode(release.patch))
    check_allowed(held, released)
    if reviewed.outcome is AdmissionOutcome.REFUSED:
        return
    here = {name for name, node in truth.labelled.items() if allows(released["spec"], node)}
    there = {name for name, node in truth.labelled.items() if allows(alone["spec"], node)}
    assert here == there
    for name in here:
        node = truth.nodes[name]
        assert is_tolerated(released["spec"], node) is is_tolerated(alone["spec"], node)


def check_filter(case: Case, truth: Truth, kept: set[str] | None) -> None:
    """Filter keeps the nodes on which every known image runs, and does with the others what the settings say."""
    policy = case.settings.policy
    right = {name for name in (it["metadata"]["name"] for it in case.nodes) if truth.is_right(name)}
    may_end = [failure is None or failure.cause in RETRYABLE for failure in truth.unknown]
    choices = {policy.pending if it else policy.unknown for it in may_end}
    if right and Choice.RETRY in choices:
        assert kept is None
    elif Choice.ASSUME in choices and truth.assume and Choice.RETRY not in choices:
        assert kept == {name for name in right if truth.is_assumed(name)}
    else:
        assert kept == right


def check_obstacles(case: Case, outlets: Outlets) -> None:
    """Reports say of a node that kube-scheduler refuses it if it does, by the author's own words and taints."""
    spec = case.pod["spec"]
    for node in case.nodes:
        found = obstacles(demands_of(decoded(spec, CreatedSpec)), outlets.nodes[node["metadata"]["name"]])
        assert bool(found) is not (allows(spec, node) and is_tolerated(spec, node)), (node, found)


def check(seed: int) -> None:
    case = draw(seed)
    truth, outlets = Truth(case), Outlets(case)
    mutation = outlets.mutate(case.pod)
    stored = apply(case.pod, mutation.patch)
    check_webhook(case, truth, mutation, stored)
    assert mutation.outcome is AdmissionOutcome.REFUSED or outlets.mutate(stored).patch == b""
    check_needed(case, truth, outlets, mutation, stored)
    check_preference(case, truth, stored)
    check_gate(case, truth, outlets, stored, seed)
    check_fix(case, truth, outlets)
    check_queued(truth, outlets, stored)
    check_filter(case, truth, outlets.keep())
    check_obstacles(case, outlets)


@pytest.mark.parametrize("part", range(SLICES))
def test_decision_is_what_kube_scheduler_and_the_images_make_of_a_pod(part: int) -> None:
    """A failure names the seed; `draw` of it has pod, images, nodes and settings."""
    for seed in range(part, CASES, SLICES):
        try:
            check(seed)
        except AssertionError as exc:
            case = draw(seed)
            pytest.fail(f"seed {seed}: {exc}\n{case.pod}\n{case.answers}\n{case.nodes}\n{case.settings[:2]}")
