"""From a manifest to everything that is known of the image, fetching what the manifest alone does not say.

Knows what must be fetched and how much of it is too much; how it is fetched is the `ManifestClient`'s business.
"""

from typing import Protocol

import msgspec

from extender.credentials.keyring import Credential
from extender.errors import UnsupportedManifest
from extender.images.config import read_config
from extender.images.manifest import (
    Document,
    Image,
    IndexDocument,
    Kind,
    ManifestDocument,
    PlatformEntry,
    Skipped,
    read_manifest,
)
from extender.images.platform import Platform
from extender.images.reference import ImageReference

# Requests for one image, beyond that for its manifest. A child whose platform the index does not state costs two
# (manifest and config), so this is enough for eight of them; each is a pull where pulls are counted.
MAX_REQUESTS = 16
# Indexes inside each other, the outermost not counted. Nobody is known to nest more than one.
MAX_DEPTH = 4
# Platforms of one image, and parts of it that are nothing to run: ten times what is known, so that what is remembered
# of images stays small, whatever somebody thinks up.
MAX_PLATFORMS, MAX_SKIPPED = 256, 1000


class FetchedManifest(msgspec.Struct, frozen=True):
    """A manifest as it came: `body` hashes to `digest`, `media_type` is the Content-Type without parameters."""

    digest: str
    media_type: str
    body: bytes


class ManifestClient(Protocol):
    """Whatever fetches manifests and blobs. Every method raises RegistryError leaves."""

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        """The digest the registry states for the reference; None when it does not say: fetch, then."""
        ...

    async def fetch_manifest(self, reference: ImageReference, credential: Credential) -> FetchedManifest:
        """The manifest, by digest if the reference has one, else by tag. InvalidManifest if the bytes are not it."""
        ...

    async def fetch_blob(self, reference: ImageReference, digest: str, credential: Credential) -> bytes:
        """The blob of the reference's repository that has this digest. InvalidManifest if the bytes are not it."""
        ...


async def describe_image(
    client: ManifestClient, reference: ImageReference, manifest: FetchedManifest, credential: Credential
) -> Image:
    """Everything there is to know of the image behind `manifest`, which costs no request where an index says it all.

    An image in which there is nothing to run is an artifact; `skipped` then says why. A part that cannot be read makes
    the whole unknown: what is left out of a platform set would be refused by every node it runs on.

    Raises:
        InvalidManifest: a document is not what it claims to be.
        UnsupportedManifest: schema1, or more than `MAX_REQUESTS` or `MAX_DEPTH` would be needed, or it has more than
            `MAX_PLATFORMS` or `MAX_SKIPPED`.
        RegistryError: something could not be fetched.
    """
    survey = _Survey(client, reference, credential)
    document = await survey.read(manifest, depth=0)
    kind = Kind.INDEX if isinstance(document, IndexDocument) else Kind.MANIFEST
    return Image(
        digest=manifest.digest,
        media_type=document.media_type,
        kind=kind if survey.entries else Kind.ARTIFACT,
        entries=tuple(survey.entries.values()),
        skipped=tuple(survey.skipped),
        states_platforms=survey.states_platforms,
    )


class _Survey:
    """What has been learned of one image so far, and how many requests may still be spent on it."""

    def __init__(self, client: ManifestClient, reference: ImageReference, credential: Credential) -> None:
        self.entries: dict[Platform, PlatformEntry] = {}
        self.skipped: list[Skipped] = []
        self.states_platforms = False
        self._client = client
        self._reference = reference
        self._credential = credential
        self._requests_left = MAX_REQUESTS
        self._seen: set[str] = set()

    async def read(self, manifest: FetchedManifest, depth: int) -> Document:
        """Add what this manifest and all below it say; the document it holds."""
        document = read_manifest(manifest.body, manifest.media_type)
        if isinstance(document, IndexDocument):
            await self._read_index(document, depth)
        elif isinstance(document, ManifestDocument):
            await self._read_single(document, manifest.digest)
        else:
            self.skipped.append(Skipped(manifest.digest, document.why))
        return document

    async def _read_index(self, index: IndexDocument, depth: int) -> None:
        """The entries that state their platform come first: runtimes take one of the others only for want of those."""
        self.states_platforms = self.states_platforms or index.states_platforms
        self.skipped.extend(index.skipped)
        for entry in index.entries:
            self._add(entry)
        if len(self.entries) > MAX_PLATFORMS or len(self.skipped) > MAX_SKIPPED:
            raise UnsupportedManifest(
                f"it has more than {MAX_PLATFORMS} platforms or {MAX_SKIPPED} parts that do not run"
            )
        if index.children and depth == MAX_DEPTH:
            raise UnsupportedManifest(f"more than {MAX_DEPTH} indexes are nested in each other")
        for child in index.children:
            if child.digest not in self._seen:
                self._seen.add(child.digest)
                self._spend()
                manifest = await self._client.fetch_manifest(
                    self._reference.with_digest(child.digest), self._credential
                )
                await self.read(manifest, depth + 1)

    async def _read_single(self, document: ManifestDocument, digest: str) -> None:
        platform = document.platform
        if platform is None:
            self._spend()
            config = await self._client.fetch_blob(self._reference, document.config.digest, self._credential)
            platform = read_config(config)
        if platform is None:
            self.skipped.append(Skipped(digest, "its config states no platform"))
        else:
            self._add(PlatformEntry(platform, digest, document.size_bytes))

    def _add(self, entry: PlatformEntry) -> None:
        if self.entries.setdefault(entry.platform, entry) is not entry:
            self.skipped.append(Skipped(entry.digest, f"an earlier entry is for {entry.platform} too"))

    def _spend(self) -> None:
        if not self._requests_left:
            raise UnsupportedManifest(f"more than {MAX_REQUESTS} requests would be needed to learn its platforms")
        self._requests_left -= 1
