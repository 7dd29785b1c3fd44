"""Programs from Debian's archive, unpacked into the cache folder once. Nothing is installed."""

import shutil
import subprocess
import tempfile
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
        if not (shutil.which("apt-get") and shutil.which("dpkg")):
            raise ProgramMissing(f"{package} is not in {cache}, and there is no apt-get to fetch it with")
        cache.mkdir(parents=True, exist_ok=True)
        _fetch(cache, package, more)
    return cache / package


def with_libraries(program: Path) -> list[str]:
    """Returns the command that runs a program of `find_package` with the libraries that were unpacked beside it."""
    libraries = sorted({str(path.parent) for path in program.parents[2].glob("usr/lib/**/*.so*")})
    return ["/usr/bin/env", f"LD_LIBRARY_PATH={':'.join(libraries)}", str(program)]


def _fetch(cache: Path, package: str, more: tuple[str, ...]) -> None:
    """Unpacks Debian's packages into `cache`. If another process does the same, the first to finish wins."""
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        folder = Path(scratch)
        try:
            _download(folder, [package, *more])
            for archive in folder.glob("*.deb"):
                _run(["dpkg", "-x", str(archive), str(folder / "unpacked")], folder)
        except (OSError, subprocess.SubprocessError) as exc:
            raise ProgramMissing(f"{package} is not in {cache} and cannot be fetched: {exc}") from exc
        if not (cache / package).exists():
            (folder / "unpacked").rename(cache / package)


def _download(folder: Path, packages: list[str]) -> None:
    """Downloads the packages into `folder` by this machine's package lists, else by fresh lists, which need no root."""
    try:
        _run(["apt-get", "download", *packages], folder)
    except subprocess.CalledProcessError:
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        private = ["-o", f"Dir::State::lists={folder}/lists", "-o", f"Dir::Cache={folder}/cache"]
        _run(["apt-get", *private, "update"], folder)
        _run(["apt-get", *private, "download", *packages], folder)


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=_FETCH_SECONDS)
