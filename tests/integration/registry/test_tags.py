"""The tags of a repository are listed page by page, and a registry cannot lead the listing anywhere else."""

import asyncio
from collections.abc import Mapping

import pytest
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS
from extender.errors import InvalidManifest, ManifestNotFound
from extender.images.reference import parse_reference
from extender.registry.registry_client import next_page
from testbed.debian_registry import DebianRegistry
from testbed.faulty_registry import FaultyRegistry
from testbed.images import build_manifest
from tests.integration.registry.conftest import MakeClient


class Pages(FaultyRegistry):
    """A registry that gives an answer for each query, and the paths with queries that it was asked for."""

    def __init__(self, answers: Mapping[str, tuple[bytes, Mapping[str, str]]]) -> None:
        super().__init__(self.page)
        self.answers = answers
        self.paths: list[str] = []

    async def page(self, request: web.BaseRequest) -> web.Response:
        self.paths.append(str(request.rel_url))
        body, headers = self.answers.get(request.query_string, (b"{}", {}))
        return web.Response(body=body, headers=dict(headers), content_type="application/json")


@pytest.mark.slow
async def test_all_tags_of_a_real_registry_are_listed(debian_registry: DebianRegistry, make_client: MakeClient) -> None:
    """1,100 of them, which takes two pages."""
    host = debian_registry.host
    image = build_manifest("linux/amd64")
    push = debian_registry.push
    await asyncio.to_thread(lambda: [push("tags/app", f"1.{number}", image) for number in range(1100)])
    client = make_client(host)
    tags = await client.fetch_tags(parse_reference(f"{host}/tags/app:1.0"), ANONYMOUS)
    assert sorted(tags) == sorted(f"1.{number}" for number in range(1100))
    with pytest.raises(ManifestNotFound):
        await client.fetch_tags(parse_reference(f"{host}/tags/none:1.0"), ANONYMOUS)


async def test_the_next_page_is_asked_of_the_same_registry(make_client: MakeClient) -> None:
    """Whatever host and path the link names, only its query is used; an empty page ends the list."""
    link = {"Link": '<https://elsewhere.example/v2/other/tags/list?n=1000&last=b>; rel="next"'}
    page, last = b'{"name": "\\ud800", "tags": ["a", null, "b"]}', b'{"tags": null}'
    async with Pages({"n=1000": (page, link), "n=1000&last=b": (last, link)}) as registry:
        client = make_client(registry.host)
        assert await client.fetch_tags(parse_reference(f"{registry.host}/app"), ANONYMOUS) == ["a", "b"]
    assert registry.paths == ["/v2/app/tags/list?n=1000", "/v2/app/tags/list?n=1000&last=b"]


async def test_a_list_without_end_ends(make_client: MakeClient) -> None:
    """A registry whose every page names itself as the next is asked for twenty."""
    link = {"Link": "</v2/app/tags/list?n=1000>; rel=next"}
    async with Pages({"n=1000": (b'{"tags": ["a"]}', link)}) as registry:
        client = make_client(registry.host)
        assert await client.fetch_tags(parse_reference(f"{registry.host}/app"), ANONYMOUS) == ["a"] * 20
    assert len(registry.paths) == 20


@pytest.mark.parametrize("body", [b"[", b'{"tags": {}}', b'{"tags": [1]}', b"[" * 100_000, b"\xff"])
async def test_a_list_that_cannot_be_read_is_an_error(make_client: MakeClient, body: bytes) -> None:
    async with Pages({"n=1000": (body, {})}) as registry:
        with pytest.raises(InvalidManifest, match="list of tags"):
            await make_client(registry.host).fetch_tags(parse_reference(f"{registry.host}/app"), ANONYMOUS)


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
