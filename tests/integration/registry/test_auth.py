"""Who is shown which credential, how many tokens that costs, and what a redirect takes along."""

import asyncio
import base64
import contextlib

import pytest
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import RegistryDenied, RegistryError, RegistryRefusedImage, RegistryThrottled, RegistryUnavailable
from extender.images.reference import digest_of, parse_reference
from testbed.clock import Clock
from testbed.faulty_registry import Fault, FaultyRegistry, GuardedRegistry, login_of
from tests.integration.registry.conftest import ANN, APP, INDEX, MakeClient, answers, app_at, redirects_to, talking

BOB = Credential("bob", "word", CredentialId("bob"))
LOGIN = "ann:pa:ss"


def basic(login: str) -> str:
    return f"Basic {base64.b64encode(login.encode()).decode()}"


async def test_anonymous_token_is_fetched_once_and_used_again(make_client: MakeClient) -> None:
    """One challenge and one token for all that follows in the repository."""
    async with GuardedRegistry("") as registry:
        app, client = app_at(registry), make_client(registry.host)
        assert await client.head_manifest(app, ANONYMOUS) == INDEX.digest
        assert (await client.fetch_manifest(app, ANONYMOUS)).digest == INDEX.digest
        await client.fetch_manifest(app.with_digest(INDEX.digest), ANONYMOUS)
        assert registry.desk == [("/token?service=desk&scope=repository:team/app:pull", "")]
        assert registry.shown == ["", "Bearer token-1", "Bearer token-1", "Bearer token-1"]


async def test_a_registry_s_next_repository_is_asked_for_with_a_token_at_once(make_client: MakeClient) -> None:
    """What it has said of one holds for the next; where a token is refused, it is asked whether it wants one."""
    async with GuardedRegistry("") as registry:
        apps, client = [app_at(registry)], make_client(registry.host)
        for name in ("team/api", "team/open"):
            registry.add(name, "1", INDEX)
            apps.append(parse_reference(f"{registry.host}/{name}:1"))
        for app in apps[:2]:
            assert await client.head_manifest(app, ANONYMOUS) == INDEX.digest
        assert [path for path, _ in registry.desk] == [
            f"/token?service=desk&scope=repository:{app.path}:pull" for app in apps[:2]
        ]
        assert registry.shown == ["", "Bearer token-1", "Bearer token-2"]
        registry.logins.clear()
        registry.desk.clear()
        for _ in range(2):
            with pytest.raises(RegistryDenied, match="gives no token"):
                await client.head_manifest(apps[2], ANONYMOUS)
        assert len(registry.desk) == 2
        registry.opened.add("team/open")
        assert await client.head_manifest(apps[2], ANONYMOUS) == INDEX.digest


@pytest.mark.parametrize(
    "challenge", ['Bearer realm="{url}/token",scope="a:b:pull"', 'Bearer realm="{url}/nowhere?of={path}"']
)
async def test_what_a_registry_says_of_one_repository_alone_is_said_for_the_next(
    make_client: MakeClient, challenge: str
) -> None:
    """Another scope, or another token server for each: then the first answer says which."""
    async with GuardedRegistry("") as registry:
        registry.challenges = [challenge.replace("nowhere", "token")]
        client = make_client(registry.host)
        registry.add("team/api", "1", INDEX)
        for app in (app_at(registry), parse_reference(f"{registry.host}/team/api:1")):
            assert await client.head_manifest(app, ANONYMOUS) == INDEX.digest


async def test_token_is_not_shared_between_credentials(make_client: MakeClient) -> None:
    async with GuardedRegistry(LOGIN, "bob:word", "") as registry:
        registry.token_field = "access_token"
        app, client = app_at(registry), make_client(registry.host)
        for credential in (ANN, BOB, ANONYMOUS, ANN, BOB, ANONYMOUS):
            await client.head_manifest(app, credential)
        assert [login for _, login in registry.desk] == [LOGIN, "bob:word", ""]


async def test_token_server_that_refuses_is_a_denial(make_client: MakeClient) -> None:
    """The password is wrong; the message does not repeat it."""
    async with GuardedRegistry(LOGIN) as registry:
        with pytest.raises(RegistryDenied, match="gives no token") as caught:
            await make_client(registry.host).head_manifest(app_at(registry), BOB)
    assert "word" not in str(caught.value)
    assert "bob" not in str(caught.value)


async def test_fresh_token_that_is_refused_is_a_denial(make_client: MakeClient) -> None:
    """One challenge, one token, one more try: then it is no."""

    async def useless(request: web.BaseRequest) -> web.StreamResponse:
        return web.json_response({"token": "useless"})

    async with GuardedRegistry("", token_fault=useless) as registry:
        with pytest.raises(RegistryDenied, match="denies access to team/app"):
            await make_client(registry.host).head_manifest(app_at(registry), ANONYMOUS)
        assert registry.shown == ["", "Bearer useless"]
        assert len(registry.desk) == 1


