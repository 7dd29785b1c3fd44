"""Credentials: their order, what stands for them, and that they do not show."""

import logging

from rich.pretty import pretty_repr

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId, Keyring, credential_id_of, credentials_of
from extender.credentials.logins import Login
from extender.images.reference import parse_reference
from tests.unit.resolver.fake_registry import OTHER, TENANT, keyring_of

KEY = b"k" * 32
APP = parse_reference("quay.io/team/app:1")


def test_the_pods_logins_come_before_the_operators_credentials_and_anonymous_last() -> None:
    operator = CredentialId("operator")
    pods = keyring_of(OTHER, TENANT, OTHER, operator=lambda: operator)
    assert pods.credential_ids_for(APP) == ("other", "tenant", operator, "anonymous")
    assert Keyring(operator=lambda: operator).credential_ids_for(APP) == (operator, "anonymous")
    assert Keyring().credential_ids_for(APP) == ("anonymous",)


def test_every_credential_says_where_it_is_from() -> None:
    keyring = keyring_of(TENANT, operator=lambda: CredentialId("operator"))
    found = [keyring.label_of(APP, each) for each in (*keyring.credential_ids_for(APP), CredentialId("gone"))]
    assert found == ["login tenant", "the operator's credentials", "anonymous", ""]


def test_same_login_under_two_patterns_is_tried_once() -> None:
    """A second try with the same name and password would be refused like the first."""
    logins = [Login("quay.io/team", "a", "1"), Login("quay.io", "a", "1"), Login("quay.io", "b", "1")]
    assert [each.username for each in credentials_of(logins, key=KEY)] == ["a", "b"]


def test_an_id_stands_for_the_login_under_one_key() -> None:
    """The same login has the same id under the same key; another name, password or key has another one."""
    same = credential_id_of("ann", "secret", key=KEY)
    assert same == credential_id_of("ann", "secret", key=KEY)
    others = {
        credential_id_of("ann", "Secret", key=KEY),
        credential_id_of("bob", "secret", key=KEY),
        credential_id_of("ann", "secret", key=b"another"),
        credential_id_of("anns", "ecret", key=KEY),
        credential_id_of('ann","', "secret", key=KEY),
        ANONYMOUS.id,
    }
    assert len(others | {same}) == 7


def test_neither_a_credential_nor_a_login_shows_its_secret() -> None:
    """Neither repr, format, a pretty-printer nor a log line holds name or password."""
    credential = Credential("ann", "hunter2", credential_id_of("ann", "hunter2", key=KEY))
    for each in (credential, Login("quay.io", "ann", "hunter2")):
        record = logging.LogRecord("x", logging.INFO, "x", 1, "%s %r", (each, [each]), None)
        text = "".join((repr(each), f"{each}", pretty_repr({"each": each}), record.getMessage()))
        assert text.count(credential.id if each is credential else "quay.io") == 5
        assert "hunter2" not in text
        assert "ann" not in text
