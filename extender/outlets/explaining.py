"""Explains pods by the same steps as the other outlets: overrides, images and answers, then the decision."""

from collections.abc import Iterable

from extender.images.platform import Platform
from extender.outlets.pod_resolver import PodQuestion, PodResolver
from extender.placement.mutation import Mutator
from extender.placement.planning import AdmissionPolicy
from extender.reports.explanation import Explanation, PodEvidence, Subject, explain


class PodExplainer:
    """Explains pods by what a `PodResolver` knows, under the operator's settings."""

    def __init__(self, pod_resolver: PodResolver, admission: AdmissionPolicy) -> None:
        self._pod_resolver = pod_resolver
        self._mutator = Mutator(pod_resolver.policy, admission)

    def from_memory(self, subject: Subject, platforms: Iterable[Platform]) -> Explanation:
        """The explanation by what is in memory. Starts no lookup.

        The cluster itself must have given the pod, whose pull secrets count.
        """
        return self._explain(subject, self._question(subject), platforms)

    async def look_up(self, subject: Subject, platforms: Iterable[Platform], wait_seconds: float) -> Explanation:
        """The explanation after lookups of the pod's images, which may take up to `wait_seconds`."""
        question = self._question(subject)
        await self._pod_resolver.resolve(question, wait_seconds, revalidate=True)
        return self._explain(subject, question, platforms)

    def _question(self, subject: Subject) -> PodQuestion:
        overrides = self._pod_resolver.overrides_of(subject.pod, subject.namespace, subject.raw_pod)
        return self._pod_resolver.question(subject.pod, subject.namespace, overrides, may_read=True)

    def _explain(self, subject: Subject, question: PodQuestion, platforms: Iterable[Platform]) -> Explanation:
        found = PodEvidence(
            images=question.images,
            evidence=self._pod_resolver.evidence(question),
            overrides=question.overrides,
        )
        return explain(subject, found, self._pod_resolver.policy, self._mutator, platforms)
