"""The logins of a Docker configuration, and which of them a repository gets: the same as in the kubelet.

The rules are those of k8s.io/kubernetes/pkg/credentialprovider (keyring.go, config.go), so that lookups succeed for the
images that a node may pull. Like the kubelet, it supports no credential stores and no identity tokens.
"""

import base64
import re
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from sys import getsizeof
from typing import Generic, NamedTuple, TypeVar

import msgspec

from extender.images.reference import HUB, HUB_LOGIN
from extender.lenient_json import InvalidJson, LenientDecoder

_SCHEME = re.compile(r"https?://")
_ADDRESS = re.compile(r"(?P<host>\[[^][]*\]|[^][:/]*)(?::(?P<port>[0-9]*))?(?P<path>/.*)?", re.ASCII | re.DOTALL)
_LINE_ENDS = {ord("\r"): None, ord("\n"): None}
T = TypeVar("T")


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
    """A login's pattern in parts. A `*` in `host` matches anything within one label."""

    host: str
    port: str
    path: str

    def matches(self, host: str, port: str, path: str) -> bool:
        """Whether an address matches. The path is a plain prefix, as in the kubelet: /foo matches /foobar."""
        return self.port == port and path.startswith(self.path) and _matches_host(self.host, host)

    def matches_repository(self, repository: str) -> bool:
        """Whether `repository` (`quay.io/a/b`, without tag) matches."""
        return self.matches(*_address_of(repository))


class _DockerAuth(msgspec.Struct):
    username: str | None = None
    password: str | None = None
    email: str | None = None  # not used, but a value that is no text makes the document invalid
    auth: str | None = None


_Auths = dict[str, _DockerAuth | None]


class _DockerConfig(msgspec.Struct):
    auths: _Auths | None = None
    headers: dict[str, str | None] | None = msgspec.field(name="HttpHeaders", default=None)  # as `email`


# Of a document: two thousand logins. Decoding as many takes 10 ms of the service's loop.
_MOST_VALUES = 8_000
_CONFIG = LenientDecoder(_DockerConfig, most_values=_MOST_VALUES)
_AUTHS = LenientDecoder(_Auths, most_values=_MOST_VALUES)


class ByPattern(Generic[T]):
    """Values by the pattern of their repositories, in the order in which the kubelet tries them.

    Patterns without `*` are found by their host. The others are compared if they have as many labels as the host.
    A pattern may have None: it gives nothing, and keeps the values for the default registry away as others do.
    """

    def __init__(self, entries: Iterable[tuple[str, T | None]]) -> None:
        """Leaves out patterns that no repository can match, as in the kubelet, which logs them and goes on."""
        keyed = [(_key_of(pattern), thing) for pattern, thing in entries]
        # Reverse string order puts quay.io/coreos before quay.io; entries with one key keep their order.
        keyed.sort(key=itemgetter(0), reverse=True)
        self._keys = [key for key, _ in keyed]
        self._things = [thing for _, thing in keyed]
        self._exact: dict[tuple[str, str], list[tuple[int, str]]] = {}  # position and path, by host and port
        self._globs: dict[tuple[int, str], list[tuple[int, Pattern]]] = {}  # by the host's dots, and port
        for position, key in enumerate(self._keys):
            pattern = parse_pattern(key)
            if pattern is None:
                continue
            if "*" in pattern.host:
                self._globs.setdefault((pattern.host.count("."), pattern.port), []).append((position, pattern))
            else:
                self._exact.setdefault((pattern.host, pattern.port), []).append((position, pattern.path))

    def __len__(self) -> int:
        """How many values there are, those that no repository can match included."""
        return len(self._things)

    def matching(self, repository: str) -> tuple[T, ...]:
        """Returns all values for `repository` (`quay.io/a/b`, without tag), most specific first.

        If no pattern matches, a repository on the default registry gets the values for `index.docker.io`, the name
        under which `docker login` has always stored that login. O(patterns with a `*`, and those of the host).
        """
        found, things = self.positions(repository), self._things
        if not found and is_on_default_registry(repository):
            return tuple(self.defaults())
        return tuple([thing for position in found if (thing := things[position]) is not None])

    def positions(self, repository: str) -> list[int]:
        """Returns where the matching patterns are in the order of this object."""
        host, port, path = _address_of(repository)
        found = [position for position, prefix in self._exact.get((host, port), ()) if path.startswith(prefix)]
        if self._globs:
            globs = self._globs.get((host.count("."), port), ())
            found += [position for position, pattern in globs if pattern.matches(host, port, path)]
            found.sort()
        return found

    def keyed(self, positions: Iterable[int]) -> Iterator[tuple[str, T | None]]:
        """Yields the key of the pattern and the value at each position."""
        return ((self._keys[position], self._things[position]) for position in positions)

    def defaults(self) -> Iterator[T]:
        """Yields the values for `index.docker.io`, in order."""
        things = (thing for key, thing in zip(self._keys, self._things, strict=True) if key == HUB_LOGIN)
        return (thing for thing in things if thing is not None)


