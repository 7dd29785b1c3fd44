"""Registries in memory, asked as clients do, and the logins that kubelets take from pull secrets."""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.errors import RegistryDenied, RegistryThrottled
from extender.images.reference import parse_reference
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.image_description import describe_image
from extender.registry.registry_client import RegistryClient
from testbed.machines import running_machine
from testbed.memory_http import Client, Response
from testbed.memory_network import Network, run_in_memory
from tests.worlds.image_references import read_reference
from tests.worlds.plan import Image
from tests.worlds.pull_secrets import logins_for
from tests.worlds.registries import Registries

HOST = "registry.example.com"
MULTI = ("linux/amd64", "linux/arm64")
OPEN = Image(host=HOST, repository="team/open", platforms=MULTI)
PRIVATE = Image(host=HOST, repository="team/private", form="manifest", platforms=("linux/arm64",), login="a:one")
HUB = Image(host="docker.io", repository="library/hub", platforms=MULTI)
WITH_PORT = Image(host="inner.example.com:5000", repository="app", platforms=MULTI, login="a:one")


def basic(login: str) -> dict[str, str]:
    return {"Authorization": f"Basic {base64.b64encode(login.encode()).decode()}"}


class Asker:
    """A client that gets itself a token where it is told to."""

    def __init__(self, network: Network) -> None:
        self.network = network
        self.registries = Registries(network, [OPEN, PRIVATE, HUB, WITH_PORT], random.Random(1))
        self._client = Client(network, "10.0.1.1")

    async def get(
        self, url: str, headers: dict[str, str] | None = None, *, method: str = "GET", seconds: float = 5.0
    ) -> Response:
        return await self._client.request(method, url, b"", headers or {}, timeout_seconds=seconds)

    async def ask(self, image: Image, login: str = "", *, method: str = "GET", name: str = "") -> Response:
        """The manifest, as whoever has this login is answered."""
        host = "registry-1.docker.io" if image.host == "docker.io" else image.host
        url = f"http://{host}/v2/{image.repository}/manifests/{name or image.tag}"
        first = await self.get(url, method=method)
        challenge = first.headers.get("www-authenticate", "")
        if not challenge:
            return first
        if challenge.startswith("Basic"):
            return await self.get(url, basic(login) if login else {}, method=method)
        parts = dict(each.split("=", 1) for each in challenge.removeprefix("Bearer ").split(","))
        realm, scope = parts["realm"].strip('"'), parts["scope"].strip('"')
        token = await self.get(f"{realm}?service=x&scope={scope}", basic(login) if login else {})
        if token.status != 200:
            return token
        shown = {"Authorization": f"Bearer {msgspec.json.decode(token.body)['token']}"}
        return await self.get(url, shown, method=method)


def play(test: Callable[[Asker], Awaitable[None]]) -> None:
    async def main(network: Network) -> None:
        await test(Asker(network))

    run_in_memory(main)


@pytest.mark.parametrize("image", [OPEN, HUB])
def test_anybody_gets_what_is_open(image: Image) -> None:
    async def test(asker: Asker) -> None:
        truth = asker.registries.truth(image.reference)
        assert truth
        assert (truth.is_index, truth.platforms) == (True, MULTI)
        for method in ("GET", "HEAD"):
            answer = await asker.ask(image, method=method)
            assert (answer.status, answer.headers["docker-content-digest"]) == (200, truth.digest)
        by_digest = await asker.ask(image, name=truth.digest)
        assert by_digest.status == 200
        children = [each["digest"] for each in msgspec.json.decode(by_digest.body)["manifests"]]
        assert [(await asker.ask(image, name=digest)).status for digest in children] == [200, 200]
        assert (await asker.ask(image, name="other")).status == 404

    play(test)


@pytest.mark.parametrize("image", [PRIVATE, WITH_PORT])
def test_a_private_repository_opens_for_its_login_alone(image: Image) -> None:
    async def test(asker: Asker) -> None:
        statuses = [(await asker.ask(image, login)).status for login in ("", "b:two", "a:one")]
        assert statuses == [401, 401, 200]
        assert asker.registries.truth(image.reference) is None
        assert asker.registries.truth(image.reference, "b:two") is None
        assert asker.registries.truth(image.reference, "a:one")

    play(test)


def test_a_token_counts_for_the_repository_that_it_was_given_for() -> None:
    async def test(asker: Asker) -> None:
        scope = "repository:team/open:pull"
        answer = await asker.get(f"http://{HOST}/token?scope={scope}", basic("a:one"))
        shown = {"Authorization": f"Bearer {msgspec.json.decode(answer.body)['token']}"}
        asked = [await asker.get(f"http://{HOST}/v2/{each.repository}/manifests/1", shown) for each in (OPEN, PRIVATE)]
        assert [each.status for each in asked] == [200, 401]

    play(test)


