"""The programs that a node did not know the format of: which image, on which platform, and in whose namespace.

A crash is a claim too, by whoever may create pods: so it counts for pods of the same namespace alone. It is forgotten
after a day, does not count for another digest, and not for a platform that has been verified.
"""

from collections.abc import Callable, Mapping

import msgspec

from extender.images.content import Content, judged
from extender.images.platform import Platform
from extender.images.platform_states import DeniedPlatform, PlatformState
from extender.images.reference import PackedDigest
from extender.metrics import counter
from extender.tables import LruTable, declare_cache

CRASHES = counter(
    "multiarch_image_crashes_total",
    "Containers whose program was of an unknown format, by whether that was new; known: of an image and platform that "
    "have crashed in the namespace before.",
    "seen",
    ("new", "known"),
)

KEPT_SECONDS = 86_400.0
_MOST_PLATFORMS = 4  # of one image that are kept; a cluster has two or three
_ROWS = declare_cache("resolver.crashes.rows", key="namespace, digest", rows=4096, most_mb=4)


class _Crash(msgspec.Struct, frozen=True, gc=False):
    """The platforms on which an image has crashed, and until when each counts."""

    until: Mapping[Platform, float]


class Crashes:
    """What has crashed where. It is falsy while nothing has, which costs a decision nothing."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._clock = clock
        self._rows: LruTable[tuple[str, PackedDigest], _Crash] = LruTable(_ROWS.bound())

    def __len__(self) -> int:
        """How many images are kept, by namespace."""
        return len(self._rows)

    def note(self, namespace: str, packed: PackedDigest, platform: Platform) -> bool:
        """Records a crash in a namespace; returns whether it is news."""
        key, now = (namespace, packed), self._clock()
        before = self._rows.get(key)
        until = {each: end for each, end in before.until.items() if end > now} if before else {}
        is_new = platform not in until
        CRASHES["new" if is_new else "known"].inc()
        if is_new and len(until) < _MOST_PLATFORMS:
            self._rows.put(key, _Crash({**until, platform: now + KEPT_SECONDS}))
        return is_new

    def apply(self, namespace: str, packed: PackedDigest, content: Content) -> Content:
        """The content for pods of the namespace: without the platforms where it crashed, unless these are verified."""
        crash = self._rows.get((namespace, packed))
        if crash is None:
            return content
        now = self._clock()
        denied = [
            DeniedPlatform(platform, PlatformState.CRASHED_THERE)
            for platform, end in crash.until.items()
            if end > now and platform in content.platforms and content.state_of(platform) is PlatformState.CLAIMED
        ]
        return judged(content, denied, ()) if denied else content
