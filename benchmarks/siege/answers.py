"""Whether the service's answers about a pod are right, given what its image runs on."""

import base64
import enum
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.payloads import architecture, node_name
from benchmarks.siege.images import AMD64, ARM64
from testbed.objects import kept_to
from testbed.shipped_files import SECOND_SCHEDULER

NODES = 100
NAMES = [node_name(index) for index in range(NODES)]
_UNREADABLE = (ValueError, KeyError, IndexError, TypeError, AttributeError)  # of an answer that has another form
_OS = "kubernetes.io/os"
_ARCHITECTURE = "kubernetes.io/arch"


class Judgement(enum.StrEnum):
    """What an answer is worth."""

    KNOWN = "known"  # and right
    UNKNOWN = "unknown"  # the image is not known yet, and the answer claims nothing
    WRONG = "wrong"


def judge_review(answer: bytes, pod: Mapping[str, Any], platforms: Collection[str]) -> Judgement:
    """Judges the answer to the review of `pod`: its tolerations, its required affinity, its scheduler."""
    try:
        response = msgspec.json.decode(answer)["response"]
        patched = apply_patch(pod, msgspec.json.decode(base64.b64decode(response.get("patch", "") or "W10=")))
    except _UNREADABLE:
        return Judgement.WRONG
    if response["allowed"] is not True or patched["spec"].get("schedulerName") != SECOND_SCHEDULER:
        return Judgement.WRONG
    before = pod["spec"].get("tolerations", [])
    tolerations = {each.get("key", "") for each in patched["spec"].get("tolerations", []) if each not in before}
    affinity = _required(patched)
    if not tolerations and not affinity:
        return Judgement.UNKNOWN
    is_right = tolerations == tolerated(platforms) and affinity == required(platforms)
    return Judgement.KNOWN if is_right else Judgement.WRONG


def judge_filter(answer: bytes, platforms: Collection[str]) -> Judgement:
    """Judges the answer to a filter request about all `NAMES`. An error is what a pod waits after."""
    try:
        result = msgspec.json.decode(answer)
        if result.get("Error"):
            return Judgement.UNKNOWN
        kept, refused = result["NodeNames"] or [], result["FailedAndUnresolvableNodes"] or {}
        others = result["FailedNodes"] or {}
    except _UNREADABLE:
        return Judgement.WRONG
    suited = [name for index, name in enumerate(NAMES) if f"linux/{architecture(index)}" in platforms]
    is_right = kept == suited and not others and set(refused) == set(NAMES) - set(suited)
    return Judgement.KNOWN if is_right else Judgement.WRONG


def tolerated(platforms: Collection[str]) -> set[str]:
    """Returns the keys of the tolerations that the shipped rules add for images of these platforms."""
    return {"kubernetes.io/arch", "arch"} if ARM64 in platforms else set()


def required(platforms: Collection[str]) -> dict[str, list[str]]:
    """Returns the node labels that keep a pod on these platforms among the siege's nodes, with their values in order.

    These are amd64 and arm64, all with Linux, so that one label says it, and none is needed for an image of both.
    """
    if {AMD64, ARM64} <= set(platforms):
        return {}
    return {_ARCHITECTURE: sorted(platform.partition("/")[2] for platform in platforms)}


def _required(pod: Mapping[str, Any]) -> dict[str, list[str]]:
    return {label: values for label in (_ARCHITECTURE, _OS) if (values := kept_to(pod["spec"], label))}


def apply_patch(document: Mapping[str, Any], patch: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the document after the operations of a JSON Patch, which are `add`, `replace` and `remove`."""
    result: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(document))
    for operation in patch:
        target: Any = result
        *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:])
        for step in steps:
            target = target[int(step)] if isinstance(target, list) else target[step]
        is_list = isinstance(target, list)
        index: Any = (len(target) if last == "-" else int(last)) if is_list else last
        if operation["op"] == "remove":
            del target[index]
        elif operation["op"] == "add" and is_list:
            target.insert(index, operation["value"])
        else:
            target[index] = operation["value"]
    return result
