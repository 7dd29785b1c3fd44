"""Servers to measure, ours and the Go extenders, each a process on one core for as long as a context is open.

Knows the kinds there are, how each is told what it needs and where it says that it listens; must not know what is asked
of them.
"""

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import trustme

from benchmarks.cores import pinned
from testbed.child import run_program

Kind = Literal["service", "floor", "application"]


class MeasuredServer(msgspec.Struct, frozen=True):
    """A running server: its base URLs by name, and its process."""

    addresses: Mapping[str, str]
    pid: int

    def __getitem__(self, name: str) -> str:
        return self.addresses[name]


@contextlib.contextmanager
def serve(kind: Kind, *, core: int, tls: bool = False, nodes: int = 5_000, images: int = 0) -> Iterator[MeasuredServer]:
    """A Python server. `service`: its URLs are `scheduler`, `admission` and `registry` (a host); of others `url`.

    The service knows so many nodes, and besides those of its registry so many images (payloads.resident_image). With
    `tls` its webhook speaks that.
    """
    command = [sys.executable, "-m", "benchmarks.python_servers", kind, str(core)]
    command += [f"--nodes={nodes}", f"--images={images}"]
    with (
        tempfile.TemporaryDirectory() as scratch,
        _running([*command, *(_certificates(Path(scratch)) if tls else [])], core) as server,
    ):
        yield server


@contextlib.contextmanager
def serve_go(
    program: Path,
    *,
    core: int,
    nodes: Mapping[str, str] | None = None,
    images: Mapping[str, Sequence[str]] | None = None,
) -> Iterator[MeasuredServer]:
    """A Go extender at `address`; `typed` needs the architectures of nodes and images, `null` takes none."""
    command = [str(program), "-listen", "127.0.0.1:0", "-parent-stdin"]
    with tempfile.TemporaryDirectory() as scratch:
        if nodes is not None or images is not None:
            table = Path(scratch) / "table.json"
            table.write_bytes(msgspec.json.encode({"nodes": nodes or {}, "images": images or {}}))
            command += ["-table", str(table)]
        with _running(command, core) as server:
            yield server


@contextlib.contextmanager
def _running(command: Sequence[str], core: int) -> Iterator[MeasuredServer]:
    with contextlib.ExitStack() as ending:
        with pinned(core):
            started = ending.enter_context(run_program(command))
        yield MeasuredServer(msgspec.json.decode(started.said, type=dict[str, str]), started.pid)


def _certificates(folder: Path) -> list[str]:
    """A key and a certificate for loopback, as arguments."""
    issued = trustme.CA(organization_name="multiarch-extender benchmarks").issue_cert("127.0.0.1")
    certificate, key = folder / "server.crt", folder / "server.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return [f"--certificate={certificate}", f"--key={key}"]
