"""What both outlets ask about a pod before anything is decided: what its images are, and what its annotations wish.

The one place that knows with which credentials a pod's images are looked up.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from extender.credentials.keyring import JoinedKeyring, Keyring
from extender.credentials.pull_secrets import PullSecrets
from extender.images.content import Answer, Cause, Content, Failure
from extender.kubernetes.core_v1 import Pod
from extender.placement.annotations import Mode, Overrides, read_overrides
from extender.placement.facts import PodImage, images_of
from extender.placement.policy import Policy, is_exempt
from extender.resolver.resolver import ImageQuery, Resolver


class PodResolver(msgspec.Struct, frozen=True):
    """Answers about pods.

    `keyring` holds the operator's credentials, which serve every pod; `namespace_annotations` gives a namespace's
    annotations, None where none are known; `look_at_pending_pods` has `warm` called for the pods that wait; without
    `pull_secrets` those that pods name are not read.
    """

    resolver: Resolver
    keyring: Keyring
    policy: Policy
    namespace_annotations: Callable[[str], Mapping[str, str] | None]
    look_at_pending_pods: Callable[[], None]
    pull_secrets: PullSecrets | None = None

    def overrides_of(self, pod: Pod, namespace: str) -> Overrides:
        """What the pod and its namespace ask for."""
        annotations = pod.metadata.annotations if pod.metadata else None
        return read_overrides(annotations, self.namespace_annotations(namespace))

    def keyring_of(self, pod: Pod, namespace: str, *, may_read: bool) -> Keyring:
        """The pod's pull secrets, then the operator's credentials; lookups go on the namespace's account.

        `may_read`: whoever shows us this pod may make us read the secrets it names. Nobody else learns what a secret
        opens by naming it: without it only what an earlier reading has left behind counts.
        """
        namespace = namespace or "default"
        references = (pod.spec and pod.spec.image_pull_secrets) or ()
        names = [reference.name for reference in references if reference.name]
        if self.pull_secrets is None or not names:
            return JoinedKeyring((self.keyring,), tenant=namespace)
        secrets = self.pull_secrets.keyring(namespace, names, may_read=may_read)
        return JoinedKeyring((secrets, self.keyring), tenant=namespace)

    def peek(self, images: Sequence[PodImage], keyring: Keyring) -> list[Answer]:
        """One answer per image from memory; None where no lookup has ended yet."""
        return self.resolver.peek_all(_queries(images), keyring)

    def recall(self, images: Sequence[PodImage], keyring: Keyring) -> list[Answer] | None:
        """What `resolve` would answer, if memory has it all and it is fresh, without awaiting."""
        return self.resolver.recall(_queries(images), keyring)

    def count_recalled(self, images: int) -> None:
        """What was recalled for so many images has been of use once more."""
        self.resolver.count_hits(images)

    async def resolve(
        self, images: Sequence[PodImage], keyring: Keyring, wait_seconds: float, *, revalidate: bool = False
    ) -> list[Answer]:
        """One answer per image after `wait_seconds` at most; lookups that take longer go on.

        With `revalidate` a stale answer is confirmed first, within the same time. Where an image is looked up, those of
        other pods that wait for a node may not be known either; where it was denied, a secret may open it that only
        such a pod lets us read.
        """
        answers = await self.resolver.resolve_all(_queries(images), keyring, wait_seconds, revalidate=revalidate)
        if any(answer is None or _is_denied(answer) for answer in answers):
            self.look_at_pending_pods()
        return answers

    def warm(self, pod: Pod) -> None:
        """Look the pod's images up before the scheduler asks about it; pods that are not looked at are left out.

        It is the cluster's own word that the pod exists, so its pull secrets may be read.
        """
        namespace = (pod.metadata and pod.metadata.namespace) or ""
        if is_exempt(pod, self.policy) or self.overrides_of(pod, namespace).mode is Mode.IGNORE:
            return
        keyring = self.keyring_of(pod, namespace, may_read=True)
        for query in _queries(images_of(pod)):
            self.resolver.start(query, keyring)


def _is_denied(answer: Content | Failure) -> bool:
    return isinstance(answer, Failure) and answer.cause is Cause.DENIED


def _queries(images: Sequence[PodImage]) -> list[ImageQuery]:
    return [ImageQuery(image.reference, image.pull_policy == "Always") for image in images]
