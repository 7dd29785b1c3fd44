"""What the resolver asks of what asks registries, and what it tells its own background work."""

from typing import Protocol

import msgspec

from extender.credentials.keyring import CredentialId
from extender.fetcher.messages import Failed, Look, PullAccess, SeenImage, Verified, Verify
from extender.images.content import Content
from extender.resolver.image_cache import Target


class Sources(Protocol):
    """What asks registries: a fetcher, or this process itself. Neither method raises for what a registry does."""

    @property
    def operator_id(self) -> CredentialId:
        """What stands for the operator's credentials now; empty if there are none."""

    async def look(self, look: Look) -> SeenImage | Failed:
        """Returns what the image is, or why that is not known."""

    async def verify(self, verify: Verify) -> Verified | Failed:
        """Returns what is known of a platform that the image claims."""


class Confirmed(msgspec.Struct, frozen=True):
    """An image that a registry has confirmed for a tenant, and the access by which it may be asked for again."""

    target: Target
    digest: str
    content: Content
    access: PullAccess
    tenant: str


def narrowed(access: PullAccess, by: CredentialId) -> PullAccess:
    """Returns the access of one credential: its login alone, if it is a pod's."""
    return PullAccess(tuple(login for login in access.logins if login.id == by), by)
