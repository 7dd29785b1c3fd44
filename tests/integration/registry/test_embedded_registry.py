"""The embedded registry: that it answers as distribution does, and counts what it is asked."""

import itertools

import aiohttp
import pytest

from extender.images.manifest import ACCEPTED
from extender.images.reference import digest_of
from testbed.debian_registry import DebianRegistry
from testbed.embedded_registry import EmbeddedRegistry
from testbed.images import DOCKER, OCI, Bundle, build_artifact, build_index, build_manifest

BOTH = ["linux/amd64", "linux/arm64"]
IMAGES = {
    "list": build_index(BOTH, family=DOCKER),
    "list-without-amd64": build_index(["linux/arm64"], family=DOCKER),
    "schema2": build_manifest("linux/arm64", DOCKER),
    "index": build_index(BOTH, attested=True),
    "manifest": build_manifest("linux/arm64"),
    "artifact": build_artifact(),
}
# schema1 is what distribution turns a schema2 image into for those who accept nothing newer; nobody here asks so.
NAMES = ("Content-Type", "Content-Length", "Docker-Content-Digest", "ETag")
ACCEPTS = {
    "all": ", ".join(ACCEPTED),
    "all-in-another-way": ";q=0.5,".join(ACCEPTED),
    "docker": f"{DOCKER.index}, {DOCKER.manifest}",
    "docker-single": DOCKER.manifest,
    "oci": f"{OCI.index}, {OCI.manifest}, {DOCKER.manifest}",
    "anything": f"*/*, {DOCKER.manifest}",
}


@pytest.mark.parametrize("accept", ACCEPTS.values(), ids=ACCEPTS)
@pytest.mark.parametrize("bundle", IMAGES.values(), ids=IMAGES)
async def test_answers_are_distributions(
    debian_registry: DebianRegistry, session: aiohttp.ClientSession, bundle: Bundle, accept: str
) -> None:
    """Status, type, digest and bytes are the same, by GET and by HEAD; errors are compared by their status alone."""
    missing, blob = digest_of(b"missing"), digest_of(bundle.blobs[0]) if bundle.blobs else ""
    paths = [f"manifests/{name}" for name in ("1", bundle.digest, "missing", missing)]
    paths += [f"blobs/{digest}" for digest in (blob, missing, bundle.digest) if digest]

    async def answer(method: str, url: str) -> tuple[object, ...]:
        names = ("Docker-Content-Digest",) if "/blobs/" in url else NAMES
        async with session.request(method, url, headers={"Accept": accept}) as response:
            if response.status != 200:
                return (response.status,)
            return (*(response.headers.get(name) for name in names), await response.read())

    async with EmbeddedRegistry() as embedded:
        embedded.add("same/app", "1", bundle)
        debian_registry.push("same/app", "1", bundle)
        for path, method in itertools.product(paths, ("GET", "HEAD")):
            ours, theirs = [
                await answer(method, f"{url}/v2/same/app/{path}") for url in (embedded.url, debian_registry.url)
            ]
            assert ours == theirs, (method, path)
