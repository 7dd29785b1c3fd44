"""Which interpreters run the tests."""

import sys
from pathlib import Path

import pytest

from tools.release import pythons
from tools.release.pythons import Interpreter, Outcome


@pytest.mark.parametrize(("found", "ran"), [((3, 13, 1), (3, 13, 1)), (None, None)], ids=["found", "missing"])
def test_tests_run_on_the_release_of_the_image_or_else_on_this_one(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    found: tuple[int, int, int] | None,
    ran: tuple[int, int, int] | None,
) -> None:
    """A machine without that release has run them all the same."""
    image = pythons.image_release()
    used = list[Interpreter]()

    def run(interpreter: Interpreter) -> Outcome:
        used.append(interpreter)
        return Outcome(interpreter.release, "1 passed", ran=True, passed=True)

    there = {} if found is None else {image: Interpreter(found, Path("python"))}
    monkeypatch.setattr(pythons, "find_interpreters", lambda oldest: there)
    monkeypatch.setattr(pythons, "run_tests", run)
    assert pythons.main(["image"]) == 0
    assert [each.version for each in used] == [ran or sys.version_info[:3]]
    assert ("missing here" in capsys.readouterr().out) is (found is None)
