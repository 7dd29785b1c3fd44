"""Tenants with secrets of their own, between an API server and a registry that knows its users, all on loopback.

Each case asks the way the service asks about a pod, and then the way `inspect` does, and insists that both agree.
"""

import asyncio
import base64
import json
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog
from aiohttp import web

from extender.admission.pod_admission import PodAdmission
from extender.cluster.client import open_cluster
from extender.cluster.secrets import ClusterSecrets
from extender.config.tree import Config
from extender.credentials.docker_config import read_docker_config
from extender.credentials.keyring import Keyring
from extender.credentials.operator_keyring import OperatorKeyring
from extender.credentials.providers import SourcesFile
from extender.credentials.pull_secrets import PullSecrets
from extender.fetcher.sources import LocalSources
from extender.images.content import Answer, Content, Failure
from extender.images.manifest import Image
from extender.kubernetes.core_v1 import Pod
from extender.machine import THIS_MACHINE
from extender.placement.annotations import Overrides
from extender.placement.nodes import ClusterNodes
from extender.placement.planning import AdmissionSettings
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.image_description import RegistryImages
from extender.resolver.image_cache import LOOKUPS, ImageCache, ImageQuery
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.resolver.resolver import Resolver
from extender.scheduler.verbs import SchedulerVerbs
from extender.server.routes import Reply
from extender.service.operator_policies import policy_of
from extender.turns import UNAUTHENTICATED
from extender.watched_files import FileSetting, WatchedFiles
from testbed.clock import Clock
from testbed.embedded_registry import EmbeddedRegistry
from tests.integration.cluster.api_server import ApiServer, Refusal, serve_api, write_kubeconfig
from tests.integration.service.caller import NODES, review_of, with_nodes

KEY = b"k" * 32
ARM64 = "linux/arm64"


class TenantRegistry(EmbeddedRegistry):
    """Everybody may pull what is in no one's `rights`; a wrong password gets no token even for that, as on the Hub."""

    def __init__(self) -> None:
        super().__init__()
        self.passwords: dict[str, str] = {}
        self.rights: dict[str, set[str]] = {}
        self.users: Counter[str] = Counter()

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        scheme, _, shown = request.headers.get("Authorization", "").partition(" ")
        if request.path == "/token":
            user, _, password = base64.b64decode(shown).decode().partition(":")
            is_known = not user or self.passwords.get(user) == password
            return web.json_response({"token": f"token-of-{user}"} if is_known else {}, status=200 if is_known else 401)
        repository = "/".join(request.path.split("/")[2:-2])
        user = shown.removeprefix("token-of-")
        self.users[user] += 1
        if scheme == "Bearer" and user in self.rights.get(repository, {user}):
            return await super().answer(request)
        return web.Response(status=401, headers={"WWW-Authenticate": f'Bearer realm="{self.url}/token",service="test"'})


@dataclass
class World:
    """A cluster with secrets, a registry with users, and what we know between them."""

    api: ApiServer
    registry: TenantRegistry
    pod_resolver: PodResolver
    operator: OperatorKeyring
    docker_config: Path
    clock: Clock

    @property
    def secret_reads(self) -> int:
        return sum("/secrets/" in request.path for request in self.api.requests)

    def write_secret(self, namespace: str, username: str, password: str, name: str = "pull") -> None:
        """The namespace's secret holds this login for the registry."""
        self.write_auths(namespace, {self.registry.host: {"username": username, "password": password}}, name)

    async def write_operator_login(self, pattern: str, username: str, password: str) -> None:
        login = {"username": username, "password": password}
        self.docker_config.write_text(json.dumps({"auths": {pattern: login}}))
        await self.operator.refresh()

    def write_auths(self, namespace: str, auths: object, name: str = "pull") -> None:
        data = base64.b64encode(json.dumps({"auths": auths}).encode()).decode()
        document = {
            "metadata": {"name": name, "namespace": namespace},
            "type": "kubernetes.io/dockerconfigjson",
            "data": {".dockerconfigjson": data},
        }
        self.api.put(f"/api/v1/namespaces/{namespace}/secrets", document)

    def pod(self, namespace: str, *secrets: str, image: str = "team/app:1") -> dict[str, Any]:
        """A pod as the API server has it, with the secrets its ServiceAccount gave it."""
        return {
            "metadata": {"name": "p", "namespace": namespace, "uid": f"uid-{namespace}"},
            "spec": {
                "containers": [{"name": "main", "image": f"{self.registry.host}/{image}"}],
                "imagePullSecrets": [{"name": name} for name in secrets],
            },
        }

    def question(self, namespace: str, *secrets: str, image: str = "team/app:1", may_read: bool = True) -> PodQuestion:
        pod = msgspec.convert(self.pod(namespace, *secrets, image=image), Pod)
        return self.pod_resolver.question(pod, namespace, Overrides(), may_read=may_read)

    def peek(self, question: PodQuestion) -> str:
        (answer,) = self.pod_resolver.peek(question)
        return words_of(answer)

    async def answer(self, question: PodQuestion) -> str:
        (answer,) = await self.pod_resolver.resolve(question, 60)
        return words_of(answer)

    async def verdict(self, namespace: str, *secrets: str, image: str = "team/app:1") -> str:
        """What a pod's image runs on, or the cause why that is not known; the service and `inspect` agree on it."""
        question = self.question(namespace, *secrets, image=image)
        answer = await self.answer(question)
        described = await self.pod_resolver.resolver.describe(question.images[0].reference, question.keyring)
        assert self.peek(question) == answer
        assert question.keyring.is_unread() or answer == words_of(described)  # commands read no secrets
        return answer


