"""Events about pods, as an API server gets them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from extender.cluster.client import open_cluster
from extender.cluster.pod_events import TEXT_CHARACTERS, PodEvents
from extender.kubernetes.core_v1 import PodReference
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, Document, Refusal, serve_api, write_kubeconfig

POD = PodReference("shop", "web-1", "uid-1")


@asynccontextmanager
async def sending(folder: Path, clock: Clock) -> AsyncIterator[tuple[ApiServer, PodEvents]]:
    async def sleep(_seconds: float) -> None:
        await asyncio.sleep(0)

    async with serve_api() as api:
        client = await open_cluster("kubeconfig", str(write_kubeconfig(api, folder)))
        events = PodEvents(client, instance="replica-1", clock=clock, wall_clock=lambda: 1_700_000_000.25, sleep=sleep)
        running = asyncio.create_task(events.run())
        try:
            yield api, events
        finally:
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await client.close()


def stored(api: ApiServer, namespace: str) -> list[Document]:
    path = f"/api/v1/namespaces/{namespace}/events"
    return list(api.objects(path).values())


async def until_stored(api: ApiServer, number: int, namespace: str = "shop") -> list[Document]:
    return await eventually(lambda: stored(api, namespace), lambda found: len(found) == number)


async def test_event_names_pod_reason_and_time(tmp_path: Path) -> None:
    """In the pod's namespace, with all that core/v1 wants and `kubectl describe` shows; long texts are cut."""
    async with sending(tmp_path, Clock()) as (api, events):
        events.record(POD, "WaitingForImagePlatforms", "held:\n" + "x" * 2_000)
        (event,) = await until_stored(api, 1)
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "uid-1",
    }  # fmt: skip
    assert (event["reason"], event["type"], event["count"]) == ("WaitingForImagePlatforms", "Normal", 1)
    assert event["message"].startswith("held: x")
    assert len(event["message"]) == TEXT_CHARACTERS
    assert event["source"] == {"component": "multiarch-extender"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2023-11-14T22:13:20Z"
    assert event["eventTime"] == "2023-11-14T22:13:20.250000Z"
    assert event["reportingInstance"] == "replica-1"


async def test_namespace_with_too_many_takes_nothing_from_others(tmp_path: Path) -> None:
    """What is beyond its rate is dropped, and it may tell again later."""
    clock = Clock()
    async with sending(tmp_path, clock) as (api, events):
        for _ in range(100):
            events.record(POD, "WaitingForImagePlatforms", "held")
        events.record(PodReference("other", "db-1", "uid-2"), "WaitingForImagePlatforms", "held")
        await until_stored(api, 1, "other")
        await until_stored(api, 40)
        clock.advance(1)
        for _ in range(10):
            events.record(POD, "ImagePlatformsKnown", "let go")
        await until_stored(api, 45)


async def test_many_namespaces_with_events_take_nothing_from_one_with_few(tmp_path: Path) -> None:
    """Whoever has forty namespaces has forty rates; of those that wait each has a share, and they are sent in turns."""
    async with sending(tmp_path, Clock()) as (api, events):
        for number in range(40):
            for _ in range(40):
                events.record(PodReference(f"flood-{number}", "web-1", "uid"), "WaitingForImagePlatforms", "held")
        events.record(POD, "WaitingForImagePlatforms", "held")
        await until_stored(api, 1)
        sent = [request.path for request in api.requests if request.path.endswith("/events")]
        assert sent.index(f"/api/v1/namespaces/{POD.namespace}/events") < 50


async def test_refused_event_is_dropped(tmp_path: Path) -> None:
    """The next one is sent all the same."""
    async with sending(tmp_path, Clock()) as (api, events):
        api.refusals.append(("send", Refusal(403, "events is forbidden")))
        events.record(POD, "WaitingForImagePlatforms", "first")
        events.record(POD, "WaitingForImagePlatforms", "second")
        assert [event["message"] for event in await until_stored(api, 1)] == ["second"]


async def test_event_that_another_replica_has_sent_is_known(tmp_path: Path) -> None:
    """The API server takes one of those with the same text in `once`, and each with another text."""
    deployment = PodReference("shop", "web", "uid-1", "apps/v1", "Deployment")
    async with sending(tmp_path, Clock()) as (api, events):
        for once in ("app:1 lost", "app:1 lost", "app:1 gained"):
            events.record(deployment, "ImageLostPlatform", "lost", "Warning", once=once)
        first, second = await until_stored(api, 2)
    assert (first["involvedObject"]["kind"], first["involvedObject"]["apiVersion"]) == ("Deployment", "apps/v1")
    assert "generateName" not in first["metadata"]
    assert first["metadata"]["name"] != second["metadata"]["name"]
