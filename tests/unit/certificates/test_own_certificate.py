"""What the webhook serves and has trusted is replaced in time."""

import ssl
from datetime import UTC, datetime, timedelta

import pytest
import trustme

from extender.certificates.own_certificate import (
    SETTLE,
    InvalidCertificate,
    KeyPair,
    OwnCertificates,
    expires_at,
    from_secret_data,
    is_issued_by,
    is_ours,
    make_certificate,
    names_of,
    split_bundle,
    to_secret_data,
)
from extender.certificates.server_names import names_of_server

NOW = datetime(2026, 11, 22, tzinfo=UTC)
NAMES = names_of_server(["webhook", "10.0.0.1", "2001:DB8:0::1"], "ns")
LIFE = timedelta(days=90)
DAY = timedelta(days=1)


def made(at: datetime = NOW) -> KeyPair:
    return make_certificate(NAMES, at, LIFE)


def secret_of(own: OwnCertificates) -> dict[str, bytes]:
    return {key: value for key, value in to_secret_data(own).items() if value is not None}


def test_names_are_those_that_the_certificate_gives_back() -> None:
    """In one form, whatever form the settings have: a certificate is never made anew for its spelling."""
    assert names_of_server(["Webhook", "webhook", "FD00:0::0a00:1"], "ns") == (
        "webhook", "webhook.ns.svc", "webhook.ns.svc.cluster.local", "fd00::a00:1"
    )  # fmt: skip
    assert names_of(made().certificate) == set(NAMES)
    own = OwnCertificates(made())
    assert own.renewed(NAMES, LIFE, NOW + DAY) is own


def test_the_next_certificate_is_trusted_from_half_of_the_life_and_served_from_two_thirds() -> None:
    first = OwnCertificates(made())
    assert first.renewed(NAMES, LIFE, NOW + 45 * DAY - SETTLE) is first
    both = first.renewed(NAMES, LIFE, NOW + 45 * DAY)
    assert both.present == first.present
    assert both.next is not None
    assert split_bundle(both.bundle) == (both.present.certificate, both.next.certificate)
    assert both.renewed(NAMES, LIFE, NOW + 89 * DAY) is both
    assert both.served(NAMES, NOW + 60 * DAY - SETTLE, published=True) == both.present
    assert both.served(NAMES, NOW + 60 * DAY, published=True) == both.next
    assert both.served(NAMES, NOW + 60 * DAY, published=False) == both.present
    after = both.renewed(NAMES, LIFE, NOW + 90 * DAY)
    assert after.present == both.next
    assert after.next not in (None, both.next)


def test_what_has_ended_is_served_no_more() -> None:
    """Nobody accepts it, so a next one is better that may not be known yet; and where that has ended too, a new one."""
    own = OwnCertificates(made(), made(NOW + 89 * DAY))
    assert own.served(NAMES, NOW + 90 * DAY, published=False) == own.next
    alone = own.renewed(NAMES, LIFE, NOW + 300 * DAY)
    assert alone.next is None
    assert expires_at(alone.present.certificate) == NOW + 390 * DAY


AHEAD = NOW + 200 * DAY
"""The time of a clock that is wrong."""


def test_what_a_clock_made_that_was_ahead_is_made_anew() -> None:
    """Nobody accepts it before its time. A few minutes are nothing: clocks differ."""
    alone = OwnCertificates(made(AHEAD)).renewed(NAMES, LIFE, NOW)
    assert (alone.next, expires_at(alone.present.certificate)) == (None, NOW + LIFE)
    assert OwnCertificates(made(AHEAD), made(AHEAD)).renewed(NAMES, LIFE, NOW).next is None
    slightly = OwnCertificates(made(NOW + timedelta(minutes=4)))
    assert slightly.renewed(NAMES, LIFE, NOW) is slightly


def test_a_next_certificate_that_is_not_valid_yet_is_neither_served_nor_kept() -> None:
    """Also where the present one ends; and of a present one that is ahead the next takes the place."""
    own = OwnCertificates(made(), made(AHEAD))
    kept = own.renewed(NAMES, LIFE, NOW + DAY)
    assert (kept.present, kept.next) == (own.present, None)
    replaced = own.renewed(NAMES, LIFE, NOW + 45 * DAY)
    assert replaced.present == own.present
    assert replaced.next not in (None, own.next)
    for days in (1, 60, 91):
        assert own.served(NAMES, NOW + days * DAY, published=True) == own.present
    good = made()
    other = OwnCertificates(made(AHEAD), good)
    assert other.served(NAMES, NOW, published=False) == good
    assert other.renewed(NAMES, LIFE, NOW) == OwnCertificates(good)


