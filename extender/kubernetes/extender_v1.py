"""The scheduler extender protocol: kube-scheduler's requests and our answers, in Go's field names.

Source: k8s.io/kube-scheduler/extender/v1/types.go, the same from v0.30 on. A request names its nodes in one of two
forms, `NodeNames` (`nodeCacheCapable: true`) or whole `Nodes`, and is answered in its own. What is given back is cut
from the request's bytes, so fields unknown here survive. Knows no platform and takes no decision.
"""

import functools
from collections.abc import Collection, Mapping
from itertools import compress
from typing import TypeVar

import msgspec

from extender.errors import InvalidRequest
from extender.kubernetes.core_v1 import Node, NodeName, ObjectMeta, Pod

_NULL = msgspec.Raw(b"null")
_NOT = b"\1".ljust(256, b"\0")  # a table for bytes.translate
_T = TypeVar("_T")


class GoWire(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """Base of everything Go writes without JSON tags: PascalCase keys."""


class NodeList(msgspec.Struct, frozen=True):
    """core/v1 NodeList, of which only the items are read."""

    items: list[Node] | None = None


class HostPriority(GoWire, frozen=True):
    """The score of one node: an integer (a fraction makes kube-scheduler drop the whole answer), 0-10."""

    host: NodeName
    score: int


class ExtenderFilterResult(GoWire, frozen=True):
    """Which nodes remain, and why each of the others does not.

    A null list means *no node* to kube-scheduler, so one of the two is filled unless there is an `error`; with an
    `error` nothing else is looked at.
    """

    nodes: msgspec.Raw | None = None
    node_names: msgspec.Raw | None = None
    failed_nodes: Mapping[NodeName, str] = {}
    failed_and_unresolvable_nodes: Mapping[NodeName, str] = {}
    error: str = ""


class MetaPod(GoWire, frozen=True):
    """A victim by its identifier."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(GoWire, frozen=True):
    """The pods to evict from one node; an empty list is legal from 1.38 on."""

    pods: list[MetaPod]
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations")


class ExtenderPreemptionResult(GoWire, frozen=True):
    """The nodes on which preemption may go on; always by identifiers, whatever the request's form was."""

    node_name_to_meta_victims: Mapping[NodeName, msgspec.Raw | MetaVictims]


class ExtenderArgs(msgspec.Struct, frozen=True, dict=True):
    """A filter or prioritize request.

    `nodes` is None in the `NodeNames` form, where `node_names` is a JSON array that has not been looked into. Where
    both are filled (kubernetes/kubernetes#126425) the nodes count: kube-scheduler accepts them whatever its
    `nodeCacheCapable` says.
    """

    pod: Pod
    nodes: list[Node] | None
    node_names: msgspec.Raw
    body: bytes

    @functools.cached_property
    def names(self) -> list[NodeName]:
        """The nodes asked about, in order; a node without a name has the empty one. Decoded when first read.

        Raises:
            InvalidRequest: `NodeNames` holds something but strings.
        """
        if self.nodes is None:
            return _decode(_NAMES, self.node_names, "ExtenderArgs.NodeNames")
        return [NodeName((node.metadata and node.metadata.name) or "") for node in self.nodes]

    def count(self) -> int:
        """How many nodes are asked about, without decoding their names: those cannot hold a comma."""
        if self.nodes is not None:
            return len(self.nodes)
        text = bytes(self.node_names)
        return text.count(b",") + (b'"' in text)

    def echo(self) -> ExtenderFilterResult:
        """The answer that keeps every node, made of the request's own bytes."""
        if self.nodes is None:
            return ExtenderFilterResult(node_names=self.node_names)
        return ExtenderFilterResult(nodes=_RAW_NODES.decode(self.body).nodes)

    def without(self, refused: bytes, reason: str) -> ExtenderFilterResult:
        """The answer that keeps the nodes whose byte in `refused` is 0, in order, and refuses the others for `reason`.

        `refused` has one byte per asked node. Refused is for good (*unresolvable*): evicting pods would not help.
        """
        kept = refused.translate(_NOT)
        reasons = dict.fromkeys(compress(self.names, refused), reason)
        if self.nodes is None:
            names = msgspec.Raw(_ENCODER.encode(list(compress(self.names, kept))))
            return ExtenderFilterResult(node_names=names, failed_and_unresolvable_nodes=reasons)
        items = compress(_RAW_ITEMS.decode(self.body).nodes.items, kept)
        nodes = msgspec.Raw(_ENCODER.encode(_RawNodeList(list(items))))
        return ExtenderFilterResult(nodes=nodes, failed_and_unresolvable_nodes=reasons)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """A preempt request: the victims on each candidate node, already as the answer wants them."""

    pod: Pod
    victims: Mapping[NodeName, msgspec.Raw | MetaVictims]

    def echo(self) -> ExtenderPreemptionResult:
        """The answer that lets preemption go on as planned."""
        return ExtenderPreemptionResult(self.victims)


class _Args(GoWire, frozen=True):
    pod: Pod | None = None
    nodes: NodeList | None = None
    node_names: msgspec.Raw = _NULL


class _RawNodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]


