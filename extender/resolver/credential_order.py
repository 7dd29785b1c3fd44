"""The credentials that a lookup tries, in order: a source's are loaded when those before them have not worked.

A source may take a minute, or hang. It must not hold up images that the sources before it open.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from extender.credentials.keyring import ANONYMOUS, Credential, CredentialId, Keyring, load_source, sources_of
from extender.images.reference import ImageReference


class CredentialOrder:
    """The credentials of one lookup.

    Those that are known to work come first. The others come source by source, `ANONYMOUS` after all others.
    """

    def __init__(self, keyring: Keyring, reference: ImageReference, is_known: Callable[[CredentialId], bool]) -> None:
        """`is_known` says whether a credential most likely works: whether the cache has the image for it."""
        self._keyring = keyring
        self._reference = reference
        self._is_known = is_known
        self._sources = sources_of(keyring)
        self._loaded: dict[int, tuple[Credential, ...]] = {}

    async def credentials(self) -> AsyncGenerator[Credential]:
        """Yields each credential once. Loads a source only when its credentials are wanted.

        Raises:
            NoTurn: as `Keyring.load`.
        """
        positions = range(len(self._sources))
        steps: list[Callable[[], Awaitable[tuple[Credential, ...]]]] = [
            *(partial(self._known_of, position) for position in positions),
            self._anonymous_if_known,
            *(partial(self._logins_of, position) for position in positions),
            self._anonymous,
        ]
        yielded: set[Credential] = set()
        for step in steps:
            for credential in await step():
                if credential not in yielded:
                    yielded.add(credential)
                    yield credential

    async def _known_of(self, position: int) -> tuple[Credential, ...]:
        credential_ids = self._sources[position].credential_ids_for(self._reference)
        if not any(each != ANONYMOUS.id and self._is_known(each) for each in credential_ids):
            return ()
        return tuple(login for login in await self._logins_of(position) if self._is_known(login.id))

    async def _logins_of(self, position: int) -> tuple[Credential, ...]:
        if position not in self._loaded:
            found = await load_source(self._sources[position], self._reference, tenant=self._keyring.tenant)
            self._loaded[position] = tuple(credential for credential in found if credential != ANONYMOUS)
        return self._loaded[position]

    async def _anonymous_if_known(self) -> tuple[Credential, ...]:
        return await self._anonymous() if self._is_known(ANONYMOUS.id) else ()

    async def _anonymous(self) -> tuple[Credential, ...]:
        is_allowed = ANONYMOUS.id in self._keyring.credential_ids_for(self._reference)
        return (ANONYMOUS,) if is_allowed else ()
