"""A registry in memory for what looks inside images; counts what is asked of it."""

from extender.credentials.keyring import ANONYMOUS, Credential
from extender.errors import ManifestNotFound, RegistryUnavailable
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, digest_of, parse_reference
from extender.registry.registry_client import FetchedManifest, RegistryClient
from extender.verifier.image_verifier import ImageVerifier, VerifierBounds
from extender.verifier.verification import Verification
from testbed.images import Bundle, join_index, make_image
from testbed.packed_layers import Layer

ARM = "linux/arm64"


class KeptBlobs(RegistryClient):
    """Serves the parts of a bundle. `lost` are digests that it does not have."""

    def __init__(self, bundle: Bundle) -> None:
        self.manifests = {each.digest: each for each in bundle.manifests}
        self.blobs = {digest_of(blob): blob for blob in bundle.blobs}
        self.lost: set[str] = set()
        self.is_down = False

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        return reference.digest

    async def fetch_manifest(self, reference: ImageReference, credential: Credential) -> FetchedManifest:
        manifest = self.manifests.get(reference.digest)
        if manifest is None or reference.digest in self.lost:
            raise ManifestNotFound("no such manifest")
        return FetchedManifest(manifest.digest, manifest.media_type, manifest.body)

    async def fetch_blob(self, reference: ImageReference, digest: str, credential: Credential) -> bytes:
        return self.blobs[digest]

    async def fetch_blob_part(
        self, reference: ImageReference, digest: str, credential: Credential, start: int, end: int
    ) -> bytes:
        if self.is_down:
            raise RegistryUnavailable("down")
        return self.blobs[digest][start:end]


async def look_inside(
    bundle: Bundle,
    *,
    platform: str = ARM,
    bounds: VerifierBounds = VerifierBounds(),  # noqa: B008 - it is frozen
    client: KeptBlobs | None = None,
    seconds: float = 30.0,
) -> Verification:
    """What is found of the platform."""
    return (await look_inside_all(bundle, platform=platform, bounds=bounds, client=client, seconds=seconds))[0]


async def look_inside_all(
    bundle: Bundle,
    *,
    platform: str = ARM,
    bounds: VerifierBounds = VerifierBounds(),  # noqa: B008 - it is frozen
    client: KeptBlobs | None = None,
    seconds: float = 30.0,
) -> list[Verification]:
    reference = parse_reference(f"example.com/app@{bundle.digest}")
    kept = client or KeptBlobs(bundle)
    return await ImageVerifier(kept, reference, parse_platform(platform), ANONYMOUS, bounds=bounds).verify(seconds)


def image_of(*layers: Layer, program: str = "/app") -> Bundle:
    return join_index([(ARM, make_image(ARM, layers, Entrypoint=[program]))])
