"""What registries send as layers and programs, through what looks inside images."""

from contextlib import suppress

from extender.images.platform import parse_platform
from extender.verifier.archive_reading import InvalidLayer, LayerBudget, LayerEntry, read_layer
from extender.verifier.image_files import ImageFiles
from extender.verifier.program_headers import read_head
from extender.verifier.start_config import StartConfig
from extender.verifier.start_program import StartVerdict, verify_start
from extender.verifier.verification import MOST_DETAIL_CHARACTERS, MOST_PROGRAM_CHARACTERS
from tests.fuzz.target import check_sentence

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
        verdict = verify_start(_START, files, platform)
        if isinstance(verdict, StartVerdict):
            check_sentence(verdict.detail)
            assert len(verdict.program) <= MOST_PROGRAM_CHARACTERS
            assert verdict.state == "claimed" or len(verdict.detail) <= MOST_DETAIL_CHARACTERS


class _Bytes:
    is_wanted = True

    def __init__(self, body: bytes) -> None:
        self._left = body

    def read(self, size: int, /) -> bytes:
        part, self._left = self._left[:size], self._left[size:]
        return part


def _entries(body: bytes) -> dict[str, LayerEntry]:
    entries = read_layer(_Bytes(body), LayerBudget(_MOST_UNPACKED, _MOST_ENTRIES))
    for path in entries:
        assert not path.startswith("/")
        assert ".." not in path.split("/")
    assert len(entries) <= _MOST_ENTRIES
    return entries


def program_heads(data: bytes) -> None:
    """Any bytes are a head, whose texts are no longer than what was read."""
    head = read_head(data)
    assert len(head.interpreter) + len(head.argument) <= len(data)


TARGETS = (layers, program_heads)
