"""CheckResult and metrics as the kubelet and Prometheus read them."""

import asyncio
from collections.abc import Mapping
from unittest.mock import Mock, call

import pytest
from aiohttp import web
from aiohttp.test_utils import RawTestServer, TestClient
from pytest_aiohttp.plugin import AiohttpClient

import extender.server.tls  # noqa: F401 -- its series are among those that are looked for
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
    operations = Operations(live, ready, seen or {}, clock=asyncio.get_running_loop().time)

    async def respond(request: web.BaseRequest) -> web.Response:
        return await operations.respond(request, b"")

    return RawTestServer(respond)


FRESH, STALE = CheckResult(detail="3 s old"), CheckResult(ok=False, detail="never synced")
ENDED = CheckResult(ok=False, detail="it ended")


@pytest.mark.parametrize(
    ("path", "nodes", "certificate", "status", "text"),
    [
        pytest.param("/livez", FRESH, CheckResult(), 200, "ok\n", id="live"),
        pytest.param("/readyz", FRESH, CheckResult(), 200, "ok\n", id="ready"),
        pytest.param(
            "/readyz?verbose", FRESH, CheckResult(), 200, "[+]nodes ok: 3 s old\n[+]certificate ok\n", id="each"
        ),
        pytest.param("/readyz?verbose", FRESH, ENDED, 200, "[-]certificate failed: it ended\n", id="only seen"),
        pytest.param("/readyz", STALE, CheckResult(), 503, "[-]nodes failed: never synced\n", id="fails"),
    ],
)
async def test_a_check_that_fails_is_shown_with_its_reason(
    aiohttp_client: AiohttpClient, path: str, nodes: CheckResult, certificate: CheckResult, status: int, text: str
) -> None:
    """One word while all is well. What is only seen decides nothing: without a ready replica nobody is reached."""
    client: Client = await aiohttp_client(
        serve({"ping": CheckResult}, {"nodes": lambda: nodes}, {"certificate": lambda: certificate})
    )
    response = await client.get(path)
    assert response.status == status
    assert text in await response.text()


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("POST", "/livez", 405), ("HEAD", "/metrics", 200)]
)
async def test_nothing_else_is_answered(aiohttp_client: AiohttpClient, method: str, path: str, status: int) -> None:
    client: Client = await aiohttp_client(serve({}, {}))
    assert (await client.request(method, path)).status == status


async def test_metrics_are_there_before_anything_happened(aiohttp_client: AiohttpClient) -> None:
    """Every labelled series exists from the start."""
    client: Client = await aiohttp_client(serve({}, {}))
    response = await client.get("/metrics")
    assert response.status == 200
    text = await response.text()
    assert [series for series in SERIES if series not in text] == []


@pytest.mark.usefixtures("simulated_time")
async def test_scrapes_without_end_are_rendered_a_few_times(
    aiohttp_client: AiohttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each takes milliseconds of the event loop, and who reaches the port needs no right to ask."""
    render = Mock(return_value=b"multiarch_build_info 1\n")
    monkeypatch.setattr("extender.server.operations.generate_latest", render)
    client: Client = await aiohttp_client(serve({}, {}))
    for _ in range(300):
        async with client.get("/metrics") as response:
            assert await response.read() == b"multiarch_build_info 1\n"
    assert render.mock_calls == [call(REGISTRY)] * 20


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
