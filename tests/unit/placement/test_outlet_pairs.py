"""No two outlets disagree on any node: random pods, clusters with nodes of odd labels, and settings.

An outlet's answers are those of kube-scheduler once the outlet has done its part, apart from taints: True if the pod
may go to the node, False if not, None where the outlet leaves it open.
"""

import itertools
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec
import pytest

from extender.images.content import Evidence
from extender.kubernetes.core_v1 import CreatedPod, CreatedSpec
from extender.placement.affinity import right_nodes
from extender.placement.annotations import Mode
from extender.placement.facts import Pending, Unknown, known_platforms
from extender.placement.mutation import AdmissionOutcome, Mutation
from extender.placement.node_match import Rule, demands_of, obstacles
from extender.placement.planning import Outcome
from extender.placement.policy import is_exempt
from extender.reports.audit_findings import AuditInput, ImageEvidence, audit
from extender.reports.audit_report import FindingRule, RunAnswer
from extender.reports.explanation import Subject, explain
from extender.reports.workload_reports import WorkloadCollector
from tests.builders import Json, decoded
from tests.unit.placement.held_pods import merged
from tests.unit.placement.json_patch import apply
from tests.unit.placement.random_cases import Case, Outlets, draw

CASES, SLICES = 600, 4
Answers: TypeAlias = Mapping[str, bool | None]
_IMAGES = {RunAnswer.YES: True, RunAnswer.NO: False, RunAnswer.UNKNOWN: None}


