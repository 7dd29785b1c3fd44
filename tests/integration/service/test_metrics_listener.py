"""Where /metrics is served."""

import pytest

from extender.errors import ConfigError
from tests.integration.service.conftest import StartService


async def test_metrics_have_an_address_of_their_own_if_told_so(start_service: StartService) -> None:
    """Prometheus needs no way to the probes, and who reaches the probes reads no metrics."""
    caller = await start_service("operations.metrics_listen=127.0.0.1:0")
    statuses = {}
    for name in ("operations", "metrics"):
        for path in ("/readyz", "/metrics"):
            async with caller.session.get(f"{caller.service.urls[name]}{path}") as response:
                statuses[name, path] = response.status
    assert statuses == {
        ("operations", "/readyz"): 200,
        ("operations", "/metrics"): 404,
        ("metrics", "/readyz"): 404,
        ("metrics", "/metrics"): 200,
    }


async def test_metrics_are_beside_the_probes_by_default(start_service: StartService) -> None:
    """One listener for both."""
    caller = await start_service()
    assert caller.service.urls["metrics"] == ""
    async with caller.session.get(f"{caller.service.operations_url}/metrics") as response:
        assert response.status == 200


async def test_taken_address_is_refused_by_the_name_of_its_setting(start_service: StartService) -> None:
    """The operator reads which line of the configuration to change."""
    caller = await start_service()
    taken = caller.service.operations_url.removeprefix("http://")
    with pytest.raises(ConfigError, match=r"^operations\.metrics_listen: cannot listen on "):
        await start_service(f"operations.metrics_listen={taken}")
