"""What does it cost your registry? Every request is counted where it arrives, over hours of simulated time.

`python -m benchmarks.registry_cost` prints the table of docs/registries.md. The registry works as Docker Hub does:
every client needs a token, anonymous ones too, and a token is valid for five minutes and one repository. The resolver,
the client and its HTTP are the service's own with default settings.
"""

import asyncio
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import web

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId, Keyring
from extender.credentials.operator_keyring import OperatorKeyring
from extender.fetcher.sources import LocalSources
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, pack_digest
from extender.logs import configure_logs
from extender.machine import THIS_MACHINE
from extender.registry.addresses import AddressGuard
from extender.registry.http import open_session
from extender.registry.image_description import RegistryImages
from extender.resolver.image_cache import ImageQuery
from extender.resolver.persistence import Persistence, PersistenceLimits
from extender.resolver.resolver import Resolver
from extender.store.rows import Batch, NameRow
from extender.store.sqlite import SqliteStore
from testbed.clock import Clock
from testbed.embedded_registry import EmbeddedRegistry
from testbed.images import build_index

MINUTE, HOUR = 60.0, 3600.0
BOTH = ("linux/amd64", "linux/arm64")
_TOKEN_SECONDS = 300
_STORE, _SIZE = "images.sqlite", 10_000
_COLUMNS = ("401", "token", "HEAD manifests", "GET manifests", "GET blobs")


