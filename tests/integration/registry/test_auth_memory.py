"""What registries and token servers can make the process keep."""

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
from testbed.clock import Clock

ANN = Credential("ann", "word", CredentialId("ann"))
MANY = 2_000
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
    """A header may have 8 KB: three of its parameters are kept."""
    for number in range(200):
        challenge = f'Basic realm="{number:04000d}", {PARAMETERS}'
        await authenticator.answer(
            challenged("https://evil.example", f"a/{number}", challenge), f"a/{number}", ANN, None
        )
    assert held_bytes() < 2_000_000


@pytest.mark.usefixtures("token_requests", "traced")
async def test_long_tokens_take_little_memory(authenticator: Authenticator) -> None:
    """1,024 of the longest are kept."""
    for number in range(MANY):
        response = challenged("https://evil.example", f"a/{number}", bearer("evil.example"))
        await authenticator.answer(response, f"a/{number}", ANONYMOUS, None)
    assert held_bytes() < 20_000_000
