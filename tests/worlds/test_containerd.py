"""What a played node pulls and runs, against what real ones did (kubelet 1.36.3 with containerd 2.3.7 and 1.6.20)."""

import random
from typing import Any

import pytest

from testbed.memory_network import Network, run_in_memory
from tests.worlds.containerd import Outcome, Platform, PullFailed, can_run, machine_of, normalize, pull, with_handler
from tests.worlds.image_references import read_reference
from tests.worlds.plan import Image
from tests.worlds.registries import Registries

NAME = "registry.example.com/app"
RUNS = "runs"


def outcome_of(
    form: str, *platforms: str, node: str = "linux/amd64", containerd: str = "2.3", handler: tuple[str, ...] = ()
) -> str:
    """What becomes of a container of such an image on such a node."""
    image = Image(host="registry.example.com", repository="app", form=form, platforms=platforms)

    async def main(network: Network) -> str:
        registries = Registries(network, [image], random.Random(1))
        machine = with_handler(machine_of(node, containerd), handler)
        try:
            pulled, _ = await pull(registries, read_reference(image.reference), (), machine)
        except PullFailed as exc:
            return str(exc.outcome)
        if pulled.program is None:
            return str(Outcome.NO_PROGRAM)
        return RUNS if can_run(machine, pulled.program) else str(Outcome.EXEC_FORMAT)

    return run_in_memory(main)


@pytest.mark.parametrize(
    ("form", "platforms", "node", "expected"),
    [
        ("index", ("linux/amd64", "linux/arm64"), "linux/amd64", RUNS),
        ("manifest", ("linux/amd64",), "linux/amd64", RUNS),
        ("manifest", ("linux/arm64",), "linux/amd64", Outcome.EXEC_FORMAT),
        ("index", ("linux/arm64",), "linux/amd64", Outcome.NO_MATCH),
        ("manifest", ("linux/386",), "linux/amd64", RUNS),
        ("index", ("linux/amd64/v2",), "linux/amd64", Outcome.NO_MATCH),
        ("manifest", ("linux/amd64/v2",), "linux/amd64", RUNS),
        ("index", ("linux/amd64", "linux/arm64"), "linux/arm64", RUNS),
        ("index", ("linux/amd64",), "linux/arm64", Outcome.NO_MATCH),
        ("manifest", ("linux/amd64",), "linux/arm64", Outcome.EXEC_FORMAT),
        ("index", ("linux/arm64/v8",), "linux/arm64", RUNS),
        ("index", ("linux/arm64/v9",), "linux/arm64", Outcome.NO_MATCH),
        ("manifest", ("linux/arm/v7",), "linux/arm64", RUNS),
        ("index", ("linux/arm/v7", "linux/arm64"), "linux/arm", RUNS),
        ("manifest", ("linux/arm/v6",), "linux/arm", RUNS),
        ("manifest", ("linux/arm/v8",), "linux/arm", Outcome.EXEC_FORMAT),
        ("manifest", ("windows/amd64",), "linux/amd64", Outcome.EXEC_FORMAT),
        ("index", ("windows/amd64", "linux/amd64"), "windows/amd64", RUNS),
        ("manifest", ("wasip1/wasm",), "linux/amd64", Outcome.EXEC_FORMAT),
        ("artifact", (), "linux/amd64", Outcome.NO_PROGRAM),
    ],
)
def test_an_index_is_searched_and_a_manifest_is_taken_as_it_is(
    form: str, platforms: tuple[str, ...], node: str, expected: str
) -> None:
    assert outcome_of(form, *platforms, node=node) == expected


@pytest.mark.parametrize(
    ("platform", "node"), [("linux/386", "linux/amd64"), ("linux/arm/v7", "linux/arm64"), ("linux/arm/v6", "linux/arm")]
)
def test_near_platforms_of_an_index_are_pulled_by_old_releases_alone(platform: str, node: str) -> None:
    assert outcome_of("index", platform, node=node, containerd="2.3") == Outcome.NO_MATCH
    assert outcome_of("index", platform, node=node, containerd="1.6") == RUNS


def test_a_handler_runs_what_the_node_does_not() -> None:
    assert outcome_of("index", "linux/amd64", node="linux/arm64", handler=("linux/amd64",)) == RUNS
    assert outcome_of("manifest", "wasip1/wasm", handler=("wasip1/wasm",)) == RUNS


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        (("linux", "x86_64", "v1"), Platform("linux", "amd64")),
        (("Linux", "aarch64", "8"), Platform("linux", "arm64")),
        (("linux", "arm64", "9.0"), Platform("linux", "arm64", "v9")),
        (("linux", "armhf", "v8"), Platform("linux", "arm", "v7")),
        (("linux", "arm", ""), Platform("linux", "arm", "v7")),
        (("linux", "arm", "armv7"), Platform("linux", "arm", "armv7")),
        (("macOS", "i386", "x"), Platform("darwin", "386")),
    ],
)
def test_platforms_are_spelled_as_containerd_does(stated: tuple[str, str, str], expected: Platform) -> None:
    assert normalize(*stated) == expected


def test_texts_of_a_refused_pull_are_those_of_the_release() -> None:
    image = Image(host="registry.example.com", repository="app", platforms=("linux/arm64",))

    async def main(network: Network) -> Any:
        registries = Registries(network, [image], random.Random(1))
        texts = []
        for containerd in ("2.3", "1.6"):
            with pytest.raises(PullFailed) as caught:
                await pull(registries, read_reference(image.reference), (), machine_of("linux/amd64", containerd))
            texts.append(str(caught.value))
        truth = registries.truth(image.reference)
        return texts, truth

    texts, truth = run_in_memory(main)
    head = "rpc error: code = NotFound desc = "
    new = f"{head}get image config descriptor: no match for platform in manifest {truth.digest}: not found"
    old = f'{head}failed to pull and unpack image "{NAME}:1": no match for platform in manifest: not found'
    assert texts == [new, old]
