"""Random pods, images, nodes and settings, and what the package makes of them, for the properties of the decision."""

import functools
import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import Kind
from extender.images.platform import Compatibility, is_of_nodes
from extender.kubernetes.core_v1 import CreatedPod, NodeName
from extender.kubernetes.extender_v1 import decode_args
from extender.kubernetes.pod_templates import pod_templates
from extender.kubernetes.reported_v1 import ReportedNode
from extender.placement.affinity import AffinityMode
from extender.placement.annotations import MODE, PREFER, REASON, UNKNOWN, Choice, read_overrides
from extender.placement.facts import RuntimeClass, facts_of, images_of
from extender.placement.gate import GATE, GATED, GATED_LABEL, GateSettings, ImpossiblePods, UnknownImages
from extender.placement.mutation import Mutation, Mutator
from extender.placement.nodes import NO_NODES, ClusterNodes, NodePlatforms, platform_of_node
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.scheduling import Decision, filter_nodes
from extender.placement.templates import TemplateAnswer, Templates
from extender.placement.ungating import Ungating, UngatingPlanner
from tests.builders import ARCH, OS, PREFERRED, REQUIRED, Json, decoded, expression, index, platforms
from tests.unit.placement.json_patch import apply
from tests.unit.placement.mutating import ARM_RULE, BOTH_RULE

BETA_ARCH, BETA_OS = f"beta.{ARCH}", f"beta.{OS}"
RULES = {(): (), (BOTH_RULE, ARM_RULE): (platforms("linux/amd64", "linux/arm64"), platforms("linux/arm64"))}
RUNTIME_CLASSES = {
    "wasm": RuntimeClass("wasm", frozenset()),
    "rosetta": RuntimeClass("rosetta", platforms("linux/amd64")),
}
_NODES = ("linux/amd64", "linux/amd64", "linux/arm64", "linux/arm64", "windows/amd64", "linux/arm/v7", "linux/s390x")
_IMAGES = (
    "linux/amd64", "linux/arm64", "linux/amd64 linux/arm64", "linux/amd64 linux/arm64", "windows/amd64", "linux/386",
    "linux/amd64 linux/arm64 windows/amd64", "linux/amd64 linux/s390x", "linux/amd64/v3", "linux/amd64/v2 linux/arm64",
    "linux/arm/v6", "linux/arm/v7 linux/amd64", "linux/arm64 windows/amd64",
)  # fmt: skip
_ODD_IMAGES = (
    "linux/amd64 linux/amd64/v3", "linux/arm64/v9 linux/amd64", "linux/amd64 linux/arm/v8", "wasi/wasm",
    "wasi/wasm linux/amd64",
)  # fmt: skip
_WORDS: tuple[tuple[str, tuple[str, ...]], ...] = (
    (ARCH, ("amd64", "arm64", "s390x")), (ARCH, ("amd64", "arm64")), (OS, ("linux", "windows")),
    (BETA_ARCH, ("amd64", "arm64")), (BETA_OS, ("linux",)), ("zone", ("a", "b")),
)  # fmt: skip
_TOLERATIONS = (
    {"operator": "Exists"}, {"key": ARCH, "operator": "Exists"}, {"key": "multi", "value": "yes"},
    {"key": "other", "operator": "Exists", "effect": "NoSchedule"}, {"operator": "Exists", "effect": "NoExecute"},
    {"key": ARCH, "operator": "Equal", "value": "arm64", "effect": "NoSchedule"}, {"key": ARCH, "value": "amd64"},
    {"key": "multi", "operator": "Gt", "value": "3"},
)  # fmt: skip
_TAINTS = (
    {"key": ARCH, "value": "arm64", "effect": "NoSchedule"}, {"key": "multi", "value": "yes", "effect": "NoSchedule"},
    {"key": "other", "effect": "NoExecute"}, {"key": "other", "effect": "PreferNoSchedule"},
)  # fmt: skip
_ANNOTATIONS = {
    MODE: ["enforce", "observe", "ignore", "off"], PREFER: ["arm64", "arm46", "none", "true"],
    UNKNOWN: ["pass", "retry", "assume", "?"],
}  # fmt: skip


