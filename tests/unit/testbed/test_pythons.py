"""Which interpreters the tests run on."""

import subprocess
import sys
from pathlib import Path

import pytest

from testbed import pythons
from testbed.pythons import (
    Interpreter,
    Outcome,
    Release,
    chosen_releases,
    find_interpreters,
    image_release,
    oldest_release,
    release_of,
)

OLDEST, IMAGE = Release(3, 11), Release(3, 13)


def interpreter(folder: Path, version: str, name: str = "", says: str = "") -> Path:
    """A program that answers as an interpreter of that version, or says something else."""
    major, minor, _ = version.split(".")
    path = folder / (name or f"python{major}.{minor}")
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(f'#!/bin/sh\necho "{says or "cpython " + version.replace(".", " ") + " final"}"\n')
    path.chmod(0o755)
    return path


def test_the_project_says_which_releases_matter() -> None:
    """The least that pyproject.toml requires, and the one that the image has."""
    assert (oldest_release(), image_release()) == (OLDEST, IMAGE)
    assert release_of("3.14") == Release(3, 14)
    with pytest.raises(ValueError, match="'newest' names no release"):
        release_of("newest")


def test_interpreters_are_found_wherever_they_are(tmp_path: Path) -> None:
    """On the PATH, in the folders of pyenv and uv, and where PYTHONS says; of each release the newest patch."""
    on_path = interpreter(tmp_path / "bin", "3.11.2")
    interpreter(tmp_path / ".pyenv" / "versions" / "3.12.1" / "bin", "3.12.1")
    uv = interpreter(tmp_path / ".local" / "share" / "uv" / "python" / "cpython-3.12.9" / "bin", "3.12.9")
    named = interpreter(tmp_path / "built", "3.13.5", "python")
    environment = {"HOME": str(tmp_path), "PATH": f"{tmp_path / 'bin'}:/nowhere", "PYTHONS": str(named)}
    assert find_interpreters(OLDEST, environment) == {
        OLDEST: Interpreter((3, 11, 2), on_path),
        Release(3, 12): Interpreter((3, 12, 9), uv),
        IMAGE: Interpreter((3, 13, 5), named),
    }


@pytest.mark.parametrize(
    ("version", "says"),
    [("3.10.9", ""), ("3.14.0", "cpython 3 14 0 candidate"), ("3.11.5", "pypy 3 11 5 final"), ("3.13.0", "no such")],
    ids=["too old", "not final", "another implementation", "a shim that leads nowhere"],
)
def test_what_the_tests_cannot_run_on_is_passed_over(tmp_path: Path, version: str, says: str) -> None:
    """As if it was not there."""
    interpreter(tmp_path, version, says=says)
    assert find_interpreters(OLDEST, {"HOME": "/nowhere", "PATH": str(tmp_path)}) == {}


def test_a_program_beside_an_interpreter_is_none(tmp_path: Path) -> None:
    """`python3.13-config` is not asked."""
    interpreter(tmp_path, "3.13.1", "python3.13-config")
    assert find_interpreters(OLDEST, {"HOME": "/nowhere", "PATH": str(tmp_path)}) == {}


def test_without_names_all_that_is_found_runs() -> None:
    """And what is missing of the two that matter is said."""
    found = {release: Interpreter((*release, 1), Path("python")) for release in (OLDEST, Release(3, 12))}
    assert chosen_releases([], found) == [OLDEST, Release(3, 12), IMAGE]
    assert chosen_releases(["image", "oldest"], found) == [OLDEST, IMAGE]
    assert chosen_releases(["3.14"], found) == [Release(3, 14)]


@pytest.mark.parametrize(
    ("passed", "present", "status"),
    [(True, [OLDEST], 0), (False, [OLDEST], 1), (True, [], 1)],
    ids=["passed", "failed", "none found"],
)
def test_each_release_has_its_line(
    passed: bool,
    present: list[Release],
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What ran, and what is missing; a run on no interpreter is no success."""
    found = {release: Interpreter((*release, 2), Path("python")) for release in present}
    monkeypatch.setattr(pythons, "find_interpreters", lambda _oldest: found)
    monkeypatch.setattr(pythons, "run_tests", lambda one: Outcome(one.release, "3 tests", ran=True, passed=passed))
    assert pythons.main(["oldest", "image"]) == status
    lines = capsys.readouterr().out.splitlines()
    missing = "missing here; install it, or name its path in PYTHONS"
    assert lines[1:] == [f"3.11  {'3 tests' if present else missing}", f"3.13  {missing}"]


def test_the_suite_runs_and_its_last_line_is_told(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """With this interpreter, in a project of one test that fails."""
    (tmp_path / "test_one.py").write_text("def test_one() -> None:\n    assert False\n")
    this = Interpreter(sys.version_info[:3], Path(sys.executable))
    outcome = pythons.run_tests(this, tmp_path)
    assert (outcome.ran, outcome.passed) == (True, False)
    assert outcome.what.startswith(f"CPython {'.'.join(map(str, this.version))}: 1 failed")
    assert "1 failed" in capfd.readouterr().out


def test_an_environment_is_made_once_for_the_same_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With hashes required; other pins make it again."""
    commands: list[list[str]] = []

    def run(command: list[object], **_options: object) -> None:
        commands.append(list(map(str, command)))
        (tmp_path / ".venv-3.13").mkdir(exist_ok=True)

    monkeypatch.setattr(subprocess, "run", run)
    for name in ("requirements-dev.txt", "pyproject.toml"):
        (tmp_path / name).write_text("1")
    one = Interpreter((3, 13, 5), Path("/usr/bin/python3.13"))
    for _ in range(2):
        assert pythons.set_up(one, tmp_path) == tmp_path / ".venv-3.13" / "bin" / "python"
    assert [command[1:3] for command in commands] == [["-m", "venv"], ["-m", "pip"], ["-m", "pip"]]
    assert "--require-hashes" in commands[1]
    (tmp_path / "requirements-dev.txt").write_text("2")
    pythons.set_up(one, tmp_path)
    assert len(commands) == 6
