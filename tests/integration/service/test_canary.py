"""The canary of a replica: how often it is sent, what is counted and logged, and when it is off."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from extender.background import in_background
from extender.cluster.client import open_cluster
from extender.cluster.webhook_probe import ProbeOutcome
from extender.config.reading import load_config
from extender.metrics import REGISTRY
from extender.server.operations import CheckResult
from extender.service.canaries import CANARIES, CANARY_SECONDS, RIGHT_SECONDS, Canary, canary_of
from tests.integration.cluster.api_server import ApiServer, Refusal, serve_api, write_kubeconfig
from tests.integration.service.caller import SPACE, marked

pytestmark = pytest.mark.usefixtures("simulated_time")
FAILED = Refusal(500, 'failed calling webhook "pods.ours": connection refused')


def last(result: str) -> float | None:
    """When the last canary with this result came back, as the metric says."""
    return REGISTRY.get_sample_value("multiarch_canary_timestamp_seconds", {"result": result})


class Canaries:
    """One replica's canaries, each of them a quarter of its period before `period` returns."""

    def __init__(self, api: ApiServer, check: Callable[[], CheckResult], logs: Sequence[Mapping[str, object]]) -> None:
        self.api = api
        self.check = check
        self._logs = logs
        self._before = self._values()

    @staticmethod
    async def period(seconds: float = CANARY_SECONDS) -> None:
        await asyncio.sleep(seconds)

    def sent(self) -> int:
        return sum("dryRun" in request.query for request in self.api.received("send"))

    def events(self, *fields: str) -> list[object]:
        """The lines of the log by these fields, by default as words."""
        return [tuple(line.get(field) for field in fields) if fields else line["event"] for line in self._logs]

    def counted(self) -> dict[str, float]:
        return {outcome: count - self._before[outcome] for outcome, count in self._values().items()
                if count != self._before[outcome]}  # fmt: skip

    @staticmethod
    def _values() -> dict[str, float]:
        return {outcome.value: CANARIES[outcome].value for outcome in ProbeOutcome}


@asynccontextmanager
async def replica(folder: Path, drawn: float = 0.5) -> AsyncIterator[Canaries]:
    async with serve_api() as api:
        api.admit = marked
        client = await open_cluster("kubeconfig", str(write_kubeconfig(api, folder)))
        canary = Canary(client, SPACE, clock=time.monotonic, wall_clock=time.time, random=lambda: drawn)
        with structlog.testing.capture_logs() as logs:
            async with in_background(canary.run()):
                yield Canaries(api, canary.check, logs)
        await client.close()


@pytest.fixture
async def canaries(tmp_path: Path) -> AsyncIterator[Canaries]:
    async with replica(tmp_path) as opened:
        yield opened


@pytest.mark.parametrize(("drawn", "wanted"), [(0.0, CANARY_SECONDS / 2), (1.0, CANARY_SECONDS)])
async def test_the_first_canary_is_sent_within_a_period(tmp_path: Path, drawn: float, wanted: float) -> None:
    """Not all replicas at one moment."""
    async with replica(tmp_path, drawn) as canaries:
        await canaries.period(wanted - 0.1)
        assert canaries.sent() == 0
        for number in (1, 2, 3):
            await canaries.period(0.2)
            assert canaries.sent() == number
            await canaries.period(CANARY_SECONDS - 0.2)
            assert canaries.sent() == number


async def test_what_became_of_each_canary_is_counted_and_a_change_is_logged_once(canaries: Canaries) -> None:
    """The time of the last success stays what it was while the webhook is not reached."""
    for _ in range(2):
        await canaries.period()
    assert last("patched") == pytest.approx(answered_at := time.time() - CANARY_SECONDS / 4, abs=1)
    canaries.api.admit = None
    for _ in range(2):
        await canaries.period()
    assert last("patched") == pytest.approx(answered_at, abs=1)
    assert last("unpatched") == pytest.approx(time.time() - CANARY_SECONDS / 4, abs=1)
    canaries.api.refusals.append(("send", FAILED))
    await canaries.period()
    canaries.api.admit = marked
    await canaries.period()
    assert canaries.counted() == {"patched": 3, "unpatched": 2, "webhook_failed": 1}
    assert canaries.events("event", "result") == [
        ("canary.answered", None),
        ("canary.unanswered", "unpatched"),
        ("canary.unanswered", "webhook_failed"),
        ("canary.answered", None),
    ]
    assert "connection refused" in str(canaries.events("why")[2])


async def test_a_replica_shows_what_became_of_its_last_canary(canaries: Canaries) -> None:
    """For whoever asks `/readyz?verbose`; a webhook that is not reached yet is no fault."""
    assert canaries.check() == CheckResult(detail="none has come back yet")
    await canaries.period()
    assert canaries.check() == CheckResult(detail="patched 5 s ago")
    canaries.api.admit = None
    await canaries.period()
    shown = canaries.check()
    assert not shown.ok
    assert shown.detail.startswith("unpatched 5 s ago: a pod of namespace ours-canary came back unmarked")


async def test_without_the_right_none_is_sent_and_that_is_said_once(canaries: Canaries) -> None:
    """A right that is given later is used; one that is taken away then is a refusal like others."""
    canaries.api.forbidden = {("create", "pods")}
    await canaries.period(3 * RIGHT_SECONDS)
    assert len(canaries.api.received("send")) == 3  # looks for the right
    assert canaries.sent() == 0
    assert canaries.events() == ["canary.disabled"]
    assert canaries.check() == CheckResult(detail=f"none is sent: may not create pods in namespace {SPACE}")
    assert SPACE in str(canaries.events("why"))
    canaries.api.forbidden = set()
    await canaries.period(RIGHT_SECONDS)
    assert canaries.sent() == 6
    canaries.api.refusals.append(("send", Refusal(403, "forbidden")))
    for _ in range(2):
        await canaries.period()
    assert canaries.counted()["refused"] == 1
    assert canaries.events() == ["canary.disabled", "canary.answered", "canary.unanswered", "canary.answered"]


async def test_a_silent_api_server_does_not_end_the_canaries(canaries: Canaries) -> None:
    """Neither while the right is looked for, nor afterwards."""
    canaries.api.refusals += [("send", Refusal(503))] * 2
    for _ in range(2):
        await canaries.period()
    assert canaries.counted() == {"refused": 1, "patched": 1}
    assert canaries.events() == ["canary.unanswered", "canary.answered"]


async def test_without_the_namespace_none_is_sent_until_there_is_one(canaries: Canaries) -> None:
    """An account may be allowed to create pods everywhere; what nobody can send tells nothing of the webhook."""
    await canaries.period()
    canaries.api.refusals.append(("send", Refusal(404, 'namespaces "ours-canary" not found')))
    await canaries.period(RIGHT_SECONDS)
    assert canaries.counted() == {"patched": 1}
    assert canaries.check() == CheckResult(detail="none is sent: there is no namespace ours-canary")
    await canaries.period()
    assert canaries.counted() == {"patched": 2}
    assert canaries.events() == ["canary.answered", "canary.disabled"]


async def test_without_a_webhook_or_a_cluster_there_is_no_canary(tmp_path: Path) -> None:
    """And no word of it."""
    async with serve_api() as api:
        client = await open_cluster("kubeconfig", str(write_kubeconfig(api, tmp_path)))
        with structlog.testing.capture_logs() as logs:
            assert canary_of(load_config(None, ["admission.listen=", "admission.tls=null"]), client) is None
            assert canary_of(load_config(None, ["admission.listen=127.0.0.1:0", "admission.tls=null"]), None) is None
        await client.close()
        assert (logs, api.requests) == ([], [])
