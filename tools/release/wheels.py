"""Proves that the image can be built for each architecture: `python -m tools.release.wheels` downloads every wheel.

pip takes a file only if it fits the platform and its hash is pinned. Nothing is kept.
"""

import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.release.pythons import image_release
from tools.release.requirement_pins import read_pins

MACHINES: Mapping[str, str] = {"linux/amd64": "x86_64", "linux/arm64": "aarch64"}
"""The platforms of the image, and what wheels call their architectures."""

NEWEST_GLIBC = 36
"""2.36 is that of Debian 12, the oldest that images of Python are made on."""


def platform_tags(machine: str) -> Sequence[str]:
    """Returns the tags of wheels that run there, by the version of the C library that they need."""
    return [f"manylinux_2_{minor}_{machine}" for minor in range(NEWEST_GLIBC, 16, -1)] + [f"manylinux2014_{machine}"]


def download(machine: str, folder: Path) -> str:
    """Downloads the wheel of every pin; returns pip's complaint, or nothing."""
    pins = folder / "requirements.txt"
    lines = [" ".join([pin.requirement, *(f"--hash=sha256:{each}" for each in pin.hashes)]) for pin in read_pins()]
    pins.write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary", ":all:", "--requirement", str(pins), "--dest", str(folder)]
    command += ["--implementation", "cp", "--python-version", str(image_release())]
    command += [word for tag in platform_tags(machine) for word in ("--platform", tag)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def main() -> int:
    """Prints a line for each platform; returns 1 if a wheel is missing."""
    failed = False
    for platform, machine in MACHINES.items():
        with tempfile.TemporaryDirectory() as folder:
            complaint = download(machine, Path(folder))
            wheels = sorted(Path(folder).glob("*.whl"))
        failed = failed or bool(complaint)
        built = sum(1 for wheel in wheels if machine in wheel.name)
        print(f"{platform}: {len(wheels)} wheels, {built} of them for it alone, CPython {image_release()}")
        print(complaint, end="", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
