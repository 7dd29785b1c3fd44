"""Fetches packages of Debian for any architecture, with lists of its own. Nothing on this machine is changed."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from testbed.binaries import cache_folder
from testbed.debian_package import ProgramMissing

_FETCH_SECONDS = 300


def fetch_archives(architecture: str, packages: Sequence[str]) -> dict[str, Path]:
    """Returns the `.deb` of each package, fetched once.

    Raises:
        ProgramMissing: one cannot be fetched.
    """
    folder = cache_folder() / "debian" / architecture
    missing = [package for package in packages if not _found(folder, package)]
    if missing:
        if not shutil.which("apt-get"):
            raise ProgramMissing("there is no apt-get to fetch packages with")
        try:
            _fetch(folder, architecture, missing)
        except (OSError, subprocess.SubprocessError) as exc:
            raise ProgramMissing(f"packages for {architecture} cannot be fetched: {exc}") from exc
    found = {package: _found(folder, package) for package in packages}
    if lacking := [package for package, path in found.items() if path is None]:
        raise ProgramMissing(f"Debian gave no {', '.join(lacking)} for {architecture}")
    return {package: path for package, path in found.items() if path}


def files_of(archive: Path) -> bytes:
    """Returns the tar archive of a package's files."""
    return subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], check=True, capture_output=True).stdout


def _found(folder: Path, package: str) -> Path | None:
    return next(iter(sorted(folder.glob(f"{package}_*.deb"))), None)


def _fetch(folder: Path, architecture: str, packages: Sequence[str]) -> None:
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    values = {
        "Dir::State": folder / "state",
        "Dir::State::status": os.devnull,
        "Dir::Cache": folder / "cache",
        "APT::Architecture": architecture,
        "APT::Architectures::": architecture,
    }
    options = [part for name, value in values.items() for part in ("-o", f"{name}={value}")]
    for command in (["update"], ["download", *packages]):
        subprocess.run(
            ["apt-get", *options, *command], cwd=folder, check=True, capture_output=True, timeout=_FETCH_SECONDS
        )
