"""Mirrors in turn: who is asked and shown which credential, whose failure counts, and who rests after which."""

import asyncio
import contextlib
from collections.abc import Sequence

import pytest
from yarl import URL

from extender import errors
from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.images.reference import ImageReference, parse_reference
from extender.registry.addresses import AddressGuard
from extender.registry.endpoint import Capability, CredentialScope, Endpoint
from extender.registry.endpoint_breakers import EndpointBreakers
from extender.registry.mirror_failover import MirrorFailover
from extender.registry_metrics import MIRRORS
from testbed.clock import Clock

APP, REPOSITORIES = parse_reference("up.example/team/one:1"), ("team/one", "team/two", "team/three")
TENANT = Credential("tenant", "secret", CredentialId("tenant"))
OWN = Credential("operator", "secret", CredentialId("operator"))
MISSING, DENIED, WRONG = errors.ManifestNotFound("no"), errors.RegistryDenied("no"), errors.InvalidManifest("no")
REFUSED, DEAD = errors.RegistryRefusedImage("no", 412), errors.RegistryUnreachable("dead")
UNASKED, UNNAMED = errors.RegistryNotAsked("no connection"), errors.NameUnresolved("no name")
DOWN, FAILED = errors.RegistryUnavailable("down"), errors.RegistryFailed("500")
BUSY, SPARED = errors.RegistryThrottled("busy", 90.0), errors.QuotaReserved("few left", 300.0)


class World:
    """Endpoints a, b (mirrors) and up, and what each says: an answer or an error. Backoffs do not vary."""

    def __init__(self, guard: AddressGuard | None = None, **says: str | Exception) -> None:
        self.says = says
        self.capabilities: dict[str, frozenset[Capability]] = {}
        self.mirror_credentials: tuple[Credential, ...] = (ANONYMOUS,)
        self.left_out: dict[str, str] = {}
        self.has_plain_root = False
        self.scope: CredentialScope = "operator"
        self.requests, self.keyring_requests = list[tuple[str, str]](), list[str]()
        self.clock = Clock()
        self.breakers = EndpointBreakers(clock=self.clock, random=lambda: 0.0)
        self.failover = MirrorFailover(
            self.endpoints_for, mirror_credentials=self.credentials_for, guard=guard, breakers=self.breakers
        )

    def endpoints_for(self, reference: ImageReference) -> Sequence[Endpoint]:
        names = [name for name in ("a", "b", "up") if name in self.says]
        return [
            Endpoint(
                name=name,
                root=URL(f"https://{name}.example/v2/hub" if name == "a" else f"https://{name}.example/v2"),
                repository=reference.path,
                mirror_of="" if name == "up" else reference.domain,
                credentials="image" if name == "up" else self.scope,
                not_asked=self.left_out.get(name, ""),
                plain_root=URL(f"http://{name}.example/v2") if self.has_plain_root else None,
                capabilities=self.capabilities.get(name, frozenset(("resolve", "pull"))),
            )
            for name in names
        ]

    async def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        self.keyring_requests.append(reference.repository)
        return self.mirror_credentials

    async def ask(self, endpoint: Endpoint, credential: Credential) -> str:
        name = endpoint.name if endpoint.root.scheme == "https" else f"{endpoint.name} over http"
        self.requests.append((name, credential.id))
        self.clock.advance(0.001)
        said = self.says[name]
        if isinstance(said, Exception):
            raise said
        return said

    async def look(
        self, image: str = "up.example/team/one", credential: Credential = TENANT, capability: Capability = "resolve"
    ) -> str | Exception:
        """What comes of it: an answer, or the error that is raised."""
        try:
            return await self.failover.first_answer(capability, parse_reference(f"{image}:1"), credential, self.ask)
        except (errors.RegistryError, errors.InvalidManifest) as exc:
            return exc

    async def lose(self, *repositories: str) -> None:
        self.says["up"] = DEAD
        for repository in repositories:
            await self.look(f"up.example/{repository}")

    async def rest_seconds(self, credential: Credential = TENANT) -> float | None:
        """For how long the endpoint is said to rest; None if it was asked."""
        self.requests.clear()
        said = await self.look(credential=credential)
        return None if self.requests else getattr(said, "retry_after_seconds", None)

    def visited(self) -> list[str]:
        names = [name for name, _ in self.requests]
        self.requests.clear()
        return names


