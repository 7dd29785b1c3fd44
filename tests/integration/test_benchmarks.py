"""Each benchmark that needs no Go runs at its smallest, with figures in every cell and claims of what it measured."""

from collections.abc import Callable

import pytest

from benchmarks import audit, images, known_images, memory, soak, startup
from benchmarks.report import Report

RUNS: dict[str, Callable[[], Report]] = {
    "audit": lambda: audit.run(fewer=50),
    "images": lambda: images.run(fewer=1000),
    "known_images": lambda: known_images.run(fewer=1000),
    "memory": lambda: memory.run(fewer=1000),
    "soak": lambda: soak.run(requests=1200, fewer=5, settle_seconds=0),
    "startup": lambda: startup.run(fewer=1000),
}

COUNTS = ("answers that were not right", "most requests to one host at a time")


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_it_still_runs(name: str) -> None:
    """No answer was wrong, and no host was asked for more at a time than it allows."""
    report = RUNS[name]()
    assert all(len(row) == len(table.columns) for table in report.tables for row in table.rows)
    assert report.claims
    assert [claim for claim in report.claims if claim.what in COUNTS and not claim.holds] == []
