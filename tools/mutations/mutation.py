"""A change that breaks a promise, and what happens to the tests in a copy of the checkout that has it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

_COPIED = ("extender", "testbed", "benchmarks", "tools", "tests", "deploy", "docs")
_SECONDS = 600.0
_FAILED = 1  # pytest's exit code when tests ran and some failed; an import that fails is another


class Mutation(NamedTuple):
    """What is promised, and a change of one text in one file that breaks it."""

    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    """Files, folders or single tests, of which at least one must fall."""


class Fate(StrEnum):
    """What became of a mutation."""

    FELL = "fell"
    SURVIVED = "SURVIVED"
    STALE = "STALE"
    """Its text is not in the file, or not once; or the tests could not be run with it."""


class Result(NamedTuple):
    """What became of a mutation, with the test that fell or the reason."""

    mutation: Mutation
    fate: Fate
    said: str


@contextmanager
def copied(project: Path) -> Iterator[Path]:
    """Copies what tests need of the checkout into a temporary folder."""
    with TemporaryDirectory(prefix="mutations-") as scratch:
        copy = Path(scratch)
        for name in filter(lambda name: (project / name).is_dir(), _COPIED):
            shutil.copytree(project / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for path in filter(Path.is_file, project.iterdir()):
            shutil.copy2(path, copy)
        yield copy


def run_tests(copy: Path, tests: Iterable[str]) -> "subprocess.CompletedProcess[str]":
    """Runs these tests of the copy up to the first that fails, on the copy's own code."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "CI": "true"}
    return subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=_SECONDS
    )


def apply(mutation: Mutation, copy: Path) -> Result:
    """Makes the change in the copy, runs its tests, and takes the change back."""
    file = copy / mutation.file
    text = file.read_text() if file.is_file() else ""
    count = text.count(mutation.old)
    if count != 1:
        return Result(mutation, Fate.STALE, f"its text is {count} times in {mutation.file}")
    file.write_text(text.replace(mutation.old, mutation.new))
    try:
        done = run_tests(copy, mutation.tests)
    except subprocess.TimeoutExpired:
        return Result(mutation, Fate.FELL, f"nothing after {_SECONDS:g} s")
    finally:
        file.write_text(text)
    if done.returncode == _FAILED:
        return Result(mutation, Fate.FELL, _first_failure(done.stdout))
    if done.returncode == 0:
        return Result(mutation, Fate.SURVIVED, " ".join(mutation.tests))
    return Result(mutation, Fate.STALE, (done.stdout + done.stderr)[-1000:])


def _first_failure(output: str) -> str:
    failed = [line for line in output.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    return failed[0].split(" ")[1] if failed else ""
