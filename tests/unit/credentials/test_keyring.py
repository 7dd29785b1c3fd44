"""Credentials: their order, what stands for them, and that they do not show."""

import logging

from rich.pretty import pretty_repr

from extender.credentials.keyring import (
    ANONYMOUS,
    Credential,
    DockerConfigKeyring,
    JoinedKeyring,
    Keyring,
    credential_id_of,
)
from extender.credentials.logins import Login, Logins
from extender.images.reference import parse_reference

KEY = b"k" * 32
APP = parse_reference("quay.io/team/app:1")


def test_anonymous_comes_last() -> None:
    """The matching logins come first, the most specific before the others."""
    keyring = DockerConfigKeyring(Logins([Login("quay.io", "a", "1"), Login("quay.io/team", "b", "2")]), key=KEY)
    assert [credential.username for credential in keyring.credentials_for(APP)] == ["b", "a", ""]
    assert keyring.credentials_for(APP)[-1] is ANONYMOUS


def test_same_login_under_two_patterns_is_tried_once() -> None:
    """A second try with the same name and password would be refused like the first."""
    keyring = DockerConfigKeyring(Logins([Login("quay.io", "a", "1"), Login("quay.io/team", "a", "1")]), key=KEY)
    assert len(keyring.credentials_for(APP)) == 2


def test_without_logins_only_anonymous_is_left() -> None:
    """Whoever has no login asks anonymously."""
    keyring: Keyring = DockerConfigKeyring(Logins([]), key=KEY)
    assert keyring.credential_ids_for(APP) == (ANONYMOUS.id,)


def test_scope_stands_for_the_login_under_one_key() -> None:
    """The same login has the same scope under the same key; another name, password or key has another one."""
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


def test_credential_does_not_show_its_secret() -> None:
    """Neither repr, format, a pretty-printer nor a log line holds name or password."""
    credential = Credential("ann", "hunter2", credential_id_of("ann", "hunter2", key=KEY))
    record = logging.LogRecord("x", logging.INFO, "x", 1, "%s %r", (credential, [credential]), None)
    shown = [repr(credential), f"{credential}", pretty_repr({"credential": credential}), record.getMessage()]
    for text in shown:
        assert credential.id in text
        assert "hunter2" not in text
        assert "ann" not in text


async def test_joined_keyrings_are_tried_one_after_the_other() -> None:
    """What is more specific in a later one does not overtake, nothing is tried twice, and anonymous comes last."""
    first = DockerConfigKeyring(Logins([Login("quay.io", "a", "1")]), key=KEY)
    second = DockerConfigKeyring(Logins([Login("quay.io/team", "b", "2"), Login("quay.io", "a", "1")]), key=KEY)
    joined = JoinedKeyring([first, second])
    found = await joined.load(APP)
    assert [credential.username for credential in found] == ["a", "b", ""]
    assert joined.credential_ids_for(APP) == tuple(credential.id for credential in found)
    assert not joined.is_due(APP)
    assert joined.identity == JoinedKeyring([first, second], tenant="shop").identity
    assert joined.identity != JoinedKeyring([second, first]).identity