@pytest.mark.parametrize("failure", [MISSING, DENIED, WRONG, DOWN, FAILED, BUSY], ids=lambda it: type(it).__name__)
async def test_mirror_that_fails_gives_way_to_the_next(failure: Exception) -> None:
    """Whatever is wrong with it: it is never the reason that an image is not found."""
    world = World(a=failure, b=failure, up="answer")
    assert await world.look() == "answer"
    assert world.visited() == ["a", "b", "up"]


@pytest.mark.parametrize(
    ("mirror", "upstream", "verdict"),
    [
        (MISSING, MISSING, errors.ManifestNotFound),
        (DENIED, MISSING, errors.RegistryDenied),
        (REFUSED, MISSING, errors.RegistryRefusedImage),
        (WRONG, MISSING, errors.EndpointUnavailable),
        *((down, MISSING, errors.EndpointUnavailable) for down in (DOWN, FAILED, BUSY, DEAD, UNASKED, UNNAMED)),
        *((DOWN, refusal, errors.EndpointUnavailable) for refusal in (DENIED, REFUSED, WRONG)),
        *((refusal, DOWN, errors.EndpointUnavailable) for refusal in (MISSING, DENIED, REFUSED, WRONG)),
        (MISSING, DENIED, errors.RegistryDenied),
        (MISSING, WRONG, errors.InvalidManifest),
        (DOWN, DOWN, errors.RegistryUnavailable),
        (BUSY, DOWN, errors.RegistryUnavailable),
        (DOWN, BUSY, errors.RegistryThrottled),
        (MISSING, BUSY, errors.RegistryThrottled),
        (FAILED, DOWN, errors.RegistryUnavailable),
        (DOWN, FAILED, errors.RegistryFailed),
    ],
)
async def test_last_word_stands_if_all_have_answered(
    mirror: Exception, upstream: Exception, verdict: type[Exception]
) -> None:
    """While one fails, none of the others can say that there is no such image, and nobody is denied it."""
    said = await World(a=mirror, up=upstream).look()
    assert type(said) is verdict
    if verdict is errors.EndpointUnavailable:
        assert str(said) in {str(each) for each in (mirror, upstream) if each not in (MISSING, DENIED, REFUSED)}


@pytest.mark.parametrize(
    ("allow", "deny", "mirror", "verdict", "visited"),
    [
        (["*"], ["a.example"], "answer", str, ["up"]),
        (["a.example"], [], MISSING, errors.EndpointUnavailable, ["a"]),  # nodes may find it where we may not ask
        (["a.example"], [], DENIED, errors.RegistryDenied, ["a"]),
        (["x.example"], [], "answer", errors.RegistryNotAllowed, []),
    ],
)
async def test_endpoint_that_the_operator_does_not_allow_is_passed_over(
    allow: list[str], deny: list[str], mirror: str | Exception, verdict: type, visited: list[str]
) -> None:
    world = World(AddressGuard(allow=allow, deny=deny), a=mirror, up="other")
    assert type(await world.look()) is verdict
    assert world.visited() == visited


@pytest.mark.parametrize(
    ("scope", "shown"),
    [
        ("operator", [("a", "operator"), ("a", "anonymous"), ("b", "operator"), ("up", "tenant")]),
        ("both", [("a", "tenant"), ("a", "operator"), ("a", "anonymous"), ("b", "tenant"), ("up", "tenant")]),
    ],
    ids=["CRI-O", "containerd"],
)
async def test_mirror_is_shown_the_operators_credentials(scope: CredentialScope, shown: list[tuple[str, str]]) -> None:
    """Those by its own name for the repository; one of containerd's, before them, the image's, as on nodes."""
    world = World(a=DENIED, b=MISSING, up="answer")
    world.scope, world.mirror_credentials = scope, (OWN, ANONYMOUS)
    assert await world.look() == "answer"
    assert world.requests == shown
    assert world.keyring_requests == ["a/hub/team/one", "b/team/one"]


async def test_endpoint_that_is_left_out_is_not_asked() -> None:
    """What the files block gets no request, and is the reason only where nobody else was asked."""
    world = World(a="answer", up="other")
    world.left_out = {"a": "it is blocked"}
    assert await world.look() == "other"
    world.says["up"] = MISSING
    assert await world.look() is MISSING
    world.left_out["up"] = "it is blocked"
    said = await world.look()
    assert (type(said), str(said)) == (errors.AddressRefused, "up is not asked: it is blocked")
    assert world.visited() == ["up", "up"]


