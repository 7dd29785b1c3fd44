"""A registry and a keyring controlled by a test: every request is recorded, and can be held or refused."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from extender.credentials.keyring import ANONYMOUS, NO_OPERATOR, Credential, CredentialId, Keyring
from extender.errors import ManifestNotFound, RegistryDenied
from extender.fetcher.looker import Looker
from extender.fetcher.messages import Failed, Look, SeenImage
from extender.images.content import Answer, Cause, Content, Failure
from extender.images.manifest import OCI_INDEX, Image, Kind, PlatformEntry
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, digest_of
from extender.registry.image_description import RegistryImages
from extender.resolver.image_cache import ImageQuery, References, Target
from extender.resolver.lookups import Sources
from extender.resolver.resolver import Resolver
from testbed.clock import Clock
from testbed.eventually import eventually
from tests.unit.resolver.operator_logins import operator_with

TENANT = Credential("tenant", "secret", CredentialId("tenant"))
OTHER = Credential("other", "secret", CredentialId("other"))

APP, REPOSITORY = "ghcr.io/team/app:1", "ghcr.io/team/app"
"""The image that most tests ask for."""

CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


class WithLogins(Keyring):
    """A pod's logins, the same for every image, available without loading."""

    def __init__(
        self, *credentials: Credential, operator: Callable[[], CredentialId] = lambda: NO_OPERATOR, tenant: str = ""
    ) -> None:
        super().__init__(operator=operator, tenant=tenant)
        self.credentials = self.identity = credentials

    def own_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return tuple(credential.id for credential in self.credentials)

    def label_of(self, reference: ImageReference, credential_id: CredentialId) -> str:
        if credential_id in self.own_ids_for(reference):
            return f"login {credential_id}"
        return super().label_of(reference, credential_id)

    async def load(self, reference: ImageReference, *, refresh: bool = False) -> tuple[Credential, ...]:
        return self.credentials


def keyring_of(
    *credentials: Credential, tenant: str = "", operator: Callable[[], CredentialId] = lambda: NO_OPERATOR
) -> Keyring:
    logins = [each for each in credentials if each != ANONYMOUS]
    if logins:
        return WithLogins(*logins, operator=operator, tenant=tenant)
    return Keyring(operator=operator, tenant=tenant)


PUBLIC = keyring_of()


class LocalLooks(RegistryImages):
    """`Sources` over the two requests that it makes, with the order of requests and credentials as in the fetcher."""

    def __init__(self) -> None:
        self.use_operator_logins({})

    def use_operator_logins(self, logins: Mapping[str, tuple[str, str]]) -> None:
        self.operator = operator_with(logins)
        self.looker = Looker(self, self.operator)

    @property
    def operator_id(self) -> CredentialId:
        return self.operator.id

    def resolves_elsewhere(self, _reference: ImageReference) -> bool:
        return False

    async def look(self, look: Look) -> SeenImage | Failed:
        return await self.looker.look(look)


