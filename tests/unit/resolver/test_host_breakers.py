"""When a registry host or an account there is not asked."""

import asyncio
import contextlib

import pytest

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.errors import (
    AddressRefused,
    InvalidManifest,
    ManifestNotFound,
    NameUnresolved,
    RegistryDenied,
    RegistryError,
    RegistryFailed,
    RegistryNotAsked,
    RegistryRefusedImage,
    RegistryThrottled,
    RegistryUnavailable,
    RegistryUnreachable,
    UnsupportedManifest,
)
from extender.images.content import Cause
from extender.resolver.host_breakers import BreakerOpen, HostBreakers
from extender.resolver.image_cache import References, Target
from testbed.clock import Clock
from tests.unit.resolver.fake_registry import OTHER, TENANT

IMAGES = ("one", "two", "three")


@pytest.fixture
def hosts(clock: Clock) -> HostBreakers:
    """Hosts that nobody has asked yet; the tests ask one of them."""
    return HostBreakers(clock, lambda: 0.0)


def target_of(image: str) -> Target:
    """The target of `image`: a path on ghcr.io with or without a tag, or a whole reference."""
    target = References(1).target_of(image if "." in image else f"ghcr.io/{image}")
    assert isinstance(target, Target)
    return target


def visit(
    hosts: HostBreakers,
    image: str = "app",
    error: BaseException | None = None,
    *,
    account: CredentialId = ANONYMOUS.id,
) -> None:
    """One request, which ends with `error`, if any. Raises BreakerOpen where the host is not asked."""
    outcome = contextlib.suppress(type(error)) if error else contextlib.nullcontext()
    with outcome, hosts.visit(target_of(image), account):
        if error:
            raise error


def cause_of(hosts: HostBreakers, image: str = "never-asked", account: CredentialId = ANONYMOUS.id) -> Cause | None:
    """Why the host is not asked now."""
    failure = hosts.failure(target_of(image), account)
    return failure.cause if failure else None


def lose(hosts: HostBreakers, *images: str) -> None:
    """Connections for these images do not come about."""
    for image in images:
        visit(hosts, image, RegistryUnreachable("x"))


def test_a_host_that_cannot_be_connected_to_for_three_repositories_is_left_alone(
    hosts: HostBreakers, clock: Clock
) -> None:
    """For ten seconds, whoever asks."""
    lose(hosts, "one", "two")
    assert cause_of(hosts) is None
    lose(hosts, "three")
    clock.advance(9.999)
    assert cause_of(hosts) is Cause.UNAVAILABLE
    with pytest.raises(BreakerOpen):
        visit(hosts)
    clock.advance(0.001)
    assert cause_of(hosts) is None


def test_one_repository_is_none_however_many_names_of_it_fail(hosts: HostBreakers) -> None:
    """A tenant that has one repository cannot close the host to others."""
    lose(hosts, *(f"one:{number}" for number in range(20)))
    assert cause_of(hosts) is None


