"""What a Docker configuration says: logins by registry, and which of them a repository gets, exactly as the kubelet.

The rules are those of k8s.io/kubernetes/pkg/credentialprovider (keyring.go, config.go), so that what resolves here is
what a node may pull. Knows no credential store and no identity token, as the kubelet knows none.
"""

import base64
import re
from collections.abc import Iterable
from typing import NamedTuple

import msgspec

_DEFAULT_REGISTRY = "index.docker.io"
_SCHEME = re.compile(r"https?://")
_ADDRESS = re.compile(r"(?P<host>\[[^][]*\]|[^][:/]*)(?::(?P<port>[0-9]*))?(?P<path>/.*)?", re.ASCII | re.DOTALL)
_LINE_ENDS = {ord("\r"): None, ord("\n"): None}


class InvalidLogins(ValueError):
    """Bytes that are no Docker configuration. The message says what is wrong and quotes no secret."""


class Login(NamedTuple):
    """A name and a password for the repositories that `pattern` matches.

    `pattern` is a key of `auths` as written: `https://index.docker.io/v1/`, `quay.io/team`, `*.example.com:5000`.
    """

    pattern: str
    username: str
    password: str


class _Pattern(NamedTuple):
    """A login's pattern, ready to be compared."""

    host: re.Pattern[str]
    port: str
    path: str

    def matches(self, host: str, port: str, path: str) -> bool:
        """The path is a plain prefix, as the kubelet has it: /foo matches /foobar."""
        return self.port == port and path.startswith(self.path) and self.host.fullmatch(host) is not None


class _Entry(msgspec.Struct):
    username: str | None = None
    password: str | None = None
    auth: str | None = None


class _DockerConfig(msgspec.Struct):
    auths: dict[str, _Entry] | None = None


_DECODER = msgspec.json.Decoder(_DockerConfig)


class Logins:
    """The logins of one or more configurations, in the order in which the kubelet tries them."""

    def __init__(self, logins: Iterable[Login]) -> None:
        """A pattern that no repository can match is left out, not refused: the kubelet logs it and goes on."""
        keyed = [(_key_of(login.pattern), login) for login in logins]
        # Reverse string order puts quay.io/coreos before quay.io; logins of one key keep the order they came in.
        keyed.sort(key=lambda pair: pair[0], reverse=True)
        self._default = tuple(login for key, login in keyed if key == _DEFAULT_REGISTRY)
        self._entries = [(pattern, login) for key, login in keyed if (pattern := _pattern_of(key))]

    def matching(self, repository: str) -> tuple[Login, ...]:
        """Every login for `repository` (`quay.io/a/b`, without tag), most specific first. O(logins).

        With none, a repository on the default registry gets the login for `index.docker.io`, the name under which
        `docker login` has always stored it.
        """
        address = _ADDRESS.fullmatch(repository)
        host, port, path = address.groups(default="") if address else ("", "", "")
        found = tuple(login for pattern, login in self._entries if pattern.matches(host, port, path))
        return found if found or not is_on_default_registry(repository) else self._default


def decode_docker_config(raw: bytes) -> Logins:
    """The logins under `auths` in a Docker configuration, as in a `kubernetes.io/dockerconfigjson` secret.

    Raises:
        InvalidLogins: it is no such JSON, or an `auth` is not base64 of `name:password`.
    """
    try:
        entries = _DECODER.decode(raw).auths or {}
    except (msgspec.DecodeError, UnicodeDecodeError):  # from None: a decoder's words may hold what it stumbled over
        raise InvalidLogins("it is no Docker configuration: JSON with a map `auths` is expected") from None
    logins = (_login_of(pattern, entry) for pattern, entry in entries.items())
    return Logins(login for login in logins if login.username or login.password)


def is_on_default_registry(repository: str) -> bool:
    """Whether the kubelet takes an image name to be on Docker Hub: no host in front, or one of the Hub's two."""
    first, slash, _ = repository.partition("/")
    if not first or not slash:
        return bool(first)
    return first in ("docker.io", _DEFAULT_REGISTRY) or not ("." in first or ":" in first)


def _login_of(pattern: str, entry: _Entry) -> Login:
    """The login of one entry; empty where there is none, as `docker login` leaves it beside a credential store."""
    if entry.auth:
        return Login(pattern, *_decode_auth(pattern, entry.auth))
    return Login(pattern, entry.username or "", entry.password or "")


def _decode_auth(pattern: str, auth: str) -> tuple[str, str]:
    """Name and password in an `auth` field, whose base64 may lack its padding or be broken into lines."""
    packed = auth.translate(_LINE_ENDS).rstrip("=")
    try:
        text = base64.b64decode(packed + "=" * (-len(packed) % 4), validate=True).decode()
    except ValueError:  # not base64, or not UTF-8; from None: the exception holds the bytes
        text = ""
    username, colon, password = text.partition(":")
    if not colon:
        raise InvalidLogins(f"the auth of {pattern!r} is not base64 of name:password")
    return username, password


def _key_of(pattern: str) -> str:
    """Host and path of a pattern, without scheme, user, query, fragment and a leading `/v1/` or `/v2/`."""
    found = _SCHEME.match(pattern)
    bare = pattern[found.end() :] if found else pattern
    host, slash, path = bare.partition("#")[0].partition("?")[0].partition("/")
    path = slash + path
    if path.startswith(("/v1/", "/v2/")):
        path = path[3:]
    return host.rpartition("@")[2] + (path if path != "/" else "")


def _pattern_of(key: str) -> _Pattern | None:
    """The pattern of a key; None where there is no address in it.

    A `*` stands for anything within one label. The kubelet finds an IPv6 address only together with a port: without
    one it keeps the brackets and reads them as a set of characters.
    """
    found = _ADDRESS.fullmatch(key)
    if found is None or (found["host"].startswith("[") and found["port"] is None):
        return None
    host = re.compile(re.escape(found["host"]).replace(r"\*", r"[^.]*"))
    return _Pattern(host, found["port"] or "", found["path"] or "")
