"""Mirrors in turn: who is asked, who is shown which credential, and whose failure counts."""

from collections.abc import Sequence

import pytest
from yarl import URL

from extender import errors
from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId
from extender.images.reference import ImageReference, parse_reference
from extender.registry.addresses import AddressGuard
from extender.registry.endpoint import Capability, CredentialScope, Endpoint
from extender.registry.mirror_failover import MirrorFailover
from extender.registry.rests import Rests
from extender.registry_figures import MIRRORS
from testbed.clock import Clock

APP = parse_reference("up.example/team/app:1")
TENANT = Credential("tenant", "secret", CredentialId("tenant"))
OWN = Credential("operator", "secret", CredentialId("operator"))
MISSING, DENIED, WRONG = errors.ManifestNotFound("no"), errors.RegistryDenied("no"), errors.InvalidManifest("no")
REFUSED, DEAD = errors.RegistryRefusedImage("no", 412), errors.RegistryUnreachable("dead")
UNASKED, UNNAMED = errors.RegistryNotAsked("no connection"), errors.NameUnresolved("no name")
DOWN, FAILED, BUSY = (
    errors.RegistryUnavailable("down"),
    errors.RegistryFailed("500"),
    errors.RegistryThrottled("busy", 60.0),
)


class World:
    """Endpoints a, b (mirrors) and up, and what each says: an answer, or an error of this kind."""

    def __init__(self, *, guard: AddressGuard | None = None) -> None:
        self.says: dict[str, str | Exception] = {}
        self.capabilities: dict[str, frozenset[Capability]] = {}
        self.requests: list[tuple[str, str]] = []
        self.clock = Clock()
        self.mirror_credentials: tuple[Credential, ...] = (ANONYMOUS,)
        self.left_out: dict[str, str] = {}
        self.has_plain_root = False
        self.scope: CredentialScope = "operator"
        self.keyring_requests: list[str] = []
        self.failover = MirrorFailover(
            self.endpoints_for,
            mirror_credentials=self.credentials_for,
            guard=guard,
            rests=Rests(probe_seconds=5, clock=self.clock, random=lambda: 0.0),
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
            more = {errors.RegistryThrottled: (60.0,), errors.RegistryRefusedImage: (412,)}.get(type(said), ())
            raise type(said)(*said.args, *more)  # another each time, since it is marked
        return said

    async def look(
        self, capability: Capability = "resolve", image: str = "up.example/team/app:1", credential: Credential = TENANT
    ) -> str:
        return await self.failover.first_answer(capability, parse_reference(image), credential, self.ask)

    def visited(self) -> list[str]:
        names = [name for name, _ in self.requests]
        self.requests.clear()
        return names


@pytest.mark.parametrize("failure", [MISSING, DENIED, WRONG, DOWN, FAILED, BUSY], ids=lambda it: type(it).__name__)
async def test_mirror_that_fails_gives_way_to_the_next(failure: Exception) -> None:
    """Whatever is wrong with it: it is never the reason that an image is not found."""
    world = World()
    world.says = {"a": failure, "b": failure, "up": "answer"}
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
    mirror: Exception,
    upstream: Exception,
    verdict: type[Exception],
) -> None:
    """It is the registry's own.

    While one of them fails, none of the others can say that there is no such image, and nobody is denied it.
    """
    world = World()
    world.says = {"a": mirror, "up": upstream}
    with pytest.raises(verdict) as raised:
        await world.look()
    assert type(raised.value) is verdict
    if verdict is errors.EndpointUnavailable:
        assert str(raised.value) in {str(each) for each in (mirror, upstream) if each not in (MISSING, DENIED, REFUSED)}


async def test_mirror_that_the_operator_does_not_allow_is_passed_over() -> None:
    """So is a registry, and nodes may find there what we may not ask for; that nobody may be asked is a reason."""
    world = World(guard=AddressGuard(allow=["*"], deny=["a.example"]))
    world.says = {"a": "answer", "up": "other"}
    assert await world.look() == "other"
    world = World(guard=AddressGuard(allow=["a.example"]))
    world.says = {"a": MISSING, "up": "other"}
    with pytest.raises(errors.EndpointUnavailable):
        await world.look()
    world.says = {"a": DENIED, "up": "other"}
    with pytest.raises(errors.RegistryDenied):
        await world.look()
    world = World(guard=AddressGuard(allow=["x.example"]))
    world.says = {"a": "answer", "up": "other"}
    with pytest.raises(errors.AddressRefused):
        await world.look()
    assert world.visited() == []


async def test_mirror_of_cri_o_is_not_shown_the_images_credentials() -> None:
    """It gets the operator's for it, asked for by the name that it knows the repository by."""
    world = World()
    world.mirror_credentials = (OWN, ANONYMOUS)
    world.says = {"a": DENIED, "b": MISSING, "up": "answer"}
    assert await world.look() == "answer"
    assert world.requests == [("a", "operator"), ("a", "anonymous"), ("b", "operator"), ("up", "tenant")]
    assert world.keyring_requests == ["a/hub/team/app", "b/team/app"]