def words_of(answer: Answer | Image) -> str:
    if isinstance(answer, Failure):
        return answer.cause.value
    if isinstance(answer, Content):
        return " ".join(sorted(map(str, answer.platforms)))
    return " ".join(sorted({str(entry.platform) for entry in answer.entries})) if answer else "pending"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    """`team/app:1` is private to ann and runs on arm64; bob and cleo are users too; `public/app:1` is everybody's."""
    async with AsyncExitStack() as stack:
        api = await stack.enter_async_context(serve_api())
        registry = await stack.enter_async_context(TenantRegistry())
        registry.passwords = {"ann": "a-secret", "bob": "b-secret", "cleo": "c-secret"}
        registry.rights["team/app"] = {"ann"}
        for repository in ("team/app", "public/app"):
            registry.add_index(repository, "1", [ARM64])
        cluster = await open_cluster("kubeconfig", str(write_kubeconfig(api, tmp_path)), clock=THIS_MACHINE.clock)
        stack.push_async_callback(cluster.close)
        clock = Clock()
        docker_config = tmp_path / "config.json"
        docker_config.write_text("{}")
        file = SourcesFile(partial(read_docker_config, str(docker_config)), clock=clock)
        files = [WatchedFiles.of(FileSetting.DOCKER_CONFIG, [docker_config], file.load)]
        operator = OperatorKeyring(files, token_bytes=THIS_MACHINE.token_bytes)
        session = await stack.enter_async_context(open_session(guard=AddressGuard(allow=["127.0.0.1"])))
        client = RegistryImages(
            session, timeout_seconds=10, plain_http=frozenset({registry.host}), machine=THIS_MACHINE
        )
        resolver = Resolver(
            LocalSources(client, operator), size=1000, tag_seconds=900, stale_seconds=86_400, clock=clock,
            random=lambda: 0.0,
        )  # fmt: skip
        stack.push_async_callback(resolver.close)
        secrets = PullSecrets(ClusterSecrets(cluster).read_logins, key=KEY, clock=clock)
        keyring = Keyring(operator=lambda: operator.id)
        pod_resolver = PodResolver(resolver, keyring, policy_of(Config()), lambda _: None, lambda: None, secrets)
        yield World(api, registry, pod_resolver, operator, docker_config, clock)


async def test_private_to_one_tenant(world: World) -> None:
    """Whoever holds ann's secret knows the image; whoever holds none, or another's, does not."""
    world.write_secret("a", "ann", "a-secret")
    world.write_secret("b", "bob", "b-secret")
    for _ in range(2):
        assert await world.verdict("a", "pull") == ARM64
        assert await world.verdict("b", "pull") == "denied"
        assert await world.verdict("c") == "denied"
        assert await world.verdict("c", "pull") == "denied"


async def test_rotated_secret_is_used_at_once_after_a_denial(world: World) -> None:
    """The registry has a new password: the old one is refused, the secret read again, and the new one tried."""
    world.write_secret("a", "ann", "a-secret")
    await world.verdict("a", "pull")
    world.registry.passwords["ann"] = "rotated"
    world.write_secret("a", "ann", "rotated")
    world.clock.advance(900)
    assert await world.verdict("a", "pull") == ARM64


