"""Who a caller is and what they may: asked of the API server, kept for seconds, and bounded."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import msgspec
import pytest

from extender.cluster.caller_access import KEEP_SECONDS, AccessBusy, CallerAccess
from extender.cluster.client import ClusterClient, ClusterRefused
from extender.errors import ClusterError
from extender.kubernetes.authentication_v1 import UserInfo
from testbed.clock import Clock

USERS = {"a-token": "ann", "b-token": "bob"}


class FakeApi:
    """An API server that knows two tokens, and lets Ann get the pods of `shop`."""

    def __init__(self) -> None:
        self.requests: list[dict[str, Any]] = []
        self.before: Callable[[], Awaitable[None]] | None = None
        self.failure: ClusterError | None = None

    async def send(self, _method: str, _path: str, body: bytes, *, timeout_seconds: float) -> bytes:
        """The review with its status."""
        assert timeout_seconds < 10
        document = msgspec.json.decode(body)
        self.requests.append(document)
        if self.before:
            await self.before()
        if self.failure:
            raise self.failure
        if document["kind"] == "TokenReview":
            name = USERS.get(document["spec"]["token"])
            status: dict[str, Any] = {"authenticated": bool(name), "user": {"username": name or "", "groups": ["g"]}}
            return msgspec.json.encode({**document, "status": status})
        wanted = document["spec"]["resourceAttributes"]
        assert (wanted["verb"], wanted["resource"]) == ("get", "pods")
        is_allowed = document["spec"]["user"] == "ann" and wanted["namespace"] == "shop"
        return msgspec.json.encode({**document, "status": {"allowed": is_allowed}})

    async def get(self, path: str, **_limits: float) -> bytes:
        """One pod."""
        self.requests.append({"kind": "get", "path": path})
        if path.endswith("/absent"):
            raise ClusterRefused("no", 404)
        return b"{}"


@pytest.fixture
def api() -> FakeApi:
    """A new API server."""
    return FakeApi()


@pytest.fixture
def access(api: FakeApi, clock: Clock) -> CallerAccess:
    """What asks it."""
    return CallerAccess(cast("ClusterClient", api), clock=clock)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


async def identify(access: CallerAccess, token: str, address: str = "10.0.0.1") -> str:
    """Returns the caller's name, empty for a stranger."""
    user = await access.identify(token, address)
    return user.username if user else ""


async def test_a_token_is_asked_about_once_in_ten_seconds(access: CallerAccess, api: FakeApi, clock: Clock) -> None:
    """Whether it is somebody's or nobody's."""
    for _ in range(3):
        assert await identify(access, "a-token") == "ann"
        assert await identify(access, "invented") == ""
    assert len(api.requests) == 2
    clock.now += KEEP_SECONDS
    assert await identify(access, "a-token") == "ann"
    assert len(api.requests) == 3


async def test_invented_tokens_evict_nobody_s(access: CallerAccess, api: FakeApi, clock: Clock) -> None:
    """They are kept apart: the table of those that are somebody's has one row."""
    await identify(access, "a-token")
    for number in range(8):
        clock.now += 0.001
        await identify(access, f"invented-{number}", address=f"10.0.0.{number}")
    requests = len(api.requests)
    assert requests == 9
    assert await identify(access, "a-token") == "ann"
    assert len(api.requests) == requests


@pytest.mark.parametrize("token", ["", "x" * 8193])
async def test_no_token_and_a_huge_one_cost_no_request(access: CallerAccess, api: FakeApi, token: str) -> None:
    """They are nobody's."""
    assert await identify(access, token) == ""
    assert api.requests == []


async def test_one_address_cannot_take_all_turns(access: CallerAccess, api: FakeApi) -> None:
    """Its fifth review at a time is refused, and another address is served."""
    gate = asyncio.Event()
    api.before = lambda: cast("Awaitable[None]", gate.wait())
    waiting = [asyncio.create_task(identify(access, f"invented-{number}")) for number in range(4)]
    await asyncio.sleep(0)
    with pytest.raises(AccessBusy):
        await identify(access, "invented-4")
    other = asyncio.create_task(identify(access, "b-token", address="10.0.0.2"))
    await asyncio.sleep(0)
    gate.set()
    assert await other == "bob"
    assert await asyncio.gather(*waiting) == [""] * 4
    with pytest.raises(AccessBusy):  # a turn lasts a quarter of a second, however fast the answer
        await identify(access, "invented-5")
    await asyncio.sleep(0.3)
    assert await identify(access, "invented-5") == ""


async def test_rights_are_those_of_the_user_and_the_object(access: CallerAccess, api: FakeApi, clock: Clock) -> None:
    """Each kept for ten seconds; the user's groups are sent along."""
    ann, bob = UserInfo("ann", groups=("g",)), UserInfo("bob")
    for _ in range(2):
        assert await access.may_get_pod(ann, "shop", "web")
        assert not await access.may_get_pod(ann, "bank", "web")
        assert not await access.may_get_pod(bob, "shop", "web")
    assert len(api.requests) == 3
    assert api.requests[0]["spec"]["groups"] == ["g"]
    assert api.requests[0]["spec"]["resourceAttributes"]["name"] == "web"
    clock.now += KEEP_SECONDS
    assert await access.may_get_pod(ann, "shop", "web")
    assert len(api.requests) == 4


async def test_a_failure_is_not_kept(access: CallerAccess, api: FakeApi) -> None:
    """The next question is asked again."""
    api.failure = ClusterError("down")
    with pytest.raises(ClusterError, match="down"):
        await identify(access, "a-token")
    api.failure = None
    assert await identify(access, "a-token") == "ann"


async def test_a_pod_is_read_by_its_name_alone(access: CallerAccess, api: FakeApi) -> None:
    """A name that leads elsewhere is no pod's, and makes no request."""
    ann = UserInfo("ann")
    assert await access.fetch_pod(ann, "shop", "web") == b"{}"
    assert await access.fetch_pod(ann, "shop", "absent") is None
    requests = len(api.requests)
    for namespace, name in (("shop", "../secrets/x"), ("..", "web"), ("", "web"), ("shop", "")):
        assert await access.fetch_pod(ann, namespace, name) is None
    assert len(api.requests) == requests
