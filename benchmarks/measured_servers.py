"""Runs the servers to measure, ours and the Go extenders, each as a process on one core while a context is open.

Other files make the requests.
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
from testbed.shipped_environment import as_shipped

Kind = Literal["service", "floor", "application"]


class MeasuredServer(msgspec.Struct, frozen=True):
    """A running server: its base URLs by name, and its process."""

    addresses: Mapping[str, str]
    pid: int

    def __getitem__(self, name: str) -> str:
        return self.addresses[name]


@contextlib.contextmanager
def serve(kind: Kind, *, core: int, tls: bool = False, nodes: int = 5_000, images: int = 0) -> Iterator[MeasuredServer]:
    """Runs a Python server.

    The URLs of `service` are `scheduler`, `admission` and `registry` (a host); of others `url`.

    The service has so many nodes, and so many cached images (payloads.resident_image) besides those of its registry.
    It has the environment of the shipped image.
    With `tls` its webhook uses TLS, or the whole server if it is another.
    """
    command = [sys.executable, "-m", "benchmarks.python_servers", kind, str(core)]
    command += [f"--nodes={nodes}", f"--images={images}"]
    if kind == "service":
        command = as_shipped(command)
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
    tolerations: Sequence[Mapping[str, str]] = (),
    tls: bool = False,
) -> Iterator[MeasuredServer]:
    """Runs a Go program of `reference`, whose URL is `address`.

    `typed` needs the architectures of nodes and images, `webhook` those of images and the tolerations to add, `null`
    needs nothing. With `tls` it uses TLS.
    """
    command = [str(program), "-listen", "127.0.0.1:0", "-parent-stdin"]
    with tempfile.TemporaryDirectory() as scratch:
        if nodes is not None or images is not None:
            table = Path(scratch) / "table.json"
            known = {"nodes": nodes or {}, "images": images or {}, "tolerations": tolerations}
            table.write_bytes(msgspec.json.encode(known))
            command += ["-table", str(table)]
        if tls:
            command += _certificates(Path(scratch))
        with _running(command, core) as server:
            yield server


@contextlib.contextmanager
def _running(command: Sequence[str], core: int) -> Iterator[MeasuredServer]:
    with contextlib.ExitStack() as ending:
        with pinned(core):
            started = ending.enter_context(run_program(command))
        yield MeasuredServer(msgspec.json.decode(started.said, type=dict[str, str]), started.pid)


def _certificates(folder: Path) -> list[str]:
    """Writes a key and a certificate for loopback, and returns the arguments that name them."""
    issued = trustme.CA(organization_name="multiarch-extender benchmarks").issue_cert("127.0.0.1")
    certificate, key = folder / "server.crt", folder / "server.key"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    return [f"--certificate={certificate}", f"--key={key}"]