@pytest.mark.parametrize(
    ("status", "said", "seconds"), [(500, "unavailable", 5), (403, "denied", 30)], ids=["failed", "forbidden"]
)
async def test_secret_that_cannot_be_read_leaves_what_is_public(
    world: World, status: int, said: str, seconds: float
) -> None:
    """It is read again soon. A failure makes its images unavailable, as the pod of a denied one would pass."""
    world.write_secret("a", "ann", "a-secret")
    world.api.refusals += [("get", Refusal(status))] * 10
    assert await world.verdict("a", "pull") == said
    assert await world.verdict("a", "pull", image="public/app:1") == ARM64
    world.api.refusals.clear()
    world.clock.advance(seconds)
    assert await world.verdict("a", "pull") == ARM64


async def test_public_image_with_a_stale_secret(world: World) -> None:
    """The registry refuses the old password even here; anonymous comes last, and its facts are everybody's."""
    world.write_secret("a", "ann", "expired")
    assert await world.verdict("a", "pull", image="public/app:1") == ARM64
    world.registry.forget()
    world.write_secret("b", "bob", "b-secret")
    reads = world.secret_reads
    assert await world.answer(world.question("b", "pull", image="public/app:1")) == ARM64
    assert (world.registry.requests, world.secret_reads) == ({}, reads)


async def test_operator_s_credentials_come_after_the_pod_s_own(world: World) -> None:
    """They serve every pod, and `inspect`, which has no other: it agrees with the service on pods without secrets."""
    await world.write_operator_login(world.registry.host, "ann", "a-secret")
    world.write_secret("b", "bob", "b-secret")
    assert await world.verdict("b", "pull") == await world.verdict("c") == ARM64
    inspected = await world.pod_resolver.resolver.describe(
        f"{world.registry.host}/team/app:1", world.pod_resolver.keyring
    )
    assert words_of(inspected) == ARM64


async def test_hot_path_asks_the_cluster_nothing(world: World) -> None:
    """A thousand decisions about a known image read no secret."""
    world.write_secret("a", "ann", "a-secret")
    await world.verdict("a", "pull")
    reads = world.secret_reads
    for _ in range(1000):
        assert world.peek(world.question("a", "pull")) == ARM64
        world.clock.advance(0.5)
    assert world.secret_reads == reads


class SlowResolver(Resolver):
    """Lookups that take as long as a caller waits."""

    def __init__(self, cache: ImageCache) -> None:
        self.waits: list[float] = []
        self.cache = cache

    async def resolve_all(
        self, queries: Sequence[ImageQuery], keyring: Keyring, wait_seconds: float, *, revalidate: bool = False
    ) -> list[Answer]:
        self.waits.append(wait_seconds)
        if wait_seconds:
            await asyncio.Event().wait()
        return [None] * len(queries)


async def test_reviews_of_one_tenant_that_wait_leave_room_for_others(world: World) -> None:
    """Each holds a connection of the API server for the whole wait; those beyond the share are answered at once."""
    resolver = SlowResolver(world.pod_resolver.resolver.cache)
    admission = PodAdmission(
        msgspec.structs.replace(world.pod_resolver, resolver=resolver),
        AdmissionSettings(tolerations=Config().admission.tolerations),
        cluster_nodes=ClusterNodes,
        wait_seconds=10,
    )
    bodies = {
        namespace: msgspec.json.encode(review_of(world.pod(namespace, "pull"), namespace=namespace))
        for namespace in ("a", "b")
    }
    waiting = [asyncio.create_task(admission.review(bodies["a"])) for _ in range(300)]
    await asyncio.sleep(0)
    done = [review for review in waiting if review.done()]
    assert len(done) == 50
    assert all(b'"allowed":true' in review.result().body for review in done)
    other = asyncio.create_task(admission.review(bodies["b"]))
    await asyncio.sleep(0)
    assert not other.done()
    assert resolver.waits == [10] * 250 + [0] * 50 + [10]
    for review in (*waiting, other):
        review.cancel()
    await asyncio.gather(*waiting, other, return_exceptions=True)
    again = asyncio.create_task(admission.review(bodies["a"]))
    await asyncio.sleep(0)
    assert resolver.waits[-1] == 10
    again.cancel()


def at_once(verbs: SchedulerVerbs, body: bytes) -> Reply | None:
    call = verbs.filter(body)
    try:
        call.send(None)
    except StopIteration as done:
        reply: Reply = done.value
        return reply
    call.close()
    return None


