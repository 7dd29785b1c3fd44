"""Looks inside an image: reads its layers from the top one down until it is known which program it starts.

`extender.verifier` says what the bytes mean; this file reads them, by ranges, and bounds what is read and unpacked.
Nothing is kept, and nothing is written.
"""

import asyncio
from typing import Protocol

import msgspec

from extender.credentials.keyring import Credential
from extender.errors import InvalidManifest, ManifestNotFound, RegistryError, UnsupportedManifest
from extender.images.image_config import read_config
from extender.images.manifest import IndexDocument, ManifestDocument, read_manifest
from extender.images.platform import Platform
from extender.images.platform_states import PlatformState
from extender.images.reference import ImageReference
from extender.registry.image import FetchedManifest, ManifestClient
from extender.verifier.archive_reading import ArchiveReader, InvalidLayer, LayerEntry
from extender.verifier.image_files import FoundFile, ImageFiles
from extender.verifier.listed_layers import (
    FOOTER_BYTES,
    Listing,
    find_listing,
    read_footer,
    read_listing,
    unpack_head,
)
from extender.verifier.program_headers import HEAD_BYTES, read_head
from extender.verifier.start_config import LayerDescriptor, read_layers, read_start
from extender.verifier.start_program import MoreWanted, StartVerdict, judge_start, unknown
from extender.verifier.unpacking import Unpacker, first_block_end, unpacker_for
from extender.verifier.verification import Verification

_FIRST_PART_BYTES, _MOST_PART_BYTES = 128 << 10, 4 << 20  # what is read of a layer at once, and no body is longer
_PACKED_HEAD_BYTES = 3 * HEAD_BYTES  # of a file in a listed layer: enough where packing makes it no smaller
_MOST_PACKED_HEAD_BYTES = 160 << 10  # a block of zstd has 128 KiB at most
_MOST_LISTING_BYTES = 4 << 20
_PROBED_BYTES = 16
_FOREIGN = ("foreign", "nondistributable")
_STEPS_AT_ONCE = 8  # of 256 KiB each, after which a ping is answered


class VerifierBounds(msgspec.Struct, frozen=True):
    """What may be read of one image: bytes of layers as they are stored, bytes unpacked, and files."""

    read_bytes: int = 256 << 20
    unpacked_bytes: int = 1 << 30
    entries: int = 200_000


class BlobParts(ManifestClient, Protocol):
    """A client that fetches parts of blobs besides; as `RegistryClient`."""

    async def fetch_blob_part(
        self, reference: ImageReference, digest: str, credential: Credential, start: int, end: int
    ) -> bytes:
        """Returns the blob's bytes from `start` up to `end`."""
        ...


class _Stop(Exception):
    """The verdict is known, whatever else the image holds."""

    def __init__(self, verdict: StartVerdict) -> None:
        self.verdict = verdict


