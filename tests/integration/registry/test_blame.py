"""What fails at a registry is charged to what failed: an image, an account, our own queue, or the host."""

import asyncio
import base64
from collections.abc import AsyncIterator

import pytest
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS, Credential
from extender.credentials.operator_keyring import OperatorKeyring
from extender.errors import RegistryUnavailable
from extender.fetcher.sources import LocalSources
from extender.images.content import Answer, Cause, Content, Failure
from extender.images.reference import parse_reference
from extender.resolver.image_cache import ImageQuery
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from testbed.images import build_index
from tests.integration.registry.conftest import MakeClient
from tests.integration.registry.faulty import GuardedRegistry
from tests.unit.resolver.fake_registry import OTHER, TENANT, keyring_of

IMAGE = build_index(["linux/amd64", "linux/arm64"])


@pytest.fixture
async def registry() -> AsyncIterator[GuardedRegistry]:
    """A registry with four images, which both logins may pull; two of them break its policy."""
    async with GuardedRegistry("", "tenant:secret", "other:secret") as opened:
        for name in ("one", "two", "vulnerable-one", "vulnerable-two"):
            opened.add(f"team/{name}", "1", IMAGE)
        yield opened


@pytest.fixture
async def resolver(registry: GuardedRegistry, make_client: MakeClient, clock: Clock) -> AsyncIterator[Resolver]:
    opened = Resolver(
        LocalSources(make_client(registry.host), OperatorKeyring(), None),
        size=100,
        tag_seconds=900,
        stale_seconds=86_400,
        clock=clock,
        random=lambda: 0.0,
    )
    yield opened
    await opened.close()


async def answer_of(resolver: Resolver, image: str, credential: Credential = ANONYMOUS) -> Answer:
    """What is known of an image after waiting for it."""
    (answer,) = await resolver.resolve_all([ImageQuery(image)], keyring_of(credential), 10.0)
    return answer


def cause_of(answer: Answer) -> Cause | None:
    return answer.cause if isinstance(answer, Failure) else None


POLICY = "current image with 3 vulnerabilities cannot be pulled due to configured policy"
REFUSAL = {"errors": [{"code": "PROJECTPOLICYVIOLATION", "message": POLICY}]}


async def test_pods_author_reads_why_a_registry_refuses_the_image(
    registry: GuardedRegistry, resolver: Resolver
) -> None:
    """HEAD comes first, and its answer has no body: the one to a GET says why."""

    async def refuse(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response(REFUSAL, status=412)

    registry.fault = refuse
    for name in ("one:1", f"two@{IMAGE.digest}"):
        answer = await answer_of(resolver, f"{registry.host}/team/{name}")
        assert answer == Failure(Cause.REFUSED, f"its registry refuses it (HTTP 412), and says: {POLICY}")


async def test_refusal_whose_text_never_ends_is_a_refusal_of_that_image(
    registry: GuardedRegistry, resolver: Resolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it would have said is not waited for, and the host is not to blame."""
    monkeypatch.setattr("extender.registry.http._REASON_SECONDS", 0.05)
    end = asyncio.Event()

    async def drip(request: web.BaseRequest) -> web.StreamResponse | None:
        if "vulnerable" not in request.path:
            return None
        response = web.StreamResponse(status=412)
        await response.prepare(request)
        if request.method == "GET":
            await response.write(b'{"errors": [')
            await end.wait()
        return response

    registry.fault = drip
    answers = [await answer_of(resolver, f"{registry.host}/team/vulnerable-{name}:1") for name in ("one", "two")]
    end.set()
    assert [cause_of(answer) for answer in answers] == [Cause.REFUSED] * 2
    assert all(isinstance(answer, Failure) and answer.detail.endswith("(HTTP 412)") for answer in answers)
    assert isinstance(await answer_of(resolver, f"{registry.host}/team/one:1"), Content)


async def test_throttled_login_leaves_the_registry_to_others(
    registry: GuardedRegistry, resolver: Resolver, clock: Clock
) -> None:
    """429 is about the account: its other images wait, those of other accounts do not."""
    throttled = "Basic " + base64.b64encode(b"tenant:secret").decode()

    async def throttle(request: web.BaseRequest) -> web.StreamResponse | None:
        is_theirs = request.headers.get("Authorization") == throttled
        return web.Response(status=429, headers={"Retry-After": "60"}) if is_theirs else None

    registry.token_fault = throttle
    one, two = (f"{registry.host}/team/{name}:1" for name in ("one", "two"))
    assert cause_of(await answer_of(resolver, one, TENANT)) is Cause.THROTTLED
    requested = len(registry.desk)
    assert cause_of(await answer_of(resolver, two, TENANT)) is Cause.THROTTLED
    assert len(registry.desk) == requested
    assert isinstance(await answer_of(resolver, two, OTHER), Content)
    assert isinstance(await answer_of(resolver, two), Content)
    clock.advance(60)
    registry.token_fault = None
    assert isinstance(await answer_of(resolver, two, TENANT), Content)


async def test_name_server_that_hangs_blames_no_host(monkeypatch: pytest.MonkeyPatch, make_client: MakeClient) -> None:
    """The exchange's time is over before the C library gives up, which waits in a thread."""

    async def hang(*_: object, **__: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", hang)
    client = make_client(timeout_seconds=0.05)
    for repository in ("one", "two", "three", "four"):  # a host to blame would rest after three
        with pytest.raises(RegistryUnavailable, match=r"registry.example.com did not answer within 0\.05 s"):
            await client.head_manifest(parse_reference(f"registry.example.com/{repository}:1"), ANONYMOUS)
