"""The proof that a row was written by a process with our key, under the name that it is found by.

Whoever can write to a shared store could otherwise say what images run on. Rows are not encrypted.
"""

import hashlib
import hmac

_MAC_BYTES = 16
_NAME_BYTES = 8


class RowMac:
    """Adds a MAC to values, over the value and the whole key it is stored under, and checks it.

    `name` stands for the key of the MAC, of which it tells nothing. It is a part of the keys in the store, so that rows
    of different keys do not meet.
    """

    def __init__(self, key: bytes) -> None:
        """`key` has up to 64 secret bytes, which serve no other purpose."""
        self._keyed = hashlib.blake2b(key=key, digest_size=_MAC_BYTES, person=b"row")
        self.name = hashlib.blake2b(key=key, digest_size=_NAME_BYTES, person=b"name").hexdigest()

    def seal(self, location: str, value: bytes) -> bytes:
        """Returns the value behind its MAC. `location` is the key in the store."""
        return self._mac_of(location, value) + value

    def open(self, location: str, sealed: bytes) -> bytes | None:
        """Returns the value; None if it was not sealed with our key for this location."""
        value = sealed[_MAC_BYTES:]
        return value if hmac.compare_digest(sealed[:_MAC_BYTES], self._mac_of(location, value)) else None

    def _mac_of(self, location: str, value: bytes) -> bytes:
        keyed = self._keyed.copy()
        encoded = location.encode()
        keyed.update(len(encoded).to_bytes(8, "big"))  # so that no character can pass from the location to the value
        keyed.update(encoded)
        keyed.update(value)
        return keyed.digest()
