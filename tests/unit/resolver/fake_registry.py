"""A registry and a keyring controlled by a test: every request is recorded, and can be held or refused."""

import asyncio
from collections import Counter
from collections.abc import Callable, Hashable
from contextvars import ContextVar

from extender.credentials.keyring import Credential, CredentialId
from extender.errors import ManifestNotFound, RegistryDenied
from extender.images.content import Content
from extender.images.manifest import OCI_INDEX, Image, Kind, PlatformEntry
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, digest_of
from extender.turns import OPERATOR

TENANT = Credential("tenant", "secret", CredentialId("tenant"))
OTHER = Credential("other", "secret", CredentialId("other"))

CALLER: ContextVar[str] = ContextVar("CALLER", default="nobody")


class Keys:
    """A keyring with the same credentials for every image, available without loading."""

    def __init__(self, *credentials: Credential, tenant: str = "") -> None:
        self.credentials = credentials
        self.tenant = tenant

    @property
    def identity(self) -> Hashable:
        return self.credentials

    def credential_ids_for(self, reference: ImageReference) -> tuple[CredentialId, ...]:
        return tuple(credential.id for credential in self.credentials)

    def is_due(self, reference: ImageReference) -> bool:
        return False

    def is_unread(self, reference: ImageReference) -> bool:
        return False

    async def load(
        self, reference: ImageReference, *, refresh: bool = False, tenant: str = OPERATOR
    ) -> tuple[Credential, ...]:
        return self.credentials


class FakeRegistry:
    """An `ImageSource` for all hosts, with a HEAD for `state_digest` and a GET for `describe`.

    A repository that is not in `readers` is public.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str]] = []  # method, reference, credential id
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
        """Adds an image without a tag to a repository (`host/path`)."""
        self._images[f"{repository}@{image.digest}"] = image

    def tag(self, reference: str, as_well_as: str) -> None:
        """Gives the image of another name this name too."""
        self._tags[reference] = self._tags[as_well_as]

    def remove(self, reference: str) -> None:
        """Removes the tag."""
        del self._tags[reference]

    def count(self, method: str, reference: str = "", credential_id: str = "") -> int:
        """Returns how many such requests there were; an empty text matches any."""
        return sum(
            request[0] == method and reference in ("", request[1]) and credential_id in ("", request[2])
            for request in self.requests
        )

    def methods(self) -> Counter[str]:
        """Returns how many requests there were, by method."""
        return Counter(method for method, _, _ in self.requests)

    async def state_digest(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> str | None:
        await self._admit("HEAD", reference, credential)
        if not self.knows_head:
            return None
        return self.stated.get(str(reference)) or self._find(reference).digest

    async def describe(
        self, reference: ImageReference, credential: Credential, *, tenant: str, seconds: float
    ) -> Image:
        await self._admit("GET", reference, credential)
        return self._find(reference)

    async def _admit(self, method: str, reference: ImageReference, credential: Credential) -> None:
        named = reference.with_digest(reference.digest) if reference.digest else reference
        self.requests.append((method, str(named), credential.id))
        self.callers.add(CALLER.get())
        self.visited.set()
        await self.open.wait()
        fault = self.fault(method, named)
        if fault:
            raise fault
        if credential.password in self.refused_passwords:
            raise RegistryDenied("expired")
        if credential.id not in self.readers.get(reference.repository, {credential.id}):
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
