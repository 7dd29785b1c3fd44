"""Pods of DaemonSets: whether the node to which the controller has bound one runs its images.

The controller chooses nodes by the template, and adds the node's name to the pod's affinity. A pod for a wrong node
would crash there, again and again. Its DaemonSet gets an event. Where DaemonSets are guarded the pod also gets
required affinity that the node does not meet: it stays Pending, with its reason. It is never refused, since a failed
creation keeps the controller from other nodes.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec
import structlog

from extender.cluster.pod_events import PodEvents
from extender.cluster.views import WatchedNodes
from extender.images.platform import Platform, runs_on
from extender.kubernetes.admission_v1 import AdmissionRequest
from extender.kubernetes.core_v1 import Affinity, CreatedPod, NodeName, PodReference
from extender.kubernetes.meta_v1 import OwnerReference
from extender.metrics import counter
from extender.placement.affinity import AffinityMode
from extender.placement.bounds import TOUCHED_BYTES
from extender.placement.facts import Fit, ImageFact, fit
from extender.placement.mutation import AdmissionOutcome, Mutation, Mutator, is_of_daemon_set
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.placement.policy import Policy, is_exempt
from extender.placement.reasons import NAME_CHARACTERS, constraints_of, refusal_text, shorten, system_text
from extender.placement.resolved_pod import ResolvedPod
from extender.resolver.pod_resolver import PodQuestion

log = structlog.get_logger()

REASON = "DaemonPodCannotRun"
"""The reason of the event on a DaemonSet."""
_REPORTED, _HELD = "reported", "held"
MISPLACED = counter(
    "multiarch_daemon_pods_misplaced_total",
    "Pods that DaemonSets made for a node on which an image does not run; held: kept Pending; reported: only that.",
    "treatment",
    (_REPORTED, _HELD),
)
_LEFT = (AdmissionOutcome.OBSERVED, AdmissionOutcome.EXEMPT)
"""What becomes of a pod that is only observed, or that has too much of something: it goes to its node."""
_VIEW_TRIES, _VIEW_SECONDS = 10, 0.05  # until a node that has just joined is in view
_NAME = "metadata.name"
_AFFINITY = msgspec.json.Decoder(Affinity | None)


class DaemonPods:
    """Decides about pods of DaemonSets by the nodes they are made for; `guards`: those for wrong nodes are held.

    `nodes` are the cluster's. `events` is None where none are sent.
    """

    def __init__(
        self,
        policy: Policy,
        nodes: WatchedNodes,
        *,
        cluster_nodes: Callable[[], ClusterNodes],
        events: PodEvents | None,
        guards: bool,
    ) -> None:
        self._policy = policy
        # Of the operator's choices none else holds for these pods: `impossible: deny` would refuse them.
        guard = AdmissionSettings(node_affinity=AffinityMode.REQUIRED)
        self._guard = Mutator(policy, guard) if guards else None
        self._nodes = nodes
        self._cluster_nodes = cluster_nodes
        self._events = events

    def node_of(self, pod: CreatedPod) -> NodeName | None:
        """The node for which a DaemonSet's controller makes the pod; None for any other pod, and for an exempt one.

        The controller puts one required term into the affinity, which names the node (pkg/controller/daemon/util).
        Nobody reads kilobytes of affinity for it.
        """
        raw = pod.spec.affinity if pod.spec and pod.spec.affinity else b""
        if not raw or len(raw) > TOUCHED_BYTES or not is_of_daemon_set(pod) or is_exempt(pod, self._policy):
            return None
        affinity = _AFFINITY.decode(raw)
        required = affinity and affinity.node_affinity and affinity.node_affinity.required
        for term in (required and required.node_selector_terms) or ():
            for field in term.match_fields or ():
                name, *others = field.values or ("",)
                is_named = field.key == _NAME and field.operator == "In" and not others
                if is_named and 0 < len(name) <= NAME_CHARACTERS:
                    return NodeName(name)
        return None

    async def decide(
        self,
        pod: CreatedPod,
        review: AdmissionRequest,
        node: NodeName,
        question: PodQuestion,
        facts: Sequence[ImageFact],
    ) -> Mutation | None:
        """What happens to a pod whose node does not run its images; None for any other, which is left alone.

        `facts` are those of the question's images, in order.
        """
        platform = await self._platform_of(node)
        if platform is None or fit(facts, platform, self._policy.compatibility) is not Fit.NO:
            return None
        wrong = [
            each
            for each in constraints_of(question.images, facts)
            if not runs_on(each.platforms, platform, self._policy.compatibility)
        ]
        refusal = refusal_text(wrong) or system_text(question.images, facts)
        if self._guard:
            nodes = self._cluster_nodes()
            resolved = ResolvedPod(pod, question.images, facts, question.overrides, nodes)
            mutation = self._guard.mutate(resolved, may_hold=True)
        else:
            verdict = {"verdict": f"left alone: {refusal}"}
            mutation = Mutation(outcome=AdmissionOutcome.EXEMPT, audit_annotations=verdict)
        if not review.dry_run:
            is_held = bool(mutation.patch) and mutation.outcome not in _LEFT
            self._report(pod, review.namespace or "", node, platform, refusal, is_held=is_held)
        return mutation

    async def _platform_of(self, node: NodeName) -> Platform | None:
        """The platform of the node; guarded pods wait for it, as the controller may have seen the node first."""
        tries = _VIEW_TRIES if self._guard else 0
        while node not in self._nodes.platforms and tries:
            tries -= 1
            await asyncio.sleep(_VIEW_SECONDS)
        return self._nodes.platforms.get(node)

    def _report(
        self, pod: CreatedPod, namespace: str, node: NodeName, platform: Platform, refusal: str, *, is_held: bool
    ) -> None:
        MISPLACED[_HELD if is_held else _REPORTED].inc()
        owner = pod.controller or OwnerReference()
        log.warning(
            "daemon_pod.misplaced",
            namespace=namespace,
            daemon_set=shorten(owner.name, NAME_CHARACTERS),
            node=node,
            platform=str(platform),
            why=refusal,
            held=is_held,
        )
        if self._events:
            what = "its pods are held there" if is_held else "its pods will crash there"
            self._events.record(
                PodReference(namespace, owner.name, owner.uid, owner.api_version, owner.kind),
                REASON,
                f"{refusal}, and node {node} is {platform}: {what}",
                "Warning",
                once=f"{refusal} {platform}",
            )
