"""Random pods, clusters with unlabelled nodes, and settings, and what each outlet says of each node.

An outlet's answers are those of kube-scheduler once the outlet has done its part, apart from taints: True if the pod
may go to the node, False if not, None where the outlet leaves it open.
"""

import random
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import msgspec

from extender.images.content import Answer, Cause, Content, Evidence, Failure
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, Platform, parse_platform
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec, NodeName
from extender.kubernetes.extender_v1 import decode_args
from extender.kubernetes.pod_templates import pod_templates
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.affinity import AffinityMode, right_nodes
from extender.placement.facts import ImageFact, Pending, PodImage, RunsOn, RuntimeClass, Unknown, facts_of, images_of
from extender.placement.gate import GATE, GATED, GATED_LABEL, GateSettings, ImpossiblePods, UnknownImages
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator
from extender.placement.node_match import Rule, demands_of, obstacles
from extender.placement.nodes import ClusterNodes, NodePlatforms, is_labelled, platform_of_node
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import (
    MODE,
    PREFER,
    REASON,
    SPREAD,
    UNKNOWN,
    Choice,
    Mode,
    Overrides,
    Policy,
    is_exempt,
    read_overrides,
)
from extender.placement.scheduling import Decision, filter_nodes
from extender.placement.templates import Templates
from extender.placement.ungating import UngatingOutcome, UngatingPlanner
from extender.reports.audit_findings import AuditInput, ImageEvidence, audit
from extender.reports.audit_report import FindingRule, RunAnswer
from extender.reports.explanation import PodEvidence, Subject, explain
from extender.reports.workload_reports import WorkloadCollector
from tests.builders import REQUIRED, expression
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import ARM_RULE, BOTH_RULE

T = TypeVar("T")
Json: TypeAlias = dict[str, Any]
Answers: TypeAlias = Mapping[str, bool | None]

LEVEL = "multiarch-extender.io/level"
ARCH, OS = "kubernetes.io/arch", "kubernetes.io/os"
_PLATFORMS = (
    "linux/amd64",
    "linux/amd64",
    "linux/arm64",
    "linux/arm64",
    "windows/amd64",
    "linux/arm/v7",
    "linux/s390x",
)
RUNTIME_CLASSES = {
    "wasm": RuntimeClass("wasm", frozenset()),
    "rosetta": RuntimeClass("rosetta", frozenset({parse_platform("linux/amd64")})),
}
_LEVELS = {
    "amd64": ("v1", "v2", "v3", "amd64-v3", "x86-64-v4", "V2"),
    "arm64": ("v8.2", "arm64-v9"),
    "arm": ("v6", "v8"),
}
_IMAGES: tuple[tuple[str, ...], ...] = (
    ("linux/amd64",), ("linux/arm64",), ("linux/amd64", "linux/arm64"), ("linux/amd64", "linux/arm64"),
    ("linux/amd64", "linux/arm64", "windows/amd64"), ("windows/amd64",), ("linux/amd64", "linux/s390x"),
    ("linux/amd64/v3",), ("linux/amd64/v2", "linux/arm64"), ("linux/amd64", "linux/amd64/v3"), ("linux/arm/v6",),
    ("linux/arm/v7", "linux/amd64"), ("linux/386",), ("linux/arm64/v9", "linux/amd64"), ("linux/amd64", "linux/arm/v8"),
)  # fmt: skip


class Settings(msgspec.Struct, frozen=True):
    """The operator's settings."""

    policy: Policy
    admission: AdmissionSettings


class Case(msgspec.Struct, frozen=True):
    """A pod, what is known of its images, the cluster and the settings; `str` shows what a person needs to see."""

    pod: Json
    namespace: Mapping[str, str]
    answers: Mapping[str, Answer]
    nodes: list[Json]
    settings: Settings

    def __str__(self) -> str:
        images = {name: sorted(map(str, it.platforms)) if isinstance(it, Content) else it.cause.value if it else None
                  for name, it in self.answers.items()}  # fmt: skip
        pod = msgspec.json.encode(self.pod).decode()
        return f"pod {pod}\nnamespace {self.namespace}\nimages {images}\n{self.settings}"