class Hub(EmbeddedRegistry):
    """A registry that gives everyone a token for one repository; `costs` counts the requests by kind."""

    def __init__(self, now: Callable[[], float]) -> None:
        super().__init__()
        self.costs: Counter[str] = Counter()
        self._now = now
        self._tokens: dict[str, tuple[str, float]] = {}

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answers with a token, a challenge, or the manifest or blob."""
        if request.path == "/token":
            return self._give_token(request.query["scope"])
        kind = "manifests" if "/manifests/" in request.path else "blobs"
        credential_id = f"repository:{request.path.removeprefix('/v2/').rpartition(f'/{kind}/')[0]}:pull"
        shown = self._tokens.get(request.headers.get("Authorization", "").removeprefix("Bearer "))
        if shown is None or shown[0] != credential_id or self._now() >= shown[1]:
            self.costs["401"] += 1
            challenge = f'Bearer realm="{self.url}/token",service="hub",scope="{credential_id}"'
            return web.Response(status=401, headers={"WWW-Authenticate": challenge})
        self.costs[f"{request.method} {kind}"] += 1
        return await super().answer(request)

    def _give_token(self, credential_id: str) -> web.Response:
        self.costs["token"] += 1
        token = f"token-{self.costs['token']}"
        self._tokens[token] = (credential_id, self._now() + _TOKEN_SECONDS)
        return web.json_response({"token": token, "expires_in": _TOKEN_SECONDS})


class TenantKeyring(Keyring):
    """That of a tenant with one login, which is at hand."""

    def __init__(self, name: str) -> None:
        super().__init__(tenant=name)
        self.identity = name
        self._credential = Credential(name, "secret", CredentialId(name))

    def own_ids_for(self, _reference: ImageReference) -> tuple[CredentialId, ...]:
        """Returns the login's id."""
        return (self._credential.id,)

    async def load(self, _reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        """Returns the login."""
        del refresh
        return (self._credential,)


class SharedStore(SqliteStore):
    """A store shared by several replicas, as Redis is: each looks up there what it has not cached."""

    is_shared = True


class Simulation:
    """A registry, replicas of the service, and their clock."""

    def __init__(self, stack: AsyncExitStack, folder: Path) -> None:
        self.clock = Clock(1_000_000.0)
        self.hub = Hub(self.clock)
        self.replicas: list[Resolver] = []
        self._pushed: dict[str, str] = {}  # digests by name
        self._stack = stack
        self._folder = folder

    async def start(self, replicas: int = 1, *, store: type[SqliteStore] | None = None) -> None:
        """Starts so many more replicas; with a `store`, each opens one of that type at the same path."""
        for _ in range(replicas):
            kept = store(self._folder / _STORE, size=_SIZE) if store else None
            limits = PersistenceLimits(read_seconds=10.0)
            persistence = (
                Persistence(kept, clock=self.clock, wall_clock=self.clock, limits=limits) if kept is not None else None
            )
            resolver = Resolver(
                LocalSources(await self._client(), OperatorKeyring(token_bytes=THIS_MACHINE.token_bytes)),
                size=_SIZE,
                tag_seconds=900,
                stale_seconds=86_400,
                clock=self.clock,
                random=THIS_MACHINE.random,
                persistence=persistence,
            )
            self._stack.push_async_callback(resolver.close)
            await resolver.load(10.0)
            self.replicas.append(resolver)

    async def ask(self, image: str, *, keyring: Keyring | None = None, always: bool = False) -> None:
        """Has each replica decide about a pod of this image; returns when their background work is done."""
        for resolver in self.replicas:
            await resolver.resolve_all([ImageQuery(f"{self.hub.host}/{image}", always)], keyring or Keyring(), 60.0)
            while resolver.counts()["in_flight"]:
                await asyncio.sleep(0)
            await resolver.flush()

    async def store_pushed(self) -> None:
        """Writes all images of `push` to the store that replicas will open, as if one had just looked them up."""
        content = Content(Kind.INDEX, frozenset(map(parse_platform, BOTH)), states_platforms=True)
        now = self.clock()
        rows = [
            NameRow(f"{self.hub.host}/{name}", "1", ANONYMOUS.id, pack_digest(digest), content, now)
            for name, digest in self._pushed.items()
        ]
        store = SqliteStore(self._folder / _STORE, size=_SIZE)
        await store.put(Batch(rows, {}))
        await store.close()

    async def ask_evenly(self, images: Sequence[str], pods: int, seconds: float, *, always: bool = False) -> None:
        """Asks about `pods` pods of these images, one after another, evenly over the time."""
        for number in range(pods):
            await self.ask(images[number % len(images)], always=always)
            self.clock.advance(seconds / pods)

    def push(self, count: int) -> list[str]:
        """Adds so many multi-arch images to the registry, all different, and returns their names."""
        names = [f"team/app-{number}" for number in range(count)]
        for number, name in enumerate(names):
            self._pushed[name] = self.hub.add(name, "1", build_index([*BOTH, f"linux/arm/v{number + 10}"]))
        return [f"{name}:1" for name in names]

    async def _client(self) -> RegistryImages:
        guard = AddressGuard(allow=["127.0.0.1"])
        session = await self._stack.enter_async_context(open_session(guard=guard))
        return RegistryImages(
            session,
            timeout_seconds=10,
            plain_http=frozenset((self.hub.host,)),
            guard=guard,
            machine=THIS_MACHINE._replace(clock=self.clock, wall_clock=self.clock),
        )


class Scenario(msgspec.Struct, frozen=True):
    """A row of the table: what happens, in words, and the function that simulates it."""

    words: str
    play: Callable[[Simulation], Awaitable[None]]


class Cost(msgspec.Struct, frozen=True):
    """What a scenario costs: requests by kind."""

    words: str
    requests: dict[str, int]


async def _first_pod(simulation: Simulation) -> None:
    await simulation.start()
    await simulation.ask(simulation.push(1)[0])


async def _single_platform(simulation: Simulation) -> None:
    simulation.hub.add_manifest("team/app", "1", "linux/arm64")
    await simulation.start()
    await simulation.ask("team/app:1")


async def _many_pods_at_first(simulation: Simulation) -> None:
    await simulation.start()
    await simulation.ask_evenly(simulation.push(1), 1000, 15 * MINUTE)


async def _pinned(simulation: Simulation) -> None:
    digest = simulation.hub.add_index("team/app", "1", BOTH)
    await simulation.start()
    await simulation.ask_evenly([f"team/app@{digest}"], 1000, 24 * HOUR)


async def _day(simulation: Simulation) -> None:
    await simulation.start()
    await simulation.ask_evenly(simulation.push(10), 1000, 24 * HOUR)


async def _day_of_replicas(simulation: Simulation) -> None:
    await simulation.start(3)
    await simulation.ask_evenly(simulation.push(10), 1000, 24 * HOUR)


async def _day_of_replicas_with_a_store(simulation: Simulation) -> None:
    await simulation.start(3, store=SharedStore)
    await simulation.ask_evenly(simulation.push(10), 1000, 24 * HOUR)


async def _always(simulation: Simulation) -> None:
    await simulation.start()
    await simulation.ask_evenly(simulation.push(1), 720, HOUR, always=True)


async def _moved_tag(simulation: Simulation) -> None:
    images = simulation.push(1)
    await simulation.start()
    await simulation.ask(images[0])
    simulation.hub.costs.clear()
    simulation.hub.add_index("team/app-0", "1", BOTH)
    simulation.clock.advance(15 * MINUTE)
    await simulation.ask_evenly(images, 100, 15 * MINUTE)


async def _tenants(simulation: Simulation) -> None:
    images = simulation.push(1)
    await simulation.start()
    for number in range(5):
        await simulation.ask(images[0], keyring=TenantKeyring(f"tenant-{number}"))


async def _missing(simulation: Simulation) -> None:
    await simulation.start()
    await simulation.ask_evenly(["team/app:typo"], 720, HOUR)


async def _restart_soon(simulation: Simulation) -> None:
    await _start_with_a_store(simulation, MINUTE)


async def _restart_later(simulation: Simulation) -> None:
    await _start_with_a_store(simulation, HOUR)


async def _start_with_a_store(simulation: Simulation, seconds: float) -> None:
    """Starts with a store that knew 2,000 images that time ago, and looks them up."""
    images = simulation.push(2000)
    await simulation.store_pushed()
    simulation.clock.advance(seconds)
    await simulation.start(store=SqliteStore)
    for image in images:
        await simulation.ask(image)


SCENARIOS = (
    Scenario("first pod of a multi-arch image", _first_pod),
    Scenario("first pod of an image for one platform, which its config names", _single_platform),
    Scenario("1,000 pods of one image within 15 minutes", _many_pods_at_first),
    Scenario("1,000 pods of one image named by digest, in 24 hours", _pinned),
    Scenario("10 images, 1,000 pods in 24 hours", _day),
    Scenario("the same, 3 replicas", _day_of_replicas),
    Scenario("the same, 3 replicas that share a store", _day_of_replicas_with_a_store),
    Scenario("one image with `imagePullPolicy: Always`, a pod every 5 s for an hour", _always),
    Scenario("a tag that has moved, 100 pods in the 15 minutes after it was noticed", _moved_tag),
    Scenario("5 namespaces with a login each, one image", _tenants),
    Scenario("an image that is not there, asked for every 5 s for an hour", _missing),
    Scenario("restart with a store that knows 2,000 images, all asked for a minute later", _restart_soon),
    Scenario("the same, asked for an hour later", _restart_later),
)


async def cost_of(scenario: Scenario) -> Cost:
    """Simulates the scenario from empty caches on and returns its cost."""
    async with _simulation() as simulation:
        await scenario.play(simulation)
        return Cost(scenario.words, {column: simulation.hub.costs[column] for column in _COLUMNS})


@asynccontextmanager
async def _simulation() -> AsyncIterator[Simulation]:
    with tempfile.TemporaryDirectory() as folder:
        async with AsyncExitStack() as stack:
            simulation = Simulation(stack, Path(folder))
            await stack.enter_async_context(simulation.hub)
            yield simulation


def table_of(costs: Sequence[Cost]) -> str:
    """Returns the costs as a Markdown table."""
    rows = [f"| {cost.words} | {' | '.join(f'{cost.requests[column]:,}' for column in _COLUMNS)} |" for cost in costs]
    return "\n".join([f"| what happens | {' | '.join(_COLUMNS)} |", f"|---|{'---:|' * len(_COLUMNS)}", *rows, ""])


async def main() -> None:
    """Prints the table."""
    configure_logs("error", "console")
    print(table_of([await cost_of(scenario) for scenario in SCENARIOS]), end="")


if __name__ == "__main__":
    asyncio.run(main())
