"""Which credentials a lookup may use, in the order to try them, and the name by which each may be remembered.

Knows logins and hashes. A password leaves this file only inside a `Credential`; what is logged, counted, stored or
used as a key is its `Scope`.
"""

import hashlib
from pathlib import Path
from typing import NewType, Protocol

import msgspec

from extender.errors import ConfigError
from extender.images.reference import ImageReference
from extender.registry.logins import InvalidLogins, Logins, decode_docker_config

Scope = NewType("Scope", str)


class Credential(msgspec.Struct, frozen=True):
    """A login to present to a registry; `scope` stands for it wherever the secret must not appear."""

    username: str
    password: str
    scope: Scope

    def __repr__(self) -> str:
        """The scope alone: neither name nor password reaches a log or a traceback."""
        return f"Credential(scope={self.scope!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `repr`: msgspec's own would show the password to a pretty-printer."""
        return [("scope", self.scope)]


ANONYMOUS = Credential("", "", Scope("anonymous"))


class Keyring(Protocol):
    """Whatever knows credentials: pull secrets, a Docker configuration, a cloud's identity."""

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """The credentials to try for this image, most specific first, `ANONYMOUS` last. No I/O."""
        ...


class DockerConfigKeyring:
    """The logins of a Docker configuration, matched as the kubelet matches them."""

    def __init__(self, logins: Logins, *, key: bytes) -> None:
        """`key` (up to 64 random bytes) keys the scopes: a login has the same scope only under the same key."""
        self._logins = logins
        self._key = key

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """The matching logins without repeats, then `ANONYMOUS`. O(logins)."""
        found = (
            Credential(login.username, login.password, scope_of(login.username, login.password, key=self._key))
            for login in self._logins.matching(reference.repository)
        )
        return tuple(dict.fromkeys((*found, ANONYMOUS)))


def scope_of(username: str, password: str, *, key: bytes) -> Scope:
    """The scope of a login: a keyed hash, so that neither name nor password can be guessed from it without `key`."""
    identity = msgspec.json.encode((username, password))
    return Scope(hashlib.blake2b(identity, key=key, digest_size=16).hexdigest())


def load_docker_config(path: str, *, key: bytes) -> DockerConfigKeyring:
    """The keyring of the Docker configuration file at `path` (`docker login` writes one).

    Raises:
        ConfigError: the file cannot be read or is no Docker configuration; the message names the path and what is
            wrong, and holds nothing of the file's secrets.
    """
    try:
        return DockerConfigKeyring(decode_docker_config(Path(path).read_bytes()), key=key)
    except OSError as exc:
        raise ConfigError(f"registry.docker_config: {path} cannot be read: {exc.strerror}") from exc
    except InvalidLogins as exc:
        raise ConfigError(f"registry.docker_config: {path}: {exc}") from exc