async def test_plain_http_follows_a_connection_that_did_not_come_about() -> None:
    """An answer over TLS, whatever it says, is the end."""
    world = World(a=DEAD, up="answer")
    world.says["a over http"], world.has_plain_root = "plain", True
    assert [await world.look(), await world.look()] == ["plain", "plain"]
    assert world.visited() == ["a", "a over http"] * 2
    world.says["a"] = MISSING
    assert await world.look() == "answer"
    assert world.visited() == ["a", "up"]


async def test_capabilities_say_who_is_asked() -> None:
    world = World(a="mirror", up="registry")
    world.capabilities = {"a": frozenset(("pull",))}
    assert [await world.look(), await world.look(capability="pull")] == ["registry", "mirror"]
    world.capabilities = {"a": frozenset(), "up": frozenset()}
    assert str(await world.look()) == "no place that has images of up.example may be asked for tags"


async def test_dead_mirror_is_left_alone_for_a_while() -> None:
    """It costs a time-out once, not once per lookup; then one lookup goes to see."""
    world = World(a=DOWN, up="answer")
    before = {outcome: MIRRORS[outcome].value for outcome in MIRRORS}
    for _ in range(3):
        assert await world.look() == "answer"
    assert world.visited() == ["a", "up", "up", "up"]
    world.clock.advance(10)
    world.says["a"] = "mirror"
    assert [await world.look(), await world.look()] == ["mirror", "mirror"]
    counted = {outcome: MIRRORS[outcome].value - before[outcome] for outcome in MIRRORS}
    assert counted == {"answered": 2, "missing": 0, "failed": 1, "resting": 2}


async def test_mirror_rests_for_one_registry_and_where_another_may_be_asked() -> None:
    """Whoever can create a pod names a registry that hangs; the mirror serves the others as before."""
    world = World(a=DOWN, up="answer")
    await world.look()
    world.mirror_credentials, world.says["a"] = (OWN,), "mirror"
    assert [await world.look(), await world.look("quay.io/team/one")] == ["answer", "mirror"]
    del world.says["up"]
    assert await world.look() == "mirror"


@pytest.mark.parametrize(("mirror", "visited"), [(DOWN, ["a", *["up"] * 3]), (FAILED, ["a", "up", "a", "a"])])
async def test_registry_is_asked_where_all_mirrors_have_failed(mirror: Exception, visited: list[str]) -> None:
    """However ill it is, since somebody has to try. A mirror that answers with an error may have the next image."""
    world = World(a=mirror, up=DOWN)
    for _ in range(3):
        assert isinstance(await world.look(), errors.RegistryUnavailable)
    assert world.visited() == visited


@pytest.mark.parametrize(("said", "visits"), [(UNASKED, 2), (SPARED, 2), (UNNAMED, 1)])
async def test_mirror_rests_for_its_name_and_not_for_our_queue(said: Exception, visits: int) -> None:
    """Without an address it would cost each lookup its wait; want of connections or of a quota is not its fault."""
    world = World(a=said, b="answer", up="answer")
    assert [await world.look(), await world.look()] == ["answer"] * 2
    assert world.visited().count("a") == visits


async def test_host_rests_when_no_connection_for_three_repositories_comes_about() -> None:
    """For everybody and ten seconds, which each is told; one repository is one, however many of its names fail."""
    world = World()
    await world.lose(*["team/one"] * 20, "team/two")
    assert await world.rest_seconds() is None
    await world.lose("team/three")
    assert await world.rest_seconds(OWN) == pytest.approx(10)
    world.clock.advance(9.99)
    assert await world.rest_seconds() == 1.0
    world.clock.advance(0.02)
    assert await world.rest_seconds() is None


@pytest.mark.parametrize("error", [DOWN, UNNAMED], ids=lambda error: type(error).__name__)
async def test_host_that_is_the_last_hope_rests_for_nothing_that_an_author_can_choose(error: Exception) -> None:
    """A slow body, or a name for which the host does not answer, rests that name alone, elsewhere."""
    world = World(up=error)
    for number in range(50):
        await world.look(f"up.example/team/{number}")
    assert world.visited() == ["up"] * 50


