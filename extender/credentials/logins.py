"""The logins of a Docker configuration, and which of them a repository gets: the same as in the kubelet.

The rules are those of k8s.io/kubernetes/pkg/credentialprovider (keyring.go, config.go), so that lookups succeed for the
images that a node may pull. Like the kubelet, it supports no credential stores and no identity tokens.
"""

import base64
import functools
import re
from collections.abc import Callable, Iterable
from typing import Generic, NamedTuple, TypeVar

import msgspec

from extender.tables import declare_cache

_DEFAULT_REGISTRY = "index.docker.io"
_SCHEME = re.compile(r"https?://")
_ADDRESS = re.compile(r"(?P<host>\[[^][]*\]|[^][:/]*)(?::(?P<port>[0-9]*))?(?P<path>/.*)?", re.ASCII | re.DOTALL)
_LINE_ENDS = {ord("\r"): None, ord("\n"): None}
T = TypeVar("T")
U = TypeVar("U")


class InvalidLogins(ValueError):
    """The bytes are not a Docker configuration. The message says what is wrong and quotes no secret."""


class Login(msgspec.Struct, frozen=True):
    """A name and a password for the repositories that `pattern` matches.

    `pattern` is a key of `auths` as written: `https://index.docker.io/v1/`, `quay.io/team`, `*.example.com:5000`.
    """

    pattern: str
    username: str
    password: str

    def __repr__(self) -> str:
        """Shows the pattern only."""
        return f"Login(pattern={self.pattern!r})"

    def __rich_repr__(self) -> list[tuple[str, str]]:
        """As `__repr__`: msgspec's own would show the password in a pretty-printer."""
        return [("pattern", self.pattern)]


class Pattern(NamedTuple):
    """A login's pattern, compiled for matching."""

    host: re.Pattern[str]
    port: str
    path: str

    def matches(self, host: str, port: str, path: str) -> bool:
        """Whether an address matches. The path is a plain prefix, as in the kubelet: /foo matches /foobar."""
        return self.port == port and path.startswith(self.path) and self.host.fullmatch(host) is not None

    def matches_repository(self, repository: str) -> bool:
        """Whether `repository` (`quay.io/a/b`, without tag) matches."""
        return self.matches(*_address_of(repository))


class _DockerAuth(msgspec.Struct):
    username: str | None = None
    password: str | None = None
    auth: str | None = None


class _DockerConfig(msgspec.Struct):
    auths: dict[str, _DockerAuth] | None = None


_CONFIG = msgspec.json.Decoder(_DockerConfig)
_AUTHS = msgspec.json.Decoder(dict[str, _DockerAuth] | None)


class ByPattern(Generic[T]):
    """Values by the pattern of their repositories, in the order in which the kubelet tries them."""

    def __init__(self, entries: Iterable[tuple[str, T]]) -> None:
        """Leaves out patterns that no repository can match, as in the kubelet, which logs them and goes on."""
        keyed = [(_key_of(pattern), thing) for pattern, thing in entries]
        # Reverse string order puts quay.io/coreos before quay.io; entries with one key keep their order.
        keyed.sort(key=lambda pair: pair[0], reverse=True)
        self._default = tuple(thing for key, thing in keyed if key == _DEFAULT_REGISTRY)
        self._entries = [(pattern, thing) for key, thing in keyed if (pattern := compile_pattern(key))]

    def map(self, make: Callable[[T], U]) -> "ByPattern[U]":
        """Returns the result of `make` for each value, with the same patterns and in the same order."""
        made = ByPattern[U](())
        made._default = tuple(map(make, self._default))
        made._entries = [(pattern, make(thing)) for pattern, thing in self._entries]
        return made

    def matching(self, repository: str) -> tuple[T, ...]:
        """Returns all values for `repository` (`quay.io/a/b`, without tag), most specific first. O(entries).

        If no pattern matches, a repository on the default registry gets the values for `index.docker.io`, the name
        under which `docker login` has always stored that login.
        """
        host, port, path = _address_of(repository)
        found = tuple(thing for pattern, thing in self._entries if pattern.matches(host, port, path))
        return found if found or not is_on_default_registry(repository) else self._default


