"""Every image of the zoo in a real registry: what is found out is right, and costs what it should."""

import pytest

from extender.credentials.keyring import ANONYMOUS
from extender.fetcher.image_verifier import ImageVerifier
from extender.images.platform import parse_platform
from extender.images.reference import parse_reference
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.registry_client import RegistryClient
from extender.verifier.verification import Verification
from testbed.binaries import BinariesMissing
from testbed.debian_registry import DebianRegistry
from testbed.tiny_programs import find_tiny
from tests.unit.verifier.zoo import Animal, animals

FEWEST = 60


@pytest.fixture(scope="module")
def zoo() -> list[Animal]:
    try:
        return list(animals(find_tiny))
    except BinariesMissing as exc:
        pytest.skip(str(exc))


async def look_inside(animal: Animal, number: int, registry: DebianRegistry, client: RegistryClient) -> Verification:
    registry.push(f"zoo/{number}", "1", animal.bundle)
    reference = parse_reference(f"{registry.host}/zoo/{number}@{animal.bundle.digest}")
    return await ImageVerifier(client, reference, parse_platform(animal.platform), ANONYMOUS).verify(60.0)


@pytest.mark.slow
async def test_every_image_of_the_zoo(zoo: list[Animal], debian_registry: DebianRegistry) -> None:
    """All right, and none refuted that is not. The table is printed with `-s`."""
    assert len(zoo) >= FEWEST
    wrong: list[tuple[str, str, Verification]] = []
    host = debian_registry.host
    async with open_session(guard=AddressGuard(allow=[host])) as session:
        client = RegistryClient(session, timeout_seconds=10, plain_http=frozenset((host,)))
        for number, animal in enumerate(zoo):
            found = await look_inside(animal, number, debian_registry, client)
            said, read = f"{found.program} {found.detail}".strip(), f"{found.read_bytes:,} of {found.layer_bytes:,}"
            print(f"| {animal.name} | {found.state} | {found.requests} | {read} | {said} |")
            if found.state != animal.state or animal.says not in said:
                wrong.append((animal.name, animal.state, found))
    assert wrong == []
