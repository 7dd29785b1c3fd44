"""Looks inside an image: reads its layers from the top one down until it is known which program it starts.

The other files of this room say what the bytes mean. This one fetches them by ranges, hashes them, and bounds what is
read. Nothing is kept, and nothing is written.
"""

import asyncio
import concurrent.futures
from collections.abc import Callable, Coroutine

import msgspec

from extender.credentials.keyring import Credential
from extender.errors import InvalidManifest, ManifestNotFound, RegistryError, UnsupportedManifest
from extender.images.manifest import IndexDocument, ManifestDocument, read_manifest
from extender.images.platform import Platform, normalize_platform
from extender.images.reference import ImageReference, hash_for, is_digest
from extender.registry.registry_client import FetchedManifest, RegistryClient
from extender.verifier.archive_reading import InvalidLayer, LayerBudget, LayerEntry, read_layer
from extender.verifier.image_files import ImageFiles
from extender.verifier.start_config import LayerDescriptor, StartConfig, read_layers, read_start
from extender.verifier.start_program import StartVerdict, unknown, verify_start
from extender.verifier.verification import PlatformState, Verification

_FIRST_PART_BYTES, _MOST_PART_BYTES = 128 << 10, 4 << 20  # what is read of a layer at once, and no body is longer
_FOREIGN = ("foreign", "nondistributable")


class VerifierBounds(msgspec.Struct, frozen=True):
    """What may be read of one image: bytes of layers as they are stored, bytes unpacked, and files."""

    read_bytes: int = 256 << 20
    unpacked_bytes: int = 1 << 30
    entries: int = 200_000


class _Stop(Exception):
    """The verdict is known, whatever else the image holds."""

    def __init__(self, verdict: StartVerdict) -> None:
        self.verdict = verdict


class ImageVerifier:
    """Verifies one platform of one image. Use a new one for each."""

    def __init__(
        self,
        client: RegistryClient,
        reference: ImageReference,
        platform: Platform,
        credential: Credential,
        bounds: VerifierBounds = VerifierBounds(),  # noqa: B008 - it is frozen
    ) -> None:
        """`reference` names an index or a manifest, `platform` one that it claims."""
        self._client = client
        self._reference = reference
        self._platform = platform
        self._credential = credential
        self._bounds = bounds
        self._files = ImageFiles()
        self._layers: list[LayerDescriptor] = []
        self._budget = LayerBudget(bounds.unpacked_bytes, bounds.entries)
        self._requests = self._read = self._layer_bytes = 0

    async def verify(self, seconds: float) -> list[Verification]:
        """Returns what is known of the platform after `seconds` at most.

        Nodes look at no platform of a single manifest: if its program is for another one, that follows.
        Raises RegistryError, InvalidManifest and UnsupportedManifest if the index or manifest itself cannot be had.
        """
        found: list[tuple[Platform, StartVerdict]] = []
        stopped: StartVerdict | None = None
        try:
            async with asyncio.timeout(seconds):
                await self._find(found)
        except TimeoutError:
            stopped = unknown(f"looking inside took more than {seconds:.3g} s")
        except InvalidLayer as exc:
            stopped = unknown(str(exc))
        except _Stop as stop:
            stopped = stop.verdict
        if stopped is not None and not found:
            found.append((self._platform, stopped))
        return [
            Verification(
                platform=platform,
                state=verdict.state,
                program=verdict.program,
                detail=verdict.detail,
                requests=self._requests,
                read_bytes=self._read,
                layer_bytes=self._layer_bytes,
            )
            for platform, verdict in found
        ]

    async def _find(self, found: list[tuple[Platform, StartVerdict]]) -> None:
        """Adds what is known of the platform, then of that of a single manifest's program, if it is another one."""
        manifest, is_child = await self._manifest()
        document = read_manifest(manifest.body, manifest.media_type)
        if not isinstance(document, ManifestDocument):
            raise _Stop(unknown("its index lists no manifest for the platform"))
        self._requests += 1
        try:
            config = await self._client.fetch_blob(self._reference, document.config.digest, self._credential)
            start = read_start(config)
        except (RegistryError, InvalidManifest) as exc:
            raise _Stop(unknown(f"its configuration cannot be had: {exc}"[:200])) from exc
        self._layers = list(read_layers(manifest.body))
        self._layer_bytes = sum(max(layer.size or 0, 0) for layer in self._layers)
        verdict = await self._verify_start(start, self._platform)
        found.append((self._platform, verdict))
        if verdict.architecture and not is_child:
            own = normalize_platform(self._platform.os, verdict.architecture)
            found.append((own, await self._verify_start(start, own)))

    async def _verify_start(self, start: StartConfig, platform: Platform) -> StartVerdict:
        """Reads layers until it is known what the image starts on a platform."""
        while True:
            verdict = verify_start(start, self._files, platform)
            if verdict is not None:
                return verdict
            if self._layers:
                await self._read_layer(self._layers.pop(0))
            if not self._layers:
                self._files.finish()

    async def _manifest(self) -> tuple[FetchedManifest, bool]:
        """The manifest of the platform, and whether an index lists it."""
        self._requests += 1
        manifest = await self._client.fetch_manifest(self._reference, self._credential)
        document = read_manifest(manifest.body, manifest.media_type)
        if not isinstance(document, IndexDocument):
            return manifest, False
        listed = next((entry for entry in document.entries if entry.platform == self._platform), None)
        if listed is None:
            raise _Stop(unknown("its index does not list the platform"))
        self._requests += 1
        child = self._reference.with_digest(listed.digest)
        try:
            return await self._client.fetch_manifest(child, self._credential), True
        except ManifestNotFound:
            raise _Stop(StartVerdict(PlatformState.MISSING, detail=listed.digest)) from None
        except (RegistryError, InvalidManifest, UnsupportedManifest) as exc:
            raise _Stop(unknown(f"its manifest for the platform cannot be had: {exc}"[:200])) from exc

    async def _read_layer(self, layer: LayerDescriptor) -> None:
        if any(word in (layer.media_type or "") for word in _FOREIGN):
            raise InvalidLayer("a layer that would have to be read is not in its registry")
        if not is_digest(layer.digest or "") or not layer.size or layer.size < 0:
            raise InvalidLayer("a layer has no digest or no size")
        blob = _Blob(layer.digest or "", layer.size, self._part, asyncio.get_running_loop())
        is_windows = self._platform.os == "windows"
        try:
            entries = await asyncio.to_thread(_read_whole, blob, self._budget, reads_all_files=is_windows)
        finally:
            blob.close()
        self._files.add({path.lower(): entry for path, entry in entries.items()} if is_windows else entries)

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


