"""Images that a real packer has packed: what is found inside them is right, and costs what the page says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.config.registry_section import RegistryConfig
from extender.credentials.keyring import ANONYMOUS
from extender.fetcher.sources import open_local_sources
from extender.images.platform import parse_platform
from extender.images.reference import parse_reference
from extender.machine import THIS_MACHINE
from extender.verifier.image_verifier import ImageVerifier
from testbed.binaries import BinariesMissing
from testbed.debian_registry import DebianRegistry, find_docker_registry
from testbed.image_builder import ImageBuilder
from testbed.tiny_programs import find_tiny

ARM = "linux/arm64"


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DebianRegistry]:
    with DebianRegistry(find_docker_registry(), tmp_path_factory.mktemp("registry")) as running:
        yield running


def programs() -> dict[str, bytes]:
    """A program of each state that an image which claims arm64 may be in; skips without Go."""
    try:
        return {"verified": find_tiny(ARM), "refuted": find_tiny("linux/amd64")}
    except BinariesMissing as exc:
        pytest.skip(str(exc))


@pytest.mark.slow
@pytest.mark.parametrize("compression", ["gzip", "zstd", "zstd:chunked"])
async def test_an_image_by_buildah(
    builder: ImageBuilder, registry: DebianRegistry, tmp_path: Path, compression: str
) -> None:
    """Its windows are not too large, and its pieces are read as one."""
    settings = RegistryConfig(timeout_seconds=10.0, plain_http=(registry.host,), allow=("*", registry.host))
    for state, program in programs().items():
        path, name = tmp_path / state / "app", f"{state}-{compression.replace(':', '-')}"
        path.parent.mkdir()
        path.write_bytes(program)
        path.chmod(0o755)
        builder.pack(path.parent, name, ARM, "/app")
        digest = builder.push(name, f"{registry.host}/{name}:1", compression)
        image = parse_reference(f"{registry.host}/{name}@{digest}")
        async with open_local_sources(settings, machine=THIS_MACHINE) as sources:
            (found,) = await ImageVerifier(sources.registry, image, parse_platform(ARM), ANONYMOUS).verify(60.0)
        assert found.state == state, found
        assert found.read_bytes <= found.layer_bytes, found