def test_other_names_take_another_certificate_once_it_is_trusted() -> None:
    """It is made at once, and served when all know it. Fewer names need none."""
    others = ("other.ns.svc",)
    own = OwnCertificates(made())
    assert own.renewed(NAMES[:1], LIFE, NOW) is own
    both = own.renewed(others, LIFE, NOW + DAY)
    assert both.next is not None
    assert names_of(both.next.certificate) == set(others)
    assert both.served(others, NOW + DAY, published=True) == both.present
    assert both.served(others, NOW + DAY + SETTLE, published=True) == both.next
    again = both.renewed(("third.ns.svc",), LIFE, NOW + DAY + SETTLE)
    assert again.present == both.present, "some replicas serve it still"
    later = both.renewed(("third.ns.svc",), LIFE, NOW + DAY + 2 * SETTLE)
    assert later.present == both.next


def test_replicas_of_two_settings_leave_the_present_certificate_alone() -> None:
    """As in a rolling update that changes the names: each makes a next one of its own until it is over."""
    own = OwnCertificates(made())
    for step in range(20):
        own_before, names = own, (("a.ns.svc",), ("b.ns.svc",))[step % 2]
        own = own.renewed(names, LIFE, NOW + step * SETTLE / 10)
        assert own.present == own_before.present


def test_certificates_survive_their_secret() -> None:
    for own in (OwnCertificates(made()), OwnCertificates(made(), made(NOW + DAY))):
        assert from_secret_data(secret_of(own)) == own


def test_a_key_that_went_is_removed_from_the_secret() -> None:
    """A merge patch removes what it names with null."""
    removed = [key for key, value in to_secret_data(OwnCertificates(made())).items() if value is None]
    assert sorted(removed) == ["next.crt", "next.key"]
    data = secret_of(OwnCertificates(made()))
    assert is_ours(data)
    assert not is_ours({"tls.crt": data["tls.crt"], "tls.key": data["tls.key"]})  # as cert-manager's are


DAMAGE = [None, b"", b"\xff not PEM", made().certificate, made().key]
DAMAGES = ["gone", "empty", "no PEM", "a certificate", "a key"]


def damaged(key: str, content: bytes | None) -> dict[str, bytes]:
    data = secret_of(OwnCertificates(made(), made(NOW + DAY)))
    del data[key]
    return data if content is None else data | {key: content}


@pytest.mark.parametrize("key", ["tls.crt", "tls.key", "next.crt", "next.key"])
@pytest.mark.parametrize("content", DAMAGE, ids=DAMAGES)
def test_damaged_secret_is_refused(key: str, content: bytes | None) -> None:
    """With words that quote no key. A next certificate is made anew, and the present one, which is served, stays."""
    if key.startswith("next"):
        own = from_secret_data(damaged(key, content))
        assert own.next is None
        assert names_of(own.present.certificate) == set(NAMES)
        return
    with pytest.raises(InvalidCertificate) as refused:
        from_secret_data(damaged(key, content))
    assert "PRIVATE" not in str(refused.value)


def test_it_signs_nothing_else() -> None:
    """TLS libraries take it for a trust anchor, and still for no authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=made().certificate.decode())
    assert context.cert_store_stats() == {"x509": 1, "crl": 0, "x509_ca": 0}


def test_keys_are_in_no_text() -> None:
    own = OwnCertificates(made(), made())
    for text in (repr(own), repr(own.present), str(KeyPair(b"c", b"secret"))):
        assert "PRIVATE" not in text
        assert "secret" not in text


def test_an_authority_is_that_whose_signature_a_certificate_has() -> None:
    """One without names is for none; what `doctor` reads of a cluster may be no certificate at all."""
    authority, other = trustme.CA(), trustme.CA()
    issued = authority.issue_cert("webhook").cert_chain_pems[0].bytes()
    assert is_issued_by(issued, authority.cert_pem.bytes())
    assert not is_issued_by(issued, other.cert_pem.bytes())
    assert names_of(issued) == {"webhook"}
    assert names_of(other.cert_pem.bytes()) == frozenset()
    assert split_bundle(b" \n") == ()
    with pytest.raises(InvalidCertificate, match="no PEM certificates"):
        split_bundle(b"-----BEGIN CERTIFICATE-----\nx\n-----END CERTIFICATE-----\n")
