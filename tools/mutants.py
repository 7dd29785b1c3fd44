"""Makes mutants of the code that decides, and says how many a test kills: `python -m tools.mutants --number 300`.

mutmut makes them and runs, for each, the tests that reach it; `[tool.mutmut]` in pyproject.toml has the files and the
tests. A sample is drawn by a seed, that of the day unless one is given. All happens in a copy of the checkout.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.release.pythons import PROJECT

_MUTMUT = Path(sys.executable).parent / "mutmut"
_LEFT_OUT = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "site", "mutants")
_KILLED = ("killed", "timeout")
_UNTESTED = "not checked"
_SECONDS_OF_A_DAY = 86_400
# A filter that no mutant passes: mutmut makes all mutants and runs all tests once before it complains.
_NONE = "none"


class MutantsMissing(Exception):
    """mutmut has made no mutants, or the tests fail without one; the message has what it said."""


def main() -> int:
    """Draws a sample, runs its tests, and prints the survivors and the score. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Says how many mutants of the code a test kills.")
    parser.add_argument("--number", type=int, default=300, help="of mutants in the sample")
    parser.add_argument("--seed", type=int, default=int(time.time()) // _SECONDS_OF_A_DAY, help="of the sample")
    parser.add_argument("--children", type=int, default=os.cpu_count() or 1, help="processes that run tests")
    arguments = parser.parse_args()
    try:
        with copied(PROJECT) as copy:
            outcomes = _tested(copy, arguments.number, arguments.seed, arguments.children)
            for name, outcome in outcomes.items():
                if outcome not in _KILLED:
                    print(f"{outcome}: {_asked(copy, 'show', name)}\n", flush=True)
    except MutantsMissing as exc:
        print(exc, file=sys.stderr)
        return 1
    print(score(outcomes, arguments.seed))
    return 0


def _tested(copy: Path, number: int, seed: int, children: int) -> dict[str, str]:
    """What became of each mutant of the sample. Raises MutantsMissing."""
    _asked(copy, "run", _NONE)
    chosen = sample(made_in(copy), number, seed)
    said = _asked(copy, "run", "--max-children", str(children), *chosen)
    found = outcomes_in(copy)
    if any(found.get(name, _UNTESTED) == _UNTESTED for name in chosen):
        raise MutantsMissing(said)
    return {name: found[name] for name in chosen}


@contextmanager
def copied(project: Path) -> Iterator[Path]:
    """Copies the checkout into a temporary folder, without what is hidden or built."""
    with TemporaryDirectory(prefix="mutants-") as scratch:
        copy = Path(scratch) / "checkout"
        shutil.copytree(project, copy, ignore=_LEFT_OUT)
        yield copy


def made_in(copy: Path) -> list[str]:
    """The names of all mutants. Raises MutantsMissing if there is none."""
    files = (copy / "mutants").rglob("*.meta")
    names = sorted(name for file in files for name in json.loads(file.read_text())["exit_code_by_key"])
    if not names:
        raise MutantsMissing(_asked(copy, "run", _NONE))
    return names


def sample(names: Sequence[str], number: int, seed: int) -> list[str]:
    """So many of the names; the same ones for the same seed."""
    return sorted(random.Random(seed).sample(names, min(number, len(names))))


def outcomes_in(copy: Path) -> dict[str, str]:
    """What became of each mutant, by its name, as `mutmut results` has it."""
    lines = _asked(copy, "results", "--all", "true").splitlines()
    pairs = (line.strip().rpartition(": ") for line in lines if ": " in line)
    return {name: outcome for name, _, outcome in pairs}


def score(outcomes: Mapping[str, str], seed: int) -> str:
    """The share of the mutants that a test kills, and how many there are of each outcome."""
    killed = sum(outcome in _KILLED for outcome in outcomes.values())
    parts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(Counter(outcomes.values()).items()))
    return f"{killed / max(len(outcomes), 1):.1%} of {len(outcomes)} mutants are killed (seed {seed}): {parts}"


def _asked(copy: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(copy), "CI": "true"}
    done = subprocess.run([_MUTMUT, *arguments], cwd=copy, env=environment, capture_output=True, text=True, check=False)
    return (done.stdout + done.stderr).strip()


if __name__ == "__main__":
    sys.exit(main())
