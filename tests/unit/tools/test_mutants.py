"""The sample of mutants is drawn by its seed, and the score counts what a test kills."""

import json
from pathlib import Path

import pytest

from tools import mutants

NAMES = [f"extender.placement.nodes.x_platform_of_node__mutmut_{at}" for at in range(50)]


def test_a_seed_draws_the_same_sample_again() -> None:
    drawn = mutants.sample(NAMES, 10, 7)
    assert len({*drawn}) == 10
    assert {*drawn} < {*NAMES}
    assert mutants.sample(NAMES, 10, 7) == drawn != mutants.sample(NAMES, 10, 8)
    assert mutants.sample(NAMES, 1000, 7) == sorted(NAMES)


def test_the_score_is_the_share_of_what_is_killed() -> None:
    """What no test reaches counts as what survives."""
    outcomes = dict(zip(NAMES, ["killed", "timeout", "survived", "no tests", "killed"], strict=False))
    said = "60.0% of 5 mutants are killed (seed 3): 2 killed, 1 no tests, 1 survived, 1 timeout"
    assert mutants.score(outcomes, 3) == said


def test_names_are_read_from_what_mutmut_has_made(tmp_path: Path) -> None:
    for file, names in (("b", NAMES[2:4]), ("a", NAMES[:2])):
        (tmp_path / "mutants" / file).mkdir(parents=True)
        text = json.dumps({"exit_code_by_key": dict.fromkeys(names)})
        (tmp_path / "mutants" / file / "nodes.py.meta").write_text(text)
    assert mutants.made_in(tmp_path) == NAMES[:4]


def test_nothing_made_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what the program said."""
    program = tmp_path / "mutmut"
    program.write_text("#!/bin/sh\necho asked for $@\n")
    program.chmod(0o755)
    monkeypatch.setattr(mutants, "_MUTMUT", program)
    with pytest.raises(mutants.MutantsMissing, match="asked for run none"):
        mutants.made_in(tmp_path)


def test_a_copy_has_nothing_that_is_hidden_or_built(tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name in (".venv/lib", ".git", "extender/__pycache__", "site", "tests"):
        (project / name).mkdir(parents=True)
    (project / "pyproject.toml").touch()
    with mutants.copied(project) as copy:
        assert sorted(str(each.relative_to(copy)) for each in copy.rglob("*")) == [
            "extender",
            "pyproject.toml",
            "tests",
        ]
    assert not copy.exists()
