"""The grammar of WWW-Authenticate, and what registries and token servers can make the process keep."""

import gc
import json
import tracemalloc
from collections.abc import Iterator

import aiohttp
import pytest
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from extender.credentials.keyring import ANONYMOUS
from extender.registry import auth as module
from extender.registry.auth import Authenticator, Challenge, parse_challenges
from extender.registry.endpoint import Endpoint
from extender.registry.http import Response

HUB = 'Bearer realm="https://auth.docker.io/token",service="registry.docker.io",scope="repository:docker/docker:pull"'
HUB_READ = ("bearer", {"realm": "https://auth.docker.io/token", "service": "registry.docker.io",
                       "scope": "repository:docker/docker:pull"})  # fmt: skip
GITHUB = "GitHub Package Registry"


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(HUB, [HUB_READ], id="docker-hub"),
        pytest.param(f'Basic realm="{GITHUB}"', [("basic", {"realm": GITHUB})], id="github"),
        pytest.param("BaSiC ReAlM=x", [("basic", {"realm": "x"})], id="case-of-names-does-not-count"),
        pytest.param("Bearer realm=https://a/b?c=d,e=f", [("bearer", {"realm": "https://a/b?c=d", "e": "f"})],
                     id="unquoted-address"),
        pytest.param('Bearer realm="a, b=c", service="d"', [("bearer", {"realm": "a, b=c", "service": "d"})],
                     id="comma-in-quotes"),
        pytest.param(r'Basic realm="a \"b\" \\ c"', [("basic", {"realm": 'a "b" \\ c'})], id="escapes"),
        pytest.param('Bearer error="",realm="x"', [("bearer", {"error": "", "realm": "x"})], id="empty-value"),
        pytest.param("Bearer error=,realm=/", [("bearer", {"error": "", "realm": "/"})], id="empty-unquoted-value"),
        pytest.param('Bearer realm = "x" , other\t=y', [("bearer", {"realm": "x", "other": "y"})], id="space-about"),
        pytest.param(f'{HUB}, Basic realm="y"', [HUB_READ, ("basic", {"realm": "y"})], id="two-schemes"),
        pytest.param("Negotiate, Basic realm=y", [("negotiate", {}), ("basic", {"realm": "y"})], id="bare-first"),
        pytest.param("Basic realm=y, NTLM", [("basic", {"realm": "y"}), ("ntlm", {})], id="bare-scheme-last"),
        pytest.param("Negotiate YII/ab==, Basic realm=y", [("negotiate", {}), ("basic", {"realm": "y"})], id="68"),
        pytest.param(" ,, Basic realm=y ,, ", [("basic", {"realm": "y"})], id="empty-elements"),
        pytest.param("", [], id="empty"),
    ],
)  # fmt: skip
def test_challenges_in_a_header(header: str, expected: list[tuple[str, dict[str, str]]]) -> None:
    """Each scheme with its parameters, names in lower case, values as they are meant."""
    assert parse_challenges([header]) == tuple(Challenge(*pair) for pair in expected)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        pytest.param(f'{HUB}; error="x"', HUB_READ, id="parameter-behind-a-semicolon"),
        pytest.param(f"{HUB} (see our documentation)", HUB_READ, id="text-behind"),
        pytest.param(f"{HUB},ein fehler", HUB_READ, id="words-behind-a-comma"),
        pytest.param(f"{HUB}, \xe9=x", HUB_READ, id="not-ascii"),
        pytest.param('Bearer realm="x" service="y"', ("bearer", {"realm": "x"}), id="missing-comma"),
        pytest.param('Bearer realm="x"y', ("bearer", {"realm": "x"}), id="text-after-quote"),
        pytest.param('Bearer realm="x', ("bearer", {"realm": ""}), id="open-quote"),
        pytest.param('Bearer (realm)="x"', ("bearer", {}), id="no-word"),
    ],
)
def test_what_stands_before_an_odd_tail_counts(header: str, expected: tuple[str, dict[str, str]]) -> None:
    """As the runtimes read it; another header is read all the same."""
    first, *others = parse_challenges([header, "Basic realm=z"])
    assert first == Challenge(*expected)
    assert others[-1] == Challenge("basic", {"realm": "z"})


