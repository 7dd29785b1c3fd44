"""Where a real containerd pulls from by the files that k3s makes of `registries.yaml`, and where the service asks.

A pod on a real node for each case of k3s' own tests. Registries on loopback have no image and log who was asked. The
containerd is not k3s' and knows no rewrites.
"""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS
from extender.errors import RegistryError
from extender.images.reference import parse_reference
from extender.machine import THIS_MACHINE
from extender.registry.endpoint import EndpointSource, MirrorRule
from extender.registry.endpoint_tls import CertificateReader
from extender.registry.mirror_files import MirrorFiles
from extender.registry.registries_yaml import read_registries_yaml
from extender.registry.registry_client import RegistryClient
from testbed.eventually import eventually
from testbed.nodes.configuration import encode_toml
from testbed.nodes.node import RealNode
from testbed.nodes.programs import Containerd, is_built
from testbed.objects import pod
from tests.e2e.running import CONTAINERDS, RealImages, find_programs
from tests.e2e.world import World

pytestmark = pytest.mark.e2e


class Case(NamedTuple):
    """A registry's table, in which `{registry}`, `{one}` and `{two}` stand for hosts.

    `is_same`: k3s' own containerd asks the same.
    """

    name: str
    yaml: str
    path: str
    is_same: bool = True


CASES = [
    Case("full address", "'{registry}': {{endpoint: ['http://{one}/v2']}}", "library/nginx"),
    Case("other path", "'{registry}': {{endpoint: ['http://{one}/prefix/v2']}}", "library/nginx"),
    Case("rewrite", "'{registry}': {{endpoint: ['http://{one}'], rewrite: {{'^rancher/(.*)': 'docker/$1'}}}}",
         "rancher/x", is_same=False),
    Case("wildcard", "'*': {{endpoint: ['http://{one}']}}", "a"),
    Case("default last", "'{registry}': {{endpoint: ['http://{one}', '{two}', '{registry}']}}", "library/nginx"),
    Case("without a scheme", "'{registry}': {{endpoint: ['{one}']}}", "library/nginx"),
]  # fmt: skip


class Registries:
    """Registries on loopback without images, by port. `asked` has what each was asked for, in order."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []

    async def open(self, stack: AsyncExitStack) -> str:
        runner = web.ServerRunner(web.Server(self._answer))
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        return f"127.0.0.1:{runner.addresses[0][1]}"

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        self.asked.append((request.host, request.path, request.query.get("ns", "")))
        return web.Response(status=404)

    def take(self, hosts: Sequence[str]) -> list[tuple[str, str, str]]:
        """What these hosts were asked for so far, each once, by the order of the first time.

        The wildcard has the node ask for the image of every pod's pause container there too, which is left out.
        """
        return list(dict.fromkeys(each for each in self.asked if each[0] in hosts and "/pause/" not in each[1]))


class OpenCase(NamedTuple):
    case: Case
    hosts: tuple[str, ...]
    file: Path

    @property
    def image(self) -> str:
        return f"{self.hosts[0]}/{self.case.path}:1"

    @property
    def pod_name(self) -> str:
        return self.case.name.replace(" ", "-")


def hosts_toml_of(rule: MirrorRule) -> dict[str, Any]:
    *mirrors, own = rule.places
    server = {"server": str(own.root)} if own.root else {}
    return {**server, "host": {str(each.root): {"override_path": True} for each in mirrors}}


@asynccontextmanager
async def open_cases(registries: Registries, folder: Path) -> AsyncIterator[list[OpenCase]]:
    """The registries of all cases, and in `certs.d` what k3s writes for them."""
    async with AsyncExitStack() as stack:
        opened: list[OpenCase] = []
        for case in CASES:
            hosts = tuple([await registries.open(stack) for _ in range(3)])
            file = folder / f"{case.name}.yaml"
            file.write_text(f"mirrors: {{{case.yaml.format(registry=hosts[0], one=hosts[1], two=hosts[2])}}}")
            opened.append(OpenCase(case, hosts, file))
            for rule in read_registries_yaml(file.read_bytes(), CertificateReader()).routes.rules:
                written = folder / "certs.d" / (rule.prefix.rstrip("/") or "_default")
                written.mkdir(parents=True)
                (written / "hosts.toml").write_bytes(encode_toml(hosts_toml_of(rule)))
        yield opened


async def ask(mirrors: EndpointSource, image: str) -> None:
    async with aiohttp.ClientSession() as session:
        client = RegistryClient(
            session,
            timeout_seconds=10,
            plain_http=frozenset({image.partition("/")[0]}),
            machine=THIS_MACHINE,
            mirrors=mirrors,
        )
        with pytest.raises(RegistryError):
            await client.fetch_manifest(parse_reference(image), ANONYMOUS)


@pytest.mark.parametrize("version", CONTAINERDS)
async def test_containerd_asks_where_the_service_asks(
    world: World, pytestconfig: pytest.Config, real_images: RealImages, version: Containerd, tmp_path: Path
) -> None:
    """The same registries for the same repositories, in the same order, in each of the six cases."""
    if not is_built(version):
        pytest.skip(f"containerd {version} is not built: python -m testbed.binaries containerd")
    programs, registries, where = find_programs(pytestconfig, version), Registries(), await world.namespace()
    async with open_cases(registries, tmp_path) as cases:
        node = RealNode(
            "amd64", programs, world.api, world.cluster.kubeconfig, real_images.pause, hosts=tmp_path / "certs.d"
        )
        async with node:
            for each in cases:
                await world.api.create(pod(each.pod_name, each.image, namespace=where, spec={"nodeName": "amd64"}))
            await eventually(lambda: all(each.hosts[0] in {host for host, *_ in registries.asked} for each in cases))
            await world.api.delete_all("Pod", where)
        asked = {each.case.name: registries.take(each.hosts) for each in cases}
        registries.asked.clear()
        for each in cases:
            await ask(MirrorFiles(str(tmp_path / "certs.d")), each.image)
        assert {each.case.name: registries.take(each.hosts) for each in cases} == asked
        for each in (each for each in cases if each.case.is_same):
            registries.asked.clear()
            await ask(MirrorFiles(str(each.file)), each.image)
            assert registries.take(each.hosts) == asked[each.case.name]
    assert sum(len({host for host, *_ in found}) for found in asked.values()) == 2 * 5 + 3
    world.figure(f"files of k3s, containerd {version}: the same registries as the service in {len(cases)} cases")
