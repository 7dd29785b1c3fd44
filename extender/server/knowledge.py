"""What both outlets ask about a pod before anything is decided: what its images are, and what its annotations wish.

The one place that knows with which credentials a pod's images are looked up.
"""

from collections.abc import Callable, Mapping, Sequence

import msgspec

from extender.kubernetes.core_v1 import Pod
from extender.placement.annotations import Mode, Wishes, read_wishes
from extender.placement.facts import Answer, PodImage, images_of
from extender.placement.policy import Policy, left_alone
from extender.registry.keyring import Keyring
from extender.resolver.resolver import Lookup, Resolver


class Knowledge(msgspec.Struct, frozen=True):
    """Answers about pods. `namespace_annotations` gives a namespace's annotations, None where none are known."""

    resolver: Resolver
    keyring: Keyring
    policy: Policy
    namespace_annotations: Callable[[str], Mapping[str, str] | None]

    def wishes_of(self, pod: Pod, namespace: str) -> Wishes:
        """What the pod and its namespace ask for."""
        annotations = pod.metadata.annotations if pod.metadata else None
        return read_wishes(annotations, self.namespace_annotations(namespace))

    def peek(self, images: Sequence[PodImage]) -> list[Answer]:
        """One answer per image from memory; None where no lookup has ended yet."""
        return [self.resolver.peek(_lookup(image), self.keyring) for image in images]

    async def resolve(
        self, images: Sequence[PodImage], wait_seconds: float, *, revalidate: bool = False
    ) -> list[Answer]:
        """One answer per image after `wait_seconds` at most; lookups that take longer go on.

        With `revalidate` a stale answer is confirmed first, within the same time.
        """
        lookups = [_lookup(image) for image in images]
        return await self.resolver.resolve_all(lookups, self.keyring, wait_seconds, revalidate=revalidate)

    def warm(self, pod: Pod) -> None:
        """Look the pod's images up before the scheduler asks about it; pods that are not looked at are left out."""
        namespace = (pod.metadata and pod.metadata.namespace) or ""
        if left_alone(pod, self.policy) or self.wishes_of(pod, namespace).mode is Mode.IGNORE:
            return
        for image in images_of(pod):
            self.resolver.start(_lookup(image), self.keyring)


def _lookup(image: PodImage) -> Lookup:
    return Lookup(image.reference, image.pull_policy == "Always")