async def test_a_decision_is_the_namespace_s_own_and_ends_with_a_denial(world: World) -> None:
    """Pods of one template get it from memory; the same pod elsewhere does not, nor does one after a denial."""
    world.write_secret("a", "ann", "a-secret")
    verbs = SchedulerVerbs(world.pod_resolver, nodes=None, wait_seconds=10, pending_limit_seconds=30, clock=world.clock)

    def request(namespace: str, name: str) -> bytes:
        document = world.pod(namespace, "pull")
        document["metadata"] |= {"name": name, "uid": name}
        return msgspec.json.encode(with_nodes(document, NODES))

    hits = LOOKUPS["hit"].value
    assert at_once(verbs, request("a", "one")) is None
    await verbs.filter(request("a", "one"))
    answers = [at_once(verbs, request("a", name)) for name in ("one", "two", "three")]
    kept = [msgspec.json.decode(answer.body)["Nodes"]["items"] for answer in answers if answer]
    assert [[item["metadata"]["name"] for item in items] for items in kept] == [["b", "d"]] * 3
    assert LOOKUPS["hit"].value == hits + 3
    assert at_once(verbs, request("b", "one")) is None
    world.registry.rights["team/app"] = set()
    world.clock.advance(899.5)
    assert at_once(verbs, request("a", "four"))
    world.clock.advance(0.9)
    question = world.question("a", "pull")
    lookup = ImageQuery(question.images[0].reference)
    (answer,) = await world.pod_resolver.resolver.resolve_all([lookup], question.keyring, 60, revalidate=True)
    assert words_of(answer) == "denied"
    reply = await verbs.filter(request("a", "five"))
    assert len(msgspec.json.decode(reply.body)["Nodes"]["items"]) == len(NODES)


async def test_pending_pods_warm_up_with_their_secrets(world: World) -> None:
    """What the watch announces is the cluster's own word, and serves callers that may read the pod's secrets."""
    world.write_secret("a", "ann", "a-secret")
    world.pod_resolver.warm(msgspec.convert(world.pod("a", "pull"), Pod))
    question = world.question("a", "pull")
    await world.answer(question)
    assert world.secret_reads == 1
    assert world.peek(question) == ARM64


@pytest.mark.parametrize("image", ["team/app:1", "team/app:2"], ids=["known", "not known yet"])
async def test_who_may_not_read_borrows_nothing_that_was_read_for_others(world: World, image: str) -> None:
    """A guessed secret's name gives neither its password, read a moment ago, nor what was learned with it."""
    world.registry.add_index("team/app", "2", [ARM64])
    world.write_secret("a", "ann", "a-secret")
    assert await world.verdict("a", "pull") == ARM64
    world.registry.users.clear()
    stranger = world.question("a", "pull", image=image, may_read=False)
    assert world.peek(stranger) == "pending"
    assert await world.answer(stranger) == "denied"
    assert set(world.registry.users) <= {""}
    assert world.secret_reads == 1


async def test_who_may_not_read_is_one_tenant_whatever_it_names(world: World) -> None:
    """Forged pods of 40 namespaces would otherwise fill the table of lookups under as many names."""
    for may_read, tenants in ((True, ["a", "b"]), (False, [UNAUTHENTICATED] * 2)):
        questions = [world.question(namespace, "pull", may_read=may_read) for namespace in "ab"]
        assert [question.keyring.tenant for question in questions] == tenants


async def test_who_may_not_read_gets_what_is_public_and_what_the_operator_opens(world: World) -> None:
    """As a pod that names no secret."""
    await world.write_operator_login(f"{world.registry.host}/team", "ann", "a-secret")
    for image in ("public/app:1", "team/app:1"):
        assert await world.answer(world.question("b", "pull", image=image, may_read=False)) == ARM64
    assert world.secret_reads == 0


async def test_nothing_that_is_logged_or_counted_holds_a_secret(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither a name nor a password, whatever went wrong."""
    structlog.reset_defaults()
    world.write_secret("a", "ann-user", "wrong-secret")
    world.write_auths("b", {world.registry.host: {"auth": "wrong-secret"}})
    for namespace in ("a", "b"):
        assert await world.verdict(namespace, "pull") == "denied"
    captured = capsys.readouterr()
    assert "secret.malformed" in captured.out + captured.err
    for text in ("ann-user", "wrong-secret"):
        assert text not in captured.out + captured.err
