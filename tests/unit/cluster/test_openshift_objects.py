"""OpenShift's objects: what they say together, and kinds that a cluster does not have."""

import json
from typing import cast

import msgspec
import pytest

from extender.cluster.client import ClusterClient, ClusterRefused
from extender.cluster.openshift_objects import DIGEST_MIRRORS, IMAGE_CONFIGURATIONS, list_mirror_objects
from extender.kubernetes.openshift_v1 import MirrorObjects, RegistrySources, SourceMirrors
from tests.unit.cluster.scripted_api import ListedApi

DIGESTS, IMAGES = DIGEST_MIRRORS.path(""), IMAGE_CONFIGURATIONS.path("")


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
