"""What registries and pod authors write: references, manifests, indexes, configs, and images of several documents."""

from collections.abc import Iterable
from contextlib import suppress

from extender.credentials.keyring import ANONYMOUS, Credential
from extender.errors import InvalidManifest, InvalidReference, UnsupportedManifest
from extender.images.image_config import read_config
from extender.images.manifest import (
    ArtifactDocument,
    Image,
    IndexDocument,
    Kind,
    ManifestDocument,
    PlatformEntry,
    Skipped,
    read_manifest,
)
from extender.images.platform import InvalidPlatform, Platform, parse_platform
from extender.images.reference import ImageReference, digest_of, is_digest, pack_digest, parse_reference, unpack_digest
from extender.registry.image_description import LISTED_SKIPPED, MAX_PLATFORMS, MAX_REQUESTS, describe_image
from extender.registry.registry_client import FetchedManifest, RegistryClient
from tests.fuzz.target import check_sentence, run

_REASON_CHARACTERS = 300
_WORD_CHARACTERS = 32
REFERENCE = parse_reference("registry.example/team/app:1")


def check_platform(platform: Platform) -> None:
    """Fails unless each part can be a label's value of at most 32 characters, and a text gives the platform again."""
    for word in (platform.os, platform.architecture, platform.variant):
        assert len(word) <= _WORD_CHARACTERS, platform
        assert word.isascii(), platform
        assert word.isprintable(), platform
    assert platform.os, platform
    assert platform.architecture, platform
    assert parse_platform(str(platform)) == platform


def _check_listed(entries: Iterable[PlatformEntry], skipped: Iterable[Skipped]) -> None:
    for entry in entries:
        check_platform(entry.platform)
        assert is_digest(entry.digest)
        assert 0 <= entry.size_bytes < 2**63
    for each in skipped:
        assert not each.digest or is_digest(each.digest)
        assert len(each.why) <= _REASON_CHARACTERS
        assert each.why.isprintable()


def references(data: bytes) -> None:
    """A reference is normal, bounded and stable: its text is parsed to the same one."""
    text = data.decode(errors="replace")
    try:
        found = parse_reference(text)
    except InvalidReference as exc:
        check_sentence(exc)
        return
    assert found.path
    assert len(found.path) <= 255
    assert found.tag or found.digest
    assert len(found.tag) <= 128
    assert str(found).isascii()
    assert str(found).isprintable()
    assert not found.digest or unpack_digest(pack_digest(found.digest)) == found.digest
    if found.domain:  # `ex_ample.com/x` has none, and no client can pull it
        assert parse_reference(str(found)) == found


def manifests(data: bytes) -> None:
    """The first line is the Content-Type, and the remainder the body."""
    content_type, _, body = data.partition(b"\n")
    try:
        document = read_manifest(body, content_type.decode("latin-1"))
    except (InvalidManifest, UnsupportedManifest) as exc:
        check_sentence(exc)
        return
    assert len(document.media_type) <= 255
    if isinstance(document, IndexDocument):
        platforms = [entry.platform for entry in document.entries]
        assert len(set(platforms)) == len(platforms)
        _check_listed(document.entries, document.skipped)
        assert all(is_digest(child.digest) and 0 <= child.size_bytes < 2**63 for child in document.children)
    elif isinstance(document, ManifestDocument):
        assert is_digest(document.config.digest)
        assert 0 <= document.size_bytes < 2**63
        if document.embedded is not None:
            configs(document.embedded)
    else:
        assert isinstance(document, ArtifactDocument)
        assert len(document.why) <= _REASON_CHARACTERS
        assert document.why.isprintable()


def configs(data: bytes) -> None:
    """A config states a platform, or none, or is refused; so is a platform that an operator or a node writes."""
    try:
        platform = read_config(data).platform
    except InvalidManifest as exc:
        check_sentence(exc)
        platform = None
    if platform:
        check_platform(platform)
    with suppress(InvalidPlatform):
        check_platform(parse_platform(data.decode(errors="replace")))


class _Pieces(RegistryClient):
    """A registry whose every answer is the next of these bodies, then the first again."""

    def __init__(self, bodies: list[bytes]) -> None:
        self._bodies = bodies
        self.requests = 0

    def _next(self) -> bytes:
        self.requests += 1
        return self._bodies[self.requests % len(self._bodies)]

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        return None

    async def fetch_manifest(self, reference: ImageReference, credential: Credential) -> FetchedManifest:
        return FetchedManifest(reference.digest, "", self._next())

    async def fetch_blob(self, reference: ImageReference, digest: str, credential: Credential) -> bytes:
        return self._next()


def descriptions(data: bytes) -> None:
    """Each line is a document that the registry serves for the next thing that is asked of it, the image first."""
    bodies = data.split(b"\n")
    registry = _Pieces(bodies)
    try:
        image = run(
            describe_image(registry, REFERENCE, FetchedManifest(digest_of(bodies[0]), "", bodies[0]), ANONYMOUS)
        )
    except (InvalidManifest, UnsupportedManifest) as exc:
        check_sentence(exc)
    else:
        _check_image(image)
    assert registry.requests <= MAX_REQUESTS


def _check_image(image: Image) -> None:
    assert len(image.media_type) <= 255
    assert len(image.entries) <= MAX_PLATFORMS
    assert len(image.skipped) <= LISTED_SKIPPED + 1
    assert bool(image.entries) != (image.kind in (Kind.ARTIFACT, Kind.DATA)) or image.kind is Kind.MANIFEST
    _check_listed(image.entries, image.skipped)


TARGETS = (references, manifests, configs, descriptions)
