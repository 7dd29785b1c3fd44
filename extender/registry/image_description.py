"""The description of an image, from its manifest and from the manifests and configs that this names.

Decides what is fetched, and sets the limits on it.
"""

import asyncio

from extender.credentials.keyring import Credential
from extender.errors import (
    AddressRefused,
    InvalidManifest,
    ManifestNotFound,
    RegistryDenied,
    RegistryError,
    RegistryRefusedImage,
    UnsupportedManifest,
)
from extender.images.image_config import ConfigClaim, read_config
from extender.images.manifest import (
    Descriptor,
    Document,
    Image,
    IndexDocument,
    Kind,
    ManifestDocument,
    PlatformEntry,
    Skipped,
    read_manifest,
)
from extender.images.platform import Platform, as_single
from extender.images.reference import ImageReference
from extender.registry.registry_client import FetchedManifest, RegistryClient

# Requests for one image, besides the one for its manifest. A child whose platform the index does not state costs two
# (manifest and config), so this allows eight such children. Each child is a pull where a registry counts pulls.
MAX_REQUESTS = 16
# Levels of indexes nested in the outermost one. No known image has more than one.
MAX_DEPTH = 4
# Platforms of one image: twice what the largest official images have, whose some 30 entries include several builds for
# one platform. An image with more is unsupported: if some were left out, nodes that run it would be refused.
MAX_PLATFORMS = 64
# Parts that do not run, which are listed with the reason; the others are counted. Images have an attestation and a zstd
# twin per platform, BuildKit's caches have layers by the hundred, and a manifest has 10,000 values at most.
LISTED_SKIPPED = 64
_LAST_RESORTS_SECONDS = 5.0  # for the children whose platform no index states, beside some whose platform is stated
_MOST_WHY = 200  # characters of a reason that holds an error's text
# After these errors a part will not be readable a moment later either.
_LASTING = (
    ManifestNotFound,
    RegistryDenied,
    RegistryRefusedImage,
    AddressRefused,
    InvalidManifest,
    UnsupportedManifest,
)


class RegistryImages(RegistryClient):
    """A client that describes images too. Raises UnsupportedManifest besides."""

    async def describe(self, reference: ImageReference, credential: Credential) -> Image:
        """Returns what the bytes behind the reference say, by its digest if it has one, else by its tag.

        It has 64 platforms and 65 skipped parts at most.
        """
        return await describe_image(self, reference, await self.fetch_manifest(reference, credential), credential)


async def describe_image(
    client: RegistryClient, reference: ImageReference, manifest: FetchedManifest, credential: Credential
) -> Image:
    """Returns the description of the image behind `manifest`; sends no request if an index states every platform.

    An image with nothing to run is an artifact, and `skipped` says why; a last row without digest says how many more
    parts do not run. Where no index states platforms, a part that
    cannot be read fails the whole image: if its platform were left out, all nodes of that platform would be refused.
    Where one does, runtimes try such a part last, and it adds nothing. If it may be read later, the image is partial.

    Raises:
        InvalidManifest: a document is not what it claims to be.
        UnsupportedManifest: a manifest is schema1, or the image exceeds `MAX_REQUESTS`, `MAX_DEPTH` or `MAX_PLATFORMS`,
            the first two unless an index states platforms.
        RegistryError: a manifest or config could not be fetched.
    """
    survey = _Survey(client, reference, credential)
    document = await survey.read(manifest, depth=0)
    is_empty = survey.kind is Kind.INDEX and not survey.entries and not survey.states_platforms
    unlisted = [Skipped("", f"{survey.unlisted} more parts do not run")] if survey.unlisted else []
    return Image(
        digest=manifest.digest,
        media_type=document.media_type,
        kind=Kind.ARTIFACT if is_empty else survey.kind,
        entries=tuple(survey.entries.values()),
        skipped=(*survey.skipped, *unlisted),
        states_platforms=survey.states_platforms,
        is_partial=survey.is_partial,
    )


