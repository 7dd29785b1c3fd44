"""Replicas of our service in memory: asked, ended in each way, and apart from each other."""

import asyncio
import base64
import random
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from extender.errors import ConfigError
from testbed.memory_http import Client, serve_http
from testbed.memory_network import Network, run_in_memory
from tests.worlds.api_requests import ApiRequests, Asked
from tests.worlds.api_server import HOST, PORT, ApiServer
from tests.worlds.installation import account, install, put_in_place
from tests.worlds.observed import observing
from tests.worlds.plan import Image, Mode
from tests.worlds.registries import Registries
from tests.worlds.replicas import ADMISSION_PORT, Replica
from tests.worlds.trace import Trace

IMAGE = Image(host="registry.example.com", repository="team/app", platforms=("linux/arm64",))
SETTINGS = ("scheduler.listen=", 'admission.unknown="gate"', 'admission.gate.lease="multiarch-held-pods"')


class Cluster:
    def __init__(self, network: Network) -> None:
        self.network = network
        self.loop = network.loop
        self.api = ApiServer(network, Trace(network.loop.time), random.Random(1))
        self.requests = ApiRequests(self.api, random.Random(2), lambda _: account(Mode.WEBHOOK))
        serve_http(network, HOST, PORT, self.requests.answer)
        self.registries = Registries(network, [IMAGE], random.Random(3))
        install(self.api, Mode.WEBHOOK, settings=SETTINGS)
        for name, architecture in (("a", "amd64"), ("b", "arm64")):
            labels = {"kubernetes.io/arch": architecture, "kubernetes.io/os": "linux"}
            put_in_place(self.api, "Node", {"metadata": {"name": name, "labels": labels}})
        self._client = Client(network, HOST)

    def replica(self, number: int, *settings: str) -> Replica:
        return Replica(
            self.network,
            f"webhook-{number}",
            f"10.0.1.{number}",
            (*SETTINGS, *settings),
            api_url=f"http://{HOST}:{PORT}",
            registries=self.registries.hosts,
        )

    async def running(self, number: int, *settings: str) -> Replica:
        replica = self.replica(number, *settings)
        await replica.start()
        await asyncio.sleep(10)
        return replica

    async def review(self, replica: Replica, image: str = IMAGE.reference) -> dict[str, Any]:
        pod = {
            "metadata": {"name": "web", "namespace": "default"},
            "spec": {"containers": [{"name": "app", "image": image}]},
        }
        request = {"uid": "u", "kind": {"group": "", "version": "v1", "kind": "Pod"}, "operation": "CREATE",
                   "namespace": "default", "object": pod, "userInfo": {"username": "author"}}  # fmt: skip
        body = msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
        url = f"http://{replica.address}:{ADMISSION_PORT}/admission/pods"
        answer = await self._client.request("POST", url, body, {"Content-Type": "application/json"}, timeout_seconds=30)
        found: dict[str, Any] = msgspec.json.decode(answer.body)["response"]
        return found


def play(test: Callable[[Cluster], Coroutine[Any, Any, None]], *, latency_seconds: float = 0.0) -> None:
    async def main(network: Network) -> None:
        network.latency_seconds = latency_seconds
        await test(Cluster(network))

    with observing():
        run_in_memory(main)


def test_a_whole_service_reviews_by_what_registry_and_cluster_say() -> None:
    async def test(cluster: Cluster) -> None:
        replica = await cluster.running(1)
        assert (await replica.readyz())[0] == (await replica.livez())[0] == 200
        assert replica.able
        answer = await cluster.review(replica)
        assert answer["allowed"]
        assert "patch" in answer
        await asyncio.sleep(1)  # what is counted, is so behind the answer
        counted = replica.metrics()
        assert counted["multiarch_requests_total{admission,answered}"] == 1
        assert counted["multiarch_cluster_nodes{arm64}"] == 1
        assert "service.started" in [each["event"] for each in replica.logs]
        assert [each for each in replica.logs if "exception" in each] == []
        assert await replica.terminate() < 20.0
        assert not replica.is_running
        assert replica.logs[-1]["event"] == "lease.released"

    play(test, latency_seconds=0.002)


def test_replicas_share_nothing() -> None:
    async def test(cluster: Cluster) -> None:
        one, two = await cluster.running(1), await cluster.running(2)
        await cluster.review(one)
        assert [each.metrics()["multiarch_requests_total{admission,answered}"] for each in (one, two)] == [1, 0]
        asked = len(cluster.registries.asked)
        await cluster.review(two)
        assert len(cluster.registries.asked) > asked
        assert two.able
        one.kill()
        with pytest.raises(ConnectionError):
            await one.livez()
        assert (await two.livez())[0] == 200
        assert (await two.readyz())[0] == 200

    play(test)


