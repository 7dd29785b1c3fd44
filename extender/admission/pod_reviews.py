"""What the webhooks of pods and of templates share: about what is decided, and how long a review waits for lookups.

They differ in what they read and answer; a template is a pod here.
"""

from collections.abc import Callable, Sequence

import msgspec

from extender.images.content import Answer
from extender.kubernetes.core_v1 import CreatedPod
from extender.placement.cluster_nodes import ClusterNodes
from extender.placement.facts import facts_of, is_unresolved
from extender.placement.gate import UnknownImages
from extender.placement.mutation import Mutation, Mutator
from extender.placement.planning import AdmissionPolicy
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.turns import Slots

# Reviews of one webhook that wait for lookups, and those of one tenant. Each holds a connection of the API server,
# which has some 600 requests that change something under way. One beyond that is answered from memory, while its
# lookups go on.
_WAITING, _WAITING_EACH = 1_000, 250


class PodReviews:
    """Gathers what is known of a pod in a review, and decides.

    A review waits `wait_seconds` at most.
    Reviews are the API server's, so the pull secrets that a review's pod names may be read. `cluster_nodes` gives
    the cluster's nodes, none if no cluster is watched. `can_gate` tells whether a gate controller
    provably lets go of pods at present; without one no pod is held.
    """

    def __init__(
        self,
        pod_resolver: PodResolver,
        admission: AdmissionPolicy,
        *,
        cluster_nodes: Callable[[], ClusterNodes],
        wait_seconds: float,
        can_gate: Callable[[], bool] = lambda: False,
    ) -> None:
        self._pod_resolver = pod_resolver
        self._mutator = Mutator(pod_resolver.policy, admission)
        self._confirms = admission.node_affinity.required
        self._prefers = admission.node_affinity.preferred
        self._holds = admission.gate.unknown is UnknownImages.GATE
        self._waiting = Slots(_WAITING, _WAITING_EACH)
        self._cluster_nodes = cluster_nodes
        self._wait_seconds = wait_seconds
        self._can_gate = can_gate

    def gather(
        self, pod: CreatedPod, namespace: str, raw_pod: msgspec.Raw, *, draw: str = ""
    ) -> PodQuestion | Mutation:
        """What to ask about the pod; its mutation if nothing is asked. Arguments are as in `policy.overrides_of`.

        Where no preference is written, the pod's JSON is not searched for what turns a preference off.
        """
        searched = bytes(raw_pod) if self._prefers else b""
        overrides = self._pod_resolver.overrides_of(pod, namespace, searched, draw)
        skipped = self._mutator.skip(pod, overrides)
        if skipped:
            return skipped
        return self._pod_resolver.question(pod, namespace, overrides, may_read=True)

    def fresh(self, question: PodQuestion) -> list[Answer] | None:
        """One answer per image if the cache has all of them and each is fresh; else None."""
        return self._pod_resolver.fresh(question)

    async def resolve(self, question: PodQuestion) -> list[Answer]:
        """One answer per image after the wait, or at once if too many reviews of the tenant wait already."""
        tenant = question.keyring.tenant
        may_wait = self._waiting.take(tenant)
        try:
            wait_seconds = self._wait_seconds if may_wait else 0.0
            # A required affinity stays in the pod even if the image's tag moves, so a stale answer is confirmed first.
            return await self._pod_resolver.resolve(question, wait_seconds, revalidate=self._confirms)
        finally:
            if may_wait:
                self._waiting.give_back(tenant)

    def decide(self, pod: CreatedPod, question: PodQuestion, answers: Sequence[Answer]) -> Mutation:
        """What becomes of the pod. Raises msgspec.ValidationError and others for a pod that cannot be read."""
        nodes = self._cluster_nodes()
        facts = facts_of(question.images, answers, may_be_pending=True, lists=nodes.images.lists)
        may_hold = self._holds and any(map(is_unresolved, facts)) and self._can_gate()
        return self._mutator.mutate(pod, question.images, facts, question.overrides, nodes, may_hold=may_hold)
