"""A process killed while it writes."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

ROUNDS = 100


@pytest.mark.slow
async def test_a_hundred_kills_leave_no_wrong_row_and_lose_no_written_one(tmp_path: Path) -> None:
    """SIGKILL at any moment: what was written is there, and the batch under way is there as a whole or not at all."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.integration.store.writer", str(tmp_path / "images.sqlite"), str(ROUNDS), "1",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, _ = await process.communicate()
    assert process.returncode == 0
    counted = json.loads(said)
    assert counted.pop("batches") > ROUNDS
    assert counted == {"lost": 0, "torn": 0, "wrong": 0, "set_aside": False}
