"""Where the Go extenders come from."""

from pathlib import Path

import pytest

from benchmarks.reference.programs import REFERENCE, SourceModule, find_programs
from testbed.binaries import BinariesMissing


class Elsewhere(SourceModule, frozen=True, kw_only=True):
    """The module in a folder of the test's."""

    directory: str

    @property
    def folder(self) -> Path:
        """That folder."""
        return Path(self.directory)


@pytest.fixture
def module(tmp_path: Path) -> Elsewhere:
    """A module with one source."""
    (tmp_path / "typed").mkdir()
    (tmp_path / "go.mod").write_text("require k8s.io/kube-scheduler v0.36.3\n")
    (tmp_path / "go.sum").write_text("")
    (tmp_path / "typed" / "main.go").write_text("package main\n")
    return Elsewhere(
        name="extenders", dependency="k8s.io/kube-scheduler", programs={"typed": "./typed"}, directory=str(tmp_path)
    )


def test_a_changed_or_added_source_is_built_anew(module: Elsewhere) -> None:
    """What is measured is what the sources say, never what they said when the cache was filled."""
    keys = [module.key]
    (module.folder / "typed" / "main.go").write_text("package main // changed\n")
    keys.append(module.key)
    (module.folder / "typed" / "more.go").write_text("package main\n")
    keys.append(module.key)
    (module.folder / "README").write_text("no source")
    assert len(set(keys)) == 3
    assert module.key == keys[-1]


def test_without_go_one_line_says_so(tmp_path: Path) -> None:
    """And names no way out that is none: KUBEBUILDER_ASSETS holds no extender."""
    with pytest.raises(BinariesMissing) as caught:
        find_programs({"HOME": str(tmp_path), "PATH": str(tmp_path)})
    assert str(caught.value) == "typed and null must be built once, which needs Go 1.26 or later on the PATH"


def test_the_baseline_speaks_the_protocol_of_the_scheduler_that_is_tested() -> None:
    """kube-scheduler's types of a release that the end-to-end tests run."""
    assert REFERENCE.version.startswith("v0.36.")
