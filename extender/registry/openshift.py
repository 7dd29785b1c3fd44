"""Where OpenShift's nodes ask for images, and what they trust and log in with there, by the cluster's objects.

Follows pkg/registries of github.com/openshift/runtime-utils and the machine-config operator's
pkg/controller/container-runtime-config: gives what these write to `registries.conf` and `policy.json`. Reads no file
but the operator's authorities, and sends no request.

Departures: the release's own images are not excepted from what is blocked or not allowed. Where several objects have
mirrors of one source, the operator may have nodes ask these in another order.
"""

import functools
import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from extender.credentials.keyring import Credential, CredentialId
from extender.errors import ConfigError, RegistryNotAsked
from extender.images.reference import ImageReference
from extender.kubernetes.openshift_v1 import NEVER_CONTACT_SOURCE, MirrorObjects, NodeTrust, SourceMirrors
from extender.registry.endpoint import Endpoint
from extender.registry.endpoint_tls import CERTIFICATE, Certificates, RegistryTrust
from extender.registry.registries_conf import Mirror, RegistryTable, normalized, rules_of
from extender.registry.routes import Routes
from extender.watched_files import FileSetting, report_loaded, report_refused

SEARCHED = ("registry.access.redhat.com", "docker.io")
"""The registries for names without one, where the image configuration has no others."""

_WHERE = "OpenShift's objects"
_Pull = Literal["digest-only", "tag-only"]
_HUB = "https://index.docker.io/v1/"


class OpenShiftMirrors:
    """Where OpenShift's nodes ask, by the objects that `update` was given last and that can be used."""

    def __init__(self, session_trust: RegistryTrust) -> None:
        """`session_trust` is what the session trusts, to which nodes' authorities are added."""
        self._session_trust = session_trust
        self._updates = 0
        self._trust = NodeTrust()
        self._routes: Routes | None = None

    def update(self, objects: MirrorObjects) -> None:
        """Goes by these objects.

        Where nodes ask stays as it was if the machine-config operator refuses that, which is logged and counted.
        """
        if objects.trust != self._trust:
            self._updates += 1
            self._trust = objects.trust
            if problems := "; ".join(host_problems(objects.trust)):
                report_refused(FileSetting.MIRRORS, problems)
        try:
            routes = routes_of(objects)
        except ConfigError as exc:
            report_refused(FileSetting.MIRRORS, str(exc))
            return
        self._routes = msgspec.structs.replace(routes, trust_of=self._trust_of)
        report_loaded(FileSetting.MIRRORS)

    def endpoints_for(self, reference: ImageReference, plain_http: Collection[str] = ()) -> tuple[Endpoint, ...]:
        """As `Routes`.

        Raises:
            RegistryNotAsked: the objects are not known yet.
        """
        if self._routes is None:
            raise RegistryNotAsked(f"{reference.domain} was not asked: it is not known yet where the nodes pull from")
        return self._routes.endpoints_for(reference, plain_http)

    def credentials_for(self, reference: ImageReference) -> tuple[Credential, ...]:
        """Returns the login that CRI-O has for a mirror: that of the longest name which is the mirror's or above it.

        Specification: containers-auth.json(5).
        """
        name = f"{reference.domain}/{reference.path}"
        while name:
            keys = (name, _HUB) if name == "docker.io" else (name,)
            for key in keys:
                if login := self._trust.logins.get(key):
                    return (Credential(*login, CredentialId(f"pull-secret {self._updates} {key}")),)
            name = name.rpartition("/")[0]
        return ()

    def _trust_of(self, domain: str) -> Certificates | None:
        """Returns what a host is trusted by, whose name is that in images; the operator's authorities as they are."""
        own = self._trust.authorities.get(domain, "")
        if not own and not self._trust.bundle:
            return None
        session = self._session_trust
        pem = (self._trust.bundle, own)
        return Certificates(session.ca_files, pem=pem, stamps=(session.files.generation,))


def host_problems(trust: NodeTrust) -> Iterator[str]:
    """Yields in words for which hosts there is no authority, though something stands in its place."""
    for host, text in trust.authorities.items():
        if not CERTIFICATE.search(text):
            yield f"the authorities for {host} hold no certificate"


def routes_of(objects: MirrorObjects) -> Routes:
    """Returns where nodes ask that are configured with the objects, and of which repositories they take no images.

    Raises:
        ConfigError: the operator refuses the objects, so that nodes keep what they have. The message names the scope.
    """
    blocked, allowed = objects.sources.blocked_registries or (), objects.sources.allowed_registries or ()
    insecure = objects.sources.insecure_registries or ()
    mirrored = (*objects.digest_mirrors, *objects.digest_policies, *objects.tag_mirrors)
    named = [scope for each in mirrored for scope in (each.source, *(each.mirrors or ()))]
    for scope in (*blocked, *allowed, *insecure, *named):
        _check_scope(scope)
    if blocked and allowed:
        raise ConfigError(f"{_WHERE}: blockedRegistries and allowedRegistries exclude each other")
    _check_policies((*objects.digest_mirrors, *objects.tag_mirrors))
    tables = _Tables()
    kinds: tuple[tuple[_Pull, Sequence[SourceMirrors]], ...] = (
        ("digest-only", (*objects.digest_mirrors, *objects.digest_policies)),
        ("tag-only", objects.tag_mirrors),
    )
    sources = [source for pull, sets in kinds for source in tables.add_mirrors(pull, sets)]
    for scope in blocked:
        tables.table_of(scope)
    for scope in insecure:
        tables.mark_insecure(scope)
    for scope in blocked:
        tables.mark_blocked(scope)
    for source in sources:
        tables.give_mirrors_to_nested(source)
    return Routes(
        rules=rules_of(normalized(_WHERE, tables.by_scope.values())),
        search=objects.sources.container_runtime_search_registries or SEARCHED,
        searches_all=True,
        refusal_of=functools.partial(_refusal, frozenset(blocked), frozenset(allowed)),
    )