@pytest.mark.parametrize("answer", ["answer", errors.RegistryThrottled("later", 1.0)], ids=["answer", "throttled"])
async def test_answer_clears_what_failed_before_and_speaks_for_the_host_for_ten_seconds(
    answer: str | Exception,
) -> None:
    """A throttled account has been answered, too."""
    world = World()
    await world.lose("team/one", "team/two")
    world.says["up"] = answer
    await world.look(credential=OWN)
    world.clock.advance(9)
    await world.lose(*REPOSITORIES, "team/four")
    assert await world.rest_seconds() is None
    world.clock.advance(1)
    await world.lose("team/one", "team/two")
    assert await world.rest_seconds() is None
    await world.lose("team/three")
    assert await world.rest_seconds() is not None


async def test_one_probe_goes_first_and_rests_the_host_for_longer_each_time_it_fails() -> None:
    """10 s, then 20, then 40; its answer ends that for everybody."""
    world = World()
    await world.lose(*REPOSITORIES)
    world.says["up"] = DOWN
    for seconds in (10, 20, 40):
        world.clock.advance(seconds - 0.5)
        assert await world.rest_seconds() is not None
        world.clock.advance(0.51)
        assert [await world.rest_seconds(each) is None for each in (OWN, TENANT)] == [True, False]
    world.clock.advance(80)
    world.says["up"] = "answer"
    assert [await world.rest_seconds() for _ in range(3)] == [None] * 3
    world.clock.advance(10)
    await world.lose(*REPOSITORIES)
    assert await world.rest_seconds() == pytest.approx(10)


async def test_probe_that_comes_to_nothing_gives_way_to_the_next() -> None:
    """It says nothing about the host, which would otherwise never be asked again; nor does one that is cancelled."""
    world = World()
    await world.lose(*REPOSITORIES)
    world.clock.advance(10)
    world.says["up"] = UNASKED
    assert [await world.rest_seconds() is None for _ in range(2)] == [True, True]
    asked = asyncio.Event()

    async def hang(_endpoint: Endpoint, _credential: Credential) -> str:
        asked.set()
        await asyncio.Event().wait()
        return ""

    reference = parse_reference("up.example/team/one:1")
    probe = asyncio.ensure_future(world.failover.first_answer("resolve", reference, TENANT, hang))
    await asked.wait()
    world.says["up"] = "answer"
    other = asyncio.ensure_future(world.look())
    await asyncio.sleep(0)
    assert not other.done()
    probe.cancel()
    assert await other == "answer"


async def test_throttled_account_rests_as_long_as_the_host_said_and_no_other() -> None:
    """To the second, whatever else is answered there; of two requests throttled together the longer time holds."""
    world = World(up=BUSY)
    [up] = world.endpoints_for(APP)
    async with contextlib.AsyncExitStack() as answered_later:
        for account in (OWN.id, TENANT.id):  # the tenant's was asked before it was throttled
            await answered_later.enter_async_context(world.breakers.attempt(up, account, is_last_hope=True))
        with contextlib.suppress(errors.RegistryThrottled):
            async with world.breakers.attempt(up, TENANT.id, is_last_hope=True):
                assert await world.look() is BUSY
                raise errors.RegistryThrottled("later", 5.0)
    world.says["up"] = "answer"
    world.clock.advance(30)
    assert await world.rest_seconds() == pytest.approx(60, abs=0.1)
    assert await world.rest_seconds(OWN) is None
    world.clock.advance(60)
    assert await world.rest_seconds() is None


async def test_who_begins_while_the_first_attempt_after_a_rest_is_under_way_waits_for_it() -> None:
    world = World(up=BUSY)
    assert await world.look() is BUSY
    world.clock.advance(90)
    asked, answered = asyncio.Event(), asyncio.Event()

    async def ask(endpoint: Endpoint, credential: Credential) -> str:
        asked.set()
        await answered.wait()
        return await world.ask(endpoint, credential)

    reference = parse_reference("up.example/team/one:1")
    first = asyncio.ensure_future(world.failover.first_answer("resolve", reference, TENANT, ask))
    await asked.wait()
    world.says["up"] = "answer"
    others = [asyncio.ensure_future(world.look(f"up.example/team/{name}")) for name in ("two", "three")]
    await asyncio.sleep(0)
    assert not any(each.done() for each in others)
    answered.set()
    assert await asyncio.gather(first, *others) == ["answer"] * 3
