"""Whether this machine can run real nodes."""

import errno
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from testbed.binaries import BinariesMissing, cache_folder, chosen_kubernetes
from testbed.nodes.cgroups import Cgroup
from testbed.nodes.elf import AARCH64, elf_header

TOOLS = ("unshare", "mount", "sh")
HIDDEN = ("/run", "/var/log", "/var/lib")


class NodesImpossible(Exception):
    """Real nodes cannot run here; the message says why in one line."""


def require_machine(environment: Mapping[str, str] = os.environ) -> None:
    """Returns if real nodes can run here, for the Kubernetes that `environment` chooses. Raises NodesImpossible."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        raise NodesImpossible("real nodes need Linux on x86_64")
    if os.geteuid() != 0:
        raise NodesImpossible("real nodes need root")
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise NodesImpossible(f"real nodes need {' and '.join(missing)} on the PATH")
    _require_release(environment)
    require_paths(environment)
    _require_namespaces()
    _require_cgroups()
    _require_refusals()


def _require_release(environment: Mapping[str, str]) -> None:
    try:
        chosen_kubernetes(environment)
    except BinariesMissing as exc:
        raise NodesImpossible(str(exc)) from exc


def require_paths(environment: Mapping[str, str]) -> None:
    """Returns if nothing that a node needs is below the folders that `node.sh` hides. Raises NodesImpossible."""
    needed = (Path(sys.executable).resolve(), Path(__file__), cache_folder(environment), Path(tempfile.gettempdir()))
    for path in needed:
        if any(path.is_relative_to(hidden) for hidden in HIDDEN):
            raise NodesImpossible(f"real nodes have {', '.join(HIDDEN)} of their own, and need {path}")


def _require_namespaces() -> None:
    namespaces = ["--mount", "--propagation", "private", "--pid", "--fork"]
    command = ["unshare", *namespaces, "mount", "-t", "proc", "proc", "/proc"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NodesImpossible(f"real nodes need mount and PID namespaces (CAP_SYS_ADMIN): {done.stderr.strip()}")


def _require_cgroups() -> None:
    try:
        with Cgroup("probe"):
            pass
    except OSError as exc:
        raise NodesImpossible(f"real nodes need cgroups that they can write: {exc}") from exc


def _require_refusals() -> None:
    """Programs for arm64 must fail here as on any amd64 node; a handler in binfmt_misc would run them."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "program"
        program.write_bytes(elf_header(AARCH64))
        program.chmod(0o755)
        try:
            subprocess.run([program], capture_output=True, check=False)
        except OSError as exc:
            if exc.errno == errno.ENOEXEC:
                return
            raise NodesImpossible(f"real nodes cannot run a program from {folder}: {exc}") from exc
    raise NodesImpossible("this machine runs programs for arm64 (binfmt_misc), so that no image fails here")
