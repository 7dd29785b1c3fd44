"""The images of a pod that its node could not start, as its status tells. Pure."""

from collections.abc import Iterator

from extender.images.reference import is_digest
from extender.kubernetes.reported_v1 import ContainerStatus, NamedContainer, OwnedPod, PodStatus, ReportedSpec
from extender.reports.running_pods import says_exec_format

_WORDS = b"xec format error"  # as Go spells them, and as C does, with a capital


def may_have_crashed(document: bytes) -> bool:
    """Whether the JSON of a pod has the kernel's words somewhere."""
    return _WORDS in document


def crashed_images(pod: OwnedPod) -> Iterator[tuple[str, str]]:
    """The reference and the reported digest of each image whose program was of an unknown format for the node.

    Only what a status says in the kernel's own words counts: no exit code tells it, and logs are not read.
    """
    spec, status = pod.spec or ReportedSpec(), pod.status or PodStatus()
    groups: tuple[tuple[tuple[NamedContainer, ...] | None, tuple[ContainerStatus, ...] | None], ...] = (
        (spec.containers, status.container_statuses),
        (spec.init_containers, status.init_container_statuses),
        (spec.ephemeral_containers, status.ephemeral_container_statuses),
    )
    for containers, statuses in groups:
        images = {each.name: each.image or "" for each in containers or ()}
        for each in statuses or ():
            digest = (each.image_id or "").rpartition("@")[2]
            if each.name in images and is_digest(digest) and says_exec_format(each):
                yield images[each.name], digest