def draw(seed: int) -> Case:
    chosen = random.Random(seed)  # of tests
    nodes = [_node(chosen, f"n{index}") for index in range(chosen.randint(1, 6))]
    answers = {f"app-{index}:1": _answer(chosen) for index in range(chosen.randint(1, 3))}
    return Case(_pod(chosen, list(answers)), _namespace(chosen), answers, nodes, _settings(chosen))


def _node(chosen: random.Random, name: str) -> Json:
    platform = chosen.choice(_PLATFORMS)
    os, architecture = platform.split("/")[:2]
    usual, odd = {OS: os, ARCH: architecture}, {OS: os, ARCH: chosen.choice(["amd64", "arm64", "x86_64"])}
    beta = _as_beta(usual)
    labels = chosen.choices([usual, beta, {}, {OS: os}, odd], [10, 2, 1, 1, 1])[0]
    labels = labels | _as_beta(labels)
    info = {"operatingSystem": os, "architecture": architecture}
    if chosen.random() < 0.1:
        info = {}
    if chosen.random() < 0.4:
        labels = {**labels, LEVEL: chosen.choice(_LEVELS.get(architecture, ("fast",)))}
    if chosen.random() < 0.3:
        labels = {**labels, "zone": chosen.choice("ab")}
    taints = [{"key": ARCH, "value": "arm64", "effect": "NoSchedule"}] if chosen.random() < 0.2 else []
    taints += [{"key": "virtual", "effect": "NoSchedule"}] if chosen.random() < 0.1 else []
    spec = {"taints": taints, "unschedulable": chosen.random() < 0.1}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"nodeInfo": info}}


def _as_beta(labels: Mapping[str, str]) -> dict[str, str]:
    return {f"beta.{key}": value for key, value in labels.items() if key in (OS, ARCH)}


def _answer(chosen: random.Random) -> Answer:
    if chosen.random() < 0.12:
        return chosen.choice([Failure(Cause.DENIED, "x"), Failure(Cause.UNAVAILABLE, "x"), None])
    platforms: tuple[str, ...] = chosen.choice(_IMAGES)
    return Content(Kind.INDEX, frozenset(map(parse_platform, platforms)), states_platforms=True)


def _expression(chosen: random.Random) -> Json:
    key, values = chosen.choice(
        [(ARCH, ["amd64", "arm64", "s390x"]), (OS, ["linux", "windows"]), (f"beta.{ARCH}", ["amd64", "arm64"]),
         ("zone", ["a", "b"]), (LEVEL, ["v3", "v2"])]
    )  # fmt: skip
    operator = chosen.choices(["In", "NotIn", "Exists", "DoesNotExist"], [6, 3, 1, 1])[0]
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    return expression(key, *sorted(chosen.sample(values, chosen.randint(1, len(values)))), operator=operator)


def _pod(chosen: random.Random, images: list[str]) -> Json:
    spec: Json = {"containers": [{"name": f"c{index}", "image": image} for index, image in enumerate(images)]}
    if chosen.random() < 0.1:
        spec["containers"][0]["imagePullPolicy"] = "Never"
    if chosen.random() < 0.2:
        key, values = chosen.choice(
            [(ARCH, ["amd64", "arm64"]), (OS, ["linux"]), (f"beta.{ARCH}", ["amd64"]), ("zone", ["a"])]
        )
        spec["nodeSelector"] = {key: chosen.choice(values)}
    if chosen.random() < 0.3:
        terms = [
            {"matchExpressions": [_expression(chosen) for _ in range(chosen.randint(0, 2))]}
            for _ in range(chosen.randint(1, 3))
        ]
        spec["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": terms}}}
    if chosen.random() < 0.1:
        spec["os"] = {"name": chosen.choice(["linux", "windows"])}
    if chosen.random() < 0.2:
        spec["tolerations"] = [chosen.choice([{"operator": "Exists"}, {"key": ARCH, "operator": "Exists"}])]
    if chosen.random() < 0.1:
        spec["runtimeClassName"] = chosen.choice(["wasm", "gvisor", "rosetta"])
    metadata: Json = {"name": "p", "namespace": "shop", "annotations": _annotations(chosen)}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _annotations(chosen: random.Random) -> dict[str, str]:
    known = {
        MODE: ["enforce", "observe", "ignore", "off"], PREFER: ["arm64", "arm46", "none", "true"],
        UNKNOWN: ["pass", "retry", "assume", "?"], SPREAD: ["true", "maybe"],
    }  # fmt: skip
    return {key: chosen.choice(values) for key, values in known.items() if chosen.random() < 0.1}