def test_one_that_is_killed_gives_nothing_up_and_starts_again() -> None:
    async def test(cluster: Cluster) -> None:
        replica = await cluster.running(1)
        lease = cluster.api.get("Lease", "multiarch-extender", "multiarch-held-pods")
        assert lease
        assert lease["spec"]["holderIdentity"]
        noted = len(replica.logs)
        replica.kill()
        assert not replica.is_running
        await asyncio.sleep(100)
        assert cluster.api.get("Lease", "multiarch-extender", "multiarch-held-pods") == lease
        assert len(replica.logs) == noted
        assert not [link for link in cluster.network.links if replica.address in link.keys[2]]
        await replica.start()
        await asyncio.sleep(40)
        assert (await replica.readyz())[0] == 200
        assert replica.able

    play(test)


def test_one_that_does_not_end_in_time_is_killed() -> None:
    async def test(cluster: Cluster) -> None:
        replica = await cluster.running(1, "shutdown.grace_seconds=1")
        cluster.network.silence(HOST, True)
        assert await replica.terminate() == 1.0
        assert not replica.is_running

    play(test)


def test_one_that_is_told_to_end_while_it_starts_does_so_at_once() -> None:
    async def test(cluster: Cluster) -> None:
        replica = cluster.replica(1)
        starting = asyncio.create_task(replica.start())
        await asyncio.sleep(0)
        assert not starting.done()
        assert await replica.terminate() < 1.0
        await starting
        assert not replica.is_running
        assert cluster.network.links == {}

    play(test)


def test_while_its_fetcher_is_away_look_ups_wait() -> None:
    async def test(cluster: Cluster) -> None:
        replica = await cluster.running(1, "admission.wait_seconds=2")
        replica.stop_fetcher(60)
        asked = len(cluster.registries.asked)
        began_at = cluster.loop.time()
        answer = await cluster.review(replica)
        assert cluster.loop.time() - began_at == pytest.approx(2, abs=0.5)
        assert len(cluster.registries.asked) == asked
        assert b"schedulingGates" in msgspec.json.encode(answer) or answer["patch"]
        await asyncio.sleep(80)
        assert len(cluster.registries.asked) > asked

    play(test)


def test_a_host_that_throttles_rests_by_the_clock_of_the_world() -> None:
    async def test(cluster: Cluster) -> None:
        replica = await cluster.running(1)
        cluster.registries.fault(IMAGE.host, "throttled", 20.0)
        assert "required" not in patch_of(await cluster.review(replica))
        cluster.registries.heal(IMAGE.host)
        await asyncio.sleep(10)
        asked = len(cluster.registries.asked)
        await cluster.review(replica)
        assert len(cluster.registries.asked) == asked
        await asyncio.sleep(30)
        assert "required" in patch_of(await cluster.review(replica))

    play(test)


def patch_of(answer: dict[str, Any]) -> str:
    return base64.b64decode(answer.get("patch", "")).decode()


def test_what_it_keeps_is_counted() -> None:
    async def test(cluster: Cluster) -> None:
        replica = await cluster.running(1)
        before = replica.sizes()
        await cluster.review(replica)
        await asyncio.sleep(5)
        after = replica.sizes()
        changed = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
        assert before["tasks"] > 5
        assert any(name.startswith("ImageCache.") for name in changed), changed

    play(test)


def test_a_start_that_fails_says_why() -> None:
    async def test(cluster: Cluster) -> None:
        replica = cluster.replica(1, "registry.docker_config=/absent")
        with pytest.raises(ConfigError, match="docker_config"):
            await replica.start()
        assert not replica.is_running

    play(test)


def test_the_same_seed_makes_the_same_requests_and_logs() -> None:
    def run() -> tuple[list[dict[str, Any]], list[Asked]]:
        found: list[Any] = []

        async def test(cluster: Cluster) -> None:
            replicas = [await cluster.running(1), await cluster.running(2)]
            for each in replicas:
                await cluster.review(each)
            replicas[0].kill()
            await asyncio.sleep(60)
            found.extend([[each.logs for each in replicas], cluster.requests.asked])

        play(test, latency_seconds=0.005)
        return found[0], found[1]

    assert run() == run()
