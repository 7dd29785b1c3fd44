"""The canary: a pod of a dry run by which an installation sees whether the API server reaches its own webhook.

The pod's annotation `canary` has a random word, the nonce. The webhook puts its mark behind it and looks nothing up. A
mark depends on the nonce and on the installation's name, so no policy and no other installation writes the same one,
and the mark of one pod says nothing about that of another. It is no secret: anyone who knows the name can make it.
"""

import hashlib
import re

import msgspec

from extender.placement.patch import JsonObject, Operation, look, pointer
from extender.placement.policy import CANARY, Annotations

_PATH = ("metadata", "annotations", CANARY)
_MARK_CHARACTERS = 32
_MOST_MARKS = 8
"""How many installations may mark one pod; a value with more is no canary's, since anyone may write it."""
_VALUE = re.compile(
    rf"[A-Za-z0-9-]{{1,64}}(?: [0-9a-f]{{{_MARK_CHARACTERS}}}){{0,{_MOST_MARKS}}}",
    re.ASCII,
)
_ENCODER = msgspec.json.Encoder()


def mark_canary(annotations: Annotations, installation: str) -> bytes | None:
    """The JSON Patch that puts the mark of `installation` on a pod with these annotations; None if it is no canary.

    The patch is empty if the pod has the mark already, as in a second pass of admission.
    """
    value = annotations.get(CANARY) if annotations else None
    if value is None or not _VALUE.fullmatch(value):
        return None
    nonce, *marks = value.split(" ")
    mark = _mark(nonce, installation)
    if mark in marks or len(marks) == _MOST_MARKS:
        return b""
    return _ENCODER.encode([Operation("replace", pointer(_PATH), f"{value} {mark}")])


def is_marked(pod: JsonObject, nonce: str, installation: str) -> bool:
    """Whether the webhook of `installation` has seen the canary with this nonce."""
    return _mark(nonce, installation) in marks_of(pod)


def marks_of(pod: JsonObject) -> list[str]:
    """The marks of all installations whose webhooks have seen the canary."""
    value = look(pod, _PATH)
    return value.split(" ")[1:] if isinstance(value, str) else []


def _mark(nonce: str, installation: str) -> str:
    return hashlib.sha256(f"{installation}\n{nonce}".encode()).hexdigest()[:_MARK_CHARACTERS]
