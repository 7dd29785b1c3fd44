"""The journey of a call is counted in the real process."""

import pytest

from benchmarks.journey import COLD, REVIEW, WARM, run


@pytest.mark.slow
def test_a_cold_call_crosses_more_than_a_warm_one() -> None:
    """In every call that is counted, the decision is made; in cold ones alone, the registry is asked."""
    crossed, files = run(fewer=5).tables
    counts = {row[0]: row[1:3] for row in crossed.rows}
    assert set(counts) == {WARM, COLD, REVIEW}
    for name in (WARM, REVIEW):
        assert all(
            isinstance(few, int) and isinstance(many, int) and 5 < few < many
            for few, many in zip(counts[name], counts[COLD], strict=True)
        )
    names = [row[0] for row in files.rows]
    assert "placement/scheduling.py" in names
    assert any(str(name).startswith("registry/") for name in names)