class Logins(ByPattern[Login]):
    """The logins of one or more configurations."""

    def __init__(self, logins: Iterable[Login]) -> None:
        super().__init__((login.pattern, login) for login in logins)


def decode_docker_config(raw: bytes) -> tuple[Login, ...]:
    """Returns the logins under `auths` in a Docker configuration, as in a `kubernetes.io/dockerconfigjson` secret.

    Raises:
        InvalidLogins: it is not such JSON, or an `auth` is not base64 of `name:password`.
    """
    try:
        entries = _CONFIG.decode(raw).auths
    except (msgspec.DecodeError, UnicodeDecodeError):  # from None: a decoder's message may quote the input
        raise InvalidLogins("it is no Docker configuration: JSON with a map `auths` is expected") from None
    return _logins_of(entries)


def decode_legacy_config(raw: bytes) -> tuple[Login, ...]:
    """Returns the logins of a `.dockercfg`, which is only the map `auths`, as in a `kubernetes.io/dockercfg` secret.

    Raises:
        InvalidLogins: as `decode_docker_config`.
    """
    try:
        entries = _AUTHS.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise InvalidLogins("it is no .dockercfg: a JSON map of logins is expected") from None
    return _logins_of(entries)


def is_on_default_registry(repository: str) -> bool:
    """Whether the kubelet reads an image name as one on Docker Hub: it has no host, or one of the Hub's two."""
    first, slash, _ = repository.partition("/")
    if not first or not slash:
        return bool(first)
    return first in ("docker.io", _DEFAULT_REGISTRY) or not ("." in first or ":" in first)


def _logins_of(entries: dict[str, _DockerAuth] | None) -> tuple[Login, ...]:
    logins = (_login_of(pattern, entry) for pattern, entry in (entries or {}).items())
    return tuple(login for login in logins if login.username or login.password)


def _login_of(pattern: str, entry: _DockerAuth) -> Login:
    """Returns the login of one entry; an empty one if it has none, as `docker login` writes with a credential store."""
    if entry.auth:
        return Login(pattern, *_decode_auth(pattern, entry.auth))
    return Login(pattern, entry.username or "", entry.password or "")


def _decode_auth(pattern: str, auth: str) -> tuple[str, str]:
    """Returns name and password of an `auth` field, whose base64 may lack padding or have line breaks."""
    packed = auth.translate(_LINE_ENDS).rstrip("=")
    try:
        text = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True).decode()
    except ValueError:  # not base64, or not UTF-8; not chained below, since the exception holds the bytes
        text = ""
    username, colon, password = text.partition(":")
    if not colon:
        raise InvalidLogins(f"the auth of {pattern!r} is not base64 of name:password")
    return username, password


_ADDRESSES = declare_cache("credentials.logins.addresses", key="repository", bound=1024)


@functools.lru_cache(_ADDRESSES.rows)
def _address_of(repository: str) -> tuple[str, str, str]:
    """Returns host, port and path; all empty if `repository` is not an address."""
    found = _ADDRESS.fullmatch(repository)
    if found is None:
        return "", "", ""
    host, port, path = found.groups("")
    return host, port, path


def _key_of(pattern: str) -> str:
    """Returns host and path of a pattern, without scheme, user, query, fragment and a leading `/v1/` or `/v2/`."""
    found = _SCHEME.match(pattern)
    bare = pattern[found.end() :] if found else pattern
    host, slash, path = bare.partition("#")[0].partition("?")[0].partition("/")
    path = slash + path
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host.rpartition("@")[2] + (path if path != "/" else "")


def compile_pattern(key: str) -> Pattern | None:
    """Returns the compiled pattern `host[:port][/path]`; None if `key` is not an address.

    A `*` matches anything within one label. The kubelet recognises an IPv6 address only together with a port: without
    a port it keeps the brackets and reads them as a set of characters.
    """
    found = _ADDRESS.fullmatch(key)
    if found is None or (found["host"].startswith("[") and found["port"] is None):
        return None
    host = re.compile(re.escape(found["host"]).replace(r"\*", r"[^.]*"))
    return Pattern(host, found["port"] or "", found["path"] or "")
