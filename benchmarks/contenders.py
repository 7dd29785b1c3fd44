"""The servers whose speed is compared: our service as users run it, and the Go extenders, on the same core.

Nothing is compared unless the answers agree.
"""

import contextlib
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import trustme

from benchmarks import payloads
from benchmarks.cores import cores, pinned
from benchmarks.far_registry import FarRegistry, far_registry, platforms_of
from benchmarks.loopback import ask_once
from benchmarks.observed_process import observed_process
from benchmarks.quiet_cluster import quiet_cluster
from benchmarks.reference.programs import find_programs
from benchmarks.wrk import Target
from testbed.certificates import KeyPair, write_pair
from testbed.child import run_program

OURS, TYPED, NULL = "ours", "typed Go", "null Go"
MULTI, SIDECAR, SINGLE = "team/app", "team/proxy", "single/checkout"
"""Repositories: of images for amd64 and arm64, and of one for amd64 alone."""
MOST_TEMPLATES = 1_000
"""The most templates of which a load has pods."""


class Disagreement(RuntimeError):
    """Two extenders pass different nodes or score them differently, so their speed cannot be compared."""


class Server(msgspec.Struct, frozen=True):
    """A running server: its base URLs by name, and its process."""

    urls: Mapping[str, str]
    pid: int


class Contenders(msgspec.Struct, frozen=True):
    """The base URL of each contender, and its process.

    `multi` are a pod's images that run on every node, `single` those that run on half; other templates have other tags.
    """

    urls: Mapping[str, str]
    pids: Mapping[str, int]
    multi: tuple[str, ...]
    single: tuple[str, ...]
    go_version: str

    def targets(self, path: str, bodies: Sequence[bytes]) -> dict[str, Target]:
        """Returns the same requests for each contender."""
        return {name: Target(url + path, bodies, self.pids[name]) for name, url in self.urls.items()}

    def check(self, path: str, body: bytes) -> None:
        """Compares the answers of ours and the typed extender.

        Raises:
            Disagreement: they differ.
            UnexpectedStatus: an answer is not a 200.
        """
        ours, theirs = (chosen(ask_once(self.urls[name] + path, body)) for name in (OURS, TYPED))
        if ours != theirs:
            differing = sorted(set(ours.items()) ^ set(theirs.items()))[:3]
            raise Disagreement(f"{path}: ours and the Go extender differ on {differing}")


@contextlib.contextmanager
def contenders(*, nodes: int) -> Iterator[Contenders]:
    """Runs all contenders on the first core, with so many nodes each.

    Raises:
        BinariesMissing: there is no Go to build the baseline with.
    """
    core, programs = cores().server, find_programs()
    with contextlib.ExitStack() as stack:
        registry = stack.enter_context(near_registry())
        ours = stack.enter_context(serve(registry, nodes=nodes))
        architectures = {payloads.node_name(index): payloads.architecture(index) for index in range(nodes)}
        typed = stack.enter_context(
            serve_go(programs.typed, core=core, nodes=architectures, images=images_of(registry))
        )
        null = stack.enter_context(serve_go(programs.null, core=core))
        multi, sidecar, single = (image(registry, repository) for repository in (MULTI, SIDECAR, SINGLE))
        yield Contenders(
            {OURS: ours.urls["scheduler"], TYPED: typed.urls["address"], NULL: null.urls["address"]},
            {OURS: ours.pid, TYPED: typed.pid, NULL: null.pid},
            (multi, sidecar),
            (single,),
            programs.go_version,
        )


def near_registry() -> contextlib.AbstractContextManager[FarRegistry]:
    """Runs the registry of the images, on the other core."""
    return far_registry(core=cores().load, delay_seconds=0)


def image(registry: FarRegistry, repository: str) -> str:
    """Returns the image of the first template's pods."""
    return f"{registry.hosts[0]}/{repository}:0"


def of_template(images: Sequence[str], template: int) -> tuple[str, ...]:
    """Returns the images of a template's pods: the app of its own tag, and the same sidecars."""
    app, *sidecars = images
    return (f"{app.rpartition(':')[0]}:{template}", *sidecars)


def images_of(registry: FarRegistry) -> dict[str, list[str]]:
    """Returns the images of all templates, with the architectures that the nodes have of each."""
    return {
        name: [each for each in payloads.ARCHITECTURES if f"linux/{each}" in platforms_of(repository)]
        for repository in (MULTI, SIDECAR, SINGLE)
        for template in range(MOST_TEMPLATES)
        for name in of_template([image(registry, repository)], template)
    }


@contextlib.contextmanager
def serve(registry: FarRegistry, *, nodes: int = 5_000, tls: bool = False) -> Iterator[Server]:
    """Runs the service in a cluster of so many nodes; its URLs are `scheduler` and `admission`, which may have TLS."""
    core = cores()
    settings: dict[str, object] = {"scheduler.wait_seconds": 5}
    with tempfile.TemporaryDirectory() as scratch, quiet_cluster(core=core.load, nodes=nodes) as cluster:
        if tls:
            certificate, key = _issue(Path(scratch))
            settings["admission.tls"] = f"{{certificate: {certificate}, key: {key}}}"
        with observed_process(core=core.server, cluster=cluster, registry=registry, settings=settings) as service:
            schemes = {"scheduler": "http", "admission": "https" if tls else "http"}
            yield Server({name: f"{each}://{service.addresses[name]}" for name, each in schemes.items()}, service.pid)


@contextlib.contextmanager
def serve_go(
    program: Path,
    *flags: str,
    host: str = "127.0.0.1",
    core: int | None = None,
    nodes: Mapping[str, str] | None = None,
    images: Mapping[str, Sequence[str]] | None = None,
    tolerations: Sequence[Mapping[str, str]] = (),
    tls: bool = False,
) -> Iterator[Server]:
    """Runs a Go program of `reference`, whose URL is `address`, on any core if none is given.

    `typed` needs the architectures of nodes and images, `webhook` those of images and the tolerations to add, `null`
    needs nothing. With `tls` it uses TLS.
    """
    command = [str(program), "-listen", f"{host}:0", "-parent-stdin", *flags]
    with tempfile.TemporaryDirectory() as scratch, contextlib.ExitStack() as running:
        if images is not None:
            table = Path(scratch) / "table.json"
            table.write_bytes(msgspec.json.encode({"nodes": nodes or {}, "images": images, "tolerations": tolerations}))
            command += ["-table", str(table)]
        if tls:
            certificate, key = _issue(Path(scratch))
            command += [f"--certificate={certificate}", f"--key={key}"]
        with contextlib.nullcontext() if core is None else pinned(core):
            started = running.enter_context(run_program(command))
        yield Server(msgspec.json.decode(started.said, type=dict[str, str]), started.pid)


def _issue(folder: Path) -> KeyPair:
    """Writes a certificate for loopback."""
    return write_pair(
        trustme.CA(organization_name="multiarch-extender benchmarks").issue_cert("127.0.0.1"), folder / "server"
    )


def chosen(answer: bytes) -> Mapping[str, int]:
    """Returns what an answer decides: the nodes that pass a filter, each with 0, or the scores other than 0.

    Raises:
        Disagreement: the answer is an error.
    """
    found: Any = msgspec.json.decode(answer)
    if isinstance(found, list):
        return {score["Host"]: score["Score"] for score in found if score["Score"]}
    if found.get("Error"):
        raise Disagreement(found["Error"])
    names = found.get("NodeNames")
    if names is None:
        names = [node["metadata"]["name"] for node in found["Nodes"]["items"]]
    return dict.fromkeys(names, 0)