async def test_token_that_is_no_longer_good_is_replaced_once(make_client: MakeClient) -> None:
    async with GuardedRegistry("") as registry:
        app, client = app_at(registry), make_client(registry.host)
        await client.head_manifest(app, ANONYMOUS)
        registry.valid.clear()
        assert await client.head_manifest(app, ANONYMOUS) == INDEX.digest
        assert registry.shown == ["", "Bearer token-1", "Bearer token-1", "Bearer token-2"]
        registry.logins.clear()
        registry.valid.clear()
        with pytest.raises(RegistryDenied):
            await client.head_manifest(app, ANONYMOUS)


@pytest.mark.parametrize(
    ("expires_in", "good_seconds", "stale_seconds"),
    [
        pytest.param({"expires_in": "300"}, 239, 241, id="in-quotes"),
        pytest.param({"expires_in": 300, "access_token": None, "scope": "\ud800"}, 239, 241, id="null-and-half-a-pair"),
        pytest.param({"expires_in": "nan"}, 47, 49, id="no-number-is-a-minute"),
        pytest.param({"expires_in": 5}, 47, 49, id="less-than-a-minute-is-one"),
    ],
)
async def test_token_is_renewed_before_it_expires(
    make_client: MakeClient, clock: Clock, expires_in: dict[str, object], good_seconds: float, stale_seconds: float
) -> None:
    """At four fifths of its life; no life is shorter than a minute."""
    async with GuardedRegistry("") as registry:
        registry.token_reply = expires_in
        app, client = app_at(registry), make_client(registry.host)
        await client.head_manifest(app, ANONYMOUS)
        start = clock.now
        clock.now = start + good_seconds
        await client.head_manifest(app, ANONYMOUS)
        assert len(registry.desk) == 1
        clock.now = start + stale_seconds
        await client.head_manifest(app, ANONYMOUS)
        assert len(registry.desk) == 2
        assert registry.shown[-1] == "Bearer token-2"


@pytest.mark.parametrize("length", [20_000, 65_536])
async def test_a_long_token_is_shown_as_it_is(make_client: MakeClient, length: int) -> None:
    """As of an account with many groups; it is kept for the next request."""
    token = "x" * length
    async with GuardedRegistry("") as registry:
        registry.token_reply = {"token": token}
        registry.valid.add(token)
        client = make_client(registry.host)
        for _ in range(2):
            assert await client.head_manifest(app_at(registry), ANONYMOUS) == INDEX.digest
        assert len(registry.desk) == 1


NO_TOKEN = RegistryUnavailable, "sent no token"
TOO_MANY = '{"errors":[{"code":"TOOMANYREQUESTS"}]}'


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        pytest.param(answers(403), RegistryDenied, "gives no token (403)", id="403"),
        pytest.param(answers(400), RegistryRefusedImage, "gives no token (400)", id="400"),
        pytest.param(answers(408), RegistryUnavailable, "answered 408", id="408"),
        pytest.param(answers(500), RegistryUnavailable, "answered 500", id="500"),
        pytest.param(answers(429, {"Retry-After": "7"}), RegistryThrottled, "(429)", id="429"),
        pytest.param(answers(body="{}"), *NO_TOKEN, id="no-token"),
        pytest.param(answers(body='{"token": "a\\r\\nb"}'), *NO_TOKEN, id="line-end-in-token"),
        pytest.param(answers(403, body=TOO_MANY), RegistryThrottled, "(403)", id="too-many"),
        pytest.param(answers(body=f'{{"token": "{"x" * 65537}"}}'), *NO_TOKEN, id="endless-token"),
        pytest.param(answers(body=b'{"token": "\xff"}'), *NO_TOKEN, id="no-utf-8"),
        pytest.param(answers(302, {"Location": "/token"}), RegistryUnavailable, "redirects more than 5", id="loop"),
    ],
)
async def test_outcome_of_a_token_request(
    make_client: MakeClient, fault: Fault, error: type[RegistryError], words: str
) -> None:
    async with GuardedRegistry("", token_fault=fault) as registry:
        with pytest.raises(error) as caught:
            await make_client(registry.host).head_manifest(app_at(registry), ANONYMOUS)
    assert words in str(caught.value)
    if isinstance(caught.value, RegistryThrottled) and "429" in words:
        assert caught.value.retry_after_seconds == 7.0


