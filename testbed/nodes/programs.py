"""The programs of a real node: kubelet, containerd with its shim, runc, and qemu for a node that says arm64.

kubelet is built from the pinned Kubernetes. containerd is Debian 12's 1.6, or 2.3 built from the pinned module. The
rest is Debian's. Nothing is installed.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from testbed.binaries import CONTAINERD, build, find_built, find_kubelet
from testbed.debian_package import find_package
from testbed.tiny_programs import find_tiny

HELLO = Path(__file__).with_name("hello")


class Containerd(StrEnum):
    """A version of containerd: they refuse images and report them differently."""

    DEBIAN = "1.6"
    MODULE = "2.3"


class NodePrograms(NamedTuple):
    """The paths of a node's programs."""

    version: Containerd
    kubelet: Path
    containerd: Path  # its shim is in the same folder
    ctr: Path  # containerd's client, Debian's
    runc: Path
    qemu: Path  # runs programs for arm64
    libraries: Path  # the folder of the libraries that runc is linked with


def is_built(version: Containerd) -> bool:
    """Whether that containerd can be had without building it."""
    return version is Containerd.DEBIAN or find_built(CONTAINERD).is_dir()


def find_node_programs(version: Containerd = Containerd.DEBIAN) -> NodePrograms:
    """Returns the programs; builds and fetches what the cache lacks.

    Raises:
        BinariesMissing: a program is missing and cannot be built.
        ProgramMissing: one of Debian's is missing and cannot be fetched.
    """
    debian = find_package("containerd", "runc", "libseccomp2") / "usr"
    [library] = debian.glob("lib/*/libseccomp.so.2")
    return NodePrograms(
        version=version,
        kubelet=find_kubelet(),
        containerd=(debian / "bin" if version is Containerd.DEBIAN else build(CONTAINERD)) / "containerd",
        ctr=debian / "bin" / "ctr",
        runc=debian / "sbin" / "runc",
        qemu=find_package("qemu-user-static") / "usr" / "bin" / "qemu-aarch64-static",
        libraries=library.parent,
    )


def find_hello(architectures: Iterable[str]) -> Mapping[str, bytes]:
    """Returns the program of `testbed/nodes/hello` for each architecture, built once. Raises BinariesMissing."""
    return {architecture: find_tiny(f"linux/{architecture}", source=HELLO) for architecture in architectures}
