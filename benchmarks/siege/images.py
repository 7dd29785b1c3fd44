"""The images of the siege: their names say what they run on, so that every process knows which answer is right."""

import functools
from collections import OrderedDict
from collections.abc import Callable
from zlib import crc32

import msgspec

from benchmarks.siege.network import MIRRORED, honest_host
from extender.images.manifest import OCI_INDEX
from extender.images.reference import digest_of
from testbed.hostile_layers import AMD64, AMD64_ELF, ARM64, ARM64_ELF, KINDS, hostile_image
from testbed.images import Bundle, Manifest
from testbed.packed_layers import Put, gzipped
from testbed.zoo_images import make_image, make_index

_PROGRAMS = {AMD64: AMD64_ELF, ARM64: ARM64_ELF}
_CHOICES = ((AMD64, ARM64), (AMD64,), (ARM64,))
SHARED = "shared/base"
"""The repository on each honest registry that pods of every namespace use, by tags of their own."""
DENIED = "denied-"
"""How the tags begin that a registry answers with 403."""
HOSTILE, FAT, LAYERS, WIDE = "hostile", "fat", "layers", "wide"
"""Kinds of registries: indexes of 64 platforms with long names, one index of 900 KB, layers that are made to hurt, one
index of 64 platforms over eight operating systems."""
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

    def __init__(self, *, makes_layers: bool = False) -> None:
        """`makes_layers`: has the images that are made to hurt too, which takes seconds."""
        self._names: OrderedDict[str, tuple[str, str, str]] = OrderedDict()
        self._hurting = [hostile_image(kind) for kind in KINDS] if makes_layers else []
        self._parts = dict[str, Manifest | bytes]()
        for image in (*map(_image_for, _PROGRAMS), *self._hurting):
            self._parts |= {each.digest: each for each in image.manifests}
            self._parts |= {digest_of(each): each for each in image.blobs}

    def make(self, kind: str, repository: str, tag: str) -> Manifest:
        """Returns the index of this name at a registry of that kind; it is for the platforms of `platforms_of`."""
        if kind in _INDEXES:
            return _INDEXES[kind]()
        if kind == LAYERS:
            return self._hurting[int(tag) % len(KINDS)].manifests[-1]
        manifest = Manifest(OCI_INDEX, (_hostile_body if kind == HOSTILE else _usual_body)(repository, tag))
        self._names[manifest.digest] = (kind, repository, tag)
        if len(self._names) > _KEPT:
            self._names.popitem(last=False)
        return manifest

    def find(self, kind: str, digest: str) -> Manifest | None:
        """Returns the manifest of this digest if an index lists it, or its name was among the last."""
        if kind in _INDEXES:
            return _INDEXES[kind]()
        part = self._parts.get(digest)
        if isinstance(part, Manifest):
            return part
        return self.make(*self._names[digest]) if digest in self._names else None

    def find_blob(self, digest: str) -> bytes | None:
        """Returns the blob of this digest."""
        part = self._parts.get(digest)
        return part if isinstance(part, bytes) else None


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
def _wide_index() -> Manifest:
    [entry] = msgspec.json.decode(_index_of((AMD64,)))["manifests"]
    others = (
        {**entry, "platform": {"os": f"system{number % 8}", "architecture": f"architecture{number}"}}
        for number in range(_HOSTILE_PLATFORMS - 1)
    )
    return Manifest(OCI_INDEX, msgspec.json.encode({"schemaVersion": 2, "manifests": [entry, *others]}))


_INDEXES: dict[str, Callable[[], Manifest]] = {FAT: _fat_index, WIDE: _wide_index}


@functools.cache
def _index_of(platforms: tuple[str, ...]) -> bytes:
    return make_index([(each, _image_for(each)) for each in platforms]).manifests[-1].body


@functools.cache
def _image_for(platform: str) -> Bundle:
    """Returns an image whose program is for the platform."""
    return make_image(platform, [gzipped([Put("app", _PROGRAMS[platform])])], Entrypoint=["/app"])


@functools.cache
def _hostile_index() -> bytes:
    [entry] = msgspec.json.decode(_index_of((AMD64,)))["manifests"]
    names = (f"#serial#{number:02}".ljust(_HOSTILE_CHARACTERS, "x") for number in range(_HOSTILE_PLATFORMS - 1))
    entries = [entry, *({**entry, "platform": {"os": "linux", "architecture": name}} for name in names)]
    return msgspec.json.encode({"schemaVersion": 2, "mediaType": OCI_INDEX, "manifests": entries})
