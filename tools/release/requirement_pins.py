"""Reads the pins of `requirements.txt` that an image for Linux gets."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement

from tools.release.pythons import PROJECT, image_release

_PIN = re.compile(
    r"^(?P<requirement>[a-z0-9._-]+==[^\\\n]*)\\\n(?P<hashes>(?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE
)


class RequirementPin(NamedTuple):
    """A distribution of one version, and the SHA-256 sums of the files of it that pip accepts."""

    name: str
    version: str
    hashes: tuple[str, ...]

    @property
    def requirement(self) -> str:
        """The line for pip, without hashes."""
        return f"{self.name}=={self.version}"


def image_environment(project: Path = PROJECT) -> dict[str, str]:
    """Returns what conditions of requirements are judged by in the image."""
    release = str(image_release(project))
    return {
        "extra": "",
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{release}.0",
        "python_version": release,
        "sys_platform": "linux",
    }


def read_pins(project: Path = PROJECT) -> Iterator[RequirementPin]:
    """Yields the pins whose conditions hold in the image."""
    environment = image_environment(project)
    for found in _PIN.finditer((project / "requirements.txt").read_text()):
        requirement = Requirement(found["requirement"])
        if requirement.marker is None or requirement.marker.evaluate(environment):
            (version,) = (each.version for each in requirement.specifier)
            yield RequirementPin(requirement.name, version, tuple(re.findall(r"sha256:(\w+)", found["hashes"])))