def test_the_configuration_of_a_single_manifest_is_a_blob() -> None:
    async def test(asker: Asker) -> None:
        manifest = msgspec.json.decode((await asker.ask(WITH_PORT, "a:one")).body)
        assert manifest["manifests"]
        single = msgspec.json.decode((await asker.ask(PRIVATE, "a:one")).body)
        token = await asker.get(f"http://{HOST}/token?scope=repository:team/private:pull", basic("a:one"))
        shown = {"Authorization": f"Bearer {msgspec.json.decode(token.body)['token']}"}
        blob = await asker.get(f"http://{HOST}/v2/team/private/blobs/{single['config']['digest']}", shown)
        assert msgspec.json.decode(blob.body)["architecture"] == "arm64"

    play(test)


def test_docker_hub_says_of_what_is_not_there_that_it_is_denied() -> None:
    async def test(asker: Asker) -> None:
        absent = Image(host="docker.io", repository="library/absent")
        assert (await asker.ask(absent)).status == 401
        assert (await asker.ask(Image(host=HOST, repository="absent"))).status == 404

    play(test)


@pytest.mark.parametrize(
    ("what", "status"),
    [("throttled", 429), ("unavailable", 503), ("broken", 500), ("denied", 401), ("forbidden", 403), ("missing", 404)],
)
def test_a_fault_is_of_a_host_or_of_a_repository_until_it_is_healed(what: str, status: int) -> None:
    async def test(asker: Asker) -> None:
        asker.registries.fault(HOST, what, 7.0, repository=OPEN.repository)
        answer = await asker.ask(OPEN)
        assert (answer.status, answer.headers.get("retry-after")) == (status, "7" if status == 429 else None)
        assert (await asker.ask(PRIVATE, "a:one")).status == 200
        asker.registries.heal(HOST, repository=OPEN.repository)
        asker.registries.fault(HOST, what)
        assert (await asker.ask(PRIVATE, "a:one")).status == status
        asker.registries.heal(HOST)
        assert (await asker.ask(OPEN)).status == 200

    play(test)


def test_of_two_faults_each_ends_by_itself() -> None:
    async def test(asker: Asker) -> None:
        for what in ("unavailable", "refused", "throttled"):
            asker.registries.fault(HOST, what)
        asker.registries.heal(HOST, "unavailable")
        with pytest.raises(ConnectionRefusedError):
            await asker.ask(OPEN)
        asker.registries.heal(HOST, "refused")
        assert (await asker.ask(OPEN)).status == 429
        asker.registries.fault(HOST, "throttled")
        asker.registries.heal(HOST)
        assert (await asker.ask(OPEN)).status == 200

    play(test)


def test_a_slow_registry_takes_its_time_and_a_silent_one_never_answers() -> None:
    async def test(asker: Asker) -> None:
        asker.registries.fault(HOST, "slow", 2.0)
        before = asker.network.loop.time()
        assert (await asker.ask(OPEN)).status == 200
        assert 3 * 1.6 <= asker.network.loop.time() - before <= 3 * 2.4
        asker.registries.fault(HOST, "silent")
        with pytest.raises(TimeoutError):
            await asker.ask(OPEN)

    play(test)


def test_a_truncated_body_ends_with_its_connection_and_a_refusing_host_takes_none() -> None:
    async def test(asker: Asker) -> None:
        asker.registries.fault(HOST, "truncated")
        with pytest.raises(ConnectionError):
            await asker.ask(OPEN)
        asker.registries.heal(HOST)
        asker.registries.fault(HOST, "refused")
        asker.network.cut(asker.registries.addresses[HOST])
        with pytest.raises(ConnectionRefusedError):
            await asker.ask(OPEN)

    play(test)


def test_a_tag_that_moves_or_goes_has_a_history() -> None:
    async def test(asker: Asker) -> None:
        moved = Image(host=HOST, repository="team/open", platforms=("linux/amd64",), revision=1)
        first = asker.registries.truth(OPEN.reference)
        await asyncio.sleep(5.0)
        digest = asker.registries.push(moved)
        await asyncio.sleep(5.0)
        assert (await asker.ask(OPEN)).headers["docker-content-digest"] == digest
        now = asker.registries.truth(OPEN.reference)
        assert first
        assert now
        assert now.history == ((0.0, first.digest), (5.0, digest))
        asker.registries.remove(HOST, "team/open", "1")
        assert (await asker.ask(OPEN)).status == 404
        assert (await asker.ask(OPEN, name=first.digest)).status == 200

    play(test)


