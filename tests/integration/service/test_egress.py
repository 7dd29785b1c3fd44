"""Image strings, token servers and redirects that lead inside: nothing is reached, and all is answered."""

import json
import shlex
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from testbed.embedded_registry import EmbeddedRegistry
from testbed.forked_commands import run
from testbed.hostile_addresses import IMAGES, NAMES, URLS, Trap, open_trap, watched_network
from tests.integration.service.caller import AMD64, ARM64, changes_of, kept, pod, with_nodes
from tests.integration.service.conftest import StartService


class Leading(EmbeddedRegistry):
    """A registry that leads to the URL of the number in a repository's name, by a realm or by a redirect."""

    port = 0

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        way, _, number = request.path.split("/")[2].partition("-")
        if way not in ("realm", "redirect"):
            return await super().answer(request)
        url = URLS[int(number)].format(port=self.port)
        if way == "redirect":
            return web.Response(status=307, headers={"Location": url})
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{url}"'})


@pytest.fixture
async def trap() -> AsyncIterator[Trap]:
    async with open_trap() as opened:
        yield opened


@pytest.fixture
async def leading(trap: Trap) -> AsyncIterator[Leading]:
    """The registry that leads to the trap, and a good image in it."""
    async with Leading() as opened:
        opened.port = trap.port
        opened.add_index("good", "1", [AMD64, ARM64])
        yield opened


def hostile_images(host: str, port: int) -> list[str]:
    """Every image string that leads inside: by itself, by its registry's realm, by a redirect."""
    led = [f"{host}/{way}-{number}/x" for way in ("realm", "redirect") for number in range(len(URLS))]
    return [image.format(port=port) for image in IMAGES] + led


async def test_hostile_images_reach_nothing_and_the_service_lives(
    start_service: StartService, trap: Trap, leading: Leading
) -> None:
    """Each is unknown for the reason that it is not allowed, at both outlets, and the next good image is known."""
    caller = await start_service("registry.deny=[denied.example.com]", plain_http=leading.host)
    with watched_network(NAMES) as network:
        for image in hostile_images(leading.host, trap.port):
            review = await caller.review(pod(image))
            assert "not-allowed" in review["auditAnnotations"]["verdict"], image
            assert changes_of(review) == []
            assert kept(await caller.filter(with_nodes(pod(image)))) == ["a", "b", "c", "d"]
        review = await caller.review(pod(f"{leading.host}/good:1"))
    assert "tolerations" in str(review["patch"])
    assert set(network.dialled) == {"127.0.0.1"}  # the registry, and this test's own calls
    assert trap.connections == 0


async def test_the_line_that_inspect_gives_has_the_registry_asked(leading: Leading) -> None:
    """The table has it whole, and JSON the same. What a person names is allowed, if it is not denied."""
    image, options = f"{leading.host}/good:1", ["--set", "registry.deny=['127.*', 'x.example.com']"]
    code, out, _ = await run("inspect", image, *options, environment={"COLUMNS": "40"})  # which no pipe has
    assert code == 1
    [line] = [line.strip() for line in out.splitlines() if line.strip().startswith("add ")]
    _, documents, _ = await run("inspect", image, *options, "-o", "json")
    assert json.loads(documents)[0]["unknown"]["remedy"] == line.removeprefix("add ")
    options += shlex.split(line.removeprefix("add "))
    assert options[-1] == "registry.deny=['x.example.com']"
    assert (await run("inspect", image, *options))[0] == 0


async def test_plain_http_does_not_allow(start_service: StartService, leading: Leading) -> None:
    """To be spoken to without TLS is one thing, to be at an address inside another."""
    caller = await start_service("registry.allow=['*']", plain_http=leading.host)
    verdict = (await caller.review(pod(f"{leading.host}/good:1")))["auditAnnotations"]["verdict"]
    assert "not-allowed" in verdict
    assert not leading.requests
