"""Redirects: where they are followed to, and what the next host is shown."""

import asyncio

import pytest
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS
from extender.errors import RegistryDenied, RegistryUnavailable
from extender.images.reference import digest_of, parse_reference
from testbed.faulty_registry import Fault, FaultyRegistry, GuardedRegistry
from tests.integration.registry.conftest import ANN, APP, INDEX, MakeClient, app_at, redirects_to, talking

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