class Settings(NamedTuple):
    """What an operator has set, and what follows it."""

    policy: Policy
    admission: AdmissionSettings
    mutator: Mutator
    templates: Templates
    releases: UngatingPlanner


class Case(NamedTuple):
    """A pod, what its images are, the nodes, and the settings; `str` shows what a person needs to see."""

    pod: Json
    namespace: Mapping[str, str]
    answers: Mapping[str, Answer]
    nodes: Sequence[Json]
    is_watched: bool
    settings: Settings

    def __str__(self) -> str:
        images = {name: sorted(map(str, it.platforms)) if isinstance(it, Content) else it and it.cause.value
                  for name, it in self.answers.items()}  # fmt: skip
        pod = msgspec.json.encode(self.pod).decode()
        return f"pod {pod}\nnamespace {self.namespace}\nimages {images}\nnodes {self.nodes}\n{self.settings[:2]}"


@functools.cache
def _settings(number: int, *, is_odd: bool) -> Settings:
    """Odd ones always keep pods to the platforms of their images, and assume what is the default."""
    chosen = random.Random(number)
    policy = Policy(
        pending=chosen.choice(list(Choice)),
        unknown=chosen.choice(list(Choice)),
        compatibility=Compatibility(run_386_on_amd64=chosen.random() < 0.3, run_arm_on_arm64=chosen.random() < 0.3),
        preference=chosen.choice([{}, {"arm64": 10}]),
        runtime_classes=RUNTIME_CLASSES,
    )
    if not is_odd:
        assume = chosen.choice([platforms("linux/amd64"), frozenset()])
        policy = msgspec.structs.replace(policy, assume=assume)
    admission = AdmissionSettings(
        tolerations=chosen.choice(list(RULES)),
        node_affinity=chosen.choices(list(AffinityMode), [0, 1, 0, 1] if is_odd else [1, 4, 1, 2])[0],
        gate=GateSettings(unknown=chosen.choice(list(UnknownImages))),
        impossible=chosen.choice(list(ImpossiblePods)),
        scheduler_name=chosen.choice(["", "multiarch"]),
        platforms_annotation=chosen.random() < 0.5,
    )
    fixing = msgspec.structs.replace(admission, platforms_annotation=False)
    return Settings(
        policy, admission, Mutator(policy, admission), Templates(policy, fixing), UngatingPlanner(policy, admission)
    )


def draw(seed: int, *, is_odd: bool = False) -> Case:
    """Returns a case. An odd one has labels, annotations and RuntimeClasses that kube-scheduler knows nothing of."""
    chosen = random.Random(seed)
    settings = _settings(chosen.randrange(96), is_odd=is_odd)
    nodes = [
        random_node(chosen, f"n{number}", chosen.choice(_NODES), is_odd=is_odd)
        for number in range(chosen.randint(1, 5))
    ]
    count = chosen.choices([1, 2, 3], [3, 2, 1])[0]
    answers = {f"app-{number}:1": _answer(chosen, is_odd=is_odd) for number in range(count)}
    pod = _pod(chosen, list(answers))
    namespace = {}
    if is_odd:
        pod["metadata"]["annotations"] |= _annotations(chosen)
        namespace = _annotations(chosen) if chosen.random() < 0.3 else {}
        if chosen.random() < 0.1:
            pod["spec"]["containers"][0]["imagePullPolicy"] = "Never"
        if chosen.random() < 0.1:
            pod["spec"]["runtimeClassName"] = chosen.choice([*RUNTIME_CLASSES, "gvisor"])
    return Case(pod, namespace, answers, nodes, is_odd or chosen.random() < 0.8, settings)


