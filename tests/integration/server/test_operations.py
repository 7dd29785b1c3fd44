"""CheckResult and metrics as the kubelet and Prometheus read them."""

import pytest
from pytest_aiohttp.plugin import AiohttpClient

from extender.server.operations import CheckResult, operations_app

SERIES = (
    'multiarch_requests_total{endpoint="filter",outcome="answered"}',
    'multiarch_request_duration_seconds_bucket{endpoint="admission",le="0.0001"}',
    'multiarch_tls_reloads_total{outcome="loaded"}',
)


async def test_checks_answer_ok_while_all_is_well(aiohttp_client: AiohttpClient) -> None:
    """A check that passes is one word."""
    client = await aiohttp_client(operations_app({"ping": CheckResult}, {"shutdown": CheckResult}))
    for path in ("/livez", "/readyz"):
        response = await client.get(path)
        assert (response.status, await response.text()) == (200, "ok\n")


async def test_verbose_shows_each_check_on_a_line(aiohttp_client: AiohttpClient) -> None:
    """`?verbose` names every check."""
    client = await aiohttp_client(
        operations_app({}, {"shutdown": CheckResult, "nodes": lambda: CheckResult(detail="3 s old")})
    )
    response = await client.get("/readyz?verbose")
    assert await response.text() == "[+]shutdown ok\n[+]nodes ok: 3 s old\nreadyz check passed\n"


async def test_failing_check_is_shown_with_its_reason(aiohttp_client: AiohttpClient) -> None:
    """One failing check fails the whole, and says why without being asked."""
    client = await aiohttp_client(
        operations_app({}, {"shutdown": CheckResult, "nodes": lambda: CheckResult(ok=False, detail="never synced")})
    )
    response = await client.get("/readyz")
    assert response.status == 503
    assert "[-]nodes failed: never synced" in await response.text()


@pytest.mark.parametrize("series", SERIES)
async def test_metrics_are_there_before_anything_happened(aiohttp_client: AiohttpClient, series: str) -> None:
    """Every labelled series exists from the start."""
    client = await aiohttp_client(operations_app({}, {}))
    response = await client.get("/metrics")
    assert response.status == 200
    assert series in await response.text()
