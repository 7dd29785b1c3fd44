"""Programs and packages from Debian's archive, fetched into the cache folder once. Nothing is installed."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from testbed.binaries import cache_folder

_FETCH_SECONDS = 300


class ProgramMissing(Exception):
    """The program is missing and cannot be fetched; the message is one line."""


def find_package(package: str, *more: str) -> Path:
    """Returns the folder in which `package` is unpacked, together with `more`, the packages that it needs.

    Raises:
        ProgramMissing: it is missing and cannot be fetched.
    """
    cache = cache_folder()
    if not (cache / package).exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            folder = Path(scratch)
            _download(folder, [package, *more])
            for archive in folder.glob("*.deb"):
                subprocess.run(["dpkg", "-x", archive, folder / "unpacked"], check=True, capture_output=True)
            if not (cache / package).exists():  # if another process does the same, the first to finish wins
                (folder / "unpacked").rename(cache / package)
    return cache / package


def with_libraries(program: Path) -> list[str]:
    """Returns the command that runs a program of `find_package` with the libraries that were unpacked beside it."""
    libraries = sorted({str(path.parent) for path in program.parents[2].glob("usr/lib/**/*.so*")})
    return ["/usr/bin/env", f"LD_LIBRARY_PATH={':'.join(libraries)}", str(program)]


def fetch_archives(architecture: str, packages: Sequence[str]) -> dict[str, Path]:
    """Returns the `.deb` of each package, for any architecture.

    Raises:
        ProgramMissing: one cannot be fetched.
    """
    folder = cache_folder() / "debian" / architecture
    if missing := [package for package in packages if not list(folder.glob(f"{package}_*.deb"))]:
        _download(folder, missing, architecture)
    return {package: min(folder.glob(f"{package}_*.deb")) for package in packages}


def files_of(archive: Path) -> bytes:
    """Returns the tar archive of a package's files."""
    return subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], check=True, capture_output=True).stdout


def _download(folder: Path, packages: Sequence[str], architecture: str = "") -> None:
    """Downloads the packages into `folder`, by lists of its own, which need no root.

    Packages for this machine come by the machine's lists where it has them. Raises ProgramMissing.
    """
    if not (shutil.which("apt-get") and shutil.which("dpkg")):
        raise ProgramMissing(f"{packages[0]} is not in {cache_folder()}, and there is no apt-get to fetch it with")
    for name in ("state/lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    options = ["-o", f"Dir::State::lists={folder / 'state/lists'}", "-o", f"Dir::Cache={folder / 'cache'}"]
    if architecture:
        options += ["-o", f"Dir::State::status={os.devnull}", "-o", f"APT::Architecture={architecture}"]
        options += ["-o", f"APT::Architectures::={architecture}"]
    try:
        if not architecture and _apt_get(folder, "download", *packages).returncode == 0:
            return
        for command in (["update"], ["download", *packages]):
            _apt_get(folder, *options, *command).check_returncode()
    except (OSError, subprocess.SubprocessError) as exc:
        raise ProgramMissing(f"{packages[0]} is not in {cache_folder()} and cannot be fetched: {exc}") from exc


def _apt_get(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    return subprocess.run(["apt-get", *arguments], cwd=folder, check=False, capture_output=True, timeout=_FETCH_SECONDS)
