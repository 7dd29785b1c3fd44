"""Workflows and kind's files, as the programs judge them that read them.

`python -m testbed.binaries --only actionlint kind` builds them; the tests are skipped without.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from testbed.binaries import ACTIONLINT, KIND, GoModule, find_built
from testbed.kind_cluster import cluster_configuration
from tools.release.pythons import PROJECT

WORKFLOWS = (
    *sorted((PROJECT / ".github" / "workflows").glob("*.yml")),
    PROJECT / "deploy/pipelines/github-workflow.yml",
)
SAFE = (PROJECT / ".github", PROJECT / "deploy/pipelines/github-workflow.yml")
NO_ENGINE = """#!/bin/sh
case "$1" in
  info) echo '{"SecurityOptions":[],"CgroupDriver":"systemd","CgroupVersion":"2","MemoryLimit":true,"PidsLimit":true}';;
  inspect | ps | version | -v | --version) ;;
  *) echo "no engine here" >&2; exit 1;;
esac
"""


def program(module: GoModule, name: str) -> Path:
    path = find_built(module) / name
    if not path.exists():
        pytest.skip(f"{name} is not built: python -m testbed.binaries --only actionlint kind")
    return path


def test_workflows_pass_actionlint() -> None:
    """Expressions, needs, outputs, runners' labels and inputs of actions; all at once, with those that they call."""
    linter: list[str | Path] = [program(ACTIONLINT, "actionlint"), "-no-color", "-shellcheck=", "-pyflakes="]
    done = subprocess.run([*linter, *WORKFLOWS], capture_output=True, text=True, check=False, cwd=PROJECT)
    assert (done.returncode, done.stdout) == (0, "")


def test_workflows_are_safe_by_zizmor() -> None:
    """Actions pinned by commit, no rights but those named, no token left behind, no words of others in scripts."""
    zizmor: list[str | Path] = [Path(sys.executable).parent / "zizmor", "--offline", "--no-progress"]
    zizmor += ["--min-severity=medium", *SAFE]
    done = subprocess.run(zizmor, capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.returncode == 0, done.stdout + done.stderr


def clusters() -> dict[str, str]:
    """Every configuration for kind that there is here: the shipped one, and that of the benchmark."""
    made = cluster_configuration(Path("configurations"))
    return {"shipped": (PROJECT / "deploy/kind/cluster.yaml").read_text(), "benchmark": yaml.safe_dump(made)}


@pytest.mark.parametrize("name", clusters())
def test_kind_takes_the_configuration_and_goes_on_to_the_containers(name: str, tmp_path: Path) -> None:
    """It decodes the file into its types strictly, fills in defaults, validates, and only then looks for images.

    The container engine does nothing.
    """
    kind = program(KIND, "kind")
    (tmp_path / "docker").write_text(NO_ENGINE)
    (tmp_path / "docker").chmod(0o755)
    (tmp_path / "cluster.yaml").write_text(clusters()[name])
    command: list[str | Path] = [kind, "create", "cluster", "--name=lab", "--config", tmp_path / "cluster.yaml"]
    command += ["--kubeconfig", tmp_path / "kubeconfig"]
    environment = {**os.environ, "PATH": f"{tmp_path}:/usr/bin:/bin", "KIND_EXPERIMENTAL_PROVIDER": "docker"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=PROJECT, env=environment, timeout=60
    )
    assert done.returncode != 0
    assert 'Creating cluster "lab"' in done.stderr
    assert "no engine here" in done.stderr
