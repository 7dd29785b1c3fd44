"""The played kube-apiserver over HTTP, as our service's own list, watch, and client see it."""

import asyncio
import random
import ssl
from collections.abc import Awaitable, Callable, Set
from typing import Any, TypeVar

import msgspec
import pytest

from extender.cluster.client import METADATA, STRATEGIC_MERGE_PATCH, ClusterClient, ClusterRefused
from extender.cluster.configuration import Access
from extender.cluster.listwatch import ListWatch, Resource
from extender.cluster.own_rights import is_allowed
from extender.cluster.views import NAMESPACES, PENDING
from extender.kubernetes.api_groups import ResourceAttributes
from testbed.memory_http import serve_http
from testbed.memory_network import run_in_memory
from tests.worlds.api_kinds import Document
from tests.worlds.api_requests import ApiRequests
from tests.worlds.api_server import HOST, PORT, ApiServer
from tests.worlds.api_storage import decode
from tests.worlds.installation import put_in_place
from tests.worlds.trace import Trace

T = TypeVar("T")
PENDING_PODS = Resource(name="held-pods", path="/api/v1/pods", query={"fieldSelector": PENDING})


class View:
    """Keeps what a watch shows, by key."""

    def __init__(self) -> None:
        self.found: dict[str, Document] = {}

    def upsert(self, document: msgspec.Raw) -> None:
        found = decode(bytes(document))
        self.found[found["metadata"]["name"]] = found

    def delete(self, key: str) -> None:
        self.found.pop(key.rpartition("/")[2], None)

    def keep_only(self, keys: Set[str]) -> None:
        names = {key.rpartition("/")[2] for key in keys}
        self.found = {name: found for name, found in self.found.items() if name in names}


class Served:
    """An API server over HTTP, and our client of it."""

    def __init__(self, network: Any) -> None:
        self.network = network
        self.api = ApiServer(network, Trace(network.loop.time), random.Random(1))
        self.requests = ApiRequests(self.api, random.Random(2), lambda _: "us")
        serve_http(network, HOST, PORT, self.requests.answer)
        put_in_place(self.api, "Namespace", {"metadata": {"name": "default"}})
        access = Access(url=f"http://{HOST}:{PORT}", tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), authorize=_no_headers)

        async def load() -> Access:
            return access

        self.client = ClusterClient(access, load, network.loop.time)
        self.view = View()
        self.watches: list[asyncio.Task[None]] = []

    def watch(self, resource: Resource) -> ListWatch:
        watch = ListWatch(
            self.client, resource, self.view, clock=self.network.loop.time, random=random.Random(3).random
        )
        self.watches.append(asyncio.create_task(watch.run()))
        return watch

    async def create(self, name: str, **spec: Any) -> Document:
        pod = {"metadata": {"name": name}, "spec": {"containers": [{"name": "app", "image": "a"}], **spec}}
        return await self.api.create("Pod", pod, user="author")

    def lists_of(self, resource: str) -> int:
        """How often it was listed."""
        return sum((each.verb, each.resource) == ("list", resource) for each in self.requests.asked)

    async def close(self) -> None:
        for each in self.watches:
            each.cancel()
        await asyncio.gather(*self.watches, return_exceptions=True)
        await self.client.close()


async def _no_headers() -> dict[str, str]:
    return {}


def play(script: Callable[[Served], Awaitable[T]]) -> T:
    async def main(network: Any) -> T:
        served = Served(network)
        try:
            return await script(served)
        finally:
            await served.close()

    return run_in_memory(main)


def test_view_follows_what_is_selected() -> None:
    async def script(served: Served) -> list[list[str]]:
        for number in range(600):
            await served.create(f"old-{number:03}")
        served.watch(PENDING_PODS)
        await asyncio.sleep(1)
        seen = [[str(len(served.view.found))]]
        await served.create("new")
        for stored in served.api.storage.all("Pod"):
            if stored.document["metadata"]["name"].startswith("old"):
                await served.api.bind("default", stored.document["metadata"]["name"], "node")
        await asyncio.sleep(1)
        seen.append(list(served.view.found))
        await served.api.delete("Pod", "default", "new")
        await asyncio.sleep(1)
        return [*seen, list(served.view.found)]

    assert play(script) == [["600"], ["new"], []]