def _namespace(chosen: random.Random) -> dict[str, str]:
    return _annotations(chosen) if chosen.random() < 0.3 else {}


def _settings(chosen: random.Random) -> Settings:
    policy = Policy(
        pending=chosen.choice(list(Choice)),
        unknown=chosen.choice(list(Choice)),
        compatibility=Compatibility(
            run_386_on_amd64=chosen.random() < 0.3, run_arm_on_arm64=chosen.random() < 0.3
        ),
        preference=chosen.choice([{}, {"arm64": 10}]),
        runtime_classes=RUNTIME_CLASSES,
    )  # fmt: skip
    admission = AdmissionSettings(
        tolerations=chosen.choice([(), (BOTH_RULE, ARM_RULE)]),
        node_affinity=chosen.choice([AffinityMode.REQUIRED, AffinityMode.BOTH]),
        gate=GateSettings(unknown=chosen.choice(list(UnknownImages))),
        impossible=chosen.choice([ImpossiblePods.PEND, ImpossiblePods.DENY]),
    )
    return Settings(policy, admission)


class Outlets:
    """What each outlet says of the nodes of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.policy, self.admission = case.settings.policy, case.settings.admission
        self.nodes = {each["metadata"]["name"]: msgspec.convert(each, ReportedNode) for each in case.nodes}
        self.platforms = {name: platform_of_node(node) for name, node in self.nodes.items()}
        self.labelled = {name: is_labelled(node) for name, node in self.nodes.items()}
        self.cluster = ClusterNodes(
            frozenset(each for each in self.platforms.values() if each),
            frozenset(self.platforms[name] for name, is_stated in self.labelled.items() if not is_stated),
        )
        self.created = _decoded(case.pod, CreatedPod)
        self.overrides = self._overrides(self.created)
        self.images = images_of(self.created, RUNTIME_CLASSES)
        self.facts: list[ImageFact] = self._facts(self.images)
        self.is_known = not any(isinstance(fact, Pending | Unknown) for fact in self.facts)
        self.is_left_alone = self.overrides.mode is Mode.IGNORE or is_exempt(self.created, self.policy)

    def answers(self) -> Mapping[str, Answers]:
        said: dict[str, Callable[[], Answers]] = {
            "filter": self.filter, "webhook": self.webhook, "policy": self.policy_then_webhook,
            "gate release": self.release, "fix": self.fix, "explain": self.explain, "audit": self.audit,
        }  # fmt: skip
        return {outlet: answer() for outlet, answer in said.items()}

    def filter(self) -> Answers:
        """The extender's filter, after kube-scheduler has looked at the pod's own words."""
        own = self._own(self.case.pod)
        if self.is_left_alone or self.overrides.mode is Mode.OBSERVE:
            return own
        body = msgspec.json.encode({"Pod": self.case.pod, "NodeNames": list(self.nodes)})
        view = NodePlatforms({NodeName(name): platform for name, platform in self.platforms.items()})
        decision = Decision(self.images, self.facts, self.policy, self.overrides)
        answer = filter_nodes(decode_args(body), view, decision).answer
        if answer.error:
            return {name: None if it else False for name, it in own.items()}
        kept = msgspec.json.decode(answer.node_names or b"[]", type=list[str])
        found: dict[str, bool | None] = {name: it and name in kept for name, it in own.items()}
        if not self._have_common():  # what states no platform passes, and can run no such pod
            found = {name: it if it is False or self.platforms[name] else None for name, it in found.items()}
        return self._unless_assumed(found) if any(it.assumed for it in decision.constraints) else found

    def webhook(self) -> Answers:
        return self._of_mutation(self.case.pod, self._mutate(self.created, may_hold=False))

    def policy_then_webhook(self) -> Answers:
        """The policy holds the pod, and the webhook lets it go in the same request if it knows the images."""
        document = self._held()
        return self._of_mutation(document, self._mutate(_decoded(document, CreatedPod), may_hold=True))

    def release(self) -> Answers:
        document = self._held()
        stored = _decoded(document, CreatedPod)
        release = UngatingPlanner(self.policy, self.admission).plan(
            stored, self.images, self.facts, self.overrides, self.cluster, expired=False
        )
        if release.outcome is UngatingOutcome.HOLD:
            return dict.fromkeys(self.nodes)
        patch = msgspec.json.decode(release.patch)["spec"]
        spec = {**document["spec"], **{key: value for key, value in patch.items() if key == "tolerations"}}
        node_affinity = {**((spec.get("affinity") or {}).get("nodeAffinity") or {}),
                         **((patch.get("affinity") or {}).get("nodeAffinity") or {})}  # fmt: skip
        spec["affinity"] = {**(spec.get("affinity") or {}), "nodeAffinity": node_affinity}
        found = self._own({**document, "spec": spec})
        said = self._unless_unlabelled(found)
        is_let_go = release.outcome in (UngatingOutcome.EXEMPT, UngatingOutcome.OBSERVED)
        if is_let_go or not self._terms(document):
            return self._unless_assumed(said)
        return {name: it or None for name, it in said.items()}  # terms are narrowed to a part of what is no product

    def fix(self) -> Answers:
        metadata, spec = self.case.pod["metadata"], self.case.pod["spec"]
        template = {"metadata": {"annotations": metadata["annotations"]}, "spec": spec}
        workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "namespace": "shop"}}
        [found] = pod_templates({**workload, "spec": {"template": template}})
        mutator = Templates(self.policy, self.admission)
        question = mutator.question(found, self.case.namespace)
        change = mutator.fix(found, question, self._facts(question.images))
        is_impossible = bool(question.images) and self.is_known and not change.operations and bool(change.warnings)
        if change.unknown or (is_impossible and not self.is_left_alone):
            return dict.fromkeys(self.nodes)
        fixed: Any = apply(template, msgspec.json.encode(change.operations))
        said = self._unless_unlabelled(self._own({**self.case.pod, "spec": fixed["spec"]}))
        return {name: None if it and self._is_low(self.platforms[name]) else it for name, it in said.items()}

    def explain(self) -> Answers:
        named = _decoded(self.case.pod, CreatedPod)
        evidence = [
            Evidence(
                answer=self.case.answers[image.reference], digest="", credential="", age_seconds=0.0, is_fresh=True
            )
            for image in self.images
        ]
        found = PodEvidence(images=self.images, evidence=evidence, overrides=self.overrides)
        subject = Subject(kind="Pod", name="p", namespace="shop", document=self.case.pod, pod=named, is_created=True)
        mutator = Mutator(self.policy, self.admission)
        said: dict[str, bool | None] = {}
        for name, node in self.nodes.items():
            [kind] = explain(subject, found, self.policy, mutator, [node], cluster=self.cluster).nodes
            words = any(each.rule in (Rule.SELECTOR, Rule.AFFINITY) for each in kind.obstacles)
            images = {RunAnswer.YES: True, RunAnswer.NO: False, RunAnswer.UNKNOWN: None}[kind.images]
            said[name] = False if words else images
        return self._unless_observed(self._unless_assumed(said))

    def audit(self) -> Answers:
        """The report about a workload of this pod, node by node: each is a cluster of its own."""
        collector = WorkloadCollector()
        metadata = {"name": "w", "namespace": "shop"}
        template = {
            "metadata": {"annotations": self.case.pod["metadata"]["annotations"]},
            "spec": self.case.pod["spec"],
        }
        collector.add(
            {"kind": "Deployment", "metadata": metadata, "spec": {"template": template}}, "x.yaml, document 1"
        )
        workloads = collector.workloads()
        evidence = [[ImageEvidence(self.case.answers[each.reference]) for each in it.images] for it in workloads]
        said: dict[str, bool | None] = {}
        for name, platform in self.platforms.items():
            node = msgspec.convert(next(it for it in self.case.nodes if it["metadata"]["name"] == name), ReportedNode)
            given = AuditInput(
                workloads=workloads, evidence=evidence, policy=self.policy, nodes=[node],
                required=[platform] if platform else [], namespaces={"shop": self.case.namespace},
            )  # fmt: skip
            [workload] = audit(given).workloads
            if platform is None or not workload.platforms:
                said[name] = None
                continue
            [found] = workload.platforms
            words = any(
                each.rule in (FindingRule.SELECTOR_BLOCKS, FindingRule.AFFINITY_BLOCKS) for each in found.blockers
            )
            images = {RunAnswer.YES: True, RunAnswer.NO: False, RunAnswer.UNKNOWN: None}[found.images]
            said[name] = False if words else images
        if "os" in self.case.pod["spec"]:  # which counts for the other outlets once the images are known
            sure = self._unless_assumed(said)
            if self.images[0].runtime:  # the other outlets leave it to its RuntimeClass which nodes have the runtime
                sure = {name: it or None for name, it in sure.items()}
            return self._unless_observed(sure)
        return self._unless_observed(said)

    def _facts(self, images: tuple[PodImage, ...]) -> list[ImageFact]:
        return facts_of(images, [self.case.answers[image.reference] for image in images], may_be_pending=True)

    def _overrides(self, pod: CreatedPod) -> Overrides:
        annotations = pod.metadata.annotations if pod.metadata else None
        return read_overrides(annotations, self.case.namespace, self.policy.overrides)

    def _mutate(self, pod: CreatedPod, *, may_hold: bool) -> Mutation:
        mutator = Mutator(self.policy, self.admission)
        return mutator.skip(pod, self.overrides) or mutator.mutate(
            pod, self.images, self.facts, self.overrides, self.cluster, may_hold=may_hold
        )

    def _held(self) -> Json:
        metadata = self.case.pod["metadata"]
        annotations = {**metadata["annotations"], REASON: "the pod is held"}
        held = {
            **metadata,
            "uid": "u",
            "resourceVersion": "1",
            "labels": {GATED_LABEL: GATED},
            "annotations": annotations,
        }
        return {
            **self.case.pod,
            "metadata": held,
            "spec": {**self.case.pod["spec"], "schedulingGates": [{"name": GATE}]},
        }

    def _of_mutation(self, document: Json, mutation: Mutation) -> Answers:
        if mutation.outcome is AdmissionOutcome.REFUSED:
            return (
                self._unless_unlabelled(dict.fromkeys(self.nodes, False))
                if self.is_known
                else dict.fromkeys(self.nodes)
            )
        if mutation.outcome is AdmissionOutcome.GATED:
            return dict.fromkeys(self.nodes)
        stored: Any = apply(document, mutation.patch)
        found = self._own(stored)
        return self._unless_assumed(self._unless_unlabelled(found))

    def _is_low(self, platform: Platform | None) -> bool:
        """Whether a node is below its architecture's baseline, of which words speak where a cluster has such a node."""
        return platform is not None and platform.architecture == "arm" and platform.variant < "v7"

    def _have_common(self) -> bool:
        known = [fact.platforms for fact in self.facts if isinstance(fact, RunsOn)]
        return not known or bool(right_nodes(known, self.cluster.platforms, self.policy.compatibility))

    def _unless_assumed(self, found: Answers) -> Answers:
        """Where an image is not known, a node may be refused by an assumption, which is each outlet's own setting."""
        return found if self.is_known or self.is_left_alone else {name: it or None for name, it in found.items()}

    def _unless_observed(self, found: Answers) -> Answers:
        return {name: it or None for name, it in found.items()} if self.overrides.mode is Mode.OBSERVE else found

    def _unless_unlabelled(self, found: Mapping[str, bool]) -> dict[str, bool | None]:
        return {name: it if self.labelled[name] else None for name, it in found.items()}

    def _own(self, document: Json) -> dict[str, bool]:
        demands = demands_of(_decoded(document["spec"], CreatedSpec))
        words = (Rule.SELECTOR, Rule.AFFINITY)
        return {
            name: not any(each.rule in words for each in obstacles(demands, node)) for name, node in self.nodes.items()
        }

    @staticmethod
    def _terms(document: Json) -> list[Json]:
        affinity = (document["spec"].get("affinity") or {}).get("nodeAffinity") or {}
        terms: list[Json] = (affinity.get(REQUIRED) or {}).get("nodeSelectorTerms") or []
        return terms


def _decoded(document: Json, kind: type[T]) -> T:
    return msgspec.json.decode(msgspec.json.encode(document), type=kind)
