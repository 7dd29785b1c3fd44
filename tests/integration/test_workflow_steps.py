"""The lines of workflows and templates that run our program, Helm or a make target, run with the arguments they have.

GitHub's values are given; docker, cosign, gh and a registry's write side are replaced by what prints its arguments, and
make is asked what it would do.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

import extender
from testbed import docker_for_one_image
from testbed.binaries import HELM, KIND, find_built
from testbed.debian_registry import DebianRegistry
from testbed.images import build_index
from testbed.network_namespace import NamespaceMissing, own_network
from testbed.workflow import Step, steps_of
from tools.release.pythons import PROJECT

TEMPLATE = PROJECT / "deploy" / "pipelines" / "github-workflow.yml"
WORKFLOWS = (*sorted((PROJECT / ".github" / "workflows").glob("*.yml")), TEMPLATE)
OURS = re.compile(r"\bmake |\.venv/bin/|\bhelm |\binspect\b|\bserve\b|^version=", re.MULTILINE)
STEPS = [step for path in WORKFLOWS for step in steps_of(path) if OURS.search(step.script)]
ELSEWHERE = {"release/plugin/.venv/bin/python -m tools.release.frozen_plugin dist": "tests/e2e/test_frozen_plugin.py"}
"""Steps that take minutes, and the test that runs them."""
PLATFORMS = ("linux/amd64", "linux/arm64", "linux/arm/v7")
COMMIT = "0123456789abcdef0123456789abcdef01234567"
SECONDS = 120.0
PRINTED = '#!/bin/sh\necho "$(basename "$0")" "$@"\n'


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the files that are kept, as a release has it: with this environment, what other jobs have made, and the
    version's section in its changelog.
    """
    folder = tmp_path_factory.mktemp("steps") / "checkout"
    folder.mkdir()
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=PROJECT, capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    for name in listed:
        if (PROJECT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(PROJECT / name, folder / name)
    (folder / ".venv/bin").mkdir(parents=True)
    (folder / ".venv/bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (folder / ".venv/bin/python").chmod(0o755)
    (folder / "dist").mkdir()
    (folder / "dist/kubectl-multiarch-linux-amd64.tar.gz").write_bytes(b"archive")
    changelog = folder / "CHANGELOG.md"
    changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {extender.__version__}", 1))
    return folder


@pytest.fixture
def registry(registry_program: Path, tmp_path: Path) -> Iterator[DebianRegistry]:
    """A real registry in a network namespace of this test's, where nobody else listens at our usual ports."""
    try:
        with own_network(), DebianRegistry(registry_program, tmp_path) as running:
            yield running
    except NamespaceMissing as exc:
        pytest.skip(str(exc))


def stand_ins(folder: Path, image: str) -> Path:
    """A folder of programs: those that only GitHub has print what they are given."""
    folder.mkdir()
    scripts = {
        **dict.fromkeys(("cosign", "gh", "kubectl"), PRINTED),
        "docker": f'#!/bin/sh\nexec {sys.executable} -I {docker_for_one_image.__file__} {image} "$@"\n',
        "make": f'#!/bin/sh\nexec {shutil.which("make")} --dry-run "$@"\n',
        "helm": f'#!/bin/sh\n[ "$1" = push ] && echo Digest: sha256:0 || exec {find_built(HELM)}/helm "$@"\n',
    }
    for name, script in scripts.items():
        (folder / name).write_text(script)
        (folder / name).chmod(0o755)
    return folder


def values_of(image: str, digest: str) -> Mapping[str, str]:
    return {
        "github.repository": image.partition("/")[2],
        "github.repository_owner": "owner",
        "github.token": "token",
        "matrix.kubernetes": "1.34",
        "needs.image.outputs.digest": digest,
        "needs.version.outputs.epoch": "1600000000",
        "needs.version.outputs.version": extender.__version__,
    }


@pytest.mark.parametrize("step", [step for step in STEPS if str(step) not in ELSEWHERE], ids=str)
def test_a_step_runs_with_the_arguments_that_it_has(
    step: Step, checkout: Path, registry: DebianRegistry, tmp_path: Path
) -> None:
    if "helm" in step.script and not (find_built(HELM) / "helm").exists():
        pytest.skip("helm is not built: python -m testbed.binaries --only helm kind")
    if "binaries" in step.script and not find_built(KIND).exists():
        pytest.skip("kind is not built: python -m testbed.binaries --only helm kind")
    image = f"{registry.host}/owner/multiarch-extender"
    digest = registry.push("owner/multiarch-extender", f"commit-{COMMIT}", build_index(PLATFORMS))
    is_template = step.workflow == TEMPLATE
    run_image = f"{image}@{digest}"
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    (home / ".docker/config.json").write_text("{}")
    environment = {
        "PATH": f"{stand_ins(tmp_path / 'bin', run_image)}:{os.environ['PATH']}",
        "HOME": str(home),
        "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache"),
        "GITHUB_OUTPUT": str(tmp_path / "output"),
        "GITHUB_PATH": str(tmp_path / "path"),
        "GITHUB_REF_NAME": f"v{extender.__version__}",
        "GITHUB_SHA": COMMIT,
        "RUNNER_TEMP": str(tmp_path),
        "IMAGE": image,
        "CHARTS": f"{registry.host}/owner/charts",
        **({"GATE": run_image} if is_template else {}),
    }
    done = step.run(checkout, values_of(image, digest), environment, seconds=SECONDS)
    assert done.returncode == 0, done.stdout + done.stderr


def test_steps_that_are_run_elsewhere_exist() -> None:
    assert set(ELSEWHERE) <= {str(step) for step in STEPS}
    for name in ELSEWHERE.values():
        assert (PROJECT / name).exists()


def test_no_template_and_no_page_installs_a_name_that_is_not_ours() -> None:
    """What is on no index yet may be registered there by anybody."""
    pages = [*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md"), *PROJECT.glob("deploy/**/*"), *WORKFLOWS]
    for path in pages:
        if path.is_file() and path.suffix in {".md", ".yml", ".yaml", ".sh", ".txt"}:
            assert not re.search(r"(install|--spec|tool run|uvx)\s[^\n]*multiarch-extender\s*==", path.read_text()), (
                path
            )