def random_node(chosen: random.Random, name: str, platform: str, *, is_odd: bool = False) -> Json:
    os, architecture = platform.split("/")[:2]
    info = {"operatingSystem": os, "architecture": architecture}
    labels = {OS: os, ARCH: architecture, BETA_OS: os, BETA_ARCH: architecture}
    if is_odd:
        other, beta = chosen.choice(["amd64", "arm64", "x86_64"]), {BETA_OS: os, BETA_ARCH: architecture}
        odd = {OS: os, ARCH: other, BETA_OS: os, BETA_ARCH: other}
        labels = chosen.choices([labels, beta, {}, {OS: os, BETA_OS: os}, odd], [10, 2, 1, 1, 1])[0]
        info = {} if chosen.random() < 0.1 else info
    elif chosen.random() < 0.05:
        labels = {}
    if chosen.random() < 0.5:
        labels = {**labels, "zone": chosen.choice("ab71")}
    taints = [chosen.choice(_TAINTS)] if chosen.random() < 0.4 else []
    spec = {"taints": taints, "unschedulable": chosen.random() < 0.05}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec, "status": {"nodeInfo": info}}


def _answer(chosen: random.Random, *, is_odd: bool) -> Answer:
    if chosen.random() < 0.12:
        return chosen.choice([*(Failure(each, "x") for each in (Cause.DENIED, Cause.INVALID, Cause.UNAVAILABLE)), None])
    found = index(*chosen.choice((*_IMAGES, *(_ODD_IMAGES if is_odd else ()))).split())
    is_single = len(found.platforms) == 1 and all(map(is_of_nodes, found.platforms)) and chosen.random() < 0.3
    return msgspec.structs.replace(found, kind=Kind.MANIFEST) if is_single else found


