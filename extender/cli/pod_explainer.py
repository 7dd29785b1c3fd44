"""Explains pods by the same steps as the other outlets: overrides, images and answers, then the decision."""

from extender.placement.cluster_nodes import ClusterNodes
from extender.placement.mutation import Mutator
from extender.placement.planning import AdmissionPolicy
from extender.reports.explanation import Explanation, PodEvidence, Subject, explain
from extender.resolver.pod_resolver import PodResolver


class PodExplainer:
    """Explains pods by what a `PodResolver` knows, under the operator's settings."""

    def __init__(self, pod_resolver: PodResolver, admission: AdmissionPolicy) -> None:
        self._pod_resolver = pod_resolver
        self._mutator = Mutator(pod_resolver.policy, admission)

    async def look_up(self, subject: Subject, nodes: ClusterNodes, wait_seconds: float) -> Explanation:
        """The explanation after lookups of the pod's images, which may take up to `wait_seconds`.

        Whoever asks has given the pod, or may read it: its pull secrets count.
        """
        overrides = self._pod_resolver.overrides_of(subject.pod, subject.namespace, subject.raw_pod)
        question = self._pod_resolver.question(subject.pod, subject.namespace, overrides, may_read=True)
        await self._pod_resolver.resolve(question, wait_seconds, revalidate=True)
        found = PodEvidence(
            images=question.images,
            evidence=self._pod_resolver.evidence(question),
            overrides=question.overrides,
        )
        return explain(subject, found, self._pod_resolver.policy, self._mutator, nodes)
