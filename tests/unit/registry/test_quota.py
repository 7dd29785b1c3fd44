"""What a registry says of its quota, and when the rest of it is left to others."""

import msgspec
import pytest
from multidict import CIMultiDict
from yarl import URL

from extender.credentials.keyring import ANONYMOUS, CredentialId
from extender.errors import RegistryThrottled
from extender.registry import quota as module
from extender.registry.quota import LIMIT, REMAINING, WITHHELD, Quotas
from testbed.clock import Clock

HUB = URL("https://registry-1.docker.io")
NOBODY = ANONYMOUS.id


@pytest.fixture
def clock() -> Clock:
    """The time by which a reading ages."""
    return Clock()


@pytest.fixture
def quotas(clock: Clock) -> Quotas:
    """Nothing has been said yet."""
    return Quotas(clock=clock, random=lambda: 0.5)


def note(quotas: Quotas, remaining: str | None, limit: str | None = "100;w=21600", **more: str) -> None:
    """An answer of Docker Hub to nobody in particular."""
    stated = {"ratelimit-limit": limit, "ratelimit-remaining": remaining}
    headers = {name: value for name, value in stated.items() if value is not None} | more
    quotas.note("docker.io", HUB, NOBODY, CIMultiDict(headers))


@pytest.mark.parametrize(
    ("remaining", "limit", "low"),
    [
        ("100;w=21600", "100;w=21600", False),
        ("11;w=21600", "100;w=21600", False),
        ("10;w=21600", "100;w=21600", True),
        ("0;w=21600", "100;w=21600", True),
        ("0", "100", True),
        (" 19 ", "200", True),
        ("1", None, False),
        ("0", None, True),
        (None, "100", False),
        (None, None, False),
        ("", "", False),
        ("many", "100", False),
        ("-1", "100", False),
        ("5;w=soon", "100;w=", True),
        ("9" * 400, "100", False),
        ("5", "9" * 400, True),
        ("٣", "100", False),
    ],
    ids=str,
)
def test_a_tenth_is_left_to_others(quotas: Quotas, remaining: str | None, limit: str | None, low: bool) -> None:
    """Header values as registries write them, and as nobody should."""
    note(quotas, remaining, limit)
    assert quotas.is_low(HUB, NOBODY) is low


def test_quota_is_each_accounts_own(quotas: Quotas) -> None:
    """One account's end is not another's, nor another registry's."""
    note(quotas, "0")
    assert not quotas.is_low(HUB, CredentialId("account"))
    assert not quotas.is_low(URL("https://quay.io"), NOBODY)


def test_what_is_said_last_counts(quotas: Quotas) -> None:
    """Also when it is nothing any more: an account without limits gets no headers."""
    note(quotas, "0")
    note(quotas, "50")
    assert not quotas.is_low(HUB, NOBODY)
    note(quotas, "0")
    note(quotas, None, None)
    assert not quotas.is_low(HUB, NOBODY)


@pytest.mark.parametrize(
    ("remaining", "more", "seconds"),
    [("0;w=21600", {}, 21600), ("0;w=1", {}, 1), ("0;w=0", {}, 1), ("0", {}, 60), ("0", {"ratelimit-reset": "7"}, 7)],
    ids=["hub", "second", "none", "unstated", "draft"],
)
def test_window_that_has_passed_says_nothing(
    quotas: Quotas, clock: Clock, remaining: str, more: dict[str, str], seconds: float
) -> None:
    """A limit per second holds us up for a second."""
    note(quotas, remaining, "100", **more)
    clock.advance(seconds - 0.1)
    assert quotas.is_low(HUB, NOBODY)
    clock.advance(0.1)
    assert not quotas.is_low(HUB, NOBODY)


def test_old_reading_is_worth_a_head(quotas: Quotas, clock: Clock) -> None:
    """After a minute."""
    assert quotas.is_old(HUB, NOBODY)
    note(quotas, "0")
    assert not quotas.is_old(HUB, NOBODY)
    clock.advance(60)
    assert quotas.is_old(HUB, NOBODY)


@pytest.mark.parametrize(("window", "seconds"), [("21600", 330.0), ("10", 11.0)])
def test_wait_is_short_and_varies(quotas: Quotas, window: str, seconds: float) -> None:
    """Five minutes at most, and up to a fifth more by chance; the registry is not to blame."""
    note(quotas, f"0;w={window}")
    before = WITHHELD["docker.io"].value
    error = quotas.withheld("docker.io", HUB, NOBODY)
    assert isinstance(error, RegistryThrottled)
    assert error.retry_after_seconds == pytest.approx(seconds)
    assert error.host_is_well
    assert WITHHELD["docker.io"].value == before + 1


def test_gauges_name_docker_hub_and_no_other(quotas: Quotas) -> None:
    """Names of registries come from pods, and are no labels."""
    note(quotas, "76;w=21600")
    quotas.note("registry.tenant.example", URL("https://x"), NOBODY, CIMultiDict({"RateLimit-Remaining": "3"}))
    assert [LIMIT[name]._value.get() for name in ("docker.io", "other")] == [100, 0]
    assert [REMAINING[name]._value.get() for name in ("docker.io", "other")] == [76, 3]
    assert set(LIMIT) == {"docker.io", "other"}


def test_memory_is_bounded(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever names many registries cannot fill it."""
    monkeypatch.setattr(module, "_READINGS", msgspec.structs.replace(module._READINGS, bound=2))
    quotas = Quotas(clock=clock, random=lambda: 0.5)
    for number in range(3):
        quotas.note("x", URL(f"https://{number}.example"), NOBODY, CIMultiDict({"ratelimit-remaining": "0"}))
    low = [quotas.is_low(URL(f"https://{number}.example"), NOBODY) for number in range(3)]
    assert low == [False, True, True]
