"""The readiness benchmark without a cluster: what it makes of its footprints."""

import msgspec

from benchmarks.cluster.readiness import Footprint, claims_of, report_of

FEW = Footprint(nodes=10, ready_seconds=[0.9], resident_megabytes=60.0, most_megabytes=61.0)
SOME = Footprint(
    nodes=5000,
    ready_seconds=[1.9, 1.2, 1.3],
    resident_megabytes=65.0,
    most_megabytes=80.0,
    idle_percent=0.6,
    living_percent=2.0,
)
MANY = Footprint(nodes=15000, ready_seconds=[2.0], resident_megabytes=74.0, most_megabytes=90.0)


def test_the_claims_are_of_the_median_start_idling_and_growth() -> None:
    """Each against its mark: 1.5 s, 0.5 % of a core, 15 MB from 10 nodes to 15,000."""
    ready, idle, growth = claims_of(FEW, SOME, MANY)
    assert (ready.value, ready.holds) == (1.3, True)
    assert (idle.value, idle.holds) == (0.6, False)
    assert (growth.value, growth.holds) == (14.0, True)


def test_nothing_is_claimed_of_idling_that_was_not_measured() -> None:
    """Rather than zero per cent."""
    claims = claims_of(FEW, msgspec.structs.replace(SOME, idle_percent=None), MANY)
    assert not any(claim.what.startswith("idle") for claim in claims)


def test_the_report_has_a_row_for_each_number_of_nodes() -> None:
    """With a cell for every column."""
    [table] = report_of([FEW, SOME, MANY], 60.0).tables
    assert [row[0] for row in table.rows] == ["10", "5,000", "15,000"]
    assert all(len(row) == len(table.columns) for row in table.rows)