async def test_token_server_that_has_moved_is_found_again(make_client: MakeClient, clock: Clock) -> None:
    """After a failure the registry is asked anew where tokens are."""
    async with GuardedRegistry("") as registry:
        app, client = app_at(registry), make_client(registry.host)
        await client.head_manifest(app, ANONYMOUS)
        clock.advance(1000)
        registry.token_fault = answers(503)
        for _ in range(2):
            with pytest.raises(RegistryUnavailable):
                await client.head_manifest(app, ANONYMOUS)
        registry.token_fault = None
        registry.shown.clear()
        assert await client.head_manifest(app, ANONYMOUS) == INDEX.digest
        assert registry.shown[0] == ""


@pytest.mark.parametrize(
    ("challenges", "path"),
    [
        pytest.param(['Bearer realm="/token"'], "/token?scope=repository:team/app:pull", id="relative-and-alone"),
        pytest.param(
            ['bearer REALM="{url}/token",scope="a:b:pull c:d:pull"'],
            "/token?scope=a:b:pull&scope=c:d:pull",
            id="several-scopes",
        ),
        pytest.param(
            ['Basic realm="x, y", Digest nonce="z", Bearer realm="{url}/token"'],
            "/token?scope=repository:team/app:pull",
            id="bearer-last-of-three",
        ),
        pytest.param(
            ['Bearer realm="http://eve:evil@{host}/token"'], "/token?scope=repository:team/app:pull", id="user-in-realm"
        ),
    ],
)
async def test_what_is_asked_of_the_token_server(make_client: MakeClient, challenges: list[str], path: str) -> None:
    """Realm, service and scope are the challenge's; without a scope it is to pull this repository.

    A registry cannot put words into our mouth: name and password of an address are dropped.
    """
    async with GuardedRegistry(LOGIN) as registry:
        registry.challenges = [each.replace("{host}", registry.host) for each in challenges]
        assert await make_client(registry.host).head_manifest(app_at(registry), ANN) == INDEX.digest
        assert registry.desk == [(path, LOGIN)]


@pytest.mark.parametrize(
    "challenge",
    [
        pytest.param('Bearer realm="http://x:99999/"', id="no-such-port"),
        pytest.param('Bearer service="x"', id="missing"),
    ],
)
async def test_unusable_challenge_is_the_hosts_fault(make_client: MakeClient, challenge: str) -> None:
    async with GuardedRegistry(LOGIN) as registry:
        registry.challenges = [challenge]
        with pytest.raises(RegistryUnavailable):
            await make_client(registry.host).head_manifest(app_at(registry), ANN)
        assert (registry.shown, registry.desk) == ([""], [])


async def test_redirected_token_server_sees_no_login(make_client: MakeClient) -> None:
    """The credential is for the realm, not for where the realm sends us."""
    async with GuardedRegistry(LOGIN) as registry, GuardedRegistry("") as stranger:
        registry.token_fault = answers(307, {"Location": f"{stranger.url}/token"})
        with pytest.raises(RegistryDenied):
            await make_client(registry.host).head_manifest(app_at(registry), ANN)
        assert [login for _, login in stranger.desk] == [""]


async def wants_login(request: web.BaseRequest) -> web.StreamResponse | None:
    if login_of(request) == LOGIN:
        return None
    return web.Response(status=401, headers={"WWW-Authenticate": 'Basic realm="here"'})


@pytest.mark.parametrize(
    ("login", "is_right", "shown"),
    [(ANN, True, [basic(LOGIN)] * 2), (BOB, False, [basic("bob:word")] * 2), (ANONYMOUS, False, [""])],
)
async def test_basic_login_is_shown_once_to_a_registry_that_has_asked_for_it(
    make_client: MakeClient, login: Credential, is_right: bool, shown: list[str]
) -> None:
    """From then on without being asked again. Showing a wrong one twice would count as an attack somewhere."""
    async with FaultyRegistry(wants_login) as registry:
        app, client = app_at(registry), make_client(registry.host)
        for _ in range(2):
            with contextlib.nullcontext() if is_right else pytest.raises(RegistryDenied):
                assert await client.head_manifest(app, login) == INDEX.digest
        assert registry.shown == ["", *shown]