class _Blob:
    """A layer for a thread that reads it, while a loop fetches its parts, which become larger. Hashes what it gives."""

    def __init__(
        self,
        digest: str,
        size: int,
        fetch: Callable[[str, int, int], Coroutine[None, None, bytes]],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.is_wanted = True
        self._digest, self._size, self._fetch, self._loop = digest, size, fetch, loop
        self._hash = hash_for(digest)
        self._part, self._from = b"", 0  # the part that is being read, and from where on
        self._at, self._length = 0, _FIRST_PART_BYTES
        self._fetching: concurrent.futures.Future[bytes] | None = None

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, `size` at most, and none at the end. Raises InvalidLayer."""
        if self._from == len(self._part) and self._at < self._size:
            self._part, self._from = self._next_part(), 0
        given = self._part[self._from : self._from + size]
        self._from += len(given)
        return given

    def has_digest(self) -> bool:
        """Whether all bytes of the layer, of which the rest is read now, have its digest. Raises InvalidLayer."""
        while self.read(_MOST_PART_BYTES):
            pass
        return self._digest.endswith(f":{self._hash.hexdigest()}")

    def close(self) -> None:
        """Ends the thread's reading. To be called in the loop."""
        self.is_wanted = False
        if self._fetching:
            self._fetching.cancel()

    def _next_part(self) -> bytes:
        if not self.is_wanted:
            raise InvalidLayer("a layer is not wanted any more")
        end = min(self._at + self._length, self._size)
        self._fetching = asyncio.run_coroutine_threadsafe(self._fetch(self._digest, self._at, end), self._loop)
        part = self._fetching.result()
        if not part:
            raise InvalidLayer("a layer is shorter than its manifest says")
        self._hash.update(part)
        self._at, self._length = self._at + len(part), min(4 * self._length, _MOST_PART_BYTES)
        return part


def _read_whole(blob: _Blob, budget: LayerBudget, *, reads_all_files: bool) -> dict[str, LayerEntry]:
    """The layer's entries, once all of its bytes have its digest: what is found out is a fact about that."""
    entries = read_layer(blob, budget, reads_all_files=reads_all_files)
    if not blob.has_digest():
        raise InvalidLayer("a layer does not have the digest that its manifest says")
    return entries
