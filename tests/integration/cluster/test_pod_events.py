"""Events about pods, as an API server gets them."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from extender.background import in_background
from extender.cluster.client import ClusterClient
from extender.cluster.pod_events import TEXT_CHARACTERS, PodEvents
from extender.cluster.views import NAMESPACES
from extender.kubernetes.core_v1 import PodReference
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.integration.cluster.api_server import ApiServer, Document, Refusal, namespace

POD = PodReference("shop", "web-1", "uid-1")
WAITING = "WaitingForImagePlatforms"
FLOODING = [f"flood-{number}" for number in range(40)]


def of_replica(instance: str, client: ClusterClient, clock: Clock) -> PodEvents:
    wall_clock, sleep = lambda: 1_700_000_000.25, lambda _: asyncio.sleep(0)
    return PodEvents(client, instance=instance, clock=clock, wall_clock=wall_clock, sleep=sleep)


@pytest.fixture
async def events(api: ApiServer, client: ClusterClient, clock: Clock) -> AsyncIterator[PodEvents]:
    for name in ("shop", "other", *FLOODING):
        api.put(NAMESPACES.path, namespace(name))
    sent = of_replica("replica-1", client, clock)
    async with in_background(sent.run()):
        yield sent


def stored(api: ApiServer, namespace: str = "shop") -> list[Document]:
    return list(api.objects(f"/api/v1/namespaces/{namespace}/events").values())


async def until_stored(api: ApiServer, number: int, namespace: str = "shop") -> list[Document]:
    return await eventually(lambda: stored(api, namespace), lambda found: len(found) == number)


async def test_event_names_pod_reason_and_time(api: ApiServer, events: PodEvents) -> None:
    """In the pod's namespace, with all that core/v1 wants and `kubectl describe` shows; long texts are cut."""
    events.record(POD, WAITING, "held:\n" + "x" * 2_000)
    (event,) = await until_stored(api, 1)
    assert event["involvedObject"] == {
        "apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "web-1", "uid": "uid-1",
    }  # fmt: skip
    assert (event["reason"], event["type"], event["count"]) == (WAITING, "Normal", 1)
    assert event["message"].startswith("held: x")
    assert len(event["message"]) == TEXT_CHARACTERS
    assert event["source"] == {"component": "multiarch-extender"}
    assert event["firstTimestamp"] == event["lastTimestamp"] == "2023-11-14T22:13:20Z"
    assert event["eventTime"] == "2023-11-14T22:13:20.250000Z"
    assert event["reportingInstance"] == "replica-1"


async def test_namespace_with_too_many_takes_nothing_from_others(
    api: ApiServer, events: PodEvents, clock: Clock
) -> None:
    """What is beyond its rate is dropped, and it may tell again later."""
    for _ in range(100):
        events.record(POD, WAITING, "held")
    events.record(PodReference("other", "db-1", "uid-2"), WAITING, "held")
    await until_stored(api, 1, "other")
    await until_stored(api, 40)
    clock.advance(1)
    for _ in range(10):
        events.record(POD, "ImagePlatformsKnown", "let go")
    await until_stored(api, 45)


async def test_many_namespaces_with_events_take_nothing_from_one_with_few(api: ApiServer, events: PodEvents) -> None:
    """Whoever has forty namespaces has forty rates; of those that wait each has a share, and they are sent in turns."""
    for name in FLOODING:
        for _ in range(40):
            events.record(PodReference(name, "web-1", "uid"), WAITING, "held")
    events.record(POD, WAITING, "held")
    await until_stored(api, 1)
    sent = [request.path for request in api.requests if request.path.endswith("/events")]
    assert sent.index(f"/api/v1/namespaces/{POD.namespace}/events") < 50


async def test_refused_event_is_dropped(api: ApiServer, events: PodEvents) -> None:
    """The next one is sent all the same."""
    api.refusals.append(("send", Refusal(403, "events is forbidden")))
    events.record(POD, WAITING, "first")
    events.record(POD, WAITING, "second")
    assert [event["message"] for event in await until_stored(api, 1)] == ["second"]


async def test_event_that_another_replica_has_sent_is_known(
    api: ApiServer, client: ClusterClient, events: PodEvents, clock: Clock
) -> None:
    """The API server takes one of those with the same text in `once`, and each with another text."""
    deployment = PodReference("shop", "web", "uid-1", "apps/v1", "Deployment")
    other = of_replica("replica-2", client, clock)
    for replica, change in ((events, "lost"), (other, "lost"), (events, "gained"), (other, "lost again")):
        replica.record(deployment, "ImageLacksPlatform", change, "Warning", once=f"app:1 {change}")
    async with in_background(other.run()):
        await eventually(lambda: {"gained", "lost again"} <= {each["message"] for each in stored(api)})
    assert sorted(each["message"] for each in stored(api)) == ["gained", "lost", "lost again"]
    assert len({each["metadata"]["name"] for each in stored(api)}) == 3
    assert "generateName" not in stored(api)[0]["metadata"]
    about = stored(api)[0]["involvedObject"]
    assert (about["kind"], about["apiVersion"]) == ("Deployment", "apps/v1")