class _Survey:
    """What is known of one image so far, and how many requests may still be sent for it."""

    def __init__(self, client: RegistryClient, reference: ImageReference, credential: Credential) -> None:
        self.entries: dict[Platform, PlatformEntry] = {}
        self.states_platforms = False
        self.is_partial = False
        self.kind = Kind.ARTIFACT
        self.skipped: list[Skipped] = []
        self.unlisted = 0
        self._client = client
        self._reference = reference
        self._credential = credential
        self._requests_left = MAX_REQUESTS
        self._seen: set[str] = set()
        self._is_too_large = False

    async def read(self, manifest: FetchedManifest, depth: int, *, is_optional: bool = False) -> Document:
        """Adds what this manifest and its descendants state; returns the document it holds.

        `is_optional`: an index above states platforms, which are known whether or not a descendant can be read.
        """
        document = read_manifest(manifest.body, manifest.media_type)
        if isinstance(document, IndexDocument):
            self.kind = Kind.INDEX
            self._add_stated(document)
            if document.children and document.states_platforms and not is_optional:
                await self._read_last_resorts(document, depth)
            elif document.children:
                await self._read_children(document, depth, is_optional=is_optional)
        elif isinstance(document, ManifestDocument) and depth:
            await self._read_child(document, manifest.digest)
        elif isinstance(document, ManifestDocument):
            await self._read_single(document, manifest.digest)
        else:
            self._skip(Skipped(manifest.digest, document.why))
        return document

    def _add_stated(self, index: IndexDocument) -> None:
        """Adds the entries that state a platform first: runtimes use another child only if none of these matches."""
        self.states_platforms = self.states_platforms or index.states_platforms
        for skipped in index.skipped:
            self._skip(skipped)
        for entry in index.entries:
            self._add(entry)

    async def _read_last_resorts(self, index: IndexDocument, depth: int) -> None:
        """Reads the children beside those whose platform is stated, unless the registry has trouble with them now."""
        try:
            async with asyncio.timeout(_LAST_RESORTS_SECONDS):
                await self._read_children(index, depth, is_optional=True)
        except (RegistryError, TimeoutError) as exc:
            self.is_partial = True
            self._skip(Skipped("", f"not all that state no platform can be read now: {exc}"[:_MOST_WHY]))

    async def _read_children(self, index: IndexDocument, depth: int, *, is_optional: bool) -> None:
        if depth == MAX_DEPTH:
            raise UnsupportedManifest(f"more than {MAX_DEPTH} indexes are nested in each other")
        for child in index.children:
            if child.digest not in self._seen:
                self._seen.add(child.digest)
                await self._fetch_child(child, depth + 1, is_optional=is_optional)

    async def _fetch_child(self, child: Descriptor, depth: int, *, is_optional: bool) -> None:
        try:
            self._spend()
            manifest = await self._client.fetch_manifest(self._reference.pinned_to(child.digest), self._credential)
            await self.read(manifest, depth, is_optional=is_optional)
        except _LASTING as exc:
            if self._is_too_large or not is_optional:
                raise
            self._skip(Skipped(child.digest, f"it states no platform, and cannot be read: {exc}"[:_MOST_WHY]))

    async def _read_child(self, document: ManifestDocument, digest: str) -> None:
        """Adds what the config of an index's entry says, by which runtimes choose if the entry states no platform."""
        claim = await self._read_config(document)
        if claim.platform is None or claim.features:
            self._skip(Skipped(digest, claim.doubt or f"no node has its {claim.features}"))
        else:
            self._add(PlatformEntry(claim.platform, digest, document.size_bytes))

    async def _read_single(self, document: ManifestDocument, digest: str) -> None:
        """Adds what the config of a single image says, which is a hint: no runtime compares it."""
        claim = await self._read_config(document)
        self.kind = Kind.ARTIFACT if claim.is_artifact else Kind.DATA if claim.is_data else Kind.MANIFEST
        if claim.is_data:
            self._skip(Skipped(digest, "its labels say that it is data for a program of another image"))
        elif claim.platform is None or claim.doubt:
            self._skip(Skipped(digest, claim.doubt))
        else:
            self._add(PlatformEntry(as_single(claim.platform), digest, document.size_bytes))

    async def _read_config(self, document: ManifestDocument) -> ConfigClaim:
        if document.embedded is not None:
            return read_config(document.embedded)
        self._spend()
        return read_config(await self._client.fetch_blob(self._reference, document.config.digest, self._credential))

    def _add(self, entry: PlatformEntry) -> None:
        if self.entries.setdefault(entry.platform, entry) is not entry:
            self._skip(Skipped(entry.digest, f"an earlier entry is for {entry.platform} too"))
        if len(self.entries) > MAX_PLATFORMS:
            self._is_too_large = True
            raise UnsupportedManifest(f"it has more than {MAX_PLATFORMS} platforms")

    def _skip(self, part: Skipped) -> None:
        if len(self.skipped) < LISTED_SKIPPED:
            self.skipped.append(part)
        else:
            self.unlisted += 1

    def _spend(self) -> None:
        if not self._requests_left:
            raise UnsupportedManifest(f"more than {MAX_REQUESTS} requests would be needed to learn its platforms")
        self._requests_left -= 1
