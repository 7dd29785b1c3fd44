"""Worlds that once broke a promise, and some that are drawn, keep every promise; numbers mean the same everywhere."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.worlds.numbered import plan_of
from tests.worlds.plan import read_found
from tests.worlds.themes import THEMES
from tests.worlds.world import play

FOUND = sorted((Path(__file__).parent / "found").glob("*.json"))
NUMBERS = range(30)


@pytest.mark.parametrize("path", FOUND, ids=lambda path: path.stem)
def test_a_defect_that_was_found_is_cured(path: Path) -> None:
    assert play(read_found(path).plan).violations == []


@pytest.mark.parametrize("number", NUMBERS)
def test_a_world_keeps_every_promise(number: int) -> None:
    assert play(plan_of(number)).violations == []


def test_a_world_is_the_same_in_every_process() -> None:
    """Whatever order sets and hashes have there."""
    numbers = list(THEMES).index("gate"), list(THEMES).index("templates")
    program = (
        "from tests.worlds.numbered import plan_of; from tests.worlds.world import play;"
        f"print([play(plan_of(number)).digest for number in {numbers}])"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": "."},
            check=True,
            capture_output=True,
            text=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert runs[0] == runs[1]
