"""What kube-scheduler asks of a few nodes, in both forms, and what is decided and answered."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from extender.images.platform import parse_platform
from extender.kubernetes.core_v1 import NodeName
from extender.kubernetes.extender_v1 import ExtenderArgs, decode_args, encode_filter_result
from extender.placement.annotations import Overrides
from extender.placement.facts import ImageFact, PodImage
from extender.placement.nodes import NodePlatforms, platforms_of
from extender.placement.policy import Policy
from extender.placement.scheduling import Decision, filter_nodes
from tests.builders import node

NAMES, NODES = "NodeNames", "Nodes"
Nodes = Mapping[str, str | None]
MIXED: Nodes = {"b": "linux/arm64", "a": "linux/amd64", "c": "linux/arm64", "z": "linux/amd64"}

both_forms = pytest.mark.parametrize("form", [NAMES, NODES])


def decide(facts: Sequence[ImageFact], policy: Policy | None = None, overrides: Overrides | None = None) -> Decision:
    images = [PodImage(f"r/{index}:1") for index in range(len(facts))]
    return Decision(images, facts, policy or Policy(), overrides or Overrides())


def view_of(nodes: Nodes) -> NodePlatforms:
    return NodePlatforms({NodeName(name): parse_platform(text) if text else None for name, text in nodes.items()})


def ask(form: str, nodes: Nodes) -> tuple[ExtenderArgs, NodePlatforms]:
    items = [{**node(name, text), "unknown": 1} for name, text in nodes.items()]
    both: dict[str, Any] = {NODES: {"metadata": {}, "items": items}, NAMES: list(nodes)}
    body = {"Pod": {"metadata": {"name": "p"}}, NODES: None, NAMES: None, form: both[form]}
    args = decode_args(json.dumps(body).encode())
    return args, view_of(nodes) if args.nodes is None else platforms_of(args.names, args.nodes)


def filter_answer(form: str, nodes: Nodes, decision: Decision) -> dict[str, Any]:
    answer = json.loads(encode_filter_result(filter_nodes(*ask(form, nodes), decision).answer))
    assert isinstance(answer, dict)
    return answer


def kept_names(form: str, answer: dict[str, Any]) -> list[str]:
    """The nodes that remain, read in the request's form; the other form must be null."""
    assert answer[NODES if form == NAMES else NAMES] is None
    return list(answer[NAMES]) if form == NAMES else [item["metadata"]["name"] for item in answer[NODES]["items"]]
