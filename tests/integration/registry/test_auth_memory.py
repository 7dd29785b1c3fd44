"""What registries and token servers can make the process keep, and at whose cost."""

import gc
import json
import tracemalloc
from collections.abc import AsyncIterator, Iterator

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.registry import auth as module
from extender.registry.auth import Authenticator
from extender.registry.transport import Response
from extender.turns import Interest, set_interest
from testbed.clock import Clock

ANN = Credential("ann", "word", CredentialId("ann"))
MANY = 1_000
PARAMETERS = ", ".join(f'p{number}="v"' for number in range(400))


@pytest.fixture
async def authenticator(clock: Clock) -> AsyncIterator[Authenticator]:
    """An authenticator whose session is not used."""
    async with aiohttp.ClientSession() as session:
        yield Authenticator(session, timeout_seconds=60, clock=clock, wall_clock=clock)


@pytest.fixture
def clock() -> Clock:
    """A clock that stands still."""
    return Clock()


@pytest.fixture
def traced() -> Iterator[None]:
    """Counts the memory that is allocated from now on."""
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.fixture
def token_requests(monkeypatch: pytest.MonkeyPatch) -> list[URL]:
    """The requests to token servers, each of which gives a token of 16 KB."""
    requests: list[URL] = []

    async def answer(_session: object, _method: str, url: URL, **_: object) -> Response:
        requests.append(url)
        body = json.dumps({"token": f"{len(requests):016384d}", "expires_in": 3600}).encode()
        return Response(url, 200, CIMultiDictProxy(CIMultiDict()), body, truncated=False)

    monkeypatch.setattr(module, "send", answer)
    return requests


def challenged(origin: str, repository: str, challenge: str) -> Response:
    """A 401 about the repository."""
    headers = CIMultiDictProxy(CIMultiDict({"WWW-Authenticate": challenge}))
    return Response(URL(f"{origin}/v2/{repository}/manifests/1"), 401, headers, b"", truncated=False)


def bearer(host: str) -> str:
    return f'Bearer realm="https://{host}/token",service="{host}"'


def held_bytes() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]


@pytest.mark.usefixtures("traced")
async def test_long_challenges_take_little_memory(authenticator: Authenticator) -> None:
    """A header may have 8 KB: of its parameters three are kept, and a row of long ones counts several times."""
    for number in range(200):
        challenge = f'Basic realm="{number:04000d}", {PARAMETERS}'
        await authenticator.answer(
            challenged("https://evil.example", f"a/{number}", challenge), f"a/{number}", ANN, None
        )
    assert held_bytes() < 2_000_000


@pytest.mark.usefixtures("token_requests", "traced")
async def test_long_tokens_take_little_memory(authenticator: Authenticator) -> None:
    """A row of the longest token counts as five: 819 of them are kept instead of 4,096."""
    for number in range(MANY):
        response = challenged("https://evil.example", f"a/{number}", bearer("evil.example"))
        await authenticator.answer(response, f"a/{number}", ANONYMOUS, None)
    assert held_bytes() < 15_500_000


async def test_a_tenant_s_tokens_outlast_a_flood_of_another(
    authenticator: Authenticator, token_requests: list[URL]
) -> None:
    """The registry of the flood gives the longest tokens for as many repositories as it likes."""
    set_interest(Interest("team", 0.0))
    kept = [f"team/app-{number}" for number in range(20)]
    for repository in kept:
        response = challenged("https://ghcr.io", repository, bearer("ghcr.io"))
        assert await authenticator.answer(response, repository, ANONYMOUS, None)
    set_interest(Interest("flood", 0.0))
    for number in range(5 * MANY):
        response = challenged("https://evil.example", f"a/{number}", bearer("evil.example"))
        await authenticator.answer(response, f"a/{number}", ANONYMOUS, None)
    token_requests.clear()
    for repository in kept:
        url = URL(f"https://ghcr.io/v2/{repository}/manifests/2")
        assert await authenticator.authorization(url, repository, ANONYMOUS)
    assert token_requests == []