class _Tables:
    """The tables by scope, in the order in which they were made."""

    def __init__(self) -> None:
        self.by_scope: dict[str, RegistryTable] = {}

    def table_of(self, scope: str) -> RegistryTable:
        """The scope's table, made if there is none."""
        is_wildcard = scope.startswith("*.")
        made = RegistryTable(prefix=scope) if is_wildcard else RegistryTable(location=scope)
        return self.by_scope.setdefault(scope, made)

    def add_mirrors(self, pull: _Pull, sets: Iterable[SourceMirrors]) -> list[str]:
        """Adds the mirrors of all sets of a kind; returns their sources, in order."""
        by_source: dict[str, list[SourceMirrors]] = defaultdict(list)
        for each in sets:
            if any(mirror != each.source for mirror in each.mirrors or ()):
                by_source[each.source].append(each)
        for source in sorted(by_source):
            lists = [each.mirrors or () for each in by_source[source]]
            mirrors = tuple(Mirror(mirror, pull_from_mirror=pull) for mirror in _merged(source, lists))
            table = self.table_of(source)
            is_never = any(each.mirror_source_policy == NEVER_CONTACT_SOURCE for each in by_source[source])
            self._replace(source, blocked=table.blocked or is_never, mirror=(*table.mirror, *mirrors))
        return sorted(by_source)

    def mark_insecure(self, scope: str) -> None:
        """Marks the scope's table, and tables and mirrors inside the scope."""
        self.table_of(scope)
        for each, table in list(self.by_scope.items()):
            mirrors = tuple(
                msgspec.structs.replace(mirror, insecure=True) if _is_nested(mirror.location, scope) else mirror
                for mirror in table.mirror
            )
            self._replace(each, insecure=table.insecure or _is_nested(each, scope), mirror=mirrors)

    def mark_blocked(self, scope: str) -> None:
        """Marks the scope's table and those inside the scope."""
        for each in list(self.by_scope):
            if _is_nested(each, scope):
                self._replace(each, blocked=True)

    def give_mirrors_to_nested(self, source: str) -> None:
        """Gives tables inside the source that have no mirrors those of the source. Raises ConfigError."""
        mirrors = self.by_scope[source].mirror
        for each, table in list(self.by_scope.items()):
            if each == source or table.mirror or not _is_nested(each, source):
                continue
            if source.startswith("*."):
                raise ConfigError(f"{_WHERE}: {each} has no mirrors, and is inside {source}, which has some")
            rest = each.removeprefix(source)
            adjusted = tuple(msgspec.structs.replace(mirror, location=mirror.location + rest) for mirror in mirrors)
            self._replace(each, mirror=adjusted)

    def _replace(self, scope: str, **changes: object) -> None:
        self.by_scope[scope] = msgspec.structs.replace(self.by_scope[scope], **changes)


def _check_scope(scope: str) -> None:
    is_wildcard = scope.startswith("*.") and not any(mark in scope[2:] for mark in "/@:*")
    if not scope or ("*" in scope and not is_wildcard):
        raise ConfigError(f"{_WHERE}: {scope!r} is no registry or repository, and no wildcard like *.example.com")


def _check_policies(sets: Iterable[SourceMirrors]) -> None:
    policies: dict[str, bool] = {}
    for each in sets:
        is_never = each.mirror_source_policy == NEVER_CONTACT_SOURCE
        if policies.setdefault(each.source, is_never) != is_never:
            raise ConfigError(f"{_WHERE}: {each.source} has two values of mirrorSourcePolicy")
        if is_never and each.source in (each.mirrors or ()):
            raise ConfigError(f"{_WHERE}: {each.source} is a mirror of itself and has {NEVER_CONTACT_SOURCE}")


def _merged(source: str, lists: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
    """The mirrors of a source: of several lists one behind the other, by what they say.

    The source itself, which comes last, is left out at the end of a list, and of several.
    """
    first, *others = sorted(lists)
    mirrors = dict.fromkeys(itertools.chain(first, *others))
    if others or first[-1] == source:
        mirrors.pop(source, None)
    return tuple(mirrors)


def _refusal(blocked: frozenset[str], allowed: frozenset[str], reference: ImageReference) -> str:
    """Why nodes refuse the image, wherever they would find it; empty if they do not."""
    scopes = set(_scopes_of(reference))
    if scopes & blocked:
        return "the cluster's image configuration blocks it"
    if allowed and not scopes & allowed:
        return "the cluster's image configuration does not allow it"
    return ""


def _is_nested(scope: str, outer: str) -> bool:
    if scope == outer or scope.startswith(f"{outer}/"):
        return True
    if not outer.startswith("*."):
        return False
    if ":" in scope:
        host = scope.partition(":")[0]
        return host.endswith(outer[1:]) and "/" not in host
    return scope.partition("/")[0].endswith(outer[1:])


def _scopes_of(reference: ImageReference) -> Iterable[str]:
    """The scopes of a policy that an image is in: its repository, what that is in, and wildcards for its host."""
    name = reference.repository
    yield name
    while "/" in name:
        name = name.rpartition("/")[0]
        yield name
    host = name.partition(":")[0]
    while "." in host:
        host = host.partition(".")[2]
        yield f"*.{host}"
