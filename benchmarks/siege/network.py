"""The siege's network: a namespace with addresses of its own, where names resolve by our own name server.

`isolating` is the command that makes namespaces of network, mounts and processes, which end with their first process.
Nothing outside of them changes.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from testbed.processes import PARENT_DEATH

API_SERVER, API_PORT = "10.0.0.1", 6443
SERVICE = "10.0.0.10"
ADMISSION_PORT, SCHEDULER_PORT, OPERATIONS_PORT = 10250, 8880, 8881  # of the shipped settings
NAME_SERVER = "10.0.0.53"
STRANGERS = tuple(f"10.0.66.{number}" for number in range(1, 9))
"""The addresses of callers that are not the API server."""
HONEST_REGISTRIES = tuple(f"10.1.0.{number}" for number in range(1, 9))
MIRROR_ADDRESS, ATTACKING_REGISTRY = "10.1.0.9", "10.2.0.1"
HONEST_ZONE, ATTACKING_ZONE = "honest.test", "attack.test"
MIRRORED = f"mirrored.{HONEST_ZONE}"
"""A registry whose name does not resolve, as on nodes without a way out: its images come through the mirror."""
MIRROR = f"mirror.{HONEST_ZONE}"
"""The mirror of `MIRRORED` and of the attackers' `UPSTREAMS`, which never answer it."""


class NetworkMissing(RuntimeError):
    """The namespaces cannot be made here."""


def isolating(command: Sequence[str]) -> list[str]:
    """Returns the command that runs `command` in new namespaces. When this process ends, all that runs there is killed.

    Raises:
        NetworkMissing: there is no program that makes namespaces.
    """
    program = shutil.which("unshare")
    if program is None:
        raise NetworkMissing("unshare is missing, which is part of util-linux")
    parent_death = [sys.executable, "-I", "-S", str(PARENT_DEATH), str(os.getpid())]
    as_root = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    kinds = ["--net", "--mount", "--pid", "--mount-proc", "--fork", "--kill-child"]
    return [*parent_death, program, *as_root, *kinds, "--", *command]


def prepare_network(folder: Path) -> None:
    """Gives the namespaces of this process their addresses and their name server. Its file goes into `folder`.

    Raises:
        NetworkMissing: a command fails.
    """
    resolv_conf = folder / "resolv.conf"
    resolv_conf.write_text(f"nameserver {NAME_SERVER}\n")
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "address", "add", f"{API_SERVER}/8", "dev", "lo")  # on this device a prefix is local as a whole
    _run("mount", "--bind", str(resolv_conf), str(Path("/etc/resolv.conf").resolve()))


def honest_host(number: int) -> str:
    """Returns the name of one of the registries that serve everybody."""
    return f"registry-{number % len(HONEST_REGISTRIES) + 1}.{HONEST_ZONE}"


def attacking_host(label: str, kind: str) -> str:
    """Returns the name of a registry of an attacker; its kind says what it does."""
    return f"{label}.{kind}.{ATTACKING_ZONE}"


UPSTREAMS = tuple(attacking_host(f"r{number}", "upstream") for number in range(16))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NetworkMissing(f"{' '.join(command)}: {done.stderr.strip()}")
