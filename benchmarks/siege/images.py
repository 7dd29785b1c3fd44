"""The images of the siege: their names say what they run on, so that every process knows which answer is right."""

import functools
from collections import OrderedDict
from zlib import crc32

import msgspec

from benchmarks.siege.network import MIRRORED, honest_host
from extender.images.manifest import OCI_INDEX
from extender.images.reference import digest_of
from testbed.images import Manifest, build_index, build_manifest

AMD64, ARM64 = "linux/amd64", "linux/arm64"
_CHOICES = ((AMD64, ARM64), (AMD64,), (ARM64,))
SHARED = "shared/base"
"""The repository on each honest registry that pods of every namespace use, by tags of their own."""
DENIED = "denied-"
"""How the tags begin that a registry answers with 403."""
HOSTILE, FAT = "hostile", "fat"
"""Kinds of registries: indexes of 64 platforms with long names, and one index of 900 KB."""
_HOSTILE_PLATFORMS, _HOSTILE_CHARACTERS, _FAT_BYTES = 64, 256, 900_000
_KEPT = 100_000  # names whose manifests can be fetched by digest, the newest ones
_MIRRORED_SHARE = 9  # one image in nine comes through the mirror


def honest_image(namespace: int, number: int) -> str:
    """Returns a new image of an honest namespace: a repository of its own, or a new tag of the shared one."""
    host = honest_host(number // 20) if number % _MIRRORED_SHARE else MIRRORED
    if number // 10 % 2:
        return f"{host}/{SHARED}:v{number}"
    return f"{host}/team-{namespace}/app-{number}:1"


def platforms_of(repository: str, tag: str) -> tuple[str, ...]:
    """Returns the platforms of an image, whose repository is named without its host."""
    return _CHOICES[crc32(f"{repository}:{tag}".encode()) % len(_CHOICES)]


def platforms_of_image(image: str) -> tuple[str, ...]:
    """Returns the platforms of an image named in full."""
    repository, _, tag = image.partition("/")[2].rpartition(":")
    return platforms_of(repository, tag)


class Manifests:
    """Makes manifests from names, the same one for the same name, and finds them again by digest."""

    def __init__(self) -> None:
        self._names: OrderedDict[str, tuple[str, str, str]] = OrderedDict()
        images = [build_manifest(platform) for platform in (AMD64, ARM64)]
        self._children = {each.digest: each for image in images for each in image.manifests}
        self._blobs = {digest_of(each): each for image in images for each in image.blobs}

    def make(self, kind: str, repository: str, tag: str) -> Manifest:
        """Returns the index of this name at a registry of that kind; it is for the platforms of `platforms_of`."""
        if kind == FAT:
            return _fat_index()
        manifest = Manifest(OCI_INDEX, (_hostile_body if kind == HOSTILE else _usual_body)(repository, tag))
        self._names[manifest.digest] = (kind, repository, tag)
        if len(self._names) > _KEPT:
            self._names.popitem(last=False)
        return manifest

    def find(self, kind: str, digest: str) -> Manifest | None:
        """Returns the manifest of this digest if an index lists it, or its name was among the last."""
        if kind == FAT:
            return _fat_index()
        return self._children.get(digest) or (self.make(*self._names[digest]) if digest in self._names else None)

    def find_blob(self, digest: str) -> bytes | None:
        """Returns the blob of this digest."""
        return self._blobs.get(digest)


def _usual_body(repository: str, tag: str) -> bytes:
    start = _index_of(platforms_of(repository, tag))
    return start[:-1] + b',"annotations":{"name":%b}}' % msgspec.json.encode(f"{repository}:{tag}")


def _hostile_body(repository: str, tag: str) -> bytes:
    """Returns an index of 64 platforms, all but one with names of 256 characters that no other index has."""
    serial = f"{crc32(f'{repository}:{tag}'.encode()):08x}"
    return _hostile_index().replace(b"#serial#", serial.encode())


@functools.cache
def _fat_index() -> Manifest:
    return Manifest(OCI_INDEX, _index_of((AMD64,))[:-1] + b',"annotations":{"x":"%b"}}' % (b"x" * _FAT_BYTES))


@functools.cache
def _index_of(platforms: tuple[str, ...]) -> bytes:
    return build_index(platforms).manifests[-1].body


@functools.cache
def _hostile_index() -> bytes:
    [entry] = msgspec.json.decode(_index_of((AMD64,)))["manifests"]
    names = (f"#serial#{number:02}".ljust(_HOSTILE_CHARACTERS, "x") for number in range(_HOSTILE_PLATFORMS - 1))
    entries = [entry, *({**entry, "platform": {"os": "linux", "architecture": name}} for name in names)]
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
