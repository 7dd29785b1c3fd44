"""A container's memory is read from the files of both versions of control groups."""

from pathlib import Path

import pytest

from extender.service.control_group import MemoryFigures, own_control_group

MIB = 1 << 20
VERSION_1 = "12:pids:/pod\n4:memory:/kubepods/pod1\n1:name=systemd:/kubepods/pod1\n0::/kubepods/pod1\n"
VERSION_2 = "0::/kubepods.slice/pod1.scope\n"
STATISTICS = f"cache {9 * MIB}\nshmem {MIB}\nactive_file {2 * MIB}\ninactive_file {3 * MIB}\ntotal_active_file 7\n"


class Machine:
    """The files that a process finds."""

    def __init__(self, folder: Path) -> None:
        self.own = folder / "cgroup"
        self.hierarchies = folder / "sys"

    def write(self, own: str, **files: str) -> None:
        """Writes what `/proc/self/cgroup` says, and the files of a group, whose folder is `at`."""
        self.own.write_text(own)
        at = self.hierarchies / files.pop("at", "")
        at.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (at / name.replace("__", ".", 1)).write_text(text)

    def figures(self) -> MemoryFigures | None:
        """What is read; None too where no group is found."""
        group = own_control_group(self.own, self.hierarchies)
        return group.figures() if group else None


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """One without any file."""
    return Machine(tmp_path)


@pytest.mark.parametrize("at", ["", "kubepods.slice/pod1.scope"])
def test_version_2(machine: Machine, at: str) -> None:
    """The group's own folder, or in a container the root, where its path is not to be seen."""
    machine.write(
        VERSION_2, at=at, memory__current=f"{50 * MIB}\n", memory__max=f"{512 * MIB}\n", memory__stat=STATISTICS
    )
    assert machine.figures() == (45 * MIB, 512 * MIB)


@pytest.mark.parametrize("at", ["memory", "memory/kubepods/pod1"])
def test_version_1(machine: Machine, at: str) -> None:
    """Also where version 2 is mounted beside it, without its memory controller."""
    machine.write(
        VERSION_1,
        at=at,
        memory__usage_in_bytes=f"{50 * MIB}\n",
        memory__limit_in_bytes=f"{512 * MIB}\n",
        memory__stat=STATISTICS,
    )
    assert machine.figures() == (45 * MIB, 512 * MIB)


def test_no_limit(machine: Machine) -> None:
    """Each version has words of its own for that."""
    machine.write(VERSION_2, memory__current="50", memory__max="max\n", memory__stat="")
    assert machine.figures() is None
    machine.write(
        VERSION_1, at="memory", memory__usage_in_bytes="5", memory__limit_in_bytes="9223372036854771712\n",
        memory__stat="",
    )  # fmt: skip
    assert machine.figures() is None


def test_a_limit_that_is_changed_holds(machine: Machine) -> None:
    """As a pod's is when it is resized in place."""
    machine.write(VERSION_2, memory__current="50", memory__max="100", memory__stat="")
    group = own_control_group(machine.own, machine.hierarchies)
    assert group
    assert group.figures() == (50, 100)
    machine.write(VERSION_2, memory__max="200")
    assert group.figures() == (50, 200)


@pytest.mark.parametrize("own", ["", "0::/\n", "4:cpu:/a\n", VERSION_1])
def test_without_the_files_there_is_no_group(machine: Machine, own: str) -> None:
    """Nor without /proc."""
    assert own_control_group(machine.own, machine.hierarchies) is None
    machine.own.write_text(own)
    assert own_control_group(machine.own, machine.hierarchies) is None
