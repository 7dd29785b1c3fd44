"""Takes constraints on architecture that a pod's images do not need out of its template: the inverse of what is added.

A nodeSelector entry or required node affinity for architectures goes if all images are known to run on every platform
that the rest of the template then allows. A toleration goes if the webhook gives pods without it one that tolerates as
much. What cannot be judged by itself stays: `NotIn`, terms of which one is enough and that differ, a term with
`matchFields`. So pods may run on all nodes on which they might run before, and each node more runs all their images.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import cast

import msgspec

from extender.images.platform import Platform
from extender.kubernetes.core_v1 import (
    NodeSelectorRequirement,
    NodeSelectorTerm,
    Toleration,
)
from extender.kubernetes.documents import Json, JsonObject, list_at, put, value_at
from extender.kubernetes.pod_templates import PodTemplate
from extender.placement.additions import ADDED_PATH, TERMS_PATH, TOLERATIONS_PATH, read_record
from extender.placement.annotations import Mode
from extender.placement.facts import Fit, ImageFact, fit
from extender.placement.mutation import read_parts, scheduling_of
from extender.placement.node_match import (
    NodeDemands,
    demands_in,
    demands_of,
    is_met,
    may_allow,
    requirement_text,
    selector_requirements,
)
from extender.placement.nodes import ARCHITECTURE, LABELS
from extender.placement.patch import Operation, diff
from extender.placement.planning import AdmissionSettings, Planner
from extender.placement.policy import Policy
from extender.placement.resolved_pod import ResolvedPod
from extender.placement.templates import TemplateAnswer, TemplateQuestion, Templates, unknown_images
from extender.placement.tolerations import covers, toleration_text
from extender.placement.webhook_reach import WebhookReach

_EXPRESSIONS = "matchExpressions"
_SELECTOR, _TOLERATIONS = ("spec", "nodeSelector"), TOLERATIONS_PATH[-1]
_OF_DAEMON_SETS = "a DaemonSet's pods get no toleration from the webhook"
_NOT_REACHED = "the webhook is not called for these pods"


class Relaxation(msgspec.Struct, frozen=True, kw_only=True):
    """What a pod's images do not need of what its author asks of nodes.

    `constraints` and `tolerations` go, and `kept` says of each other one why it stays. `gained` are the platforms that
    pods may run on besides, and `demands` what they ask of nodes then, with the tolerations that the webhook gives
    them.
    """

    operations: tuple[Operation, ...] = ()
    constraints: tuple[str, ...] = ()
    tolerations: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    gained: tuple[Platform, ...] = ()
    demands: NodeDemands = NodeDemands()


class Relaxer:
    """Relaxes pods by the operator's settings, for nodes of some platforms."""

    def __init__(
        self, policy: Policy, settings: AdmissionSettings, targets: Sequence[Platform], namespace: str = ""
    ) -> None:
        """`namespace` is that of templates that name none."""
        self._namespace = namespace
        self._templates = Templates(policy, settings)
        self._planner = Planner(policy, settings)
        self._compatibility = policy.compatibility
        self._rules = settings.tolerations
        self._keys = {ARCHITECTURE, *(rule.key for rule in settings.tolerations)} - {""}
        self._targets = targets

    def is_constrained(self, demands: NodeDemands) -> bool:
        """Whether there is a constraint on architecture among them."""
        return (
            any(map(self._restricts, selector_requirements(demands.selector)))
            or any(map(self._of_term, demands.terms or ()))
            or any(each.key in self._keys for each in demands.tolerations)
        )

    def question(self, template: PodTemplate, namespace: Mapping[str, str] | None) -> TemplateQuestion:
        """As `Templates.question`; there are no images where there is nothing to take out."""
        question = self._templates.question(template, namespace)
        spec = question.pod.spec
        has_constraints = spec is not None and self.is_constrained(demands_of(spec))
        return question if has_constraints else question._replace(images=())

    def fix(self, template: PodTemplate, question: TemplateQuestion, facts: Sequence[ImageFact]) -> TemplateAnswer:
        """What happens to a manifest's template; `facts` are those of the question's images, in order."""
        pod, images, overrides = question.pod, question.images, question.overrides
        if not images or overrides.mode is Mode.OBSERVE:
            is_partly_given = pod.spec is not None and self.is_constrained(demands_of(pod.spec))
            return TemplateAnswer(warnings=overrides.problems, gap=template.gap if is_partly_given else "")
        if unknown := tuple(unknown_images(images, facts)):
            return TemplateAnswer(unknown=unknown, warnings=overrides.problems)
        labels = (template.template.get("metadata") or {}).get("labels") or {}
        found = self.relax(
            ResolvedPod(pod, images, facts, overrides),
            is_daemon_set=template.is_daemon_set,
            is_reached=WebhookReach().includes(template.namespace or self._namespace, labels),
        )
        removed = (*found.constraints, *found.tolerations)
        if removed and not template.takes_constraints:
            kept = tuple(f"{each}: it cannot be taken out at {template.field_path}" for each in removed)
            return TemplateAnswer(kept=(*kept, *found.kept), warnings=overrides.problems)
        return TemplateAnswer(
            operations=found.operations, removed=removed, kept=found.kept, warnings=overrides.problems
        )

    def relax(self, resolved: ResolvedPod, *, is_daemon_set: bool = False, is_reached: bool = True) -> Relaxation:
        """What the pod does not need; nothing while one of its images is not known.

        `is_reached`: the webhook is called for it.
        """
        before, why_left = read_parts(resolved.pod, resolved.images)
        if resolved.unresolved:
            return Relaxation()
        if not why_left and read_record(value_at(before, *ADDED_PATH)) is not None:
            why_left = "the webhook has changed it, and takes back what it added"
        if why_left:
            return Relaxation(kept=(f"all: {why_left}",))
        demands = _demands(before)
        after, constraints, kept = self._take_constraints(before, demands)
        opened = [target for target in self._targets if may_allow(_demands(after), target)]
        gained = tuple(target for target in opened if not may_allow(demands, target))
        why = ""
        if any(fit(resolved.facts, target, self._compatibility) is not Fit.YES for target in opened):
            why = resolved.refusal()
        elif not gained:
            why = "the rest of its requirements allows no other platform"
        if why:
            kept = [*(f"{each}: {why}" for each in constraints), *kept]
            constraints, gained, after = [], (), before
        left_out = _OF_DAEMON_SETS if is_daemon_set else "" if is_reached else _NOT_REACHED
        after, tolerations, given, stay = self._take_tolerations(after, resolved, left_out)
        relaxed = _demands(after)
        return Relaxation(
            operations=tuple(diff(before, after)),
            constraints=tuple(constraints),
            tolerations=tuple(tolerations),
            kept=(*kept, *stay),
            gained=gained,
            demands=msgspec.structs.replace(relaxed, tolerations=(*relaxed.tolerations, *given)),
        )

    def _restricts(self, requirement: NodeSelectorRequirement) -> bool:
        """Whether it is about architecture, and keeps pods off a target."""
        return LABELS.get(requirement.key) == ARCHITECTURE and not all(
            is_met(requirement, target.architecture) for target in self._targets
        )

    def _of_term(self, term: NodeSelectorTerm) -> list[NodeSelectorRequirement]:
        return [each for each in term.match_expressions or () if self._restricts(each)]

    def _take_constraints(self, document: JsonObject, demands: NodeDemands) -> tuple[JsonObject, list[str], list[str]]:
        """The document without what restricts architectures, what that is, and what stays for its form."""
        taken, kept = list[str](), list[str]()
        for each in filter(self._restricts, selector_requirements(demands.selector)):
            taken.append(f"nodeSelector {each.key}={demands.selector[each.key]}")
            document = put(document, (*_SELECTOR, each.key), None)
        terms = demands.terms or ()
        texts = dict.fromkeys(requirement_text(each) for term in terms for each in self._of_term(term))
        affinity = f"node affinity {' or '.join(texts)}"
        written = list_at(document, *TERMS_PATH)
        if texts and (why := self._why_terms_stay(terms, written)):
            kept.append(f"{affinity}: {why}")
        elif texts:
            taken.append(affinity)
            left = []
            for term, its_json in zip(terms, written, strict=True):
                pairs = zip(term.match_expressions or (), its_json[_EXPRESSIONS], strict=True)
                left.append({**its_json, _EXPRESSIONS: [one for each, one in pairs if not self._restricts(each)]})
            has_requirements = any(term[_EXPRESSIONS] for term in left)  # each without any would match no node
            document = put(document, TERMS_PATH, cast("Json", left) if has_requirements else None)
        return document, taken, kept

    def _why_terms_stay(self, terms: Sequence[NodeSelectorTerm], written: Sequence[JsonObject]) -> str:
        """Why nothing can be taken out of the terms without a judgement of what their author meant; or nothing."""
        found = [self._of_term(term) for term in terms]
        if others := [each.operator for each in itertools.chain(*found) if each.operator != "In"]:
            return f"its operator is {others[0]}"
        if any(each for term in written for key, each in term.items() if key != _EXPRESSIONS):
            return "a term has more than matchExpressions"
        bare = {len(each) == len(term.match_expressions or ()) for each, term in zip(found, terms, strict=True)}
        if len(bare) > 1 or any(set(each) != set(found[0]) for each in found):
            return "one of its terms is enough, and they differ"
        return ""

    def _take_tolerations(
        self, document: JsonObject, pod: ResolvedPod, left_out: str
    ) -> tuple[JsonObject, list[str], tuple[Toleration, ...], list[str]]:
        """The document without tolerations of architecture taints, these, what the webhook gives, why others stay.

        `left_out` says why the webhook gives none; else it is empty.
        """
        own = _demands(document).tolerations
        about = {index: toleration_text(each) for index, each in enumerate(own) if each.key in self._keys}
        offered = [index for index in about if self._is_offered(own[index])]
        written = list_at(document, *TOLERATIONS_PATH)
        others = [one for index, one in enumerate(written) if index not in offered]
        without = scheduling_of(put(document, TOLERATIONS_PATH, others))
        given = () if left_out else self._planner.plan(pod, without).additions.tolerations
        gone = [index for index in offered if any(covers(each, own[index]) for each in given)]
        if gone:
            left = [one for index, one in enumerate(written) if index not in gone]
            document = put(document, TOLERATIONS_PATH, left)
        kept = [
            f"toleration {text}: {left_out or self._why_it_stays(own[index])}"
            for index, text in about.items()
            if index not in gone
        ]
        return document, [f"toleration {about[index]}" for index in gone], given, kept

    def _is_offered(self, toleration: Toleration) -> bool:
        """Whether pods may get from the webhook what tolerates as much."""
        return toleration.toleration_seconds is None and any(
            covers(rule.toleration, toleration) for rule in self._rules
        )

    def _why_it_stays(self, toleration: Toleration) -> str:
        if self._is_offered(toleration):
            return "the webhook does not give it to pods of these images and requirements"
        return "no rule of admission.tolerations gives as much"


def _demands(document: JsonObject) -> NodeDemands:
    return demands_in(scheduling_of(document))
