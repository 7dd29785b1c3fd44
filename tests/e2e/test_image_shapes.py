"""Every shape of image on a real node: what `inspect` says of it, and what the node then does.

Where they disagree, docs/limitations.md says so.
"""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pytest

from extender.images.platform import Compatibility, parse_platform, runs_on
from testbed.api_client import connect
from testbed.control_plane import LocalCluster
from testbed.nodes.node import Architecture, RealNode
from testbed.nodes.programs import Containerd, NodePrograms, is_built
from testbed.objects import namespace, pod
from tests.e2e.running import Observation, Outcome, RealImages, find_programs, observe
from tests.e2e.shapes import ON_AMD64, ON_ARM64, Shape

pytestmark = [pytest.mark.e2e, pytest.mark.of_the_machine]

SHAPES: Mapping[Architecture, Sequence[Shape]] = {"amd64": ON_AMD64, "arm64": ON_ARM64}
ROWS = [
    pytest.param(
        version, architecture, shape, id=f"containerd {version}, {architecture}, {shape.name}",
        marks=() if version is Containerd.DEBIAN else pytest.mark.slow,
    )
    for version in Containerd
    for architecture, shapes in SHAPES.items()
    for shape in shapes
]  # fmt: skip


class Seen(NamedTuple):
    """An image: what `inspect -o json` prints about it, and what became of a pod of it."""

    inspected: Mapping[str, Any]
    pod: Observation


Look = Callable[[Containerd, Architecture], Mapping[str, Seen]]


@pytest.fixture(scope="module")
def look(pytestconfig: pytest.Config, request: pytest.FixtureRequest) -> Look:
    """Runs all shapes at once on a node of that version and architecture; each is run once, whatever asks for it."""
    seen: dict[tuple[Containerd, Architecture], Mapping[str, Seen]] = {}

    def look_at(version: Containerd, architecture: Architecture) -> Mapping[str, Seen]:
        if not is_built(version):
            pytest.skip(f"containerd {version} is not built: `python -m testbed.binaries containerd` builds it")
        programs = find_programs(pytestconfig, version)
        if (version, architecture) not in seen:
            cluster: LocalCluster = request.getfixturevalue("control_plane")
            images: RealImages = request.getfixturevalue("real_images")
            seen[version, architecture] = asyncio.run(run_shapes(cluster, images, programs, architecture))
        return seen[version, architecture]

    return look_at


async def run_shapes(
    cluster: LocalCluster, images: RealImages, programs: NodePrograms, architecture: Architecture
) -> Mapping[str, Seen]:
    """Pushes the images, inspects them, and runs a pod of each on a new node."""
    shapes = SHAPES[architecture]
    references = [push(images, shape) for shape in shapes]
    inspected = inspect(images, references)
    async with connect(cluster.kubeconfig) as api:
        where = f"shapes-{architecture}-{programs.version.replace('.', '-')}"
        await api.create(namespace(where))
        node = RealNode(where, programs, api, cluster.kubeconfig, images.pause, architecture=architecture)
        async with node:
            await api.create_all(
                pod(shape.name, reference, namespace=where, cpu="1m", spec={"nodeName": where})
                for shape, reference in zip(shapes, references, strict=True)
            )
            pods = await observe(api, where, len(shapes))
            await api.delete_all("Pod", where)
    return {shape.name: Seen(said, pods[shape.name]) for shape, said in zip(shapes, inspected, strict=True)}


def push(images: RealImages, shape: Shape) -> str:
    name = f"shapes/{shape.name}"
    return images.push(name, shape.build(images.hello)) if shape.build else images.reference(name)


def inspect(images: RealImages, references: Sequence[str]) -> list[Mapping[str, Any]]:
    sets = [f"--set={setting}" for setting in images.settings]
    command = [sys.executable, "-m", "extender", "inspect", "-o", "json", *sets, *references]
    done = subprocess.run(command, capture_output=True, check=False)
    return msgspec.json.decode(done.stdout, type=list[Mapping[str, Any]])


@pytest.mark.parametrize(("version", "architecture", "shape"), ROWS)
def test_the_node_does_what_inspect_says(
    look: Look, version: Containerd, architecture: Architecture, shape: Shape
) -> None:
    """Or it is one of the shapes of which docs/limitations.md says that they disagree."""
    inspected, seen = look(version, architecture)[shape.name]
    platforms = [str(each["platform"]) for each in inspected["platforms"]]
    assert platforms == list(shape.says)
    assert (inspected["unknown"] is None) == bool(shape.says)
    assert seen.outcome is shape.does[version], seen.text
    expected = runs_on(
        frozenset(map(parse_platform, platforms)),
        parse_platform(f"linux/{architecture}"),
        Compatibility(run_386_on_amd64=shape.run_386),
    )
    assert (version in shape.disagrees) == (expected != (seen.outcome is Outcome.RUNS))