class Sayings(Outlets):
    """What each outlet says of the nodes of one case."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        self.is_known = not any(isinstance(fact, Pending | Unknown) for fact in self.facts)
        is_ignored = self.overrides.mode is Mode.IGNORE
        self.is_left_alone = is_ignored or is_exempt(decoded(case.pod, CreatedPod), self.policy)

    def answers(self) -> Mapping[str, Answers]:
        said: dict[str, Callable[[], Answers]] = {
            "filter": self.filter, "webhook": self.webhook, "policy": self.policy_then_webhook,
            "gate release": self.release, "fix": self.fixed, "explain": self.explain, "audit": self.audit,
        }  # fmt: skip
        return {outlet: answer() for outlet, answer in said.items()}

    def filter(self) -> Answers:
        """The extender's filter, after kube-scheduler has looked at the pod's own words."""
        own = self._own(self.case.pod["spec"])
        if self.is_left_alone or self.overrides.mode is Mode.OBSERVE:
            return own
        kept = self.keep()
        if kept is None:
            return {name: None if it else False for name, it in own.items()}
        found: dict[str, bool | None] = {name: it and name in kept for name, it in own.items()}
        if not self._have_common():  # what states no platform passes, and can run no such pod
            found = {name: it if it is False or self.platforms[name] else None for name, it in found.items()}
        return self._unless_assumed(found) if any(it.assumed for it in self.decide().constraints) else found

    def webhook(self) -> Answers:
        return self._of_mutation(self.case.pod, self.mutate(self.case.pod))

    def policy_then_webhook(self) -> Answers:
        """The policy holds the pod, and the webhook lets it go in the same request if it knows the images."""
        return self._of_mutation(self.held(), self.mutate(self.held(), may_hold=True))

    def release(self) -> Answers:
        held = self.held()
        release = self.plan_release(held, expired=False)
        if release.outcome is Outcome.HOLD:
            return dict.fromkeys(self.nodes)
        said = self._unless_unlabelled(self._own(merged(held, msgspec.json.decode(release.patch))["spec"]))
        return self._unless_assumed(self._unless_narrowed(said))

    def fixed(self) -> Answers:
        spec, change = self.fix(self.case.pod["spec"])
        is_impossible = bool(self.images) and self.is_known and not change.operations and bool(change.warnings)
        if change.unknown or (is_impossible and not self.is_left_alone):
            return dict.fromkeys(self.nodes)
        return self._unless_narrowed(self._unless_unlabelled(self._own(spec)))

    def explain(self) -> Answers:
        evidence = {
            it: Evidence(
                answer=self.case.answers[it.reference], digest="", credential="", age_seconds=0.0, is_fresh=True
            )
            for it in self.images
        }
        pod = decoded(self.case.pod, CreatedPod)
        subject = Subject(kind="Pod", name="p", namespace="shop", document=self.case.pod, pod=pod, is_created=True)
        said: dict[str, bool | None] = {}
        for name, node in self.nodes.items():
            mutator = self.case.settings.mutator
            [kind] = explain(
                subject, evidence, self.overrides, self.policy, mutator, [node], cluster=self.cluster
            ).nodes
            words = any(each.rule in (Rule.SELECTOR, Rule.AFFINITY) for each in kind.obstacles)
            said[name] = False if words else _IMAGES[kind.images]
        return self._unless_observed(self._unless_assumed(said))

    def audit(self) -> Answers:
        """The report about a workload of this pod, node by node: each is a cluster of its own."""
        collector = WorkloadCollector()
        metadata, spec = {"name": "w", "namespace": "shop"}, self.case.pod["spec"]
        template = {"metadata": {"annotations": self.case.pod["metadata"]["annotations"]}, "spec": spec}
        document = {"kind": "Deployment", "metadata": metadata, "spec": {"template": template}}
        collector.add(document, "x.yaml, document 1")
        workloads = collector.workloads()
        evidence = [[ImageEvidence(self.case.answers[each.reference]) for each in it.images] for it in workloads]
        said: dict[str, bool | None] = {}
        for name, platform in self.platforms.items():
            given = AuditInput(
                workloads=workloads, evidence=evidence, policy=self.policy, nodes=[self.nodes[name]],
                required=[platform] if platform else [], namespaces={"shop": self.case.namespace},
            )  # fmt: skip
            [workload] = audit(given).workloads
            if platform is None or not workload.platforms:
                said[name] = None
                continue
            [found] = workload.platforms
            blocking = (FindingRule.SELECTOR_BLOCKS, FindingRule.AFFINITY_BLOCKS)
            words = any(each.rule in blocking for each in found.blockers)
            said[name] = False if words else _IMAGES[found.images]
        sure: Answers = said
        if "os" in spec:  # which counts for the other outlets once the images are known
            sure = self._unless_assumed(said)
        return self._unless_observed(sure)

    def _of_mutation(self, document: Json, mutation: Mutation) -> Answers:
        if mutation.outcome is AdmissionOutcome.REFUSED and self.is_known:
            return self._unless_unlabelled(dict.fromkeys(self.nodes, False))
        if mutation.outcome in (AdmissionOutcome.REFUSED, AdmissionOutcome.GATED):
            return dict.fromkeys(self.nodes)
        stored = apply(document, mutation.patch)
        return self._unless_assumed(self._unless_narrowed(self._unless_unlabelled(self._own(stored["spec"]))))

    def _unless_narrowed(self, found: Answers) -> Answers:
        """Where the images' operating systems do not share their architectures, a pod is kept to one of them."""
        right = right_nodes(known_platforms(self.facts), self.policy.compatibility)
        systems, architectures = {it.os for it in right}, {it.architecture for it in right}
        is_narrowed = len(systems) > 1 and len(right) < len(systems) * len(architectures)
        return {name: it or None for name, it in found.items()} if is_narrowed else found

    def _have_common(self) -> bool:
        known = known_platforms(self.facts)
        return not known or bool(right_nodes(known, self.policy.compatibility))

    def _unless_assumed(self, found: Answers) -> Answers:
        """Where an image is not known, a node may be refused by an assumption, which is each outlet's own setting."""
        return found if self.is_known or self.is_left_alone else {name: it or None for name, it in found.items()}

    def _unless_observed(self, found: Answers) -> Answers:
        return {name: it or None for name, it in found.items()} if self.overrides.mode is Mode.OBSERVE else found

    def _unless_unlabelled(self, found: Mapping[str, bool]) -> dict[str, bool | None]:
        return {name: it if self.labelled[name] else None for name, it in found.items()}

    def _own(self, spec: Json) -> dict[str, bool]:
        demands, words = demands_of(decoded(spec, CreatedSpec)), (Rule.SELECTOR, Rule.AFFINITY)
        return {
            name: not any(each.rule in words for each in obstacles(demands, node)) for name, node in self.nodes.items()
        }


def disagreements(seed: int) -> list[str]:
    case = draw(seed, is_odd=True)
    return [
        f"seed {seed}: {one} {says[name]}, {other} {says_too[name]} of {name}\n{case}"
        for (one, says), (other, says_too) in itertools.combinations(Sayings(case).answers().items(), 2)
        for name in says
        if {says[name], says_too[name]} == {True, False}
    ]


@pytest.mark.parametrize("part", range(SLICES))
def test_no_two_outlets_disagree(part: int) -> None:
    """The same seeds each time; a failure shows pod, node and both answers."""
    for seed in range(part, CASES, SLICES):
        assert not (found := disagreements(seed)), found[0]


@pytest.mark.slow
def test_no_two_outlets_disagree_for_long(record_property: Any) -> None:
    """Other seeds, for twenty seconds or `PAIRS_SECONDS`; prints how many cases that were."""
    end, first = time.monotonic() + float(os.environ.get("PAIRS_SECONDS", "20")), int.from_bytes(os.urandom(4))
    seeds = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(first))
    number = 0
    for number, seed in enumerate(seeds, 1):  # noqa: B007  # how many there were
        assert not (found := disagreements(seed)), found[0]
    record_property("cases", number)
    print(f"{number} cases from seed {first}")
