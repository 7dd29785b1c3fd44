"""A cgroup of a node: one folder in each of the machine's hierarchies, with all that kubelet makes below it."""

import contextlib
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

MOUNTED = Path("/sys/fs/cgroup")
PREFIX = "multiarch-node"
END_SECONDS = 10.0
_PAUSE_SECONDS = 0.02


class Cgroup:
    """`with Cgroup(name) as cgroup:` makes the cgroup and removes it, with those below it, when nothing runs in it.

    Its name has this process's id, so that what a killed process has left is recognised and removed as well.
    """

    def __init__(self, name: str) -> None:
        self.name = f"{PREFIX}-{os.getpid()}-{name}"

    @property
    def folders(self) -> list[Path]:
        """Its folders: one on a machine with cgroup v2, one for each controller with v1."""
        return [hierarchy / self.name for hierarchy in hierarchies()]

    def make(self) -> None:
        """Makes the cgroup, and removes those of processes that have ended without it. Raises OSError."""
        _remove_abandoned()
        for folder in self.folders:
            folder.mkdir(exist_ok=True)

    def remove(self) -> None:
        """Removes the cgroup once its processes have ended. Raises OSError if some are left after `END_SECONDS`."""
        deadline = time.monotonic() + END_SECONDS
        for folder in self.folders:
            while folder.exists():
                try:
                    _remove_tree(folder)
                except OSError:  # busy: the kernel takes a moment to let go of processes that have ended
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(_PAUSE_SECONDS)

    def processes(self) -> set[int]:
        """Returns the processes in the cgroup and in those below it."""
        files = (file for folder in self.folders for file in folder.rglob("cgroup.procs"))
        return {int(process) for file in files for process in file.read_text().split()}

    def __enter__(self) -> Self:
        self.make()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.remove()


def hierarchies() -> Sequence[Path]:
    """Returns where cgroups are mounted: one folder with cgroup v2, one for each hierarchy with v1."""
    if (MOUNTED / "cgroup.controllers").exists():
        return [MOUNTED]
    return sorted(path for path in MOUNTED.iterdir() if path.is_dir() and not path.is_symlink())


def _remove_abandoned() -> None:
    for folder in (found for hierarchy in hierarchies() for found in hierarchy.glob(f"{PREFIX}-*")):
        owner = re.match(rf"{PREFIX}-(\d+)-", folder.name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            with contextlib.suppress(OSError):  # another process removes it as well
                _remove_tree(folder)


def _remove_tree(folder: Path) -> None:
    for path, _, _ in os.walk(folder, topdown=False):
        Path(path).rmdir()