def test_requests_are_noted() -> None:
    async def test(asker: Asker) -> None:
        await asker.ask(OPEN, method="HEAD")
        found = [(each.method, each.repository, each.name, each.login, each.status) for each in asker.registries.asked]
        assert found == [
            ("HEAD", "team/open", "1", None, 401),
            ("GET", "team/open", "token", "", 200),
            ("HEAD", "team/open", "1", "", 200),
        ]

    play(test)


@pytest.mark.parametrize("image", [OPEN, PRIVATE, HUB, WITH_PORT])
def test_the_services_client_learns_what_is_true(image: Image) -> None:
    async def test(asker: Asker) -> None:
        truth = asker.registries.truth(image.reference, image.login or None)
        assert truth
        user, _, password = image.login.partition(":")
        login = Credential(user, password, CredentialId(user)) if user else ANONYMOUS
        reference = parse_reference(image.reference)
        async with open_session(guard=AddressGuard(private_addresses=False)) as session:
            plain = frozenset(asker.registries.hosts)
            plain = frozenset(asker.registries.hosts)
            client = RegistryClient(session, timeout_seconds=5, plain_http=plain, machine=running_machine())
            assert await client.head_manifest(reference, login) == truth.digest
            manifest = await client.fetch_manifest(reference, login)
            found = await describe_image(client, reference.with_digest(manifest.digest), manifest, login)
            assert sorted(str(each.platform) for each in found.entries) == sorted(truth.platforms)
            if image.login:
                with pytest.raises(RegistryDenied):
                    await client.fetch_manifest(reference, ANONYMOUS)
            asker.registries.fault(image.host, "throttled", 9.0)
            with pytest.raises(RegistryThrottled) as caught:
                await client.fetch_manifest(reference, login)
            assert caught.value.retry_after_seconds == 9.0

    play(test)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("debian", "docker.io/library/debian:latest"),
        ("index.docker.io/a/b:1", "docker.io/a/b:1"),
        ("localhost:5000/a/b", "localhost:5000/a/b:latest"),
        ("LOCALDOMAIN/debian", "LOCALDOMAIN/debian:latest"),
        (f"quay.io/a:1@sha256:{'a' * 64}", f"quay.io/a@sha256:{'a' * 64}"),
    ],
)
def test_references_are_read_as_the_kubelet_does(text: str, expected: str) -> None:
    assert str(read_reference(text)) == expected


@pytest.mark.parametrize(
    "text", ["", "docker/Docker", "a:", "a@", "$IMAGE", "https://a/b", "a b", f"a@sha256:{'A' * 64}"]
)
def test_other_texts_are_no_references(text: str) -> None:
    with pytest.raises(ValueError, match="invalid reference format"):
        read_reference(text)


def secret(auths: Any) -> dict[str, Any]:
    text = msgspec.json.encode({"auths": auths})
    return {"data": {".dockerconfigjson": base64.b64encode(text).decode()}}


def entry(login: str) -> dict[str, str]:
    return {"auth": base64.b64encode(login.encode()).decode().rstrip("=")}


@pytest.mark.parametrize(
    ("key", "image", "matches"),
    [
        ("*.kubernetes.io", "prefix.kubernetes.io/a", True),
        ("*.kubernetes.io", "kubernetes.io/a", False),
        ("prefix.*.io/foo", "prefix.kubernetes.io/foo/bar", True),
        ("k*.io", "quay.io/a", False),
        ("https://*.docker.io/v1/", "prefix.docker.io/path/foo", True),
        ("prefix.docker.io:1111", "prefix.docker.io:1111/path/x", True),
        ("prefix.docker.io", "prefix.docker.io:1111/path/x", False),
        ("quay.io/foo", "quay.io/foobar", True),
        ("https://index.docker.io/v1/", "google/docker-registry", True),
        ("https://index.docker.io/v1/", "world.mesos.org/foo/bar", False),
    ],
)
def test_entries_match_as_in_the_kubelets_keyring(key: str, image: str, matches: bool) -> None:
    found = logins_for(read_reference(image), [secret({key: entry("a:one")})])
    assert found == (["a:one"] if matches else [])


def test_the_more_specific_entry_is_tried_first() -> None:
    auths = {"quay.io": entry("a:one"), "quay.io/team": {"username": "b", "password": "two"}}
    assert logins_for(read_reference("quay.io/team/app"), [secret(auths)]) == ["b:two", "a:one"]


def test_a_secret_that_is_no_json_spoils_the_others() -> None:
    broken = {"data": {".dockerconfigjson": base64.b64encode(b"{").decode()}}
    with pytest.raises(ValueError, match="truncated"):
        logins_for(read_reference("quay.io/a"), [secret({"quay.io": entry("a:one")}), broken])