def matching_all(parts: Sequence[ByPattern[T]], repository: str) -> tuple[T, ...]:
    """Returns what one `ByPattern` of all parts' entries, in the order of the parts, would give for `repository`."""
    if len(parts) == 1:
        return parts[0].matching(repository)
    found = [pair for part in parts for pair in part.keyed(part.positions(repository))]
    if not found and is_on_default_registry(repository):
        return tuple(thing for part in parts for thing in part.defaults())
    found.sort(key=itemgetter(0), reverse=True)
    return tuple(thing for _, thing in found if thing is not None)


class Logins(ByPattern[Login]):
    """The logins of one or more configurations. An empty one, as `docker login` writes with a store, gives nothing."""

    def __init__(self, logins: Iterable[Login]) -> None:
        super().__init__((login.pattern, login if login.username or login.password else None) for login in logins)


def cost_bytes(logins: Iterable[Login]) -> int:
    """Returns about how many bytes the logins and their credential ids take when both are found by pattern."""
    return sum(
        700 + 3 * getsizeof(login.pattern) + getsizeof(login.username) + getsizeof(login.password) for login in logins
    )


class DecodedLogins(NamedTuple):
    """The logins of a configuration, and how many of its entries were left out because it has too many."""

    logins: tuple[Login, ...]
    left_out: int


def decode_docker_config(raw: bytes, *, most: int | None = None) -> DecodedLogins:
    """Returns the logins under `auths` in a Docker configuration, as in a `kubernetes.io/dockerconfigjson` secret.

    Entries after the first `most` are left out, but checked as the kubelet checks all.

    Raises:
        InvalidLogins: it is not such JSON, has more than 8,000 values, or an `auth` is not base64 of `name:password`.
    """
    try:
        config = _CONFIG.decode(raw)
    except InvalidJson as exc:
        raise InvalidLogins(f"it is no Docker configuration, JSON with a map `auths`: {exc}") from None
    return _logins_of(config.auths or {}, most)


def decode_legacy_config(raw: bytes, *, most: int | None = None) -> DecodedLogins:
    """Returns the logins of a `.dockercfg`, which is only the map `auths`, as in a `kubernetes.io/dockercfg` secret.

    Entries after the first `most` are left out as there.

    Raises:
        InvalidLogins: as `decode_docker_config`.
    """
    try:
        auths = _AUTHS.decode(raw)
    except InvalidJson as exc:
        raise InvalidLogins(f"it is no .dockercfg, a JSON map of logins: {exc}") from None
    return _logins_of(auths, most)


def is_on_default_registry(repository: str) -> bool:
    """Whether the kubelet reads an image name as one on Docker Hub: it has no host, or one of the Hub's two."""
    first, slash, _ = repository.partition("/")
    if not first or not slash:
        return bool(first)
    return first in (HUB, HUB_LOGIN) or not ("." in first or ":" in first)


def _logins_of(auths: _Auths, most: int | None) -> DecodedLogins:
    logins = [_login_of(pattern, entry or _DockerAuth()) for pattern, entry in auths.items()]
    left_out = 0 if most is None else max(0, len(logins) - most)
    return DecodedLogins(tuple(logins[:most]), left_out)


def _login_of(pattern: str, entry: _DockerAuth) -> Login:
    """Returns the login of one entry; an empty one if it has none, as `docker login` writes with a credential store."""
    if entry.auth:
        return Login(pattern, *_decode_auth(pattern, entry.auth))
    return Login(pattern, entry.username or "", entry.password or "")


def _decode_auth(pattern: str, auth: str) -> tuple[str, str]:
    """Returns name and password of an `auth` field, whose base64 may lack all padding or have line breaks."""
    packed = auth.translate(_LINE_ENDS)
    if not auth.strip().endswith("="):
        packed += "=" * (-len(packed) % 4)
    try:
        text = base64.b64decode(packed, validate=True).decode(errors="replace") if len(packed) % 4 == 0 else ""
    except ValueError:  # not base64; not chained below, since the exception holds the bytes
        text = ""
    username, colon, password = text.partition(":")
    if not colon:
        raise InvalidLogins(f"the auth of {pattern!r} is not base64 of name:password")
    return username, password


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


def parse_pattern(key: str) -> Pattern | None:
    """Returns the pattern `host[:port][/path]`; None if `key` is not an address.

    The kubelet recognises an IPv6 address only together with a port: without a port it keeps the brackets and reads
    them as a set of characters.
    """
    found = _ADDRESS.fullmatch(key)
    if found is None or (found["host"].startswith("[") and found["port"] is None):
        return None
    return Pattern(found["host"], found["port"] or "", found["path"] or "")


def _matches_host(pattern: str, host: str) -> bool:
    """Whether each label of `host` matches the pattern's. Without a regular expression, which could take for ever."""
    if "*" not in pattern:
        return pattern == host
    wanted, labels = pattern.split("."), host.split(".")
    return len(wanted) == len(labels) and all(map(_matches_label, wanted, labels))


def _matches_label(pattern: str, label: str) -> bool:
    """Whether `label` matches a pattern in which each `*` stands for any text. O(characters of both), as a rule."""
    start, *middle = pattern.split("*")
    if not middle:
        return pattern == label
    end = middle.pop()
    if len(label) < len(start) + len(end) or not (label.startswith(start) and label.endswith(end)):
        return False
    at, stop = len(start), len(label) - len(end)
    for part in middle:  # the leftmost place leaves the most room for the parts that follow
        at = label.find(part, at, stop)
        if at < 0:
            return False
        at += len(part)
    return True
