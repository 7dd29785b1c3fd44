"""OpenShift's objects: what they say together, when that is told, and kinds that a cluster does not have."""

import json
from collections.abc import AsyncGenerator, Mapping
from typing import cast

import msgspec
import pytest

from extender.cluster.client import JSON, ClusterClient, ClusterRefused
from extender.cluster.openshift_objects import RESOURCES, MirrorViews, list_mirror_objects
from extender.kubernetes.openshift_v1 import MirrorObjects, NodeTrust, RegistrySources, SourceMirrors


def document(name: str, **spec: object) -> msgspec.Raw:
    """An object as the API server writes it."""
    return msgspec.Raw(json.dumps({"metadata": {"name": name, "resourceVersion": "1"}, "spec": spec}).encode())


def one(source: str, *mirrors: str) -> dict[str, object]:
    """An element of a mirror set."""
    return {"source": source, "mirrors": mirrors}


class Reader:
    """A cluster that has some kinds. Others are not found, or with `status` refused otherwise."""

    def __init__(self, kinds: Mapping[str, list[msgspec.Raw]], status: int = 404) -> None:
        self.kinds = kinds
        self.status = status

    async def get(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, **_bounds: float
    ) -> bytes:
        plural = path.rpartition("/")[2]
        if plural not in self.kinds:
            raise ClusterRefused(f"{path}: {self.status}", self.status)
        return msgspec.json.encode({"metadata": {"resourceVersion": "5"}, "items": self.kinds[plural]})

    def stream(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = JSON, stall_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        raise AssertionError("nothing is watched")


async def test_kind_that_the_cluster_does_not_have_is_empty() -> None:
    """Hosted clusters have no tag mirrors, and old ones no mirror sets; what may not be listed is an error."""
    digests = [document("b", imageDigestMirrors=[one("b.io", "m.io")]), document("a", imageDigestMirrors=[one("a.io")])]
    images = [
        document("other", registrySources={"blockedRegistries": ["x.io"]}),
        document("cluster", registrySources={"insecureRegistries": ["i.io"]}),
    ]
    reader = Reader({"imagedigestmirrorsets": digests, "images": images})
    found, _ = await list_mirror_objects(cast("ClusterClient", reader))
    assert found == MirrorObjects(
        digest_mirrors=(SourceMirrors("a.io", ()), SourceMirrors("b.io", ("m.io",))),
        sources=RegistrySources(insecure_registries=("i.io",)),
    )
    with pytest.raises(ClusterRefused):
        await list_mirror_objects(cast("ClusterClient", Reader({}, status=403)))


def test_objects_are_told_once_all_are_known_and_when_they_change() -> None:
    """Whoever comes later is told at once; a change that says nothing new is not told."""
    views, told = MirrorViews(), list[MirrorObjects]()
    views.tell_to(told.append)
    for resource in RESOURCES:
        assert told == []
        views.kinds[resource.name].keep_only(set())
    assert told == []
    views.note_trust(NodeTrust())
    tags = views.kinds["imagetagmirrorsets"]
    tags.upsert(document("a", imageTagMirrors=[one("a.io", "m.io")]))
    tags.upsert(document("a", imageTagMirrors=[one("a.io", "m.io")]))
    views.kinds["imagecontentsourcepolicies"].upsert(document("p", repositoryDigestMirrors=[one("p.io", "n.io")]))
    tags.delete("a")
    views.note_trust(NodeTrust("b"))
    views.note_trust(NodeTrust("b"))
    sets = (SourceMirrors("a.io", ("m.io",)),)
    policies = (SourceMirrors("p.io", ("n.io",)),)
    assert told == [
        MirrorObjects(),
        MirrorObjects(tag_mirrors=sets),
        MirrorObjects(tag_mirrors=sets, digest_policies=policies),
        MirrorObjects(digest_policies=policies),
        MirrorObjects(digest_policies=policies, trust=NodeTrust("b")),
    ]
    later: list[MirrorObjects] = []
    views.tell_to(later.append)
    assert later == told[-1:]
