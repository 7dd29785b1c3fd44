"""A queue that serves tenants round robin, so that one with many items delays nobody else's."""

import asyncio
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Items by tenant, first in first out within a tenant. O(1)."""

    def __init__(self) -> None:
        self._items: dict[str, deque[T]] = {}  # by tenant, the next one first
        self._has_items = asyncio.Event()

    def __len__(self) -> int:
        return sum(map(len, self._items.values()))

    def put(self, tenant: str, item: T) -> None:
        """Adds the item behind the tenant's others."""
        self._items.setdefault(tenant, deque()).append(item)
        self._has_items.set()

    async def get(self) -> T:
        """Waits for an item, and removes and returns the first one of the tenant whose turn it is."""
        while not self._items:
            self._has_items.clear()
            await self._has_items.wait()
        tenant = next(iter(self._items))
        items = self._items.pop(tenant)
        item = items.popleft()
        if items:
            self._items[tenant] = items
        return item
