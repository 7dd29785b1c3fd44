"""No two outlets disagree on any node: random pods, clusters with unlabelled nodes, and settings."""

import itertools
import os
import time
from typing import Any

import pytest

from tests.unit.placement.outlet_cases import Outlets, draw

CASES = 600


def disagreements(seed: int) -> list[str]:
    case = draw(seed)
    outlets = Outlets(case)
    answers = outlets.answers()
    found = []
    for (one, says), (other, answers_too) in itertools.combinations(answers.items(), 2):
        for node in case.nodes:
            name = node["metadata"]["name"]
            if {says[name], answers_too[name]} == {True, False}:
                found.append(f"seed {seed}: {one} {says[name]}, {other} {answers_too[name]} of {node}\n{case}")
    return found


def test_no_two_outlets_disagree() -> None:
    """The same seeds each time; a failure shows pod, node and both answers."""
    for seed in range(CASES):
        assert not (found := disagreements(seed)), found[0]


@pytest.mark.slow
def test_no_two_outlets_disagree_for_long(record_property: Any) -> None:
    """Other seeds, for twenty seconds or `PAIRS_SECONDS`; prints how many cases that were."""
    end, first = time.monotonic() + float(os.environ.get("PAIRS_SECONDS", "20")), int.from_bytes(os.urandom(4))
    seeds = itertools.takewhile(lambda _: time.monotonic() < end, itertools.count(first))
    number = 0
    for number, seed in enumerate(seeds, 1):  # noqa: B007  # how many there were
        assert not (found := disagreements(seed)), found[0]
    record_property("cases", number)
    print(f"{number} cases from seed {first}")
