"""Gives features what a decision about a pod needs: its overrides, its images, and what these run on.

This file alone decides with which credentials a pod's images are looked up.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from extender.credentials.keyring import Keyring
from extender.credentials.pull_secrets import PullSecrets
from extender.images.content import Answer, Cause, Evidence, Failure
from extender.images.failures import is_under_way
from extender.kubernetes.core_v1 import Pod
from extender.placement.annotations import Mode, Overrides, overrides_of
from extender.placement.facts import PodImage, images_of
from extender.placement.policy import Policy, is_exempt
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from extender.turns import UNAUTHENTICATED


class PodQuestion(msgspec.Struct, frozen=True):
    """What is asked about one pod: its images, looked up with the credentials of `keyring`, under its overrides."""

    overrides: Overrides
    images: tuple[PodImage, ...]
    keyring: Keyring
    namespace: str = "default"


class PodResolver(msgspec.Struct, frozen=True):
    """Gathers what a decision about a pod needs.

    `keyring` holds the operator's credentials, which serve every pod. `namespace_annotations` gives a namespace's
    annotations, None if they are not known. `watch_pending_pods` leads to a call of `warm` for each pod that waits
    for a node. Without `pull_secrets` the secrets that pods name are not read, nor where `reads_secrets_in` says no of
    their namespace.
    """

    resolver: Resolver
    keyring: Keyring
    policy: Policy
    namespace_annotations: Callable[[str], Mapping[str, str] | None]
    watch_pending_pods: Callable[[], None]
    pull_secrets: PullSecrets | None = None
    reads_secrets_in: Callable[[str], bool] = lambda _: True

    def overrides_of(self, pod: Pod, namespace: str, key: str = "") -> Overrides:
        """What the annotations of the pod and of its namespace override, and the operator's mode where they do not.

        The rest is as in `policy.overrides_of`.
        """
        return overrides_of(pod, namespace, self.namespace_annotations(namespace), self.policy.overrides, key=key)

    def question(self, pod: Pod, namespace: str, overrides: Overrides, *, may_read: bool) -> PodQuestion:
        """The pod's images, with a keyring of its pull secrets first and the operator's credentials next.

        `may_read`: the caller that sent this pod may cause reads of the secrets it names. Without it these secrets give
        nothing, not even what was read for others: a caller could name another tenant's secret, and learn from the
        answer what it opens. Nor do lookups then count for the namespace, which such a caller could name as it likes.
        """
        namespace = namespace or "default"
        keyring = self._keyring_of(pod, namespace, may_read=may_read)
        return PodQuestion(overrides, images_of(pod, self.policy.runtime_classes), keyring, namespace)

    def peek(self, question: PodQuestion) -> list[Answer]:
        """One answer per image from the cache, fresh or stale; None where no lookup has ended yet. Starts nothing."""
        return self.resolver.peek_all(_queries(question.images), question.keyring)

    def evidence(self, question: PodQuestion) -> list[Evidence]:
        """As `peek`, with where each answer comes from."""
        return [self.resolver.evidence(query, question.keyring) for query in _queries(question.images)]

    async def resolve(self, question: PodQuestion, wait_seconds: float, *, revalidate: bool = False) -> list[Answer]:
        """One answer per image after `wait_seconds` at most; lookups that take longer go on.

        With `revalidate` a stale answer is confirmed first, within the same time. If an image is not known or was
        denied, this also starts a watch of pending pods, since images of other pods may be unknown too.
        """
        queries = _queries(question.images)
        answers = await self.resolver.resolve_all(queries, question.keyring, wait_seconds, revalidate=revalidate)
        if any(map(_is_wanting, answers)):
            self.watch_pending_pods()
        return answers

    async def confirm(self, question: PodQuestion, age_seconds: float, wait_seconds: float) -> None:
        """Asks registries again for the tags that they last confirmed more than `age_seconds` ago; see `confirm_all`.

        A tag may have moved while its pod waited for another image.
        """
        await self.resolver.confirm_all(_queries(question.images), question.keyring, age_seconds, wait_seconds)

    def warm(self, pod: Pod) -> None:
        """Starts lookups of the pod's images before the scheduler's request; skips exempt pods.

        The cluster itself reported the pod, so its pull secrets may be read.
        """
        namespace = (pod.metadata and pod.metadata.namespace) or ""
        overrides = self.overrides_of(pod, namespace)  # of which only the mode counts here
        if is_exempt(pod, self.policy) or overrides.mode is Mode.IGNORE:
            return
        question = self.question(pod, namespace, overrides, may_read=True)
        for query in _queries(question.images):
            self.resolver.start(query, question.keyring)

    def _keyring_of(self, pod: Pod, namespace: str, *, may_read: bool) -> Keyring:
        """The pull secrets' credentials, then the operator's, and the tenant for which lookups count."""
        references = (pod.spec and pod.spec.image_pull_secrets) or ()
        names = [reference.name for reference in references if reference.name]
        if not may_read:
            return self.keyring.of(UNAUTHENTICATED)
        if self.pull_secrets is None or not names or not self.reads_secrets_in(namespace):
            return self.keyring.of(namespace)
        return self.pull_secrets.keyring(self.keyring, namespace, names)


def _is_wanting(answer: Answer) -> bool:
    return is_under_way(answer) or (isinstance(answer, Failure) and answer.cause is Cause.DENIED)


def _queries(images: Sequence[PodImage]) -> list[ImageQuery]:
    return [ImageQuery(image.reference, image.pull_policy == "Always") for image in images]
