"""The embedded registry: that it answers as distribution does, and counts what it is asked."""

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
    """Status, type, digest and bytes are the same, by tag and by digest, by GET and by HEAD."""
    async with EmbeddedRegistry() as embedded:
        embedded.add("same/app", "1", bundle)
        debian_registry.push("same/app", "1", bundle)
        for name in ("1", bundle.digest, "missing", digest_of(b"missing")):
            for method in ("GET", "HEAD"):
                answers = [
                    await answer(session, method, f"{url}/v2/same/app/manifests/{name}", accept)
                    for url in (embedded.url, debian_registry.url)
                ]
                assert answers[0] == answers[1], (method, name)


async def answer(session: aiohttp.ClientSession, method: str, url: str, accept: str) -> tuple[object, ...]:
    """What matters of an answer; errors are compared by their status, since their words differ."""
    async with session.request(method, url, headers={"Accept": accept}) as response:
        if response.status != 200:
            return (response.status,)
        names = ("Content-Type", "Content-Length", "Docker-Content-Digest", "ETag")
        return (response.status, *(response.headers.get(name) for name in names), await response.read())


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_blobs_are_distributions(
    debian_registry: DebianRegistry, session: aiohttp.ClientSession, method: str
) -> None:
    """A blob of the repository, one that is missing, and a manifest's digest, which is no blob."""
    bundle = IMAGES["manifest"]
    async with EmbeddedRegistry() as embedded:
        embedded.add("same/blobs", "1", bundle)
        debian_registry.push("same/blobs", "1", bundle)
        for digest in (digest_of(bundle.blobs[0]), digest_of(b"missing"), bundle.digest):
            found = []
            for url in (embedded.url, debian_registry.url):
                async with session.request(method, f"{url}/v2/same/blobs/blobs/{digest}") as response:
                    body = await response.read() if response.status == 200 else b""
                    found.append((response.status, response.headers.get("Docker-Content-Digest"), body))
            assert found[0] == found[1], digest
