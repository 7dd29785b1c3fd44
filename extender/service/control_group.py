"""The memory of the control group that the process is in, as the kernel limits and counts it.

A container's limit (`limits.memory`) is that of its control group. The kernel ends processes of a group whose memory
reaches the limit and cannot be reclaimed: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory, and cgroup-v1.
"""

from pathlib import Path
from typing import NamedTuple

_HIERARCHIES = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
# Version 1 writes the largest multiple of a page where there is no limit, version 2 `max`.
_UNLIMITED_BYTES = 1 << 60


class MemoryFigures(NamedTuple):
    """What the group uses, without what the kernel can reclaim at once, and what it may use."""

    used_bytes: int
    limit_bytes: int


class ControlGroup:
    """One group's folder of the memory controller, of either version."""

    def __init__(self, folder: Path, usage: str, limit: str) -> None:
        """`usage` and `limit` are names of files in the folder."""
        self._usage, self._limit, self._statistics = folder / usage, folder / limit, folder / "memory.stat"

    def figures(self) -> MemoryFigures | None:
        """Reads the figures, in some 50 µs; None if the group has no limit. Raises OSError and ValueError."""
        limit = self._limit.read_text(encoding="ascii").strip()
        if limit == "max" or int(limit) >= _UNLIMITED_BYTES:
            return None
        # Pages of files can be reclaimed; those of tmpfs are not among them.
        reclaimable = 0
        for line in self._statistics.read_text(encoding="ascii").splitlines():
            name, _, amount = line.partition(" ")
            if name in ("active_file", "inactive_file"):
                reclaimable += int(amount)
        return MemoryFigures(int(self._usage.read_text(encoding="ascii")) - reclaimable, int(limit))


def own_control_group(own: Path = _OWN, hierarchies: Path = _HIERARCHIES) -> ControlGroup | None:
    """Returns the group of this process; None where the system does not tell.

    In a container the hierarchy begins with the container's group, and shows no folder for longer paths.
    """
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    paths = {
        controllers: path for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1)
    }
    versions = (
        (paths.get("memory"), hierarchies / "memory", "memory.usage_in_bytes", "memory.limit_in_bytes"),
        (paths.get(""), hierarchies, "memory.current", "memory.max"),
    )
    for path, root, usage, limit in versions:
        if path is None:
            continue
        for folder in (root / path.lstrip("/"), root):
            if (folder / usage).is_file() and (folder / limit).is_file():
                return ControlGroup(folder, usage, limit)
    return None