class FakeRegistry(LocalLooks):
    """Sources for all hosts, with a HEAD for `head_manifest` and a GET for `describe`.

    A repository that is not in `readers`, which are user names or `anonymous`, is public.
    """

    def __init__(self) -> None:
        super().__init__()
        self.requests: list[tuple[str, str, str]] = []  # method, reference, user name
        self.callers: set[str] = set()
        self.readers: dict[str, set[str]] = {}
        self.refused_passwords: set[str] = set()
        self.hides = False  # if true, answers 404 instead of a denial
        self.fault: Callable[[str, ImageReference], Exception | None] = lambda method, reference: None
        self.knows_head = True
        self.stated: dict[str, str] = {}  # the digest that HEAD returns for a reference, if not the right one
        self.open = asyncio.Event()
        self.open.set()
        self.visited = asyncio.Event()
        self._tags: dict[str, str] = {}
        self._images: dict[str, Image] = {}

    def push(self, reference: str, *platforms: str) -> str:
        """Adds an index for these platforms under this name (`host/path:tag`) and returns its digest."""
        entries = tuple(PlatformEntry(parse_platform(each), digest_of(each.encode()), 500) for each in platforms)
        digest = digest_of("\n".join(platforms).encode())
        self._tags[reference] = digest
        self._images[f"{reference.rpartition(':')[0]}@{digest}"] = Image(
            digest=digest,
            media_type=OCI_INDEX,
            kind=Kind.INDEX if entries else Kind.ARTIFACT,
            entries=entries,
            states_platforms=bool(entries),
        )
        return digest

    def add(self, repository: str, image: Image) -> None:
        self._images[f"{repository}@{image.digest}"] = image

    def tag(self, reference: str, as_well_as: str) -> None:
        self._tags[reference] = self._tags[as_well_as]

    def remove(self, reference: str) -> None:
        del self._tags[reference]

    def count(self, method: str, reference: str = "", user: str = "") -> int:
        return sum(
            request[0] == method and reference in ("", request[1]) and user in ("", request[2])
            for request in self.requests
        )

    def methods(self) -> Counter[str]:
        return Counter(method for method, _, _ in self.requests)

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        await self._admit("HEAD", reference, credential)
        if not self.knows_head:
            return None
        return self.stated.get(str(reference)) or self._find(reference).digest

    async def describe(self, reference: ImageReference, credential: Credential) -> Image:
        await self._admit("GET", reference, credential)
        return self._find(reference)

    async def _admit(self, method: str, reference: ImageReference, credential: Credential) -> None:
        named = reference.with_digest(reference.digest) if reference.digest else reference
        user = credential.username or credential.id
        self.requests.append((method, str(named), user))
        self.callers.add(CALLER.get())
        self.visited.set()
        await self.open.wait()
        fault = self.fault(method, named)
        if fault:
            raise fault
        if credential.password in self.refused_passwords:
            raise RegistryDenied("expired")
        if user not in self.readers.get(reference.repository, {user}):
            raise ManifestNotFound("no such repository") if self.hides else RegistryDenied("no access")

    def _find(self, reference: ImageReference) -> Image:
        digest = reference.digest or self._tags.get(str(reference), "")
        try:
            return self._images[f"{reference.repository}@{digest}"]
        except KeyError:
            raise ManifestNotFound("no such manifest") from None


def index_of(*platforms: str) -> Content:
    """Returns the content of an index that `FakeRegistry.push` makes for these platforms."""
    return Content(Kind.INDEX, frozenset(map(parse_platform, platforms)), bool(platforms))


def make_resolver(registry: Sources, clock: Callable[[], float], **settings: Any) -> Resolver:
    """Returns a resolver whose tags are fresh for 900 s (60 s if always) and serve for a day; backoff has no jitter."""
    usual: dict[str, Any] = {"size": 1000, "tag_seconds": 900, "stale_seconds": 86_400, "random": lambda: 0.0}
    return Resolver(registry, clock=clock, **usual | settings)


async def ask(
    resolver: Resolver, keys: Keyring = PUBLIC, image: str = APP, wait_seconds: float = 60, **more: bool
) -> Answer:
    """Returns the answer for one image; with `always` and `revalidate` as for queries and `resolve_all`."""
    query = ImageQuery(image, always=more.pop("always", False))
    return (await resolver.resolve_all([query], keys, wait_seconds, **more))[0]


def peek(resolver: Resolver, keys: Keyring = PUBLIC, image: str = APP) -> Answer:
    return resolver.peek(ImageQuery(image), keys)


class World(FakeRegistry):
    """A registry, a resolver that asks it, and the time, which `advance` moves."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.clock = Clock()
        self.advance = self.clock.advance
        self.resolver = make_resolver(self, self.clock, **settings)

    async def ask(self, keys: Keyring = PUBLIC, image: str = APP, wait_seconds: float = 60, **more: bool) -> Answer:
        return await ask(self.resolver, keys, image, wait_seconds, **more)

    def peek(self, keys: Keyring = PUBLIC, image: str = APP) -> Answer:
        return peek(self.resolver, keys, image)

    async def finished(self) -> None:
        await eventually(lambda: not self.resolver.counts()["in_flight"])


def cause_of(answer: Answer | Image) -> Cause | None:
    """Returns why an image is not known; None if it is, or if there is no answer."""
    return answer.cause if isinstance(answer, Failure) else None


def target_of(text: str) -> Target:
    found = References(1).target_of(text)
    assert isinstance(found, Target)
    return found