def test_namespaces_come_with_their_metadata_alone() -> None:
    async def script(served: Served) -> list[Document]:
        served.watch(NAMESPACES)
        await asyncio.sleep(1)
        put_in_place(served.api, "Namespace", {"metadata": {"name": "late"}, "spec": {"x": "y"}})
        await asyncio.sleep(1)
        return list(served.view.found.values())

    found = play(script)

    assert [each["metadata"]["name"] for each in found] == ["default", "late"]
    assert {tuple(sorted(each)) for each in found} == {("apiVersion", "kind", "metadata")}


def test_bookmarks_confirm_a_view_in_which_nothing_changes() -> None:
    async def script(served: Served) -> float:
        watch = served.watch(NAMESPACES)
        oldest = 0.0
        for _ in range(600):
            await asyncio.sleep(1)
            oldest = max(oldest, watch.age_seconds())
        return oldest

    assert 59 <= play(script) <= 63


def test_compaction_leads_to_a_new_list() -> None:
    async def script(served: Served) -> tuple[int, list[str]]:
        served.watch(PENDING_PODS)
        await asyncio.sleep(1)
        served.network.refuse(HOST, True)
        served.requests.watch_cut("pods")
        await asyncio.sleep(1)
        await served.create("missed")
        served.requests.compact()
        served.network.refuse(HOST, False)
        await asyncio.sleep(10)
        return served.lists_of("pods"), list(served.view.found)

    assert play(script) == (2, ["missed"])


def test_watch_from_before_the_cut_misses_nothing() -> None:
    async def script(served: Served) -> tuple[int, list[str]]:
        served.watch(PENDING_PODS)
        await asyncio.sleep(1)
        served.requests.watch_cut("Pod")
        await served.create("meanwhile")
        await asyncio.sleep(5)
        return served.lists_of("pods"), list(served.view.found)

    assert play(script) == (1, ["meanwhile"])


def test_silent_watch_brings_nothing_and_does_not_end() -> None:
    async def script(served: Served) -> list[float]:
        watch = served.watch(PENDING_PODS)
        await asyncio.sleep(1)
        served.requests.watch_silence("pods")
        await asyncio.sleep(80)
        ages = [watch.age_seconds()]
        served.requests.watch_silence("pods", on=False)
        await asyncio.sleep(20)
        return [*ages, watch.age_seconds()]

    silent, after = play(script)

    assert silent > 75
    assert after < silent


def test_right_that_is_denied_is_missing_in_the_review_too() -> None:
    async def script(served: Served) -> list[Any]:
        right = ResourceAttributes(verb="patch", resource="pods")
        found: list[Any] = [await is_allowed(served.client, right)]
        served.requests.deny("patch", "pods")
        found.append(await is_allowed(served.client, right))
        await served.create("x")
        path = "/api/v1/namespaces/default/pods/x"
        for on in (True, False):
            served.requests.deny("patch", "pods", on)
            try:
                body = b'{"metadata":{"labels":{"a":"b"}}}'
                await served.client.send("PATCH", path, body, STRATEGIC_MERGE_PATCH, accept=METADATA)
                found.append(200)
            except ClusterRefused as exc:
                found.append(exc.status)
        return found

    assert play(script) == [True, False, 403, 200]


@pytest.mark.parametrize(("fault", "status"), [("errors", 500), ("slow", 200)])
def test_faults_concern_requests_over_http(fault: str, status: int) -> None:
    async def script(served: Served) -> tuple[int, float]:
        if fault == "errors":
            served.requests.errors(1.0)
        else:
            served.requests.slow(3.0)
        started = served.network.loop.time()
        try:
            await served.client.get("/api/v1/nodes")
        except ClusterRefused as exc:
            return exc.status, 0.0
        return 200, served.network.loop.time() - started

    assert play(script) == (status, 3.0 if fault == "slow" else 0.0)


def test_what_is_not_served_is_not_found() -> None:
    async def script(served: Served) -> int:
        try:
            await served.client.get("/apis/apps.openshift.io/v1/deploymentconfigs")
        except ClusterRefused as exc:
            return exc.status
        return 200

    assert play(script) == 404
