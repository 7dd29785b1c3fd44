"""OpenShift's objects: what they say together, when that is told, and kinds that a cluster does not have."""

import json
from collections.abc import Callable
from typing import cast

import msgspec
import pytest

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.openshift_objects import (
    DIGEST_MIRRORS,
    IMAGE_CONFIGURATIONS,
    KEEP_SECONDS,
    TAG_MIRRORS,
    FollowedMirrors,
    list_mirror_objects,
)
from extender.kubernetes.openshift_v1 import MirrorObjects, RegistrySources, SourceMirrors
from tests.unit.cluster.scripted_api import ListedApi

DIGESTS, IMAGES, TAGS = (each.path("") for each in (DIGEST_MIRRORS, IMAGE_CONFIGURATIONS, TAG_MIRRORS))


def document(name: str, **spec: object) -> msgspec.Raw:
    return msgspec.Raw(json.dumps({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}).encode())


def one(source: str, *mirrors: str) -> dict[str, object]:
    return {"source": source, "mirrors": mirrors}


async def test_kind_that_the_cluster_does_not_have_is_empty() -> None:
    """Hosted clusters have no tag mirrors, and old ones no mirror sets; what may not be listed is an error."""
    digests = [document("b", imageDigestMirrors=[one("b.io", "m.io")]), document("a", imageDigestMirrors=[one("a.io")])]
    images = [
        document("other", registrySources={"blockedRegistries": ["x.io"]}),
        document("cluster", registrySources={"insecureRegistries": ["i.io"]}),
    ]
    reader = ListedApi({DIGESTS: digests, IMAGES: images}, absent=404)
    found, _ = await list_mirror_objects(cast("ClusterClient", reader))
    assert found == MirrorObjects(
        digest_mirrors=(SourceMirrors("a.io", ()), SourceMirrors("b.io", ("m.io",))),
        sources=RegistrySources(insecure_registries=("i.io",)),
    )
    with pytest.raises(ClusterRefused):
        await list_mirror_objects(cast("ClusterClient", ListedApi({}, absent=403)))


async def test_what_the_objects_say_is_told_at_first_and_when_it_changes() -> None:
    """A cluster that cannot be read leaves what was told."""
    reader, told, pauses = ListedApi({}, absent=404), list[MirrorObjects](), list[float]()
    tags = [document("a", imageTagMirrors=[one("a.io", "m.io")])]
    changes: list[Callable[[], None]] = [
        lambda: None,
        lambda: reader.lists.update({TAGS: tags}),
        lambda: setattr(reader, "absent", 500),
        lambda: setattr(reader, "absent", 404),
        reader.lists.clear,
    ]

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if not changes:
            raise ConnectionAbortedError
        changes.pop(0)()

    followed = FollowedMirrors(cast("ClusterClient", reader), sleep)
    known = [followed.are_known]
    with pytest.raises(ConnectionAbortedError):
        await followed.run(told.append)
    assert [*known, followed.are_known] == [False, True]
    assert told == [
        MirrorObjects(), MirrorObjects(tag_mirrors=(SourceMirrors("a.io", ("m.io",)),)), MirrorObjects()
    ]  # fmt: skip
    assert pauses == [KEEP_SECONDS] * 6