class _RawNodesArgs(GoWire, frozen=True):
    nodes: msgspec.Raw


class _RawItemsArgs(GoWire, frozen=True):
    nodes: _RawNodeList


class _VictimPod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta | None = None


class _Victims(GoWire, frozen=True):
    pods: list[_VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptionArgs(GoWire, frozen=True):
    pod: Pod | None = None
    node_name_to_victims: dict[NodeName, _Victims | None] | None = None
    node_name_to_meta_victims: dict[NodeName, msgspec.Raw] | None = None


# A body of whole nodes is read twice: once for the fields that decide, once for the raw bytes that are given back. That
# is faster than cutting it up first and decoding the pieces.
_ARGS = msgspec.json.Decoder(_Args)
_NAMES = msgspec.json.Decoder(list[NodeName])
_RAW_NODES = msgspec.json.Decoder(_RawNodesArgs)
_RAW_ITEMS = msgspec.json.Decoder(_RawItemsArgs)
_PREEMPTION_ARGS = msgspec.json.Decoder(_PreemptionArgs)
_ENCODER = msgspec.json.Encoder()


def decode_args(body: bytes) -> ExtenderArgs:
    """The filter or prioritize request in `body`. Missing and null fields are empty, unknown ones ignored.

    Raises:
        InvalidRequest: it is no such object, has no pod, or names nodes in neither form, which kube-scheduler never
            does: an answer that is as null as the request would refuse every node without a reason.
    """
    args = _decode(_ARGS, body, "ExtenderArgs")
    if args.pod is None:
        raise InvalidRequest("ExtenderArgs.Pod is missing")
    if args.nodes is not None:
        return ExtenderArgs(args.pod, args.nodes.items or [], _NULL, body)
    first = bytes(memoryview(args.node_names)[:1])
    if first == b"n":
        raise InvalidRequest("ExtenderArgs has neither NodeNames nor Nodes")
    if first != b"[":
        raise InvalidRequest("ExtenderArgs.NodeNames is no array")
    return ExtenderArgs(args.pod, None, args.node_names, body)


def decode_preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """The preempt request in `body`, in either form; none filled means no candidates.

    Raises:
        InvalidRequest: it is no such object or has no pod.
    """
    args = _decode(_PREEMPTION_ARGS, body, "ExtenderPreemptionArgs")
    if args.pod is None:
        raise InvalidRequest("ExtenderPreemptionArgs.Pod is missing")
    if args.node_name_to_meta_victims:
        return ExtenderPreemptionArgs(args.pod, args.node_name_to_meta_victims)
    victims = args.node_name_to_victims or {}
    return ExtenderPreemptionArgs(args.pod, {name: _by_uid(found) for name, found in victims.items()})


def encode_filter_result(result: ExtenderFilterResult) -> bytes:
    """The body of a filter answer."""
    return _ENCODER.encode(result)


def encode_priorities(priorities: Collection[HostPriority]) -> bytes:
    """The body of a prioritize answer: a bare array; a node that is not in it scores 0."""
    return _ENCODER.encode(priorities)


def encode_preemption_result(result: ExtenderPreemptionResult) -> bytes:
    """The body of a preempt answer."""
    return _ENCODER.encode(result)


def _by_uid(victims: _Victims | None) -> MetaVictims:
    if victims is None:
        return MetaVictims([], 0)
    pods = [MetaPod((pod.metadata and pod.metadata.uid) or "") for pod in victims.pods or ()]
    return MetaVictims(pods, victims.num_pdb_violations)


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw, what: str) -> _T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidRequest(f"{what}: {exc}") from exc
