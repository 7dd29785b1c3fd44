"""How much memory 100,000 images take."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from tests.integration.store.footprint import fill

SIZE = 100_000
MOST_BYTES = 150_000_000


@pytest.mark.slow
async def test_a_hundred_thousand_images_stay_under_150_megabytes(tmp_path: Path) -> None:
    """Resident memory of the whole process at its highest, with two tables of so many rows loaded from a store."""
    path = tmp_path / "images.sqlite"
    await fill(path, SIZE)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.store.footprint", str(path), str(SIZE), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    measured = json.loads(said)
    assert measured["known"] == SIZE
    assert measured["after"] < MOST_BYTES
