"""The files of a release that name other files of it, as helm and krew judge them.

`python -m testbed.binaries --only helm krew` builds them; the tests that need one are skipped without.
"""

import re
import subprocess
import tarfile
from hashlib import sha256
from pathlib import Path

import pytest
import yaml

import extender
from testbed.binaries import HELM, KREW, GoModule, find_built
from testbed.chart import CHART
from tools.release.pythons import PROJECT
from tools.release.release_files import KREW_TEMPLATE, ReleaseRefused, krew_manifest, package_chart, with_image

IMAGE = f"ghcr.io/example/multiarch-extender@sha256:{'ab' * 32}"


def program(module: GoModule, name: str) -> Path:
    path = find_built(module) / name
    if not path.exists():
        pytest.skip(f"{name} is not built: python -m testbed.binaries --only helm krew")
    return path


# --- the chart of a release


def test_the_released_chart_names_the_image_by_its_digest(tmp_path: Path) -> None:
    """Packaged by helm, its templates render with the release's image and with no value given."""
    helm = program(HELM, "helm")
    archive = package_chart(IMAGE, tmp_path, str(helm))
    with tarfile.open(archive) as packed:
        assert f"{CHART.name}/values.schema.json" in packed.getnames()
    given = ("--set", "modes.webhook.enabled=true", "--api-versions", "v1", "--kube-version", "1.36.0")
    done = subprocess.run([helm, "template", "release", archive, *given], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(re.findall(r"image: \"?([^\"\s]+)", done.stdout)) == {IMAGE}


def test_only_the_image_of_the_chart_changes() -> None:
    """Comments, the other values and kube-scheduler's image stay."""
    values = (CHART / "values.yaml").read_text()
    changed = with_image(values, IMAGE)
    differing = [new for old, new in zip(values.splitlines(), changed.splitlines(), strict=True) if old != new]
    assert differing == ["  repository: ghcr.io/example/multiarch-extender", f"  digest: sha256:{'ab' * 32}"]


@pytest.mark.parametrize("image", ["ghcr.io/example/app:1", "app@sha256:abc", "app", f"app@sha256:{'ab' * 32}"])
def test_an_image_that_could_move_is_no_image_of_a_release(image: str) -> None:
    """A tag, a digest that is cut off, or no registry."""
    with pytest.raises(ReleaseRefused, match=r"is not REGISTRY/NAME@sha256:"):
        with_image((CHART / "values.yaml").read_text(), image)


# --- krew


ARCHIVES = {
    f"kubectl-multiarch-{platform}.tar.gz": platform.encode()
    for platform in ("linux-amd64", "linux-arm64", "darwin-arm64")
}


def test_krew_accepts_the_manifest(tmp_path: Path) -> None:
    """Its name, version, texts, platforms, sums and what is copied, as krew's index checks them before the download."""
    path = tmp_path / "multiarch.yaml"
    path.write_text(krew_manifest(ARCHIVES))
    command: list[str | Path] = [program(KREW, "validate-krew-manifest"), "-manifest", path, "-skip-install"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_manifest_has_the_sums_of_the_archives_that_there_are() -> None:
    """Platforms without an archive are left out; the address and the version are the release's."""
    (only,) = yaml.safe_load(krew_manifest({"kubectl-multiarch-linux-arm64.tar.gz": b"arm"}))["spec"]["platforms"]
    assert only["selector"] == {"matchLabels": {"os": "linux", "arch": "arm64"}}
    assert only["sha256"] == sha256(b"arm").hexdigest()
    assert only["uri"].endswith(f"/v{extender.__version__}/kubectl-multiarch-linux-arm64.tar.gz")
    with pytest.raises(ReleaseRefused, match="no archive"):
        krew_manifest({})


def test_the_template_has_the_platforms_that_the_pipeline_builds() -> None:
    """One archive for each of the matrix."""
    release = yaml.safe_load((PROJECT / ".github/workflows/release.yml").read_text())
    built = {each["platform"] for each in release["jobs"]["plugin"]["strategy"]["matrix"]["include"]}
    uris = [each["uri"] for each in yaml.safe_load(KREW_TEMPLATE.read_text())["spec"]["platforms"]]
    assert {uri.rpartition("kubectl-multiarch-")[2].removesuffix(".tar.gz") for uri in uris} == built
