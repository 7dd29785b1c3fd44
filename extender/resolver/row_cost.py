"""What a row about an image costs in tables that are bounded by memory.

An ordinary row costs 1, so `cache.size` is the number of ordinary images. A registry chooses which platforms an image
states, and a pod's author chooses names, so a row can be thirty times as large as an ordinary one. With these costs
100,000 images take 155 MB at most, and 70 MB if they are ordinary. If the cache's two tables hold different images,
both together take 240 MB at most.
"""

import sys

from extender.images.content import Content
from extender.images.platform import is_usual

# A set of 18 usual platforms takes 728 bytes and its content 48; names and digest have 100 characters together. Names
# may be longer if the content is smaller. The largest content has 64 unusual platforms, takes 22 KB and costs 84.
_ORDINARY_BYTES = 896
_UNIT_BYTES = 256


def row_cost(content: Content, *names: str | bytes) -> int:
    """What a row of this content and these names costs; 1 for each 256 bytes that it exceeds an ordinary one."""
    exceeding = content_bytes(content) + sum(map(len, names)) - _ORDINARY_BYTES
    return 1 + max(0, -(-exceeding // _UNIT_BYTES))


def is_ordinary(content: Content) -> bool:
    """Whether the content costs nothing besides its row: at most 18 platforms, all of them usual."""
    return content_bytes(content) <= _ORDINARY_BYTES


def content_bytes(content: Content) -> int:
    """The memory that the content takes, without usual platforms: all contents share those. O(platforms)."""
    own = sys.getsizeof(content) + sys.getsizeof(content.platforms)
    for platform in content.claimed:
        if not is_usual(platform):
            own += sum(map(sys.getsizeof, (platform, platform.os, platform.architecture, platform.variant)))
    if content.verified:
        own += sys.getsizeof(content.verified)
    for denied in content.denied:
        own += sum(map(sys.getsizeof, (denied, denied.program, denied.detail)))
    return own