async def test_mirror_of_containerd_is_shown_the_images_credential_first() -> None:
    """As by containerd, which has one login for all endpoints of a pull; then come the operator's."""
    world = World()
    world.scope = "both"
    world.mirror_credentials = (OWN, ANONYMOUS)
    world.says = {"a": DENIED, "up": "answer"}
    assert await world.look() == "answer"
    assert world.requests == [("a", "tenant"), ("a", "operator"), ("a", "anonymous"), ("up", "tenant")]


async def test_endpoint_that_is_left_out_is_not_asked() -> None:
    """What the files block gets no request, and is the reason only where nobody else was asked."""
    world = World()
    world.says = {"a": "answer", "up": "other"}
    world.left_out = {"a": "it is blocked"}
    assert await world.look() == "other"
    world.says["up"] = MISSING
    with pytest.raises(errors.ManifestNotFound):
        await world.look()
    world.requests.pop()
    world.left_out["up"] = "it is blocked"
    with pytest.raises(errors.AddressRefused, match="up is not asked: it is blocked"):
        await world.look()
    assert world.visited() == ["up"]


async def test_plain_http_follows_a_connection_that_did_not_come_about() -> None:
    """An answer over TLS, whatever it says, is the end."""
    world = World()
    world.has_plain_root = True
    world.says = {"a": errors.RegistryUnreachable("no TLS"), "a over http": "plain", "up": "answer"}
    assert [await world.look(), await world.look()] == ["plain", "plain"]
    assert world.visited() == ["a", "a over http"] * 2
    world.says["a"] = MISSING
    assert await world.look() == "answer"
    assert world.visited() == ["a", "up"]


async def test_capabilities_say_who_is_asked() -> None:
    """A mirror may be trusted with digests and not with tags."""
    world = World()
    world.says = {"a": "mirror", "up": "registry"}
    world.capabilities = {"a": frozenset(("pull",))}
    assert [await world.look("resolve"), await world.look("pull")] == ["registry", "mirror"]
    world.capabilities = {"a": frozenset(), "up": frozenset()}
    with pytest.raises(errors.RegistryUnavailable, match=r"no place .* for tags"):
        await world.look("resolve")


async def test_dead_mirror_is_left_alone_for_a_while() -> None:
    """It costs a time-out once, not once per lookup; then one lookup goes to see."""
    world = World()
    world.says = {"a": DOWN, "up": "answer"}
    before = {outcome: MIRRORS[outcome].value for outcome in MIRRORS}
    for _ in range(3):
        assert await world.look() == "answer"
    assert world.visited() == ["a", "up", "up", "up"]
    world.clock.advance(10)
    world.says["a"] = "mirror"
    assert [await world.look(), await world.look()] == ["mirror", "mirror"]
    counted = {outcome: MIRRORS[outcome].value - before[outcome] for outcome in MIRRORS}
    assert counted == {"answered": 2, "missing": 0, "failed": 1, "resting": 2}


async def test_mirror_that_answers_with_an_error_is_asked_on() -> None:
    """It may have the next image."""
    world = World()
    world.says = {"a": FAILED, "up": DOWN}
    for _ in range(2):
        with pytest.raises(errors.RegistryUnavailable):
            await world.look()
    world.says["a"] = "answer"
    assert await world.look() == "answer"
    assert world.visited() == ["a", "up", "a", "a"]


async def test_registry_is_asked_where_all_mirrors_have_failed() -> None:
    """However ill it was: its own breaker is elsewhere, and somebody has to try."""
    world = World()
    world.says = {"a": DOWN, "up": DOWN}
    for _ in range(3):
        with pytest.raises(errors.RegistryUnavailable):
            await world.look()
    assert world.visited() == ["a", "up", "up", "up"]


async def test_spared_registry_s_breaker_stays_closed() -> None:
    """What is withheld to save its quota says nothing against it."""
    world = World()

    async def ask(endpoint: Endpoint, credential: Credential) -> str:
        if endpoint.name == "up":
            raise errors.QuotaReserved("few left", 300.0)
        return await world.ask(endpoint, credential)

    world.says = {"a": MISSING, "up": "answer"}
    with pytest.raises(errors.RegistryThrottled):
        await world.failover.first_answer("resolve", APP, TENANT, ask)
    assert await world.look() == "answer"


@pytest.mark.parametrize(
    ("said", "visits"), [(errors.RegistryNotAsked("no connection"), 2), (errors.NameUnresolved("no name"), 1)]
)
async def test_mirror_rests_for_its_name_and_not_for_our_queue(said: Exception, visits: int) -> None:
    """A mirror without an address would cost each lookup its wait; our own lack of connections is not its fault."""
    world = World()
    world.says = {"a": said, "b": "answer", "up": "answer"}
    assert [await world.look(), await world.look()] == ["answer"] * 2
    assert world.visited().count("a") == visits
