"""The benchmark of a cluster at its smallest, on a control plane of its own: it runs, and every figure is there.

Nothing is asserted of how large a figure is.
"""

import pytest

from benchmarks.cluster import throughput
from benchmarks.report import Table

pytestmark = pytest.mark.e2e

VARIANTS = (
    "none",
    "affinity by hand",
    "webhook required",
    "webhook preferred",
    "null",
    "null scoring",
    "ours",
    "ours strict",
    "typed",
    "ours single",
    "ours whole",
)


def column(table: Table, name: str) -> dict[str, float]:
    """The numbers of this column, by the names of their rows."""
    index = table.columns.index(name)
    cells = {str(row[0]): row[index] for row in table.rows}
    return {row: cell for row, cell in cells.items() if isinstance(cell, int | float)}


@pytest.mark.slow
@pytest.mark.usefixtures("binaries")
def test_every_kind_of_variant_is_measured() -> None:
    """Whom kube-scheduler asks is asked for each pod, and all pods stand rightly: the benchmark itself sees to that."""
    report = throughput.run(nodes=(20,), pods=60, rounds=1, only=VARIANTS)
    paces, loss = report.tables
    assert [row[0] for row in loss.rows] == [row[0] for row in paces.rows]
    assert column(paces, "pods") == {**dict.fromkeys(VARIANTS, 60), "ours whole": 6}
    for name in ("pods/s", "created/s"):
        assert min(column(paces, name).values()) > 0
    assert report.claims
    assert report.machine
