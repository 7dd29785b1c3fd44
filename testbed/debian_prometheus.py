"""Debian's Prometheus (2.42): its promtool, and a server on loopback that scrapes and judges rules.

Nothing is installed: the package is unpacked into the cache folder, once.
"""

from pathlib import Path

from testbed.debian_package import find_package

_PACKAGE = "prometheus"


def find_promtool() -> Path:
    """Returns the path of the promtool program.

    Raises:
        ProgramMissing: it is missing and cannot be fetched.
    """
    return find_package(_PACKAGE) / "usr" / "bin" / "promtool"
