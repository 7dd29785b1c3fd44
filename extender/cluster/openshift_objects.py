"""OpenShift's objects that say where its nodes pull from, read every half minute, or once.

`registry.openshift_conf` gives their meaning, `node_trust` reads what nodes trust there. A kind that the cluster
does not have has no objects.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus

import msgspec

from extender.cluster.client import ClusterClient, ClusterRefused, decode_answer
from extender.cluster.listwatch import Getter
from extender.cluster.node_trust import TrustProblem, read_node_trust
from extender.cluster.secrets import ClusterSecrets
from extender.cluster.workload_lists import ListedKind, list_documents
from extender.errors import ClusterError
from extender.kubernetes.openshift_v1 import (
    ImageConfiguration,
    MirrorObjects,
    MirrorSet,
    NodeTrust,
    RegistrySources,
    SourceMirrors,
)
from extender.watched_files import FileSetting, report_refused

MirrorObject = MirrorSet | ImageConfiguration

_CONFIG, _OPERATOR = "config.openshift.io/v1", "operator.openshift.io/v1alpha1"
DIGEST_MIRRORS = ListedKind(_CONFIG, "ImageDigestMirrorSet", "imagedigestmirrorsets")
TAG_MIRRORS = ListedKind(_CONFIG, "ImageTagMirrorSet", "imagetagmirrorsets")
DIGEST_POLICIES = ListedKind(_OPERATOR, "ImageContentSourcePolicy", "imagecontentsourcepolicies")
IMAGE_CONFIGURATIONS = ListedKind(_CONFIG, "Image", "images")
KINDS = (DIGEST_MIRRORS, TAG_MIRRORS, DIGEST_POLICIES, IMAGE_CONFIGURATIONS)

KEEP_SECONDS = 30.0
"""How long a reading is used. A corrected pull secret counts as soon as any other."""
_FIRST_RETRY_SECONDS = 1.0  # until there is a reading, no registry is asked

_MIRROR_SET = msgspec.json.Decoder(MirrorSet)
_IMAGE_CONFIGURATION = msgspec.json.Decoder(ImageConfiguration)


class FollowedMirrors:
    """What the objects say, read every half minute while `run` runs."""

    def __init__(self, client: ClusterClient, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._client = client
        self._sleep = sleep
        self.are_known = False
        """Whether they have been read once. What was read stays in use while they cannot be read."""

    async def run(self, use: Callable[[MirrorObjects], None]) -> None:
        """Calls `use` at first and after each change, until cancelled. Reports other problems than before."""
        last, known, wait_seconds = MirrorObjects(), "", _FIRST_RETRY_SECONDS
        while True:
            try:
                found, problems = await list_mirror_objects(self._client, last.trust)
            except ClusterError as exc:
                unusable = str(exc)
            else:
                unusable = "; ".join(map(str, problems))
                if found != last or not self.are_known:
                    use(found)
                last, self.are_known, wait_seconds = found, True, KEEP_SECONDS
            if unusable and unusable != known:
                report_refused(FileSetting.MIRRORS, unusable)
            known = unusable
            await self._sleep(wait_seconds)


async def list_mirror_objects(
    client: ClusterClient,
    before: NodeTrust = NodeTrust(),  # noqa: B008  # it is frozen
) -> tuple[MirrorObjects, tuple[TrustProblem, ...]]:
    """What the objects say now, and what is missing of what nodes trust; `before` as in `read_node_trust`.

    Raises:
        ClusterError: they cannot be read.
    """
    found = {kind: await _list(client, kind) for kind in KINDS}
    trust, problems = await read_node_trust(client, ClusterSecrets(client), before)
    return _objects_of(found, trust), problems


async def _list(client: Getter, kind: ListedKind) -> list[MirrorObject]:
    """The objects of a kind in the order of their names; none if the cluster does not have the kind."""

    def decode(document: msgspec.Raw) -> MirrorObject:
        if kind is IMAGE_CONFIGURATIONS:
            return decode_answer(_IMAGE_CONFIGURATION, document, kind.kind)
        return decode_answer(_MIRROR_SET, document, kind.kind)

    try:
        found = [decode(each) async for each in list_documents(client, kind.path(""))]
    except ClusterRefused as exc:
        if exc.status != HTTPStatus.NOT_FOUND:
            raise
        return []
    return sorted(found, key=lambda each: each.metadata.name)


def _objects_of(found: Mapping[ListedKind, Sequence[MirrorObject]], trust: NodeTrust) -> MirrorObjects:
    mirrors: dict[ListedKind, list[SourceMirrors]] = {}
    sources = RegistrySources()
    for kind, objects in found.items():
        for each in objects:
            if isinstance(each, ImageConfiguration):
                if each.metadata.name == "cluster" and each.spec and each.spec.registry_sources:
                    sources = each.spec.registry_sources
            elif each.spec:
                spec = each.spec
                lists = (spec.image_digest_mirrors, spec.image_tag_mirrors, spec.repository_digest_mirrors)
                mirrors.setdefault(kind, []).extend(source for some in lists for source in some or ())
    return MirrorObjects(
        digest_mirrors=tuple(mirrors.get(DIGEST_MIRRORS, ())),
        tag_mirrors=tuple(mirrors.get(TAG_MIRRORS, ())),
        digest_policies=tuple(mirrors.get(DIGEST_POLICIES, ())),
        sources=sources,
        trust=trust,
    )
