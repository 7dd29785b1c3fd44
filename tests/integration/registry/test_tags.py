"""The tags of a repository are listed page by page, and a registry cannot lead the listing anywhere else."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS
from extender.errors import InvalidManifest, ManifestNotFound
from extender.images.reference import digest_of, parse_reference
from extender.registry.registry_client import RegistryClient, next_page
from testbed.debian_registry import DebianRegistry
from testbed.images import build_manifest
from tests.integration.registry.faulty import FaultyRegistry


@asynccontextmanager
async def client_of(host: str) -> AsyncIterator[RegistryClient]:
    async with aiohttp.ClientSession() as session:
        yield RegistryClient(
            session,
            timeout_seconds=5,
            plain_http=frozenset((host,)),
        )


@asynccontextmanager
async def pages(answers: Mapping[str, tuple[bytes, Mapping[str, str]]]) -> AsyncIterator[tuple[str, list[str]]]:
    """A registry that gives an answer for each query, and the paths with queries that it was asked for."""
    requests: list[str] = []

    async def answer(request: web.BaseRequest) -> web.Response:
        requests.append(str(request.rel_url))
        body, headers = answers.get(request.query_string, (b"{}", {}))
        return web.Response(body=body, headers=dict(headers), content_type="application/json")

    runner = web.ServerRunner(web.Server(answer))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"127.0.0.1:{runner.addresses[0][1]}", requests
    finally:
        await runner.cleanup()


@pytest.mark.slow
async def test_all_tags_of_a_real_registry_are_listed(debian_registry: DebianRegistry) -> None:
    """1,100 of them, which takes two pages."""
    host = debian_registry.host
    image = build_manifest("linux/amd64")
    push = debian_registry.push
    await asyncio.to_thread(lambda: [push("tags/app", f"1.{number}", image) for number in range(1100)])
    async with client_of(host) as client:
        tags = await client.fetch_tags(parse_reference(f"{host}/tags/app:1.0"), ANONYMOUS)
        assert sorted(tags) == sorted(f"1.{number}" for number in range(1100))
        with pytest.raises(ManifestNotFound):
            await client.fetch_tags(parse_reference(f"{host}/tags/none:1.0"), ANONYMOUS)


async def test_the_next_page_is_asked_of_the_same_registry() -> None:
    """Whatever host and path the link names, only its query is used; an empty page ends the list."""
    link = {"Link": '<https://elsewhere.example/v2/other/tags/list?n=1000&last=b>; rel="next"'}
    async with pages({
        "n=1000": (b'{"name": "\\ud800", "Tags": ["a", "b"]}', link),
        "n=1000&last=b": (b'{"tags": null}', link),
    }) as (host, requests), client_of(host) as client:  # fmt: skip
        assert await client.fetch_tags(parse_reference(f"{host}/app"), ANONYMOUS) == ["a", "b"]
    assert requests == ["/v2/app/tags/list?n=1000", "/v2/app/tags/list?n=1000&last=b"]


async def test_a_list_without_end_ends() -> None:
    """A registry whose every page names itself as the next is asked for twenty."""
    link = {"Link": "</v2/app/tags/list?n=1000>; rel=next"}
    async with pages({"n=1000": (b'{"tags": ["a"]}', link)}) as (host, requests), client_of(host) as client:
        assert await client.fetch_tags(parse_reference(f"{host}/app"), ANONYMOUS) == ["a"] * 20
    assert len(requests) == 20


@pytest.mark.parametrize("body", [b"[", b'{"tags": {}}', b'{"tags": [1]}', b"[" * 100_000, b"\xff"])
async def test_a_list_that_cannot_be_read_is_an_error(body: bytes) -> None:
    """Not an empty one."""
    async with pages({"n=1000": (body, {})}) as (host, _), client_of(host) as client:
        with pytest.raises(InvalidManifest, match="list of tags"):
            await client.fetch_tags(parse_reference(f"{host}/app"), ANONYMOUS)


@pytest.mark.parametrize(
    ("link", "query"),
    [
        pytest.param('</v2/a/tags/list?n=5&last=x%2By%2f|>; rel="next"', "n=5&last=x%2By%2f|", id="specification"),
        pytest.param('<?next_page=gAAA==>;rel="next"', "next_page=gAAA==", id="quay"),
        pytest.param('</first?a=1>; rel="prev", </next?a=2>; rel="next"', "a=2", id="several"),
        pytest.param("</v2/a/tags/list>; rel=next", "", id="no-query"),
        pytest.param('</v2/a?b=c>; rel="prev"', "", id="previous"),
        pytest.param("<http://[/?a=b>; rel=next", "", id="no-address"),
        pytest.param("", "", id="nothing"),
        pytest.param("<" * 10_000, "", id="long"),
    ],
)
def test_the_link_to_the_next_page(link: str, query: str) -> None:
    """RFC 8288 as registries write it: the distribution-spec's, Quay's token, several links in one header."""
    assert next_page([link]) == query


async def test_lists_and_blobs_are_asked_for_as_what_they_are() -> None:
    """Some registries answer 406 to whoever accepts manifests alone."""
    accepted = []

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        accepted.append((request.path.rpartition("/app/")[2][:4], request.headers.getall("Accept")))
        return web.Response(body=b'{"tags": ["1"]}' if "tags" in request.path else b"{}")

    async with FaultyRegistry(answer) as registry, client_of(registry.host) as client:
        reference = parse_reference(f"{registry.host}/app")
        assert await client.fetch_tags(reference, ANONYMOUS) == ["1"]
        assert await client.fetch_blob(reference, digest_of(b"{}"), ANONYMOUS) == b"{}"
    assert accepted == [("tags", ["application/json"]), ("blob", ["*/*"])]
