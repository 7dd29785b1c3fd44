"""The processes that are measured: started on one core, at their addresses until the end, ended whatever happens.

Knows the kinds there are, how each is told what it needs and where it says that it listens; must not know what is asked
of them.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import msgspec
import trustme

from testbed.child import run_program

Kind = Literal["service", "floor", "application"]


class Cores(NamedTuple):
    """Where servers run and where load comes from: the first and the last core we may use, which may be one."""

    server: int
    load: int


class Serving(msgspec.Struct, frozen=True):
    """A running server: its base URLs by name, and its process."""

    addresses: Mapping[str, str]
    pid: int

    def __getitem__(self, name: str) -> str:
        return self.addresses[name]


def cores() -> Cores:
    """Those of this process."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[-1])


@contextlib.contextmanager
def pinned(core: int) -> Iterator[None]:
    """What is started within runs on `core` alone, as this thread does so long; a Go program then has GOMAXPROCS 1."""
    usable = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usable)


@contextlib.contextmanager
def serve(kind: Kind, *, core: int, tls: bool = False, nodes: int = 5_000, images: int = 0) -> Iterator[Serving]:
    """A Python server. `service`: its URLs are `scheduler`, `admission` and `registry` (a host); of others `url`.

    The service knows so many nodes, and besides those of its registry so many images (payloads.resident_image). With
    `tls` its webhook speaks that.
    """
    command = [
        sys.executable,
        "-m",
        "benchmarks.python_servers",
        kind,
        str(core),
        f"--nodes={nodes}",
        f"--images={images}",
    ]
    with (
        tempfile.TemporaryDirectory() as scratch,
        _running([*command, *(_certificates(Path(scratch)) if tls else [])], core) as serving,
    ):
        yield serving


@contextlib.contextmanager
def serve_go(
    program: Path,
    *,
    core: int,
    nodes: Mapping[str, str] | None = None,
    images: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[Serving]:
    """A Go extender at `address`; `typed` needs the architectures of nodes and images, `null` takes none."""
    command = [str(program), "-listen", "127.0.0.1:0", "-parent-stdin"]
    with tempfile.TemporaryDirectory() as scratch:
        if nodes is not None or images is not None:
            table = Path(scratch) / "table.json"
            table.write_bytes(msgspec.json.encode({"nodes": nodes or {}, "images": images or {}}))
            command += ["-table", str(table)]
        with _running(command, core) as serving:
            yield serving


@contextlib.contextmanager
def _running(command: Sequence[str], core: int) -> Iterator[Serving]:
    with contextlib.ExitStack() as ending:
        with pinned(core):
            started = ending.enter_context(run_program(command))
        yield Serving(msgspec.json.decode(started.said, type=dict[str, str]), started.pid)


def _certificates(folder: Path) -> list[str]:
    """A key and a certificate for loopback, as arguments."""
    issued = trustme.CA(organization_name="multiarch-extender benchmarks").issue_cert("127.0.0.1")
    certificate, key = folder / "server.crt", folder / "server.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return [f"--certificate={certificate}", f"--key={key}"]
