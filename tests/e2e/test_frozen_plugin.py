"""kubectl's plugin as a program without Python: made as the release makes it, and used on a real API server."""

import asyncio
import os
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
import yaml

import extender
from extender.cli.main import commands
from testbed.api_client import ApiClient
from testbed.control_plane import LocalCluster
from testbed.embedded_registry import EmbeddedRegistry
from testbed.objects import fake_node, pod
from tools.release.frozen_plugin import archive_name
from tools.release.pythons import PROJECT
from tools.release.release_files import krew_manifest

pytestmark = [pytest.mark.e2e, pytest.mark.slow]  # its build takes minutes

BUILD_SECONDS = 900
SECONDS = 60.0
NO_PYTHON = {"PATH": "/usr/bin:/bin", "HOME": "/proc/self/nonexistent", "NO_COLOR": "1"}


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The archive for this machine, made by the command of the pipeline; its size is printed."""
    folder = tmp_path_factory.mktemp("release")
    command = [sys.executable, "-m", "tools.release.frozen_plugin", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=BUILD_SECONDS, cwd=PROJECT)
    assert done.returncode == 0, done.stderr
    print(f"\nplugin: {done.stdout.strip()}")
    return folder / archive_name()


@pytest.fixture(scope="module")
def plugin(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program, put where krew's manifest says by its own rules for `files`."""
    unpacked, installed = tmp_path_factory.mktemp("unpacked"), tmp_path_factory.mktemp("installed")
    with tarfile.open(archive) as packed:
        packed.extractall(unpacked, filter="data")
    (only,) = yaml.safe_load(krew_manifest({archive.name: archive.read_bytes()}))["spec"]["platforms"]
    for operation in only["files"]:
        for path in unpacked.glob(operation["from"]):
            path.rename(installed / operation["to"] / path.name)
    assert (installed / "LICENSE").read_text() == (PROJECT / "LICENSE").read_text()
    found: Path = installed / only["bin"]
    return found


@pytest.fixture
async def registry() -> AsyncIterator[EmbeddedRegistry]:
    async with EmbeddedRegistry() as running:
        running.add_manifest("team/old", "1", "linux/amd64")
        yield running


async def run(plugin: Path, registry: EmbeddedRegistry, *arguments: str) -> tuple[int, str, str]:
    """Runs the program without any of this checkout's Python; returns its exit code, output and errors."""
    settings = [f"--set=registry.{name}=['{registry.host}']" for name in ("plain_http", "allow")]
    process = await asyncio.create_subprocess_exec(
        plugin, *arguments, *settings, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, env=NO_PYTHON
    )
    output, errors = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode or 0, output.decode(), errors.decode()


@pytest.mark.parametrize("command", commands())
def test_every_command_is_in_the_program(plugin: Path, command: str) -> None:
    """With all that it imports."""
    done = subprocess.run([plugin, command, "--help"], capture_output=True, text=True, check=False, env=NO_PYTHON)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Usage: " in done.stdout


def test_the_program_says_its_version_and_nothing_of_the_checkout_is_in_it(plugin: Path) -> None:
    """Nor of the developers' packages."""
    done = subprocess.run([plugin, "--version"], capture_output=True, text=True, check=True, env=NO_PYTHON)
    assert done.stdout.split()[-1] == extender.__version__
    names = {path.name for path in plugin.parent.rglob("*")}
    assert not {"matplotlib", "numpy", "pytest", "hypothesis", "PIL", "mypy"} & names


async def test_images_are_inspected(plugin: Path, registry: EmbeddedRegistry) -> None:
    """The gate for pipelines: exit code 1 for an image that lacks a platform."""
    image = f"{registry.host}/team/old:1"
    code, output, _ = await run(plugin, registry, "inspect", "-o", "json", "--require", "linux/amd64", image)
    assert (code, msgspec.json.decode(output)[0]["platforms"][0]["platform"]) == (0, "linux/amd64")
    code, _, errors = await run(plugin, registry, "inspect", "--require", "linux/arm64", image)
    assert code == 1
    assert "linux/arm64" in errors


async def test_a_cluster_is_audited(
    plugin: Path, registry: EmbeddedRegistry, api: ApiClient, control_plane: LocalCluster
) -> None:
    """By a kubeconfig, as a page: the libraries for both are loaded late, by name."""
    await api.create_all([fake_node("amd64", "amd64"), fake_node("arm64", "arm64")])
    await api.create(pod("old", f"{registry.host}/team/old:1"))
    arguments = ["audit", "-n", "default", "--kubeconfig", os.fspath(control_plane.kubeconfig), "-o", "html"]
    code, output, errors = await run(plugin, registry, *arguments, "--require", "linux/arm64")
    assert code == 1, errors
    assert f"{registry.host}/team/old:1" in output