def _expression(chosen: random.Random) -> Json:
    key, values = chosen.choice(_WORDS)
    operator = chosen.choices(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"], [8, 4, 1, 1, 1, 1])[0]
    if operator in ("Gt", "Lt"):
        return expression(key, "3", operator=operator)
    if operator in ("Exists", "DoesNotExist"):
        return {"key": key, "operator": operator}
    return expression(key, *chosen.sample(values, chosen.randint(1, len(values))), operator=operator)


def _term(chosen: random.Random) -> Json:
    term: Json = {"matchExpressions": [_expression(chosen) for _ in range(chosen.randint(0, 2))]}
    if chosen.random() < 0.15:
        term["matchFields"] = [expression("metadata.name", "n0")]
    return term


def _pod(chosen: random.Random, images: list[str]) -> Json:
    containers: list[Json] = [{"name": f"c{number}", "image": image} for number, image in enumerate(images)]
    spec: Json = {"containers": containers, "schedulerName": "default-scheduler"}
    if len(images) > 1 and chosen.random() < 0.4:
        spec["initContainers"] = [{**containers.pop(), "restartPolicy": "Always"}]
    if chosen.random() < 0.1:
        containers[0] |= {"command": ["/tools/run"], "volumeMounts": [{"name": "tools", "mountPath": "/tools"}]}
        spec["volumes"] = [{"name": "tools", "emptyDir": {}}]
    if chosen.random() < 0.25:
        key, values = chosen.choice(_WORDS)
        spec["nodeSelector"] = {key: chosen.choice(values)}
    if chosen.random() < 0.45:
        node_affinity: Json = {}
        if chosen.random() < 0.8:
            terms = [_term(chosen) for _ in range(chosen.choices([1, 2, 3], [4, 2, 1])[0])]
            node_affinity[REQUIRED] = {"nodeSelectorTerms": terms}
        if chosen.random() < 0.1:
            node_affinity[PREFERRED] = [{"weight": 1, "preference": {"matchExpressions": [_expression(chosen)]}}]
        spec["affinity"] = chosen.choice([{"podAntiAffinity": {}}, {}]) | {"nodeAffinity": node_affinity}
    if chosen.random() < 0.1:
        spec["os"] = {"name": chosen.choice(["linux", "windows"])}
    if chosen.random() < 0.3:
        spec["tolerations"] = [chosen.choice(_TOLERATIONS)]
    return {"metadata": {"name": "p", "namespace": "shop", "annotations": {"team": "a"}}, "spec": spec}


def _annotations(chosen: random.Random) -> dict[str, str]:
    return {key: chosen.choice(values) for key, values in _ANNOTATIONS.items() if chosen.random() < 0.1}


def is_labelled(node: ReportedNode) -> bool:
    """Whether the node's labels state its platform as node affinity names it."""
    labels, platform = node.labels, platform_of_node(node)
    return platform is not None and (labels.get(OS), labels.get(ARCH)) == (platform.os, platform.architecture)


class Outlets:
    """What the package makes of a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.policy = case.settings.policy
        self.images = images_of(decoded(case.pod, CreatedPod), self.policy.runtime_classes)
        answers = [case.answers[it.reference] for it in self.images]
        self.facts = facts_of(self.images, answers, may_be_pending=True)
        annotations = case.pod["metadata"]["annotations"]
        self.overrides = read_overrides(annotations, case.namespace, self.policy.overrides)
        self.nodes = {it["metadata"]["name"]: decoded(it, ReportedNode) for it in case.nodes}
        self.platforms = {name: platform_of_node(it) for name, it in self.nodes.items()}
        self.labelled = {name: is_labelled(it) for name, it in self.nodes.items()}
        seen = frozenset(platform for platform in self.platforms.values() if platform)
        self.cluster = ClusterNodes(seen) if case.is_watched else NO_NODES

    def mutate(self, pod: Json, *, may_hold: bool = False) -> Mutation:
        created, mutator = decoded(pod, CreatedPod), self.case.settings.mutator
        return mutator.skip(created, self.overrides) or mutator.mutate(
            ResolvedPod(created, self.images, self.facts, self.overrides, self.cluster), may_hold=may_hold
        )

    def held(self, *gates: Json) -> Json:
        """The pod as a policy holds it, beside these gates."""
        metadata = self.case.pod["metadata"]
        annotations = {**metadata["annotations"], REASON: "the pod is held"}
        ours = {"uid": "u", "resourceVersion": "7", "labels": {GATED_LABEL: GATED}, "annotations": annotations}
        spec = {**self.case.pod["spec"], "schedulingGates": list(gates) or [{"name": GATE}]}
        return {**self.case.pod, "metadata": {**metadata, **ours}, "spec": spec}

    def plan_release(self, held: Json, *, expired: bool) -> Ungating:
        stored, plan = decoded(held, CreatedPod), self.case.settings.releases.plan
        return plan(ResolvedPod(stored, self.images, self.facts, self.overrides, self.cluster), expired=expired)

    def fix(self, spec: Json) -> tuple[Json, TemplateAnswer]:
        """The spec of a template after `fix`, and what that says."""
        template = {"metadata": {"annotations": self.case.pod["metadata"]["annotations"]}, "spec": spec}
        workload = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "w", "namespace": "shop"}}
        [found] = pod_templates({**workload, "spec": {"template": template}})
        settings = msgspec.structs.replace(self.case.settings.admission, platforms_annotation=False)
        templates = Templates(self.policy, settings, cluster=self.cluster)
        question = templates.question(found, self.case.namespace)
        answers = [self.case.answers[it.reference] for it in question.images]
        change = templates.fix(found, question, facts_of(question.images, answers, may_be_pending=True))
        fixed: Any = apply(template, msgspec.json.encode(change.operations))
        return fixed["spec"], change

    def decide(self) -> Decision:
        return Decision(self.images, self.facts, self.policy, self.overrides)

    def keep(self) -> set[str] | None:
        """The nodes that filter keeps; None where kube-scheduler is to try again."""
        body = msgspec.json.encode({"Pod": self.case.pod, "Nodes": None, "NodeNames": list(self.platforms)})
        view = NodePlatforms({NodeName(name): platform for name, platform in self.platforms.items()})
        answer = filter_nodes(decode_args(body), view, self.decide()).answer
        return None if answer.error else set(msgspec.json.decode(answer.node_names or b"[]"))
