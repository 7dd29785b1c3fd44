"""What kube-scheduler asks of a few nodes, in both forms, and what is decided and answered."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from extender.images.content import Cause
from extender.images.platform import parse_platform
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import (
    ExtenderArgs,
    decode_args,
    encode_filter_result,
)
from extender.placement.facts import ImageFact, Pending, PodImage, RunsOn
from extender.placement.nodes import NodePlatforms, list_nodes
from extender.placement.policy import Overrides, Policy
from extender.placement.scheduling import (
    Decision,
    filter_nodes,
)

LEVEL = "multiarch-extender.io/level"


NAMES, NODES = "NodeNames", "Nodes"


both_forms = pytest.mark.parametrize("form", [NAMES, NODES])


Nodes = Mapping[str, str | None]


def built_for(*platforms: str) -> RunsOn:
    return RunsOn(frozenset(map(parse_platform, platforms)))


def decide(facts: Sequence[ImageFact], policy: Policy | None = None, overrides: Overrides | None = None) -> Decision:
    images = [PodImage(f"r/{index}:1") for index in range(len(facts))]
    return Decision(images, facts, policy or Policy(), overrides or Overrides())


def view_of(nodes: Nodes) -> NodePlatforms:
    platforms = {NodeName(name): parse_platform(text) if text else None for name, text in nodes.items()}
    return NodePlatforms(platforms)


def item_of(name: str, text: str | None) -> dict[str, Any]:
    if text is None:
        return {"metadata": {"name": name}, "spec": {"taints": [{"key": "x"}]}}
    platform = parse_platform(text)
    info = {"architecture": platform.architecture, "operatingSystem": platform.os}
    labels = {LEVEL: platform.variant} if platform.variant else {}
    return {"metadata": {"name": name, "labels": labels}, "status": {"nodeInfo": info}, "unknown": 1}


def ask(form: str, nodes: Nodes) -> tuple[ExtenderArgs, NodePlatforms]:
    body = {
        "Pod": {"metadata": {"name": "p"}},
        "Nodes": {"metadata": {}, "items": [item_of(*node) for node in nodes.items()]} if form == NODES else None,
        "NodeNames": list(nodes) if form == NAMES else None,
    }
    args = decode_args(json.dumps(body).encode())
    return args, view_of(nodes) if args.nodes is None else list_nodes(args.nodes)


def filter_answer(form: str, nodes: Nodes, decision: Decision) -> dict[str, Any]:
    answer = json.loads(encode_filter_result(filter_nodes(*ask(form, nodes), decision).answer))
    assert isinstance(answer, dict)
    return answer


def kept_names(form: str, answer: dict[str, Any]) -> list[str]:
    """The nodes that remain, read in the request's form; the other form must be null."""
    assert answer[NODES if form == NAMES else NAMES] is None
    if form == NAMES:
        return list(answer[NAMES])
    return [item["metadata"]["name"] for item in answer[NODES]["items"]]


MIXED: Nodes = {"b": "linux/arm64", "a": "linux/amd64", "c": "linux/arm64", "z": "linux/amd64"}


LOOKING_UP = Pending(Cause.LOOKING_UP, "its lookup has not ended yet")


AMD64_ONLY, ARM64_ONLY, MULTI = (
    built_for("linux/amd64"),
    built_for("linux/arm64"),
    built_for("linux/amd64", "linux/arm64"),
)