@pytest.mark.parametrize("header", ['realm="x"', '="x"', "YII/abc==", "(", "Bearer;realm=x"])
def test_header_without_a_challenge_is_passed_over(header: str) -> None:
    """The others are read in their order: a server may send one for each scheme."""
    found = parse_challenges(["Digest nonce=1", header, HUB, "Basic realm=x"])
    assert [each.scheme for each in found] == ["digest", "bearer", "basic"]
    assert found[1] == Challenge(*HUB_READ)


@pytest.mark.parametrize("repeated", [" ", "a", "/", "a ,", "a=b,", ",", '="\\"'])
def test_endless_header_is_read_in_one_pass(repeated: str) -> None:
    """A stranger's long header costs a glance: were the grammar tried in more than one way, this would not end."""
    assert parse_challenges([f"Basic a{repeated * (2**18 // len(repeated))}("])[0].scheme == "basic"


@pytest.fixture
def traced() -> Iterator[None]:
    gc.collect()
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.slow
@pytest.mark.usefixtures("traced")
@pytest.mark.parametrize(
    ("challenge", "names", "most_bytes"),
    [
        pytest.param(f'Basic realm="{"r" * 4000}", ' + ", ".join(f'p{each}="v"' for each in range(400)), 200, 2e6,
                     id="of-a-challenge-three-parameters"),
        pytest.param('Bearer realm="https://evil.example/token"', 2_000, 20e6, id="of-tokens-a-thousand"),
    ],
)  # fmt: skip
async def test_what_a_registry_sends_takes_little_memory(
    monkeypatch: pytest.MonkeyPatch, challenge: str, names: int, most_bytes: float
) -> None:
    """Headers may have 8 KB and tokens 16; each name gets its own."""

    async def answer(_session: object, _method: str, url: URL, **_: object) -> Response:
        is_desk = url.path == "/token"
        body = json.dumps({"token": url.query["scope"].rjust(16_384, "x")}).encode() if is_desk else b""
        headers = CIMultiDictProxy(CIMultiDict({"WWW-Authenticate": challenge}))
        return Response(url, 200 if is_desk else 401, headers, body, truncated=False)

    monkeypatch.setattr(module, "send", answer)
    async with aiohttp.ClientSession() as session:
        authenticator = Authenticator(session, timeout_seconds=60, clock=lambda: 0.0, wall_clock=lambda: 0.0)
        for number in range(names):
            there = Endpoint(name="evil.example", root=URL("https://evil.example/v2"), repository=f"a/{number}")
            await authenticator.ask("GET", there, "manifests/1", ANONYMOUS)
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < most_bytes


async def test_challenge_in_no_encoding_is_answered_to_the_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def answer(_session: object, _method: str, url: URL, **_: object) -> Response:
        asked.append(str(url))
        challenge = 'Bearer realm="https://a.example/t\udc91",service="\udc91",scope="a\udc91 b"'
        headers = CIMultiDictProxy(CIMultiDict({"WWW-Authenticate": challenge}))
        return Response(url, 200 if url.host == "a.example" else 401, headers, b'{"token":"x"}', truncated=False)

    monkeypatch.setattr(module, "send", answer)
    async with aiohttp.ClientSession() as session:
        authenticator = Authenticator(session, timeout_seconds=60, clock=lambda: 0.0, wall_clock=lambda: 0.0)
        there = Endpoint(name="r.example", root=URL("https://r.example/v2"), repository="app")
        await authenticator.ask("GET", there, "manifests/1", ANONYMOUS)
    assert asked[1] == "https://a.example/t%91?service=%91&scope=a%91&scope=b"
