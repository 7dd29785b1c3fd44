"""A store controlled by a test: rows in a dictionary, a record of batches, and faults on demand."""

import asyncio
from collections.abc import AsyncIterator, Sequence

from extender.credentials.keyring import CredentialId
from extender.images.reference import PackedDigest
from extender.store.rows import Batch, NameRow, StoreError


class FakeStore:
    """A `Store` that is `shared`, or of one process."""

    location = "fake:"

    def __init__(self, *, shared: bool = False) -> None:
        self.is_shared = shared
        self.names: dict[tuple[str, PackedDigest, CredentialId], NameRow | None] = {}
        self.batches: list[Batch] = []
        self.reads = 0
        self.is_closed = False
        self.fault: Exception | None = None
        self.open = asyncio.Event()  # while it is cleared, calls wait
        self.open.set()
        self.visited = asyncio.Event()
        self.written = asyncio.Event()

    async def rows(self) -> AsyncIterator[Sequence[NameRow | None]]:
        await self._visit()
        for row in self.names.values():
            yield [row]

    async def get(
        self, repository: str, name: PackedDigest, credential_ids: Sequence[CredentialId]
    ) -> Sequence[NameRow | None]:
        self.reads += 1
        await self._visit()
        keys = [(repository, name, credential_id) for credential_id in credential_ids]
        return [self.names[key] for key in keys if key in self.names]

    async def put(self, batch: Batch) -> None:
        await self._visit()
        self.batches.append(batch)
        for key in batch.denials:
            self.names.pop(key, None)
        for row in batch.names:
            self.names[row.repository, row.name, row.credential_id] = row
        self.written.set()

    async def close(self) -> None:
        self.is_closed = True

    async def _visit(self) -> None:
        self.visited.set()
        await self.open.wait()
        if self.fault:
            raise self.fault


LOCKED = StoreError("locked", "somebody has it")
