"""What registries send as layers, tables of layers and programs, through what looks inside images."""

from contextlib import suppress

from extender.images.platform import parse_platform
from extender.images.platform_states import MOST_DETAIL_CHARACTERS, MOST_PROGRAM_CHARACTERS
from extender.verifier.archive_reading import ArchiveReader, InvalidLayer, LayerEntry
from extender.verifier.image_files import ImageFiles
from extender.verifier.listed_layers import FOOTER_BYTES, Listing, read_footer, read_listing, unpack_head
from extender.verifier.program_headers import HEAD_BYTES, read_head
from extender.verifier.start_config import StartConfig
from extender.verifier.start_program import StartVerdict, judge_start
from extender.verifier.unpacking import first_block_end, unpacker_for
from tests.fuzz.target import Target, check_sentence

_PLATFORMS = tuple(map(parse_platform, ("linux/arm64", "windows/amd64", "linux/fake")))
_START = StartConfig(("app",), ("/bin", "", "opt"), "/srv")
_MOST_ENTRIES = 500
_MOST_UNPACKED = 4 << 20


def layers(data: bytes) -> None:
    """The first byte says where the archive breaks into two layers. The verdict is short, and reading ends."""
    cut = int.from_bytes(data[:1], "big") * len(data) // 255
    files = ImageFiles()
    for body in (data[1:cut], data[max(cut, 1) :]):
        with suppress(InvalidLayer):
            files.add(_entries(body))
    files.finish()
    for platform in _PLATFORMS:
        verdict = judge_start(_START, files, platform)
        if isinstance(verdict, StartVerdict):
            check_sentence(verdict.detail)
            assert len(verdict.program) <= MOST_PROGRAM_CHARACTERS
            assert verdict.state == "claimed" or len(verdict.detail) <= MOST_DETAIL_CHARACTERS


def _entries(body: bytes) -> dict[str, LayerEntry]:
    archive, entries, total = ArchiveReader(_MOST_ENTRIES), dict[str, LayerEntry](), 0
    for part in unpacker_for(body).feed(body):
        total += len(part)
        if total > _MOST_UNPACKED:
            raise InvalidLayer("too much")
        for path, entry in archive.feed(part):
            assert not path.startswith("/")
            assert ".." not in path.split("/")
            entries[path] = entry
    archive.end()
    assert len(entries) <= _MOST_ENTRIES
    return entries


def layer_tables(data: bytes) -> None:
    """Footers, tables and packed heads are read or refused."""
    for listing in (
        Listing("sha256:0", is_packed_digest=False, place=None),
        Listing("", is_packed_digest=True, place=None),
    ):
        with suppress(InvalidLayer):
            read_listing(listing, data, _MOST_ENTRIES)
    with suppress(InvalidLayer):
        place = read_footer(data[-FOOTER_BYTES:], len(data))
        assert 0 <= place.start < place.end <= len(data)
    with suppress(InvalidLayer):
        assert len(unpack_head(data, HEAD_BYTES)) <= HEAD_BYTES
    assert first_block_end(data) >= 0


def program_heads(data: bytes) -> None:
    """Any bytes are a head, whose texts are no longer than what was read."""
    head = read_head(data)
    assert len(head.interpreter) + len(head.argument) <= len(data)


TARGETS = (
    Target(
        "layers",
        layers,
        (
            b"ustar\x0000",
            b"#!/bin/sh\n",
            b"\x7fELF\x02\x01\x01",
            b"\x1f\x8b\x08",
            b"app",
            b".wh.",
            b".wh..wh..opq",
            b"path=",
            b"linkpath=",
            b"GNU.sparse.",
            b"0000755\0",
            b"\x28\xb5\x2f\xfd",
        ),
        8192,
    ),
    Target(
        "layer_tables",
        layer_tables,
        (
            b'{"version":1,"entries":[',
            b'"name":"app"',
            b'"type":"reg"',
            b'"offset":',
            b'"mode":511',
            b"STARGZ",
            b"SG\x16\x00",
            b"\x28\xb5\x2f\xfd",
            b"\x1f\x8b\x08",
        ),
        8192,
    ),
    Target(
        "program_heads",
        program_heads,
        (b"\x7fELF\x02\x01\x01", b"\x7fELF\x01\x02\x01", b"MZ", b"PE\0\0", b"#!/usr/bin/env -S "),
    ),
)
