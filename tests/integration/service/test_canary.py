"""The canary of a replica: how often it is sent, what is counted and logged, and when it is off."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog

from extender.cluster.client import open_cluster
from extender.cluster.webhook_probe import ProbeOutcome
from extender.config.reading import load_config
from extender.metrics import REGISTRY
from extender.server.operations import CheckResult
from extender.service.canaries import CANARIES, CANARY_SECONDS, RIGHT_SECONDS, Canary, canary_of
from testbed.clock import Clock
from tests.integration.cluster.api_server import ApiServer, Refusal, serve_api, write_kubeconfig
from tests.integration.service.caller import SPACE, marked

FAILED = Refusal(500, 'failed calling webhook "pods.ours": connection refused')


def last(result: str) -> float | None:
    """When the last canary with this result came back, as the metric says."""
    return REGISTRY.get_sample_value("multiarch_canary_timestamp_seconds", {"result": result})


class Canaries:
    """One replica's canaries: each pause ends when the test says so."""

    def __init__(self, api: ApiServer) -> None:
        self.api = api
        self.clock = Clock()
        self.check: Callable[[], CheckResult] = CheckResult
        self.logs: Sequence[Mapping[str, object]] = []
        self._pauses: asyncio.Queue[float] = asyncio.Queue()
        self._go = asyncio.Event()

    async def sleep(self, seconds: float) -> None:
        self._pauses.put_nowait(seconds)
        await self._go.wait()
        self._go.clear()

    async def pause(self) -> float:
        return await asyncio.wait_for(self._pauses.get(), 5)

    async def next(self) -> float:
        self._go.set()
        return await self.pause()

    def sent(self) -> int:
        return sum("dryRun" in request.query for request in self.api.received("send"))

    def events(self) -> list[object]:
        return [line["event"] for line in self.logs]


@asynccontextmanager
async def replica(folder: Path, drawn: float = 0.5) -> AsyncIterator[Canaries]:
    """A replica whose canaries are sent when the test says so; the first pause has begun."""
    async with serve_api() as api:
        api.admit = marked
        client = await open_cluster("kubeconfig", str(write_kubeconfig(api, folder)))
        canaries = Canaries(api)
        canary = Canary(
            client,
            SPACE,
            clock=canaries.clock,
            wall_clock=canaries.clock,
            random=lambda: drawn,
            sleep=canaries.sleep,
        )
        with structlog.testing.capture_logs() as logs:
            canaries.logs, canaries.check = logs, canary.check
            running = asyncio.create_task(canary.run())
            try:
                yield canaries
            finally:
                running.cancel()
                await asyncio.gather(running, return_exceptions=True)
                await client.close()


@pytest.mark.parametrize(("drawn", "wanted"), [(0.0, CANARY_SECONDS / 2), (1.0, CANARY_SECONDS)])
async def test_the_first_canary_is_sent_within_a_period(tmp_path: Path, drawn: float, wanted: float) -> None:
    """Not all replicas at one moment."""
    async with replica(tmp_path, drawn) as canaries:
        assert await canaries.pause() == wanted
        assert canaries.sent() == 0
        assert await canaries.next() == CANARY_SECONDS
        assert await canaries.next() == CANARY_SECONDS
        assert canaries.sent() == 2


async def test_what_became_of_each_canary_is_counted_and_a_change_is_logged_once(tmp_path: Path) -> None:
    """The time of the last success stays what it was while the webhook is not reached."""
    async with replica(tmp_path) as canaries:
        before = {outcome: CANARIES[outcome].value for outcome in ProbeOutcome}
        canaries.clock.advance(1000)
        await canaries.pause()
        await canaries.next()
        answered_at = canaries.clock()
        canaries.clock.advance(60)
        await canaries.next()
        assert last("patched") == answered_at + 60
        canaries.api.admit = None
        canaries.clock.advance(60)
        await canaries.next()
        await canaries.next()
        assert last("patched") == answered_at + 60
        assert last("unpatched") == answered_at + 120
        canaries.api.refusals.append(("send", FAILED))
        await canaries.next()
        canaries.api.admit = marked
        await canaries.next()
        after = {outcome: CANARIES[outcome].value - before[outcome] for outcome in ProbeOutcome}
        assert after == {"patched": 3, "unpatched": 2, "webhook_failed": 1, "refused": 0, "unreachable": 0}
        assert canaries.events() == [
            "canary.answered", "canary.unanswered", "canary.unanswered", "canary.answered",
        ]  # fmt: skip
        assert [line["result"] for line in canaries.logs[1:3]] == ["unpatched", "webhook_failed"]
        assert "connection refused" in str(canaries.logs[2]["why"])


async def test_a_replica_shows_what_became_of_its_last_canary(tmp_path: Path) -> None:
    """For whoever asks `/readyz?verbose`; a webhook that is not reached yet is no fault."""
    async with replica(tmp_path) as canaries:
        await canaries.pause()
        assert canaries.check() == CheckResult(detail="none has come back yet")
        await canaries.next()
        canaries.clock.advance(12)
        assert canaries.check() == CheckResult(detail="patched 12 s ago")
        canaries.api.admit = None
        await canaries.next()
        shown = canaries.check()
        assert not shown.ok
        assert shown.detail.startswith("unpatched 0 s ago: a pod of namespace ours-canary came back unmarked")


async def test_without_the_right_none_is_sent_and_that_is_said_once(tmp_path: Path) -> None:
    """A right that is given later is used; one that is taken away then is a refusal like others."""
    async with replica(tmp_path) as canaries:
        before = CANARIES["refused"].value
        canaries.api.forbidden = {("create", "pods")}
        await canaries.pause()
        for _ in range(3):
            assert await canaries.next() == RIGHT_SECONDS
        assert canaries.sent() == 0
        assert canaries.events() == ["canary.disabled"]
        assert canaries.check() == CheckResult(detail=f"none is sent: may not create pods in namespace {SPACE}")
        assert SPACE in str(canaries.logs[0]["why"])
        canaries.api.forbidden = set()
        await canaries.next()
        assert canaries.sent() == 1
        canaries.api.refusals.append(("send", Refusal(403, "forbidden")))
        await canaries.next()
        await canaries.next()
        assert CANARIES["refused"].value == before + 1
        assert canaries.events() == ["canary.disabled", "canary.answered", "canary.unanswered", "canary.answered"]


async def test_a_silent_api_server_does_not_end_the_canaries(tmp_path: Path) -> None:
    """Neither while the right is looked for, nor afterwards."""
    async with replica(tmp_path) as canaries:
        before = CANARIES["refused"].value
        canaries.api.refusals += [("send", Refusal(503))] * 2
        await canaries.pause()
        await canaries.next()
        assert CANARIES["refused"].value == before + 1
        await canaries.next()
        assert canaries.events() == ["canary.unanswered", "canary.answered"]


async def test_without_the_namespace_none_is_sent_until_there_is_one(tmp_path: Path) -> None:
    """An account may be allowed to create pods everywhere; what nobody can send tells nothing of the webhook."""
    async with replica(tmp_path) as canaries:
        await canaries.pause()
        await canaries.next()
        before = sum(CANARIES[outcome].value for outcome in ProbeOutcome)
        canaries.api.refusals.append(("send", Refusal(404, 'namespaces "ours-canary" not found')))
        assert await canaries.next() == RIGHT_SECONDS
        assert sum(CANARIES[outcome].value for outcome in ProbeOutcome) == before
        assert canaries.check() == CheckResult(detail="none is sent: there is no namespace ours-canary")
        assert await canaries.next() == CANARY_SECONDS
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
