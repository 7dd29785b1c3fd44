"""A release from its first line to pods that run it: by the lines of release.yml, on this machine.

What only GitHub has is replaced: its actions by buildah, and its identity by a key of the test's. Everything goes to a
real registry, and is verified and installed from there as docs/how-to/verify-a-release.md says.
"""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

import extender
from testbed import docker_for_one_image
from testbed.binaries import COSIGN, BinariesMissing, build
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.eventually import eventually
from testbed.image_builder import ImageBuilder
from testbed.images import build_index
from testbed.objects import kept_to, pod
from testbed.workflow import steps_of
from tests.e2e.node_installation import InstallationPrograms, is_ready, open_node_installation
from tests.e2e.policies import dry_run
from tools.docs.pages import blocks, page
from tools.release.pythons import PROJECT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1_800)]

RELEASE = PROJECT / ".github" / "workflows" / "release.yml"
VERSION = extender.__version__
SECONDS = 300.0
ARCHITECTURES = ("amd64", "arm64")


class Rehearsal:
    """One release: a checkout, a registry, the programs of a runner, and what was typed."""

    def __init__(self, folder: Path, host: str, helm: Path, cosign: Path) -> None:
        self.folder = folder
        self.checkout = folder / "checkout"
        self.image = f"{host}/multiarch-extender/multiarch-extender"
        self.charts = f"{host}/multiarch-extender/charts"
        self.digest = ""
        self._programs = folder / "bin"
        self._programs.mkdir()
        (folder / ".docker").mkdir()
        (folder / ".docker/config.json").write_text("{}")
        self._helm, self._cosign = helm, cosign
        self._key = folder / "cosign"
        subprocess.run(["git", "clone", "--quiet", PROJECT, self.checkout], check=True, timeout=SECONDS)
        changelog = self.checkout / "CHANGELOG.md"
        changelog.write_text(changelog.read_text().replace("## Unreleased", f"## {VERSION}", 1))
        (self.checkout / ".venv").symlink_to(PROJECT / ".venv")
        self._write_programs()

    @property
    def reference(self) -> str:
        return f"{self.image}@{self.digest}"

    def run_step(self, job: str, part: str) -> str:
        """Runs the job's step in which `part` stands, which must succeed; returns its output."""
        [step] = [each for each in steps_of(RELEASE) if each.job == job and part in each.script]
        values = {
            "github.repository": "multiarch-extender/multiarch-extender",
            "github.repository_owner": "multiarch-extender",
            "github.token": "none",
            "needs.image.outputs.digest": self.digest,
            "needs.version.outputs.epoch": "1600000000",
            "needs.version.outputs.version": VERSION,
            "steps.build.outputs.digest": self.digest,
        }
        print(f"\n# {job}\n{step.script.rstrip()}")
        return self._succeed(step.run(self.checkout, values, self.environment(), seconds=SECONDS))

    def type(self, script: str, **more: str) -> str:
        """Runs lines in a shell as a reader of a page does; returns the output."""
        print(f"\n{script.rstrip()}")
        command = ["bash", "-e", "-o", "pipefail", "-c", script]
        environment = {**self.environment(), **more}
        return self._succeed(
            subprocess.run(
                command, cwd=self.folder, env=environment, capture_output=True, text=True, check=False, timeout=SECONDS
            )
        )

    def environment(self) -> Mapping[str, str]:
        return {
            "PATH": f"{self._programs}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "COSIGN_PASSWORD": "",
            "IMAGE": self.image,
            "CHARTS": self.charts,
            "GITHUB_OUTPUT": str(self.folder / "output"),
            "GITHUB_REF_NAME": f"v{VERSION}",
            "RUNNER_TEMP": str(self.folder),
        }

    def make_key(self) -> None:
        """A key pair, and the settings by which cosign asks nobody else."""
        for command in (
            ["generate-key-pair", f"--output-key-prefix={self._key}"],
            ["signing-config", "create", f"--out={self._key}.config"],
            ["trusted-root", "create", f"--out={self._key}.root"],
        ):
            self._succeed(
                subprocess.run(
                    [self._cosign, *command], cwd=self.folder, env=self.environment(), capture_output=True, text=True,
                    check=False, timeout=SECONDS,
                )
            )  # fmt: skip

    def _succeed(self, done: "subprocess.CompletedProcess[str]") -> str:
        print(done.stdout.rstrip()[-2_000:])
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _write_programs(self) -> None:
        own = f"--key={self._key}.key --signing-config={self._key}.config --trusted-root={self._key}.root"
        others = f"--key={self._key}.pub --insecure-ignore-tlog=true"
        docker = f"{sys.executable} -I {docker_for_one_image.__file__}"
        scripts = {
            "docker": f'exec env PYTHONPATH={PROJECT} {docker} "$IMAGE@$DIGEST" "$@"',
            "gh": 'echo gh "$@"',
            "helm": f'[ "$1" = push ] && set -- "$@" --plain-http\nexec {self._helm} "$@"',
            "multiarch-extender": f'exec {sys.executable} -m extender "$@"',
            # Whoever signs has a key; of those who verify, the name of the workflow stands for it.
            "cosign": f'c=$1; shift; case $c in sign|attest) exec {self._cosign} $c {own} "$@";; esac\n'
            'for word; do shift; case $word in --certificate-*) ;; *) set -- "$@" "$word";; esac; done\n'
            f'exec {self._cosign} $c {others} "$@"',
        }
        for name, script in scripts.items():
            (self._programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (self._programs / name).chmod(0o755)


@pytest.fixture
def rehearsal(tmp_path: Path, helm_program: Path) -> Iterator[tuple[Rehearsal, DebianRegistry]]:
    try:
        cosign = build(COSIGN) / "cosign"
    except BinariesMissing as exc:
        pytest.skip(str(exc))
    (tmp_path / "registry").mkdir()
    with DebianRegistry(find_docker_registry(), tmp_path / "registry") as registry:
        rehearsed = Rehearsal(tmp_path, registry.host, helm_program, cosign)
        rehearsed.make_key()
        yield rehearsed, registry


async def test_a_release_is_made_signed_verified_and_installed(
    rehearsal: tuple[Rehearsal, DebianRegistry],
    builder: ImageBuilder,
    installation_programs: InstallationPrograms,
    tmp_path: Path,
) -> None:
    release, registry = rehearsal
    release.run_step("version", "version=")
    release.run_step("wheel", "flit_core.wheel")
    release.run_step("wheel", "build_sdist")
    release.type("cd checkout && .venv/bin/python -m tools.release.bill_of_materials dist/sbom.cdx.json")  # `make sbom`
    made = {each.name for each in (release.checkout / "dist").iterdir()}
    assert made == {
        f"multiarch_extender-{VERSION}-py3-none-any.whl",
        f"multiarch_extender-{VERSION}.tar.gz",
        "sbom.cdx.json",
    }

    # In place of docker/build-push-action: both architectures by buildah, and their index by its digest.
    for architecture in ARCHITECTURES:
        builder.build(release.checkout, f"release-{architecture}", arm64=architecture == "arm64")
    names = [f"release-{architecture}" for architecture in ARCHITECTURES]
    release.digest = builder.push_index(names, f"{release.image}:build")
    print(f"\n# image\nthe index of {' and '.join(ARCHITECTURES)}: {release.reference}")
    release.run_step("image", "cosign sign")
    # In place of actions/attest-build-provenance.
    (tmp_path / "provenance.json").write_bytes(msgspec.json.encode(provenance(release)))
    release.type(
        'cosign attest --yes --type slsaprovenance1 --predicate provenance.json "$IMAGE@$DIGEST"', DIGEST=release.digest
    )
    release.run_step("gate", "docker run")
    chart = release.run_step("chart", "release_files chart")
    [chart_digest] = [line.split()[1] for line in chart.splitlines() if line.startswith("Digest: ")]
    release.run_step("publish", "tools.release.notes")

    [typed] = blocks(page("how-to/verify-a-release.md"), "sh")
    verify, _, install = typed.partition("helm install ")
    verified = release.type(
        verify, VERSION=VERSION, IMAGE=release.reference, CHART=f"{release.charts}/multiarch-extender@{chart_digest}"
    )
    assert "linux/arm64" in verified
    other = registry.push("multiarch-extender/multiarch-extender", "other", build_index(["linux/amd64"]))
    with pytest.raises(AssertionError, match="no signatures found"):
        release.type('cosign verify --certificate-identity=any "$IMAGE"', IMAGE=f"{release.image}@{other}")

    chart_name = f"{release.charts}/multiarch-extender"
    installed = shlex.split(
        install.replace("\\\n", " ").replace("${CHART%@*}", chart_name).replace("$VERSION", VERSION)
    )
    async with open_node_installation(installation_programs, registry, tmp_path) as there:
        print(f"\nhelm install {' '.join(installed)}")
        values: dict[str, Any] = {"config": {"registry": {"plain_http": [there.host], "allow": [there.host]}}}
        await there.release.run("install", *installed, "--plain-http", "--wait", only=values)
        pods = await eventually(lambda: there.pods("webhook"), lambda found: [*map(is_ready, found)] == [True, True])
        for each in pods:
            [container] = each["status"]["containerStatuses"]
            assert container["imageID"].endswith(release.digest)
        amd = there.image("amd")
        await eventually(
            lambda: dry_run(there.api, pod("p", amd)),
            lambda found: kept_to(found["spec"], "kubernetes.io/arch") == ["amd64"],
        )
        print(f"\ninstalled from oci://{release.charts}: a kubelet runs {release.reference}, and reviews are answered")


def provenance(release: Rehearsal) -> dict[str, Any]:
    """How it was built (SLSA provenance 1.0)."""
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=PROJECT, capture_output=True, text=True, check=True
    ).stdout.strip()
    source = {"uri": "git+https://github.com/multiarch-extender/multiarch-extender", "digest": {"gitCommit": commit}}
    return {
        "buildDefinition": {
            "buildType": "https://github.com/multiarch-extender/multiarch-extender/rehearsal",
            "externalParameters": {"workflow": RELEASE.name},
            "resolvedDependencies": [source],
        },
        "runDetails": {"builder": {"id": "https://github.com/multiarch-extender/multiarch-extender/rehearsal"}},
    }
