"""The MAC of rows."""

import pytest

from extender.store.row_mac import RowMac

KEY = b"k" * 32
LOCATION, VALUE = "multiarch-extender:1:name:anonymous:ghcr.io/team/app:1", b"value"


def test_what_is_sealed_is_opened_by_whoever_has_the_key() -> None:
    """A replica is another process."""
    for value in (VALUE, b""):
        assert RowMac(KEY).open(LOCATION, RowMac(KEY).seal(LOCATION, value)) == value


@pytest.mark.parametrize("at", range(16 + len(VALUE)))
def test_no_bit_may_change(at: int) -> None:
    """Neither of the MAC nor of the value."""
    sealed = bytearray(RowMac(KEY).seal(LOCATION, VALUE))
    for bit in range(8):
        sealed[at] ^= 1 << bit
        assert RowMac(KEY).open(LOCATION, bytes(sealed)) is None
        sealed[at] ^= 1 << bit


@pytest.mark.parametrize("sealed", [b"", b"x", VALUE, bytes(16), bytes(16) + VALUE])
def test_what_was_never_sealed_is_not_opened(sealed: bytes) -> None:
    """Such as a row from before there was a key."""
    assert RowMac(KEY).open(LOCATION, sealed) is None


@pytest.mark.parametrize(
    ("location", "value"),
    [
        (LOCATION.replace("app", "other"), VALUE),
        (LOCATION.replace("anonymous", "0123"), VALUE),
        (LOCATION.replace(":name:", ":content:"), VALUE),
        (LOCATION.replace("multiarch-extender:", "team:"), VALUE),
        (LOCATION[:-1], LOCATION[-1:].encode() + VALUE),
        (LOCATION + "v", VALUE[1:]),
    ],
    ids=["repository", "credential", "kind", "prefix", "shorter location", "longer location"],
)
def test_a_value_is_bound_to_its_location(location: str, value: bytes) -> None:
    """Also if location and value together are the same characters."""
    sealed = RowMac(KEY).seal(LOCATION, VALUE)
    assert RowMac(KEY).open(location, sealed[:16] + value) is None


def test_another_key_opens_nothing_and_has_another_name() -> None:
    """The name is not the key, and tells nothing of it."""
    one, other = RowMac(KEY), RowMac(b"l" * 32)
    assert other.open(LOCATION, one.seal(LOCATION, VALUE)) is None
    assert one.name == RowMac(KEY).name != other.name
    assert KEY.hex() not in one.name