async def test_login_file_of_the_user_is_never_read(
    make_client: MakeClient, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What ~/.netrc holds is not meant for registries that pods name."""
    netrc = tmp_path_factory.mktemp("home") / ".netrc"
    netrc.write_text("machine 127.0.0.1 login eve password evil\n")
    monkeypatch.setenv("NETRC", str(netrc))
    async with FaultyRegistry() as registry:
        await make_client(registry.host).head_manifest(app_at(registry), ANONYMOUS)
        assert registry.shown == [""]


MOVED = f"moved/{APP}"


def leads_to(root: str, status: int = 307) -> Fault:
    async def fault(request: web.BaseRequest) -> web.StreamResponse | None:
        if "/moved/" in request.path or not request.path.startswith("/v2/"):
            return None
        location = f"{root}{request.path.replace('/v2/', '/v2/moved/')}"
        return web.Response(status=status, headers={"Location": location})

    return fault


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_redirect_is_followed_with_the_same_method(make_client: MakeClient, status: int) -> None:
    """Registries redirect blobs to stores, and some redirect manifests; a HEAD stays a HEAD."""
    async with FaultyRegistry(leads_to("", status)) as registry:
        app_at(registry, MOVED)
        reference = app_at(registry)
        client = make_client(registry.host)
        assert await client.head_manifest(reference, ANONYMOUS) == INDEX.digest
        assert (await client.fetch_manifest(reference, ANONYMOUS)).digest == INDEX.digest
        assert registry.requests == {"HEAD manifests": 2, "GET manifests": 2}


async def test_another_origin_is_shown_nothing(make_client: MakeClient) -> None:
    """A store is sent to with a signature in the address, and neither token nor password goes with it."""
    async with GuardedRegistry("ann:pa:ss") as registry, FaultyRegistry() as store:
        registry.fault = leads_to(store.url)
        app_at(store, MOVED)
        reference = app_at(registry)
        client = make_client(registry.host)
        for _ in range(2):
            assert (await client.fetch_manifest(reference, ANN)).digest == INDEX.digest
        assert store.shown == ["", ""]


async def test_another_origins_challenge_is_answered_by_nobody(make_client: MakeClient) -> None:
    """A host that a registry leads to may want a token; it gets one that anybody gets, or none."""
    async with FaultyRegistry() as registry, GuardedRegistry("") as elsewhere:
        registry.fault = leads_to(elsewhere.url)
        app_at(elsewhere, MOVED)
        reference = app_at(registry)
        client = make_client(registry.host)
        assert await client.head_manifest(reference, ANN) == INDEX.digest
        assert [login for _, login in elsewhere.desk] == [""]
        elsewhere.challenges = ["Basic realm=trap"]
        elsewhere.valid.clear()
        with pytest.raises(RegistryDenied):
            await client.head_manifest(reference, ANN)
        assert not any(shown.startswith("Basic") for shown in elsewhere.shown)


async def test_way_back_is_the_registrys_own_again(make_client: MakeClient) -> None:
    """Who is shown what depends on the host that is asked, not on the way there."""
    async with GuardedRegistry("ann:pa:ss") as registry, FaultyRegistry() as detour:
        registry.fault, detour.fault = leads_to(detour.url), redirects_to(registry.url)
        app_at(registry, MOVED)
        assert await make_client(registry.host).head_manifest(app_at(registry), ANN)
        assert detour.shown == [""]
        assert registry.shown == ["", "Bearer token-1", "Bearer token-1"]


@pytest.mark.parametrize("redirects", [5, 6])
async def test_redirects_are_bounded(make_client: MakeClient, redirects: int) -> None:
    left = redirects

    async def on_and_on(request: web.BaseRequest) -> web.StreamResponse | None:
        nonlocal left
        left -= 1
        return web.Response(status=302, headers={"Location": request.path}) if left >= 0 else None

    async with FaultyRegistry(on_and_on) as registry:
        registry.add(APP, "1", INDEX)
        asking = make_client(registry.host).head_manifest(app_at(registry), ANONYMOUS)
        if redirects == 5:
            assert await asking == INDEX.digest
        else:
            with pytest.raises(RegistryUnavailable, match="more than 5 times"):
                await asking


SIGNED = "/%2Fdata%2f/a%3Ab|c~;d?X-Amz-Signature=a%2Fb%3D&p=|%7C:/&e"


@pytest.mark.parametrize("is_relative", [False, True])
async def test_signed_address_is_asked_to_the_byte(make_client: MakeClient, is_relative: bool) -> None:
    """Storage checks a signature over what is sent, not over what it means."""
    asked: list[str] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)[1].decode()
        if "/blobs/" in target:
            location = SIGNED if is_relative else f"http://{host}{SIGNED}"
            writer.write(f"HTTP/1.1 307 There\r\nLocation: {location}\r\nContent-Length: 0\r\n".encode())
        else:
            asked.append(target)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n")
        writer.write(b"Connection: close\r\n\r\n" + (b"" if "/blobs/" in target else b"{}"))

    async with talking(talk) as host:
        reference = parse_reference(f"{host}/{APP}:1")
        assert await make_client(host).fetch_blob(reference, digest_of(b"{}"), ANONYMOUS) == b"{}"
    assert asked == [SIGNED]
