"""Who is not asked for a while after which failure, and who is asked first when that is over."""

import pytest
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.errors import NameUnresolved, RegistryError, RegistryThrottled, RegistryUnavailable, RegistryUnreachable
from extender.registry.endpoint import Endpoint
from extender.registry.rests import Rests
from testbed.clock import Clock

DOWN, UNREACHABLE = RegistryUnavailable("down"), RegistryUnreachable("dead")
US, THEM = ANONYMOUS.id, CredentialId("them")
REPOSITORIES = ("team/one", "team/two", "team/three")


def endpoint(repository: str = "team/app", mirror_of: str = "") -> Endpoint:
    return Endpoint(name="a.example", root=URL("https://a.example/v2"), repository=repository, mirror_of=mirror_of)


HOST, MIRROR = endpoint(), endpoint(mirror_of="docker.io")


class World:
    """What rests; backoffs do not vary."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.rests = Rests(probe_seconds=5, clock=self.clock, random=lambda: 0.0)

    def lose(self, *repositories: str, error: RegistryThrottled | RegistryUnavailable = UNREACHABLE) -> None:
        self.clock.advance(0.001)
        for repository in repositories:
            self.rests.record_failure(endpoint(repository), US, error, is_last_hope=True)

    def lose_mirror(self, error: RegistryThrottled | RegistryUnavailable = DOWN) -> None:
        self.clock.advance(0.001)
        self.rests.record_failure(MIRROR, US, error, is_last_hope=False)

    def refusal(
        self, asked: Endpoint = HOST, account: CredentialId = US, *, is_last_hope: bool = True
    ) -> RegistryError | None:
        """Why the endpoint is not asked now; None if it is, by an attempt that nobody ends."""
        try:
            self.rests.admit(asked, account, is_last_hope=is_last_hope)
        except RegistryError as exc:
            return exc
        return None

    def of_mirror(self, account: CredentialId = US, *, registry: str = "docker.io") -> RegistryError | None:
        return self.refusal(endpoint(mirror_of=registry), account, is_last_hope=False)


@pytest.fixture
def world() -> World:
    return World()


def test_host_rests_when_no_connection_for_three_repositories_comes_about(world: World) -> None:
    """For everybody and ten seconds, which each is told; one repository is one, however many of its names fail."""
    world.lose(*["team/one"] * 20, "team/two")
    assert world.refusal() is None
    world.lose("team/three")
    error = world.refusal(account=THEM)
    assert isinstance(error, RegistryUnavailable)
    assert error.retry_after_seconds == pytest.approx(10)
    world.clock.advance(9.99)
    last = world.refusal()
    assert isinstance(last, RegistryUnavailable)
    assert last.retry_after_seconds == 1.0
    world.clock.advance(0.01)
    assert world.refusal() is None


@pytest.mark.parametrize("error", [DOWN, NameUnresolved("no name")], ids=lambda error: type(error).__name__)
def test_host_that_is_the_last_hope_rests_for_nothing_that_an_author_can_choose(
    world: World, error: RegistryUnavailable
) -> None:
    """A slow body, or a name for which the host does not answer, rests that name alone, elsewhere."""
    world.lose(*(f"team/{number}" for number in range(50)), error=error)
    assert world.refusal() is None


def test_answer_clears_what_failed_before_and_speaks_for_the_host_for_ten_seconds(world: World) -> None:
    world.lose("team/one", "team/two")
    world.rests.record_answer(HOST, THEM)
    world.clock.advance(9)
    world.lose(*REPOSITORIES, "team/four")
    assert world.refusal() is None
    world.clock.advance(1)
    world.lose("team/one", "team/two")
    assert world.refusal() is None
    world.lose("team/three")
    assert world.refusal() is not None


def test_one_probe_goes_first_and_rests_the_host_for_longer_each_time_it_fails(world: World) -> None:
    """10 s, then 20, then 40; its answer ends that for everybody."""
    world.lose(*REPOSITORIES)
    for seconds in (10, 20, 40):
        world.clock.advance(seconds - 0.5)
        assert world.refusal() is not None
        world.clock.advance(0.5)
        assert [world.refusal(account=each) is None for each in (THEM, US, THEM)] == [True, False, False]
        world.lose("team/one", error=DOWN)
    world.clock.advance(80)
    assert world.refusal() is None
    world.rests.record_answer(HOST, US)
    assert [world.refusal() for _ in range(3)] == [None] * 3
    world.clock.advance(10)
    world.lose(*REPOSITORIES)
    world.clock.advance(10)
    assert world.refusal() is None


def test_probe_that_comes_to_nothing_gives_way_to_the_next(world: World) -> None:
    """It says nothing about the host, which would otherwise never be asked again."""
    world.lose(*REPOSITORIES)
    world.clock.advance(10)
    assert world.refusal() is None
    world.clock.advance(4.9)
    assert world.refusal() is not None
    world.clock.advance(0.1)
    assert world.refusal() is None


def test_mirror_rests_for_one_registry_after_any_failure(world: World) -> None:
    """Whoever can create a pod names a registry that hangs; the mirror serves the others as before."""
    world.lose_mirror()
    assert isinstance(world.of_mirror(THEM), RegistryUnavailable)
    assert world.of_mirror(registry="quay.io") is None
    assert world.refusal(MIRROR) is None  # where nothing else is left to ask


def test_throttled_account_rests_as_long_as_the_host_said_and_no_other(world: World) -> None:
    """To the second, whatever else is answered there; of two requests throttled together the longer time holds."""
    world.lose("team/one", error=RegistryThrottled("later", 90.0))
    world.lose("team/two", error=RegistryThrottled("later", 5.0))
    for account in (THEM, US):  # ours was asked before it was throttled
        world.rests.record_answer(HOST, account)
    world.clock.advance(30)
    error = world.refusal()
    assert isinstance(error, RegistryThrottled)
    assert error.retry_after_seconds == pytest.approx(60, abs=0.1)
    assert world.refusal(account=THEM) is None
    assert world.refusal(MIRROR) is None
    world.clock.advance(60)
    assert [world.refusal() is None for _ in range(2)] == [True, False]
    world.rests.record_answer(HOST, US)
    assert world.refusal() is None


def test_throttling_is_an_answer_of_the_host(world: World) -> None:
    world.lose("team/one", "team/two")
    world.rests.record_failure(HOST, THEM, RegistryThrottled("later", 1.0), is_last_hope=True)
    world.clock.advance(10)
    world.lose("team/three")
    assert world.refusal() is None
