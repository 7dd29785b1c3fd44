"""What the containerd of worlds does with every shape of image, beside what real nodes were seen to do with it.

`test_image_shapes` runs the shapes on real nodes; this needs none.
"""

import random

import pytest

from testbed.memory_network import Network, run_in_memory
from testbed.nodes.node import Architecture
from testbed.nodes.programs import Containerd
from tests.e2e.running import Outcome
from tests.e2e.shapes import ON_AMD64, ON_ARM64, Shape
from tests.worlds.containerd import PullFailed, can_run, machine_of, pull
from tests.worlds.image_references import read_reference
from tests.worlds.registries import Registries

pytestmark = pytest.mark.e2e

PROGRAMS = {architecture: architecture.encode() for architecture in ("amd64", "arm64", "386")}
UNTRUE = {"manifest-lies", "windows-manifest-lies", "script-of-arm64", "script-without-interpreter", "no-program"}
"""Shapes whose configuration is not true of the program; only whether they are pulled is played."""
ROWS = [
    pytest.param(version, architecture, shape, id=f"containerd {version}, {architecture}, {shape.name}")
    for version in Containerd
    for architecture, shapes in (("amd64", ON_AMD64), ("arm64", ON_ARM64))
    for shape in shapes
]


def played(shape: Shape, architecture: str, version: Containerd) -> Outcome:
    async def main(network: Network) -> Outcome:
        registries = Registries(network, (), random.Random(1))
        registries.open("registry.example.com")
        if shape.build:
            registries.put("registry.example.com", "app", "1", shape.build(PROGRAMS))
        machine = machine_of(f"linux/{architecture}", version)
        try:
            pulled, _ = await pull(registries, read_reference("registry.example.com/app:1"), (), machine)
        except PullFailed:
            return Outcome.REFUSED
        assert pulled.program
        return Outcome.RUNS if can_run(machine, pulled.program) else Outcome.CRASHES

    return run_in_memory(main)


@pytest.mark.parametrize(("version", "architecture", "shape"), ROWS)
def test_the_played_node_does_what_the_real_one_does(
    version: Containerd, architecture: Architecture, shape: Shape
) -> None:
    expected, got = shape.does[version], played(shape, architecture, version)
    is_untrue = shape.name in UNTRUE or (shape.name == "index-lies" and architecture == "amd64")
    if is_untrue:
        assert (got is Outcome.REFUSED) == (expected is Outcome.REFUSED)
    else:
        assert got is expected
