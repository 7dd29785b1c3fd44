"""Makes the files of a release that name other files of it.

`python -m tools.release.release_files chart IMAGE@DIGEST FOLDER` packages the chart with that image as its default, and
prints the archive's path; `… krew FOLDER` writes krew's manifest of the archives in FOLDER.
"""

import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

import yaml

import extender
from testbed.chart import CHART
from tools.release.pythons import PROJECT

KREW_TEMPLATE = PROJECT / "deploy" / "krew" / "multiarch.yaml"
_IMAGE = re.compile(r"(?P<repository>[^/@]+/[^@]+)@(?P<digest>sha256:[0-9a-f]{64})")
_DEFAULTS = (("repository", '""'), ("digest", '""'))
"""Values of `image` in the chart, which has nothing to run until a release says where it is."""


class ReleaseRefused(RuntimeError):
    """A file cannot be made; the message says why."""


def with_image(values: str, image: str) -> str:
    """Returns the chart's values with the image, by its digest, as their default; comments stay.

    Raises ReleaseRefused for an image without a digest.
    """
    found = _IMAGE.fullmatch(image)
    if found is None:
        raise ReleaseRefused(f"{image} is not REGISTRY/NAME@sha256:…")
    before, mark, section = values.partition("\nimage:\n")
    for key, default in _DEFAULTS:
        section, count = re.subn(
            rf"^  {key}: {re.escape(default)}$", f"  {key}: {found[key]}", section, count=1, flags=re.MULTILINE
        )
        if not count:
            raise ReleaseRefused(f"image.{key} of the chart is not {default} any more")
    return before + mark + section


def package_chart(image: str, folder: Path, helm: str = "helm") -> Path:
    """Packages the chart, whose default image is that one; returns the archive.

    Raises ReleaseRefused for an image without a digest or a chart of another version.
    """
    described = yaml.safe_load((CHART / "Chart.yaml").read_text())
    if {described["version"], described["appVersion"]} != {extender.__version__}:
        raise ReleaseRefused(f"the chart is not of version {extender.__version__}")
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / CHART.name
        shutil.copytree(CHART, copy)
        (copy / "values.yaml").write_text(with_image((copy / "values.yaml").read_text(), image))
        command = [helm, "package", str(copy), "--destination", str(folder)]
        subprocess.run(command, check=True, stdout=sys.stderr, timeout=60)
    return folder / f"{CHART.name}-{extender.__version__}.tgz"


def krew_manifest(archives: Mapping[str, bytes]) -> str:
    """Returns krew's manifest of the archives, by name; platforms without one are left out.

    Raises ReleaseRefused if there is none at all.
    """
    manifest = yaml.safe_load(KREW_TEMPLATE.read_text().replace("VERSION", extender.__version__))
    platforms = []
    for each in manifest["spec"]["platforms"]:
        name = each["uri"].rpartition("/")[2]
        if name in archives:
            platforms.append({**each, "files": list(each["files"]), "sha256": sha256(archives[name]).hexdigest()})
    if not platforms:
        raise ReleaseRefused("there is no archive of the plugin")
    manifest["spec"]["platforms"] = platforms
    written: str = yaml.dump(manifest, Dumper=_PlainDumper, sort_keys=False, width=1000)
    return written


class _PlainDumper(yaml.SafeDumper):
    """Writes no anchors, and texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002 -- the base class names it
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_PlainDumper.add_representer(str, _represent_text)


def make_chart(arguments: Sequence[str]) -> None:
    """Packages the chart, and prints where it is."""
    image, folder = arguments
    print(package_chart(image, Path(folder)))


def make_krew(arguments: Sequence[str]) -> None:
    """Writes `multiarch.yaml` beside the archives."""
    (folder,) = map(Path, arguments)
    archives = {path.name: path.read_bytes() for path in sorted(folder.glob("kubectl-multiarch-*.tar.gz"))}
    (folder / "multiarch.yaml").write_text(krew_manifest(archives))


MAKERS: Mapping[str, Callable[[Sequence[str]], None]] = {"chart": make_chart, "krew": make_krew}


def main(arguments: Sequence[str]) -> int:
    """Makes the file that the first argument names; returns the exit code."""
    try:
        MAKERS[arguments[0]](arguments[1:])
    except ReleaseRefused as exc:
        print(f"release: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
