"""CheckResult and metrics as the kubelet and Prometheus read them."""

from collections.abc import Mapping

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer, TestClient
from pytest_aiohttp.plugin import AiohttpClient

from extender.metrics import REGISTRY
from extender.server.operations import Check, CheckResult, MetricsText, Operations
from testbed.clock import Clock

SERIES = (
    'multiarch_requests_total{endpoint="filter",outcome="answered"}',
    'multiarch_request_duration_seconds_bucket{endpoint="admission",le="0.0001"}',
    'multiarch_file_reloads_total{outcome="loaded",setting="tls"}',
)

Client = TestClient[web.BaseRequest, None]


def serve(
    live: Mapping[str, Check], ready: Mapping[str, Check], seen: Mapping[str, Check] | None = None
) -> RawTestServer:
    operations = Operations(live, ready, seen or {})

    async def respond(request: web.BaseRequest) -> web.Response:
        return await operations.respond(request, b"")

    return RawTestServer(respond)


async def test_checks_answer_ok_while_all_is_well(aiohttp_client: AiohttpClient) -> None:
    """A check that passes is one word."""
    client: Client = await aiohttp_client(serve({"ping": CheckResult}, {"shutdown": CheckResult}))
    for path in ("/livez", "/readyz"):
        response = await client.get(path)
        assert (response.status, await response.text()) == (200, "ok\n")


async def test_verbose_shows_each_check_on_a_line(aiohttp_client: AiohttpClient) -> None:
    """`?verbose` names every check."""
    client: Client = await aiohttp_client(
        serve({}, {"shutdown": CheckResult, "nodes": lambda: CheckResult(detail="3 s old")})
    )
    response = await client.get("/readyz?verbose")
    assert await response.text() == "[+]shutdown ok\n[+]nodes ok: 3 s old\nreadyz check passed\n"


async def test_what_is_only_seen_is_shown_and_decides_nothing(aiohttp_client: AiohttpClient) -> None:
    """A webhook that is not reached would be reached by nobody once no replica is ready."""
    client: Client = await aiohttp_client(
        serve({}, {"nodes": CheckResult}, {"canary": lambda: CheckResult(ok=False, detail="unpatched")})
    )
    response = await client.get("/readyz?verbose")
    assert response.status == 200
    assert await response.text() == "[+]nodes ok\n[-]canary failed: unpatched\nreadyz check passed\n"


async def test_failing_check_is_shown_with_its_reason(aiohttp_client: AiohttpClient) -> None:
    """One failing check fails the whole, and says why without being asked."""
    client: Client = await aiohttp_client(
        serve({}, {"shutdown": CheckResult, "nodes": lambda: CheckResult(ok=False, detail="never synced")})
    )
    response = await client.get("/readyz")
    assert response.status == 503
    assert "[-]nodes failed: never synced" in await response.text()


@pytest.mark.parametrize("series", SERIES)
async def test_metrics_are_there_before_anything_happened(aiohttp_client: AiohttpClient, series: str) -> None:
    """Every labelled series exists from the start."""
    client: Client = await aiohttp_client(serve({}, {}))
    response = await client.get("/metrics")
    assert response.status == 200
    assert series in await response.text()


async def test_scrapes_without_end_are_rendered_a_few_times(
    aiohttp_client: AiohttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes milliseconds of the event loop, and who reaches the port needs no right to ask."""
    rendered = 0

    def render(registry: object) -> bytes:
        nonlocal rendered
        assert registry is REGISTRY
        rendered += 1
        return b"multiarch_build_info 1\n"

    monkeypatch.setattr("extender.server.operations.generate_latest", render)
    client: Client = await aiohttp_client(serve({}, {}))
    for _ in range(300):
        async with client.get("/metrics") as response:
            assert await response.read() == b"multiarch_build_info 1\n"
    assert rendered < 60


def test_text_of_metrics_is_a_tenth_of_a_second_old_at_most() -> None:
    """Twenty scrapes are rendered at once, and then ten a second; the others get the last text."""
    clock, texts = Clock(), iter(range(1000))
    text = MetricsText(lambda: str(next(texts)).encode(), clock)
    assert [int(text.read()) for _ in range(25)] == [*range(20), 19, 19, 19, 19, 19]
    clock.now += 0.09
    assert text.read() == b"19"
    clock.now += 0.02
    assert [int(text.read()) for _ in range(2)] == [20, 20]
    clock.now += 60
    assert [int(text.read()) for _ in range(21)] == [*range(21, 41), 40]
