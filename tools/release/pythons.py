"""Runs the unit and integration tests on each release of CPython: `python -m tools.release.pythons`.

`… oldest image 3.12` runs them on some: `oldest` is the release that pyproject.toml requires at least, `image` the one
that the Dockerfile builds on. An interpreter is found on the PATH, in the folders of pyenv and uv, or because PYTHONS
names it (paths, with colons between them). Each gets a virtual environment of its own beside `.venv`, with the same
packages pinned by hash.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

PROJECT = Path(__file__).parents[2]
_PROBE = "import ensurepip, ssl, sqlite3, sys, venv; print(sys.implementation.name, *sys.version_info[:4])"
_PROBE_SECONDS = 20
_PINS = ("requirements-dev.txt", "pyproject.toml")


class Release(NamedTuple):
    """A release such as 3.13, which may have many patches."""

    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}"


class Interpreter(NamedTuple):
    """An interpreter that can make virtual environments; `version` has major, minor and patch."""

    version: tuple[int, int, int]
    path: Path

    @property
    def release(self) -> Release:
        """Its release."""
        return Release(*self.version[:2])


class Outcome(NamedTuple):
    """What became of a release: pytest's last line, or why it did not run."""

    release: Release
    what: str
    ran: bool
    passed: bool


def release_of(text: str) -> Release:
    """The first release that `text` names. Raises ValueError if it names none."""
    found = re.search(r"(\d+)\.(\d+)", text)
    if found is None:
        raise ValueError(f"{text!r} names no release such as 3.13")
    return Release(int(found[1]), int(found[2]))


def oldest_release(project: Path = PROJECT) -> Release:
    """The release that the package requires at least."""
    return release_of(tomllib.loads((project / "pyproject.toml").read_text())["project"]["requires-python"])


def image_release(project: Path = PROJECT) -> Release:
    """The release of the Dockerfile's base image."""
    found = re.search(r"^FROM \S*python:(\S+) AS build$", (project / "Dockerfile").read_text(), re.MULTILINE)
    if found is None:
        raise ValueError("the Dockerfile is based on no image of Python")
    return release_of(found[1])


def find_interpreters(oldest: Release, environment: Mapping[str, str] = os.environ) -> dict[Release, Interpreter]:
    """The interpreters of this machine from `oldest` on: of each release the newest patch."""
    found: dict[Release, Interpreter] = {}
    for path in dict.fromkeys(_candidates(environment)):
        one = _probe(path)
        if one and one.release >= oldest and (one.release not in found or found[one.release].version < one.version):
            found[one.release] = one
    return dict(sorted(found.items()))


def _candidates(environment: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(path) for path in environment.get("PYTHONS", "").split(":") if path)
    home = Path(environment.get("HOME") or Path.home())
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    pyenv = Path(environment.get("PYENV_ROOT") or home / ".pyenv")
    folders = [Path(folder) for folder in environment.get("PATH", "").split(":") if folder]
    folders += [*pyenv.glob("versions/*/bin"), *(data / "uv" / "python").glob("*/bin")]
    for folder in folders:
        for path in sorted(folder.glob("python3.*")):
            if re.fullmatch(r"python3\.\d+", path.name):
                yield path


def _probe(path: Path) -> Interpreter | None:
    """The interpreter at `path`; None for one that cannot be used, such as a pyenv shim of a release not chosen."""
    try:
        done = subprocess.run(
            [path, "-I", "-c", _PROBE], capture_output=True, text=True, check=True, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.SubprocessError):
        return None
    found = re.fullmatch(r"cpython (\d+) (\d+) (\d+) final", done.stdout.strip())
    return Interpreter((int(found[1]), int(found[2]), int(found[3])), path) if found else None


def set_up(interpreter: Interpreter, project: Path = PROJECT) -> Path:
    """The Python of the release's virtual environment, made if it is missing or made from other pins."""
    folder = project / f".venv-{interpreter.release}"
    pins = [(project / name).read_bytes() for name in _PINS]
    stamp = hashlib.sha256(b"\0".join([*pins, repr(interpreter).encode()])).hexdigest()
    mark, python = folder / ".installed", folder / "bin" / "python"
    if not mark.is_file() or mark.read_text() != stamp:
        print(f"Setting up {folder.name} (once)", file=sys.stderr, flush=True)
        shutil.rmtree(folder, ignore_errors=True)
        pip: list[str | Path] = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([interpreter.path, "-m", "venv", folder], check=True)
        subprocess.run([*pip, "--require-hashes", "-r", project / "requirements-dev.txt"], check=True)
        subprocess.run([*pip, "--no-deps", "--no-build-isolation", "-e", project], check=True)
        mark.write_text(stamp)
    return python


def run_tests(interpreter: Interpreter, project: Path = PROJECT) -> Outcome:
    """Runs the tests, but for those marked slow, and passes their output on."""
    release, version = interpreter.release, ".".join(map(str, interpreter.version))
    print(f"\nCPython {version} ({interpreter.path})", flush=True)
    try:
        python = sys.executable if sys.version_info[:3] == interpreter.version else set_up(interpreter, project)
    except (OSError, subprocess.SubprocessError) as exc:
        return Outcome(release, f"CPython {version}: no environment: {exc}", ran=False, passed=False)
    last = ""
    command = [python, "-m", "pytest", "-q", "-n", "auto", "--dist", "worksteal", "-m", "not slow"]
    with subprocess.Popen(command, cwd=project, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return Outcome(release, f"CPython {version}: {last}", ran=True, passed=process.returncode == 0)


def chosen_releases(
    names: Sequence[str], found: Mapping[Release, Interpreter], project: Path = PROJECT
) -> Sequence[Release]:
    """The releases that `names` name; without names those found, the oldest and that of the image. Oldest first."""
    named = {"oldest": oldest_release(project), "image": image_release(project)}
    wanted = [named[name] if name in named else release_of(name) for name in names] if names else [*found]
    return sorted({*wanted} if names else {*wanted, *named.values()})


def main(names: Sequence[str]) -> int:
    """Runs the tests on each release, on this one if none is found, and prints a line for each; 1 if one failed."""
    found = find_interpreters(oldest_release())
    outcomes = [
        run_tests(found[release]) if release in found
        else Outcome(release, "missing here; install it, or name its path in PYTHONS", ran=False, passed=True)
        for release in chosen_releases(names, found)
    ]  # fmt: skip
    if not any(outcome.ran for outcome in outcomes):
        version = (sys.version_info.major, sys.version_info.minor, sys.version_info.micro)
        outcomes.append(run_tests(Interpreter(version, Path(sys.executable))))
    print("\n" + "\n".join(f"{outcome.release}  {outcome.what}" for outcome in outcomes))
    return 0 if all(outcome.passed for outcome in outcomes) and any(outcome.ran for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