class ImageVerifier:
    """Verifies one platform of one image. Use a new one for each."""

    def __init__(
        self,
        client: BlobParts,
        reference: ImageReference,
        platform: Platform,
        credential: Credential,
        tenant: str = "",
        bounds: VerifierBounds = VerifierBounds(),  # noqa: B008 - it is frozen
    ) -> None:
        """`reference` names an index or a manifest, `platform` one that it claims."""
        self._client = client
        self._reference = reference
        self._platform = platform
        self._credential = credential
        self._tenant = tenant
        self._bounds = bounds
        self._files = ImageFiles()
        self._layers: list[LayerDescriptor] = []
        self._digests: list[str] = []  # of the layers that were read
        self._requests = self._read = self._unpacked = self._entries = self._layer_bytes = 0

    async def verify(self, seconds: float) -> Verification:
        """Returns what is known of the platform after `seconds` at most.

        Raises RegistryError, InvalidManifest and UnsupportedManifest if the index or manifest itself cannot be had.
        """
        try:
            async with asyncio.timeout(seconds):
                verdict = await self._find()
        except TimeoutError:
            verdict = unknown(f"looking inside took more than {seconds:.3g} s")
        except InvalidLayer as exc:
            verdict = unknown(str(exc))
        except _Stop as stop:
            verdict = stop.verdict
        return Verification(
            platform=self._platform,
            state=verdict.state,
            program=verdict.program,
            detail=verdict.detail,
            requests=self._requests,
            read_bytes=self._read,
            layer_bytes=self._layer_bytes,
        )

    async def _find(self) -> StartVerdict:
        manifest, is_child = await self._manifest()
        document = read_manifest(manifest.body, manifest.media_type)
        if not isinstance(document, ManifestDocument):
            return unknown("its index lists no manifest for the platform")
        self._requests += 1
        try:
            config = await self._client.fetch_blob(self._reference, document.config.digest, self._credential)
            claim = read_config(config)
        except (RegistryError, InvalidManifest) as exc:
            return unknown(f"its configuration cannot be had: {exc}"[:200])
        stated = None if claim.doubt else claim.platform
        if is_child and stated and (stated.os, stated.architecture) != (self._platform.os, self._platform.architecture):
            return StartVerdict(PlatformState.CONTRADICTORY, detail=str(stated))
        start = read_start(config)
        self._layers = list(read_layers(manifest.body))
        self._layer_bytes = sum(max(layer.size or 0, 0) for layer in self._layers)
        while True:
            judgement = judge_start(start, self._files, self._platform)
            if isinstance(judgement, StartVerdict):
                return judgement
            await self._read_more(judgement)

    async def _manifest(self) -> tuple[FetchedManifest, bool]:
        """The manifest of the platform, and whether an index lists it."""
        self._requests += 1
        manifest = await self._client.fetch_manifest(self._reference, self._credential, self._tenant)
        document = read_manifest(manifest.body, manifest.media_type)
        if not isinstance(document, IndexDocument):
            return manifest, False
        listed = next((entry for entry in document.entries if entry.platform == self._platform), None)
        if listed is None:
            raise _Stop(unknown("its index does not list the platform"))
        self._requests += 1
        child = self._reference.with_digest(listed.digest)
        try:
            return await self._client.fetch_manifest(child, self._credential, self._tenant), True
        except ManifestNotFound:
            raise _Stop(StartVerdict(PlatformState.MISSING, detail=listed.digest)) from None
        except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
            raise _Stop(unknown(f"its manifest for the platform cannot be had: {exc}"[:200])) from exc

    async def _read_more(self, wanted: MoreWanted) -> None:
        if wanted.file:
            await self._read_head(wanted.file)
        elif self._layers:
            await self._read_layer(self._layers.pop(0))
        if not self._layers:
            self._files.finish()

    async def _read_layer(self, layer: LayerDescriptor) -> None:
        if any(word in (layer.media_type or "") for word in _FOREIGN):
            raise InvalidLayer("a layer that would have to be read is not in its registry")
        if not layer.digest or not layer.size or layer.size < 0:
            raise InvalidLayer("a layer has no digest or no size")
        listing = find_listing(layer.annotations or {}, layer.size)
        if listing:
            try:
                self._add(await self._read_listed(layer.digest, layer.size, listing), layer.digest)
            except InvalidLayer:
                pass  # which the layer itself decides
            else:
                return
        self._add(await self._unpack(layer.digest, layer.size), layer.digest)

    def _add(self, entries: dict[str, LayerEntry], digest: str) -> None:
        if self._platform.os == "windows":
            entries = {path.lower(): entry for path, entry in entries.items()}
        self._entries += len(entries)
        if self._entries > self._bounds.entries:
            raise InvalidLayer(f"its layers have more than {self._bounds.entries} files")
        self._digests.append(digest)
        self._files.add(entries)

    async def _read_listed(self, digest: str, size: int, listing: Listing) -> dict[str, LayerEntry]:
        place = listing.place
        if place is None:
            place = read_footer(await self._part(digest, size - FOOTER_BYTES, size), size)
        if place.end - place.start > _MOST_LISTING_BYTES:
            raise InvalidLayer("a layer's table of contents is too long")
        return read_listing(listing, await self._part(digest, *place), self._bounds.entries)

    async def _read_head(self, file: FoundFile) -> None:
        """Reads the first bytes of a file in a listed layer."""
        digest, start = self._digests[file.layer], file.entry.offset
        packed = await self._part(digest, start, start + _PACKED_HEAD_BYTES)
        end = min(first_block_end(packed), _MOST_PACKED_HEAD_BYTES)
        if end > len(packed):
            packed += await self._part(digest, start + len(packed), start + end)
        head = read_head(unpack_head(packed, HEAD_BYTES))
        self._files.learn(file, msgspec.structs.replace(file.entry, head=head))

    async def _unpack(self, digest: str, size: int) -> dict[str, LayerEntry]:
        """Reads a whole layer, in parts that become larger."""
        left = self._bounds.entries - self._entries
        archive = ArchiveReader(left, reads_all_files=self._platform.os == "windows")
        entries: dict[str, LayerEntry] = {}
        unpacker: Unpacker | None = None
        at, length = 0, _FIRST_PART_BYTES
        while at < size:
            part = await self._part(digest, at, min(at + length, size))
            if not part:
                raise InvalidLayer("a layer is shorter than its manifest says")
            unpacker = unpacker or unpacker_for(part[:_PROBED_BYTES])
            for number, out in enumerate(unpacker.feed(part)):
                self._unpacked += len(out)
                if self._unpacked > self._bounds.unpacked_bytes:
                    raise InvalidLayer(f"its layers hold more than {self._bounds.unpacked_bytes >> 20} MiB")
                entries.update(archive.feed(out))
                if number % _STEPS_AT_ONCE == 0:
                    await asyncio.sleep(0)
            at, length = at + len(part), min(4 * length, _MOST_PART_BYTES)
        archive.end()
        return entries

    async def _part(self, digest: str, start: int, end: int) -> bytes:
        if self._read + end - start > self._bounds.read_bytes:
            raise InvalidLayer(f"more than {self._bounds.read_bytes >> 20} MiB of its layers would have to be read")
        self._requests += 1
        try:
            part = await self._client.fetch_blob_part(self._reference, digest, self._credential, start, end)
        except (RegistryError, InvalidManifest) as exc:
            raise InvalidLayer(f"a layer cannot be read: {exc}"[:200]) from exc
        self._read += len(part)
        return part
