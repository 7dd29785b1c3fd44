"""What the runner says of changes that a test notices, that none does, and that are no longer possible."""

from pathlib import Path

import pytest

from tools.mutations.mutation import Fate, Mutation, apply, copied
from tools.mutations.promises import MUTATIONS
from tools.release.pythons import PROJECT

CODE = "def double(number: int) -> int:\n    return number * 2\n"
TEST = "from extender.double import double\n\n\ndef test_two() -> None:\n    assert double(2) == 4\n"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    for name, text in {"extender/double.py": CODE, "tests/test_double.py": TEST}.items():
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text(text)
    (tmp_path / "extender" / "__init__.py").touch()  # or the installed package would be it
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    return tmp_path


@pytest.mark.parametrize(
    ("old", "new", "fate", "said"),
    [
        pytest.param("* 2", "* 3", Fate.FELL, "tests/test_double.py::test_two", id="noticed"),
        pytest.param("* 2", "+ 2", Fate.SURVIVED, "tests/test_double.py", id="not noticed", marks=pytest.mark.slow),
        pytest.param("* 4", "* 5", Fate.STALE, "its text is 0 times in extender/double.py", id="gone"),
        pytest.param("number", "other", Fate.STALE, "its text is 2 times in extender/double.py", id="ambiguous"),
        pytest.param("* 2", "* (", Fate.STALE, "was never closed", id="no Python", marks=pytest.mark.slow),
    ],
)
def test_a_mutation_is_judged_by_its_tests(checkout: Path, old: str, new: str, fate: Fate, said: str) -> None:
    mutation = Mutation("two is doubled", "extender/double.py", old, new, ("tests/test_double.py",))
    with copied(checkout) as copy:
        result = apply(mutation, copy)
        assert (copy / "extender/double.py").read_text() == CODE
    assert result.fate is fate
    assert said in result.said


def test_tests_of_mutations_exist() -> None:
    named = {test.partition("::")[0] for each in MUTATIONS for test in each.tests}
    assert [name for name in sorted(named) if not (PROJECT / name).exists()] == []


def test_each_mutation_is_listed_once() -> None:
    """A group that has the name of another takes its place."""
    assert len({*MUTATIONS}) == len(MUTATIONS)
