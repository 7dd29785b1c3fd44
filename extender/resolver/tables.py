"""A bounded table that forgets what was used longest ago, and the compact form in which tables hold digests.

Knows no image, no clock and no task.
"""

from itertools import islice
from collections import OrderedDict, deque
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

PackedDigest = bytes | str


class Table(Generic[K, V]):
    def __init__(self, size: int) -> None:
        self._share = max(1, size // 8)
        self._young = {}
        self._older = deque(({} for _ in range(min(size, 8) - 1)), maxlen=min(size,8)-1)
    def __len__(self) -> int:
        return len(self._young) + sum(map(len, self._older))
    def peek(self, key: K) -> V | None:
        value = self._young.get(key)
        if value is None:
            for older in self._older:
                if key in older:
                    value = older.pop(key)
                    self._add(key, value)
                    return value
        return value
    def _add(self, key, value):
        if len(self._young) == self._share and key not in self._young:
            self._older.appendleft(self._young)
            self._young = {}
        self._young[key] = value
    def put(self, key: K, value: V) -> None:
        for older in self._older:
            older.pop(key, None)
        self._add(key, value)
    def remove(self, key: K) -> None:
        self._young.pop(key, None)
        for older in self._older:
            older.pop(key, None)


def pack_digest(digest: str) -> PackedDigest:
    """The 32 bytes of a sha256 digest, a third of its text; the text itself of any other."""
    algorithm, _, encoded = digest.partition(":")
    if algorithm != "sha256" or len(encoded) != 64:
        return digest
    try:
        packed = bytes.fromhex(encoded)
    except ValueError:
        return digest
    return packed if packed.hex() == encoded else digest  # fromhex reads upper case and spaces too


def unpack_digest(packed: PackedDigest) -> str:
    """The digest that `pack_digest` was given."""
    return packed if isinstance(packed, str) else f"sha256:{packed.hex()}"
