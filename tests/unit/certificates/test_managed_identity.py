"""What the webhook shows and trusts is replaced in time, and nobody is cut off meanwhile."""

import functools
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.certificates.authority import (
    InvalidCertificate,
    KeyPair,
    expires_at,
    is_issued_by,
    issue_certificate,
    make_authority,
    names_of,
    split_bundle,
)
from extender.certificates.managed_identity import (
    SETTLE,
    IdentityLifetimes,
    ManagedIdentity,
    from_secret_data,
    is_ours,
    new_identity,
    renew,
    to_secret_data,
)

NOW = datetime(2026, 11, 22, tzinfo=UTC)
NAMES = ("webhook.ns.svc", "webhook.ns.svc.cluster.local", "10.0.0.1")
MINUTE = timedelta(minutes=1)
SHORT = IdentityLifetimes(authority=120 * MINUTE, certificate=30 * MINUTE)


@functools.cache
def trusted_until(bundle: bytes, certificate: bytes) -> datetime:
    """Until when an API server with this bundle accepts the certificate; the beginning of time if never."""
    ends = [expires_at(each) for each in split_bundle(bundle) if is_issued_by(certificate, each)]
    return min(max(ends, default=datetime.min.replace(tzinfo=UTC)), expires_at(certificate))


def trusts(bundle: bytes, certificate: bytes, now: datetime) -> bool:
    """Whether an API server with this bundle accepts the certificate now."""
    return now < trusted_until(bundle, certificate)


def test_new_identity_is_trusted_by_its_bundle() -> None:
    """For all names, by a certificate that signs nothing itself."""
    identity = new_identity(NAMES, SHORT, NOW)
    assert names_of(identity.serving.certificate) == frozenset(NAMES)
    assert trusts(identity.bundle, identity.serving.certificate, NOW)
    assert not is_issued_by(identity.authorities[0], identity.serving.certificate)


def test_nothing_changes_before_it_is_due() -> None:
    """The same object comes back, so that nothing is written."""
    identity = new_identity(NAMES, SHORT, NOW)
    assert renew(identity, NAMES, SHORT, NOW + 15 * MINUTE) is identity


def test_certificate_is_replaced_at_two_thirds_of_its_life() -> None:
    """Its life counts from five minutes before it was made, for clocks that are late."""
    lifetimes = msgspec.structs.replace(SHORT, authority=timedelta(days=900), certificate=timedelta(days=90))
    identity = new_identity(NAMES, lifetimes, NOW)
    before = renew(identity, NAMES, lifetimes, NOW + timedelta(days=59, hours=23))
    assert before.serving == identity.serving
    after = renew(identity, NAMES, lifetimes, NOW + timedelta(days=60))
    assert after.serving != identity.serving
    assert after.authorities == identity.authorities


def test_other_names_take_another_certificate() -> None:
    """At once: nobody can reach the server by them until then."""
    identity = new_identity(NAMES, SHORT, NOW)
    renewed = renew(identity, ("other.ns.svc",), SHORT, NOW + SETTLE)
    assert names_of(renewed.serving.certificate) == {"other.ns.svc"}


def test_certificate_never_outlives_its_authority() -> None:
    """Go's client refuses a chain of which one part has ended."""
    authority = make_authority("a", NOW, 10 * MINUTE)
    issued = issue_certificate(authority, NAMES, NOW + MINUTE, 60 * MINUTE)
    assert expires_at(issued.certificate) <= expires_at(authority.certificate)


class Seen(NamedTuple):
    """What there is since a time."""

    since: datetime
    identity: ManagedIdentity


class Follower:
    """A replica or an API server, which learns each change after `lag`."""

    def __init__(self, lag: timedelta) -> None:
        self.lag = lag
        self._told: list[Seen] = []

    def tell(self, identity: ManagedIdentity, now: datetime) -> None:
        """What there is from now on."""
        if not self._told or self._told[-1].identity != identity:
            self._told.append(Seen(now, identity))

    def sees(self, now: datetime) -> Seen:
        """What it goes by now."""
        return next((seen for seen in reversed(self._told) if seen.since + self.lag <= now), self._told[0])


@settings(max_examples=4, deadline=None)
@given(
    lags=st.lists(st.integers(0, int(SETTLE.total_seconds()) - 1), min_size=4, max_size=4),
    step=st.integers(3, 9),
)
def test_no_review_fails_while_everything_is_replaced(lags: Sequence[int], step: int) -> None:
    """Whichever replica an API server calls, for three hours of short lives, if each learns changes in SETTLE."""
    servers = [Follower(timedelta(seconds=lag)) for lag in lags[:2]]
    callers = [Follower(timedelta(seconds=lag)) for lag in lags[2:]]
    identity, now = new_identity(NAMES, SHORT, NOW), NOW
    seen: set[object] = set()
    while now < NOW + 180 * MINUTE:
        identity = renew(identity, NAMES, SHORT, now)
        for follower in (*servers, *callers):
            follower.tell(identity, now)
        for caller in callers:
            known = caller.sees(now)
            for server in servers:
                shown = server.sees(now).identity
                assert trusts(known.identity.bundle, shown.serving.certificate, now)
        seen |= {identity.authorities[0], identity.serving.certificate}
        now += timedelta(seconds=step * 7)
    assert len(seen) >= 2 + 8  # authorities and certificates that followed each other
    assert len(identity.authorities) <= 2


def test_identity_survives_its_secret() -> None:
    """All of it."""
    identity = new_identity(NAMES, SHORT, NOW)
    assert from_secret_data(to_secret_data(identity)) == identity


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "ca.crt", "ca.key"])
@pytest.mark.parametrize("content", [None, b"", b"\xff not PEM"])
def test_damaged_secret_is_refused(key: str, content: bytes | None) -> None:
    """With words that say what is wrong and quote no key."""
    data = to_secret_data(new_identity(NAMES, SHORT, NOW))
    if content is None:
        del data[key]
    else:
        data[key] = content
    with pytest.raises(InvalidCertificate) as refused:
        from_secret_data(data)
    assert "PRIVATE" not in str(refused.value)


@pytest.mark.parametrize("key", ["tls.key", "ca.key", "tls.crt", "ca.crt"])
def test_parts_of_different_identities_are_refused(key: str) -> None:
    """A key of another certificate, or a certificate of another authority."""
    data = to_secret_data(new_identity(NAMES, SHORT, NOW))
    data[key] = to_secret_data(new_identity(NAMES, SHORT, NOW))[key]
    with pytest.raises(InvalidCertificate):
        from_secret_data(data)


def test_secret_of_others_is_told_from_ours() -> None:
    """One that cert-manager made has a certificate and a key too."""
    data = to_secret_data(new_identity(NAMES, SHORT, NOW))
    assert is_ours(data)
    assert not is_ours({"tls.crt": data["tls.crt"], "tls.key": data["tls.key"], "ca.crt": data["ca.crt"]})


def test_keys_are_in_no_text() -> None:
    """A log or a traceback could show it."""
    identity = new_identity(NAMES, SHORT, NOW)
    for text in (repr(identity), repr(identity.serving), str(KeyPair(b"c", b"secret"))):
        assert "PRIVATE" not in text
        assert "secret" not in text
