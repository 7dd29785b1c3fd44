"""Applies our patches as an API server does, and refuses what RFC 6902 does not let us write."""

from typing import Any

import msgspec

from testbed.json_patches import apply_json_patch


def apply(document: Any, patch: bytes) -> Any:
    """Returns `document` after `patch` (empty: unchanged); raises at any step that RFC 6902 calls an error."""
    operations = msgspec.json.decode(patch or b"[]")
    for operation in operations:
        assert operation["op"] in ("add", "remove", "replace"), operation
        assert ("value" in operation) == (operation["op"] != "remove"), operation
    return apply_json_patch(document, operations)
