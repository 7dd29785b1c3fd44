"""The template for GitLab, its own lines run by this machine's shell, buildah and a real registry.

What GitLab gives are variables of the environment. The Dockerfile has no step to run, so that no processor is emulated.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from string import Template
from typing import Any

import msgspec
import pytest
import yaml

from testbed.debian_package import ProgramMissing
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.image_builder import Image, ImageBuilder
from tools.release.pythons import PROJECT

TEMPLATE = PROJECT / "deploy" / "pipelines" / "gitlab-ci.yml"
SECONDS = 300
COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Runner:
    def __init__(self, folder: Path, host: str, gate: str) -> None:
        """`gate` is our image in the registry at `host`, by its digest."""
        self.host = host
        self._gate = gate
        self._folder = folder
        self._template: dict[str, Any] = yaml.safe_load(TEMPLATE.read_text())
        (folder / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /\n")
        (folder / "registries.conf").write_text(f'[[registry]]\nlocation = "{host}"\ninsecure = true\n')
        (folder / "storage.conf").write_text(
            f'[storage]\ndriver = "vfs"\ngraphroot = "{folder}/storage"\nrunroot = "{folder}/run"\n'
        )
        self._environment = {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder),
            "CONTAINERS_REGISTRIES_CONF": str(folder / "registries.conf"),
            "CONTAINERS_STORAGE_CONF": str(folder / "storage.conf"),
            "CI_REGISTRY": host,
            "CI_REGISTRY_USER": "nobody",
            "CI_REGISTRY_PASSWORD": "asked",
            "CI_REGISTRY_IMAGE": f"{host}/team/app",
            "CI_COMMIT_SHA": COMMIT,
            "CI_COMMIT_REF_SLUG": "main",
        }

    def commit(self, name: str) -> None:
        self._environment["CI_COMMIT_SHA"] = name

    def matrix(self) -> Sequence[Mapping[str, str]]:
        found: Sequence[Mapping[str, str]] = self._template["build"]["parallel"]["matrix"]
        return found

    def run(self, job: str, variables: Mapping[str, str] | None = None) -> "subprocess.CompletedProcess[str]":
        """Runs the lines of the job's script as GitLab does: in one shell that stops at the first failure."""
        lines = self._template[job]["script"]
        plain = ["registry.plain_http", "registry.allow"]
        settings = " ".join(f"--set {name}=\"['{self.host}']\"" for name in plain)
        script = "\n".join(lines).replace("extender inspect ", f"extender inspect {settings} ")
        for verb in ("add", "push"):  # which do not read registries.conf
            script = script.replace(f"manifest {verb} ", f"manifest {verb} --tls-verify=false ")
        own = {
            name: Template(value).substitute(self._environment) for name, value in self._template["variables"].items()
        }
        environment = {**self._environment, **own, "GATE": self._gate, **(variables or {})}
        command = ["bash", "-eu", "-o", "pipefail", "-c", script]
        return subprocess.run(
            command, cwd=self._folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
        )


@pytest.fixture
def runner(tmp_path: Path, builder: ImageBuilder, image: Image) -> Iterator[Runner]:
    """A runner beside a real registry without logins, which has our image."""
    try:
        registry = find_docker_registry()
    except ProgramMissing as exc:
        pytest.skip(str(exc))
    (tmp_path / "registry").mkdir()
    (tmp_path / "checkout").mkdir()
    with DebianRegistry(registry, tmp_path / "registry") as running:
        digest = builder.push("first", f"{running.host}/multiarch-extender:1")
        yield Runner(tmp_path / "checkout", running.host, f"{running.host}/multiarch-extender@{digest}")
    shutil.rmtree(tmp_path / "checkout" / "storage", ignore_errors=True)


def test_builds_become_one_index_that_gets_its_name_where_it_passes_the_gate(runner: Runner) -> None:
    """Line by line: the build for arm/v7 makes an image for arm64 by mistake, which the gate notices; then a right one.

    `inspect` finds the three platforms under the branch's name.
    """
    for variables in runner.matrix():
        wrong = {**variables, "PLATFORM": "linux/arm64"} if variables["NAME"] == "armv7" else variables
        succeed(runner.run("build", wrong))
    succeed(runner.run("index"))
    done = runner.run("gate")
    assert done.returncode == 1
    assert "linux/arm/v7" in done.stdout + done.stderr
    runner.commit("fedcba9876543210fedcba9876543210fedcba98")
    for variables in runner.matrix():
        succeed(runner.run("build", variables))
    for job in ("index", "gate", "release"):
        succeed(runner.run(job))
    command = [sys.executable, "-m", "extender", "inspect", "-o", "json", f"{runner.host}/team/app:main"]
    command += [f"--set=registry.{name}=['{runner.host}']" for name in ("plain_http", "allow")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (found,) = msgspec.json.decode(done.stdout)
    assert found["kind"] == "index"
    assert {each["platform"] for each in found["platforms"]} == {"linux/amd64", "linux/arm64", "linux/arm/v7"}


def succeed(done: "subprocess.CompletedProcess[str]") -> None:
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