@pytest.mark.parametrize(
    "error",
    [
        RegistryFailed("5xx"),
        RegistryUnavailable("a slow body, a time-out"),
        ManifestNotFound("x"),
        RegistryDenied("x"),
        RegistryRefusedImage("x", 412),
        InvalidManifest("x"),
        UnsupportedManifest("x"),
        RegistryNotAsked("x"),
        NameUnresolved("x"),
        AddressRefused("x"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_what_else_may_fail_rests_no_host_and_no_account(hosts: HostBreakers, error: Exception) -> None:
    """However many names it happens to: a pod's author can choose such names."""
    for number in range(50):
        visit(hosts, f"image-{number}", error)
    assert cause_of(hosts) is None


@pytest.mark.parametrize(
    "answer",
    [
        None,
        ManifestNotFound("x"),
        RegistryDenied("x"),
        RegistryRefusedImage("x", 412),
        InvalidManifest("x"),
        UnsupportedManifest("x"),
        RegistryFailed("x"),
        RegistryThrottled("x", 1.0),
    ],
    ids=lambda answer: type(answer).__name__,
)
def test_any_answer_clears_what_failed_before(hosts: HostBreakers, clock: Clock, answer: Exception | None) -> None:
    """A host that says no can be reached. What fails is counted from there on, when the answer is no longer recent."""
    lose(hosts, "one", "two")
    visit(hosts, "well", answer, account=OTHER.id)
    clock.advance(10)
    lose(hosts, "three")
    assert cause_of(hosts) is None
    lose(hosts, "one", "two")
    assert cause_of(hosts) is Cause.UNAVAILABLE


@pytest.mark.parametrize("error", [RegistryNotAsked("x"), NameUnresolved("x"), AddressRefused("x")])
def test_what_was_not_asked_is_no_answer(hosts: HostBreakers, error: RegistryError) -> None:
    """It clears nothing."""
    lose(hosts, "one", "two")
    visit(hosts, "four", error)
    lose(hosts, "three")
    assert cause_of(hosts) is Cause.UNAVAILABLE


def test_a_host_that_has_answered_lately_is_asked(hosts: HostBreakers, clock: Clock) -> None:
    """Somebody gets there, so it is not the host that fails."""
    visit(hosts, "well")
    clock.advance(9.9)
    lose(hosts, *IMAGES, "four")
    assert cause_of(hosts) is None
    clock.advance(0.1)
    lose(hosts, "five")
    assert cause_of(hosts) is Cause.UNAVAILABLE


@pytest.mark.parametrize("error", [RegistryThrottled("x", 300.0), RegistryUnreachable("x")], ids=["spared", "mirrored"])
def test_failure_that_is_not_the_hosts_opens_no_breaker(hosts: HostBreakers, error: RegistryError) -> None:
    """It was spared to save its quota, or a mirror of it answers well: however many images that happens to."""
    error.host_is_well = True
    for image in (*IMAGES, "four"):
        visit(hosts, image, error)
    assert cause_of(hosts) is None


def test_one_probe_at_a_time(hosts: HostBreakers, clock: Clock) -> None:
    """Its answer is everybody's."""
    lose(hosts, *IMAGES)
    clock.advance(10)
    with hosts.visit(target_of("probe"), ANONYMOUS.id):
        assert cause_of(hosts) is Cause.UNAVAILABLE
        with pytest.raises(BreakerOpen):
            visit(hosts, "other")
    assert cause_of(hosts) is None


def test_a_failed_probe_opens_the_breaker_for_longer(hosts: HostBreakers, clock: Clock) -> None:
    """10 s, then 20 s, then 40 s; after a success it takes three repositories, and is 10 s again."""
    lose(hosts, *IMAGES)
    for seconds in (10, 20, 40):
        clock.advance(seconds - 0.5)
        assert cause_of(hosts) is Cause.UNAVAILABLE
        clock.advance(0.5)
        assert cause_of(hosts) is None
        lose(hosts, "one")
    clock.advance(85)
    visit(hosts)
    clock.advance(10)
    lose(hosts, *IMAGES)
    clock.advance(10)
    assert cause_of(hosts) is None


@pytest.mark.parametrize("error", [asyncio.CancelledError(), KeyError("a defect")], ids=["cancelled", "a-defect"])
def test_a_probe_that_comes_to_nothing_gives_way_to_the_next(
    hosts: HostBreakers, clock: Clock, error: BaseException
) -> None:
    """It says nothing about the host, which would otherwise never be asked again."""
    lose(hosts, *IMAGES)
    clock.advance(10)
    visit(hosts, error=error)
    assert cause_of(hosts) is Cause.UNAVAILABLE
    clock.advance(5)
    assert cause_of(hosts) is None
    visit(hosts, error=RegistryThrottled("x", 5.0), account=TENANT.id)
    clock.advance(5)
    visit(hosts, error=error, account=TENANT.id)
    assert cause_of(hosts, account=TENANT.id) is Cause.THROTTLED
    clock.advance(5)
    assert cause_of(hosts, account=TENANT.id) is None


def test_a_throttled_account_is_not_used_until_the_host_said(hosts: HostBreakers, clock: Clock) -> None:
    """The time the registry named is kept to the second, and other accounts go on."""
    visit(hosts, error=RegistryThrottled("x", 17.0), account=TENANT.id)
    visit(hosts, "other", account=OTHER.id)
    visit(hosts, "third")
    clock.advance(16.999)
    with pytest.raises(BreakerOpen) as caught:
        visit(hosts, account=TENANT.id)
    assert caught.value.failure.cause is Cause.THROTTLED
    assert cause_of(hosts, account=OTHER.id) is None
    assert cause_of(hosts, "quay.io/app", account=TENANT.id) is None
    clock.advance(0.001)
    visit(hosts, account=TENANT.id)
    assert cause_of(hosts, account=TENANT.id) is None


def test_the_end_of_a_request_begun_before_the_opening_is_no_news(hosts: HostBreakers, clock: Clock) -> None:
    """Its answer does not end the throttling, and its failure does not lengthen it."""
    with hosts.visit(target_of("earlier"), ANONYMOUS.id):
        visit(hosts, error=RegistryThrottled("x", 5.0))
    assert cause_of(hosts) is Cause.THROTTLED
    clock.advance(5)
    with hosts.visit(target_of("probe"), ANONYMOUS.id):
        assert cause_of(hosts) is Cause.THROTTLED
    assert cause_of(hosts) is None


def test_throttling_while_open_can_only_lengthen_it(hosts: HostBreakers, clock: Clock) -> None:
    """Of two requests throttled together the longer time holds."""
    with contextlib.suppress(RegistryThrottled), hosts.visit(target_of("two"), ANONYMOUS.id):
        visit(hosts, "one", RegistryThrottled("x", 60.0))
        raise RegistryThrottled("x", 5.0)
    clock.advance(59.999)
    assert cause_of(hosts) is Cause.THROTTLED
    clock.advance(0.001)
    assert cause_of(hosts) is None
