"""Mirrors that failed are not asked for a while, and one probe at a time finds out whether they are well again."""

import pytest
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.errors import RegistryError, RegistryThrottled, RegistryUnavailable
from extender.registry.endpoint import Endpoint
from extender.registry.endpoint_breaker import EndpointBreakers
from testbed.clock import Clock

DOWN = RegistryUnavailable("down")
US, THEM = ANONYMOUS.id, CredentialId("them")


def mirror_of(registry: str) -> Endpoint:
    """One mirror, as the endpoint for images of this registry."""
    root = URL("https://mirror.example/v2")
    return Endpoint(name="mirror.example", root=root, repository="team/app", mirror_of=registry)


MIRROR = mirror_of("docker.io")


@pytest.fixture
def clock() -> Clock:
    """The time by which breakers are open."""
    return Clock()


@pytest.fixture
def breakers(clock: Clock) -> EndpointBreakers:
    """No endpoint has failed; backoffs do not vary."""
    return EndpointBreakers(probe_seconds=5, clock=clock, random=lambda: 0.0)


def fail(breakers: EndpointBreakers, clock: Clock, error: RegistryThrottled | RegistryUnavailable = DOWN) -> None:
    """The mirror fails an attempt that begins now."""
    clock.advance(0.001)
    breakers.record_failure(MIRROR, US, error)


def refusal(
    breakers: EndpointBreakers, endpoint: Endpoint = MIRROR, account: CredentialId = ANONYMOUS.id
) -> RegistryError | None:
    """Why the endpoint is not asked now; None if it is, in which case there is an attempt that nobody ends."""
    try:
        breakers.admit(endpoint, account)
    except RegistryError as exc:
        return exc
    return None


def test_endpoint_that_never_failed_is_asked(breakers: EndpointBreakers) -> None:
    """As is one that has been well again."""
    assert refusal(breakers) is None
    breakers.record_success(MIRROR, US)
    assert refusal(breakers) is None


def test_registry_that_hangs_behind_a_mirror_rests_alone(breakers: EndpointBreakers, clock: Clock) -> None:
    """Whoever can create a pod names a registry that hangs; the mirror serves the others as before."""
    fail(breakers, clock)
    assert isinstance(refusal(breakers), RegistryUnavailable)
    assert refusal(breakers, mirror_of("quay.io")) is None


def test_throttled_endpoint_is_left_alone_as_long_as_it_said(breakers: EndpointBreakers, clock: Clock) -> None:
    """And those who would ask are told how long that is still."""
    fail(breakers, clock, RegistryThrottled("later", 90.0))
    clock.advance(30)
    error = refusal(breakers)
    assert isinstance(error, RegistryThrottled)
    assert error.retry_after_seconds == pytest.approx(60)


def test_throttled_account_is_left_alone_and_no_other(breakers: EndpointBreakers, clock: Clock) -> None:
    """An endpoint that throttles one credential answers others; one that is down answers none."""
    fail(breakers, clock, RegistryThrottled("later", 90.0))
    assert refusal(breakers, account=THEM) is None
    breakers.record_success(MIRROR, THEM)
    breakers.record_success(MIRROR, US)  # which asked before it was throttled
    assert isinstance(refusal(breakers), RegistryThrottled)
    fail(breakers, clock)
    assert isinstance(refusal(breakers, account=THEM), RegistryUnavailable)


def test_one_probe_goes_first(breakers: EndpointBreakers, clock: Clock) -> None:
    """Others are refused until that one has an answer, or has been away too long."""
    fail(breakers, clock)
    clock.advance(10)
    assert refusal(breakers) is None
    assert refusal(breakers) is not None
    clock.advance(5)
    assert refusal(breakers) is None
    breakers.record_success(MIRROR, US)
    assert [refusal(breakers) for _ in range(3)] == [None] * 3


def test_memory_is_bounded(clock: Clock) -> None:
    """The endpoint that failed first is forgotten first."""
    breakers = EndpointBreakers(probe_seconds=5, clock=clock, random=lambda: 0.0, size=2)
    mirrors = [mirror_of(registry) for registry in ("a.example", "b.example", "c.example")]
    for mirror in mirrors:
        breakers.record_failure(mirror, US, DOWN)
    assert [refusal(breakers, mirror) is None for mirror in mirrors] == [True, False, False]
