"""The form in which rows are kept."""

import math
import zlib

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.credentials.keyring import CredentialId
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import Platform, is_usual
from extender.images.reference import digest_of, pack_digest
from extender.store.rows import NameRow, decode_name, encode_name
from tests.unit.resolver.fake_registry import index_of

PACKED = pack_digest(digest_of(b"x"))
ROW = NameRow("ghcr.io/team/app", "1", CredentialId("anonymous"), PACKED, index_of("linux/amd64", "linux/arm64"), 1.5e9)

WORDS = st.text(min_size=1, max_size=8)
PLATFORMS = st.builds(Platform, WORDS, WORDS, st.text(max_size=4))
CONTENTS = st.builds(Content, st.sampled_from(Kind), st.frozensets(PLATFORMS, max_size=4), st.booleans())
DIGESTS = st.binary(min_size=32, max_size=32) | st.text(max_size=20).map(lambda text: f"sha512:{text}")
ROWS = st.builds(
    NameRow, st.text(), st.text() | DIGESTS, st.text().map(CredentialId), DIGESTS, CONTENTS, st.floats(0, 1e11)
)


@given(row=ROWS)
def test_a_row_comes_back_as_it_went(row: NameRow) -> None:
    """Whatever it says, by tag or digest, with a digest of any algorithm."""
    assert decode_name(row.repository, row.name, row.credential_id, encode_name(row)) == row


def test_usual_platforms_of_a_row_are_shared() -> None:
    """A row that is read takes no more memory than one that a registry has shown."""
    found = decode_name(ROW.repository, ROW.name, ROW.credential_id, encode_name(ROW))
    assert found == ROW
    assert all(map(is_usual, found.content.platforms))


def test_a_record_with_any_bit_flipped_or_end_cut_off_is_no_row() -> None:
    """A disk or a hostile hand may change one; what is left of it is not believed."""
    record = encode_name(ROW)
    damaged = [
        record[:location] + bytes([record[location] ^ 1 << bit]) + record[location + 1 :]
        for location in range(len(record))
        for bit in range(8)
    ]
    for bad in (*damaged, *(record[:length] for length in range(len(record))), record + b"\0"):
        assert decode_name(ROW.repository, ROW.name, ROW.credential_id, bad) is None


@pytest.mark.parametrize(
    ("repository", "name", "credential_id"),
    [
        ("ghcr.io/team/other", ROW.name, ROW.credential_id),
        (ROW.repository, "2", ROW.credential_id),
        (ROW.repository, PACKED, ROW.credential_id),
        (ROW.repository, ROW.name, CredentialId("tenant")),
    ],
    ids=["repository", "tag", "digest", "scope"],
)
def test_a_record_under_another_key_is_no_row(repository: str, name: str, credential_id: CredentialId) -> None:
    """An answer that belongs to someone else's question is not taken for ours."""
    assert decode_name(repository, name, credential_id, encode_name(ROW)) is None


CONTENT = msgspec.msgpack.encode((Kind.INDEX, (("linux", "amd64", ""), ("linux", "arm64", "")), True))


def record_of(confirmed_at: float, content: bytes) -> bytes:
    """A record of this body with the right checksum, as another program could write it."""
    body = msgspec.msgpack.encode((digest_of(b"x"), confirmed_at, msgspec.Raw(content)))
    key = "ghcr.io/team/app\n1\nanonymous\n"
    return zlib.crc32(body, zlib.crc32(key.encode())).to_bytes(4, "big") + body


@pytest.mark.parametrize(
    ("confirmed_at", "content"),
    [
        pytest.param(math.nan, CONTENT, id="no-time"),
        pytest.param(math.inf, CONTENT, id="never-stale"),
        pytest.param(1.5e9, b"\x91" * 5000 + b"\x90", id="deep"),
    ],
)
def test_a_record_with_impossible_values_is_no_row(confirmed_at: float, content: bytes) -> None:
    """A time that is none would never be stale, and a deep nesting would end the loading of all rows."""
    assert decode_name(ROW.repository, ROW.name, ROW.credential_id, record_of(1.5e9, CONTENT)) == ROW
    assert decode_name(ROW.repository, ROW.name, ROW.credential_id, record_of(confirmed_at, content)) is None


def test_a_record_larger_than_any_that_is_written_is_no_row() -> None:
    """A file that somebody has filled with them takes no memory when it is loaded."""
    platforms = [Platform("linux", f"{number:032d}") for number in range(64)]
    for count, expected in ((16, True), (64, False)):
        content = Content(Kind.INDEX, frozenset(platforms[:count]), states_platforms=True)
        row = NameRow("ghcr.io/team/app", "1", CredentialId("anonymous"), PACKED, content, 1.5e9)
        name = decode_name(row.repository, row.name, row.credential_id, encode_name(row))
        assert (name is not None) is expected
