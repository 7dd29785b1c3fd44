"""`python -m benchmarks`: every benchmark that needs no cluster, with the machine and versions it ran on."""

import os
import platform
from importlib.metadata import version

from rich.console import Console

from benchmarks import latency


def main() -> None:
    """Print the machine, then the tables."""
    console = Console(width=160)
    packages = ", ".join(f"{name} {version(name)}" for name in ("aiohttp", "msgspec", "uvloop", "async-lru"))
    console.print(
        f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}, uvloop; {packages}"
    )
    console.print(latency.table_of(latency.run()))


main()
