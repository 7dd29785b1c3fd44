"""What a replica does while nothing happens: its requests to the API server, and how often it wakes up."""

import asyncio
import selectors
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from contextvars import Context
from pathlib import Path
from typing import Any, cast

import pytest

from extender.cluster.client import open_cluster
from extender.cluster.views import NAMESPACES, NODES, PODS
from extender.config.reading import load_config
from extender.config.tree import Config
from extender.fetcher.sources import open_local_sources
from extender.service.cluster_view import open_cluster_view
from extender.service.compose import open_service
from tests.integration.cluster.api_server import ApiServer, Request, namespace, node, serve_api, write_kubeconfig

CONFIGURATIONS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
ADMISSIONREGISTRATION = "/apis/admissionregistration.k8s.io/v1"
SETTINGS = (
    "admission.listen=127.0.0.1:0",
    "admission.tls={self_managed: [multiarch-webhook]}",
    "admission.unknown=gate",
    "admission.node_affinity=required",
    "operations.listen=127.0.0.1:0",
    "scheduler.listen=",
    "cache.url='memory:'",
    "shutdown.grace_seconds=0.2",
)
MINUTES = 10


class SkippingSelector(selectors.DefaultSelector):
    """Puts the clock forward where nothing is to be read, instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = time.monotonic()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        found = super().select(0)
        if found or timeout == 0:
            return found
        found = super().select(0.002)  # what threads do takes real time
        if found or timeout is None:
            return found
        self.now += max(0.0, timeout)
        return []


class IdleLoop(asyncio.SelectorEventLoop):
    """Counts the timers that are set."""

    def __init__(self, selector: SkippingSelector) -> None:
        super().__init__(selector)
        self.timers = 0

    def call_at(  # type: ignore[override]  # whatever the arguments are
        self, when: float, callback: Any, *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        self.timers += 1
        return super().call_at(when, callback, *args, context=context)

    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        await super().shutdown_default_executor()


class Idle:
    """An API server with a cluster in which nothing changes, and what replicas have asked of it."""

    def __init__(self, api: ApiServer, folder: Path, loop: IdleLoop) -> None:
        self.api = api
        self.folder = folder
        self._loop = loop
        self.timers_a_second = 0.0
        """How many timers were set in the last `watched`."""

    @asynccontextmanager
    async def replica(self, *more: str) -> AsyncIterator[None]:
        """A replica of the webhook that looks after its certificate and holds pods."""
        config = self._config(*more)
        client = await open_cluster("kubeconfig", config.cluster)
        async with (
            open_cluster_view(config) as cluster_view,
            open_service(config, cluster_view, open_local_sources),
        ):
            yield
        await client.close()

    def _config(self, *more: str) -> Config:
        return load_config(None, [*SETTINGS, f"cluster={write_kubeconfig(self.api, self.folder)}", *more])

    async def watched(self, minutes: int = MINUTES) -> list[Request]:
        """The requests of so many minutes, in which watches are kept alive and ended as an API server does."""
        self.api.requests.clear()
        before = self._loop.timers
        for minute in range(minutes):
            await asyncio.sleep(60)
            for path in (NODES.path, NAMESPACES.path, PODS):
                self.api.bookmark(path)
                if minute % 4 == 3:
                    self.api.send(path, None)
        self.timers_a_second = (self._loop.timers - before) / (60 * minutes)
        return list(self.api.requests)


def by_kind(requests: list[Request]) -> Mapping[str, float]:
    counted = Counter(f"{each.kind} {each.method} {each.path}" for each in requests)
    return {key: count / MINUTES for key, count in counted.most_common()}


def run_idle(folder: Path, monkeypatch: pytest.MonkeyPatch, story: Callable[[Idle], Awaitable[None]]) -> None:
    """Runs the story where time passes as soon as nothing is to be done."""
    selector = SkippingSelector()
    began = time.time() - selector.now
    monkeypatch.setattr(time, "monotonic", lambda: selector.now)
    monkeypatch.setattr(time, "time", lambda: began + selector.now)

    async def run() -> None:
        async with serve_api() as api:
            api.put(NODES.path, node("a"))
            api.put(NAMESPACES.path, namespace("shop"))
            webhooks = [{"name": "pods.example.com", "clientConfig": {"url": "https://webhook.example.com"}}]
            api.put(CONFIGURATIONS, {"metadata": {"name": "multiarch-webhook"}, "webhooks": webhooks})
            await story(Idle(api, folder, cast("IdleLoop", asyncio.get_running_loop())))

    with asyncio.Runner(loop_factory=lambda: IdleLoop(selector)) as runner:
        runner.run(run())


ASKED, WRITTEN, TIMERS = 45, 30, 2
"""The most requests a minute, writes among them, and timers a second."""


@pytest.mark.parametrize(
    "settings",
    [
        (),
        ("admission.gate.policy=missing", "scheduler.listen=127.0.0.1:0", "drift.events=true"),
        ("admission.unknown=pass",),
    ],
    ids=["gates", "everything", "only letting go"],
)
def test_an_idle_leader_asks_and_writes_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: tuple[str, ...]
) -> None:
    """With its certificate and canaries."""

    async def story(idle: Idle) -> None:
        async with idle.replica(*settings):
            await idle.watched(5)
            requests = await idle.watched()
        assert any(each.method == "PATCH" and "/leases/" in each.path for each in requests), "it leads"
        assert_idle(idle, requests)

    run_idle(tmp_path, monkeypatch, story)


@pytest.mark.parametrize("unknown", ["gate", "pass"])
def test_a_replica_that_may_not_let_go_asks_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unknown: str
) -> None:
    """Whether that is a fault or not: it looks for its rights again, and not all the time."""

    async def story(idle: Idle) -> None:
        idle.api.forbidden = {(verb, "pods") for verb in ("get", "list", "watch", "patch")}
        async with idle.replica(f"admission.unknown={unknown}"):
            await idle.watched(5)
            assert_idle(idle, await idle.watched())

    run_idle(tmp_path, monkeypatch, story)


def test_an_idle_standby_asks_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the Lease as often as the leader writes it; both together stay below twice the numbers of one."""

    async def story(idle: Idle) -> None:
        async with idle.replica(), idle.replica():
            await idle.watched(5)
            assert_idle(idle, await idle.watched(), replicas=2)

    run_idle(tmp_path, monkeypatch, story)


def assert_idle(idle: Idle, requests: list[Request], replicas: int = 1) -> None:
    assert len(requests) / MINUTES <= ASKED * replicas, by_kind(requests)
    assert sum(each.method != "GET" for each in requests) / MINUTES <= WRITTEN * replicas, by_kind(requests)
    assert idle.timers_a_second <= TIMERS * replicas
