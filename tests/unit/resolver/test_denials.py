"""Denials make rows stale, and remove them without looking at all of them at once."""

from typing import NamedTuple

from extender.credentials.keyring import CredentialId
from extender.images.reference import PackedDigest, pack_digest
from extender.resolver.denials import Denials
from extender.tables import ShareTable

A, B = CredentialId("a"), CredentialId("b")
ENOUGH = 10_000  # denials after which all rows that were stale are gone


class Row(NamedTuple):
    """When it was confirmed."""

    confirmed_at: float


class CountingTable(ShareTable[tuple[str, PackedDigest, CredentialId], Row]):
    """Rows of repository `x`, each of another tag; half of credential `a` and half of `b`, confirmed at 5."""

    def __init__(self, rows: int) -> None:
        super().__init__(2 * rows, owner_of=lambda *_: "", cost_of=lambda *_: 1)
        for number in range(rows):
            self.put(("x", pack_digest(str(number)), B if number % 2 else A), Row(5.0))

    def rows_of(self, credential_id: CredentialId) -> int:
        """How many there are."""
        return sum(key[2] == credential_id for key, _ in self.items())


def test_stale_rows_are_removed_a_few_for_each_denial() -> None:
    """Nobody waits until 100,000 rows have been looked at."""
    table = CountingTable(20_000)
    denials = Denials(table)
    denials.add("x", A, 6.0)
    gone = []
    for number in range(ENOUGH):
        before = len(table)
        denials.add(f"denied/{number}", A, 6.0)
        gone.append(before - len(table))
    assert 0 < max(gone) <= 128
    assert table.rows_of(A) == 0
    assert table.rows_of(B) == 10_000


def test_denials_are_forgotten_once_no_row_is_from_before() -> None:
    """Whatever their number, however many rows there are, and however often the same is denied."""
    for rows in (0, 1, 1_000):
        denials = Denials(CountingTable(rows))
        most = 0
        for number in range(3 * ENOUGH):
            denials.add(f"denied/{number}", A, 6.0)
            denials.add("x", A, 6.0 + number)
            most = max(most, len(denials.last))
        assert 4_000 < most < ENOUGH


def test_a_denial_while_rows_are_removed_counts_until_the_next_time() -> None:
    """It may be of rows that have been looked at already."""
    table = CountingTable(1_000)
    denials, key = Denials(table), ("x", pack_digest("0"), A)
    number = 0
    while len(denials.last) <= 4_096:
        denials.add(f"denied/{number}", A, 6.0)
        number += 1
    denials.add("denied/0", A, 7.0)
    denials.add("x", A, 8.0)
    while len(denials.last) > 4_096:
        denials.add("x", A, 8.0)
    assert dict(denials.last) == {("denied/0", A): 7.0, ("x", A): 8.0}
    assert denials.make_void(key, Row(8.0))
    assert not denials.make_void(key, Row(8.1))
    assert not denials.make_void(("x", pack_digest("0"), B), Row(1.0))
