"""The scheduler extender protocol: kube-scheduler's requests and our answers, in Go's field names.

Source: k8s.io/kube-scheduler/extender/v1/types.go, the same from v0.30 on. A request names its nodes in one of two
forms, `NodeNames` (`nodeCacheCapable: true`) or whole `Nodes`, and is answered in its own. What is given back is cut
from the request's bytes, so fields unknown here survive. Knows no platform and takes no decision.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from itertools import compress
from typing import TypeVar

import msgspec

from extender.errors import InvalidRequest
from extender.kubernetes.core_v1 import Node, NodeList, NodeName, Pod
from extender.kubernetes.meta_v1 import ObjectMeta

_NULL = msgspec.Raw(b"null")
_NONE_FAILED = msgspec.Raw(b"{}")
_NOT = b"\1".ljust(256, b"\0")  # a table for bytes.translate
_T = TypeVar("_T")


class GoWire(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """Base of everything Go writes without JSON tags: PascalCase keys."""


class ExtenderFilterResult(GoWire, frozen=True):
    """Which nodes remain, and why each of the others does not: two objects of reasons by node name.

    A null list means *no node* to kube-scheduler, so one of the two is filled unless there is an `error`; with an
    `error` nothing else is looked at.
    """

    nodes: msgspec.Raw | None = None
    node_names: msgspec.Raw | None = None
    failed_nodes: msgspec.Raw = _NONE_FAILED
    failed_and_unresolvable_nodes: msgspec.Raw = _NONE_FAILED
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

    `nodes` is None in the `NodeNames` form, where `node_names` is a JSON array that has not been looked into; else
    `raw_nodes` is the NodeList that they were read from. Where both are filled (kubernetes/kubernetes#126425) the nodes
    count: kube-scheduler accepts them whatever its `nodeCacheCapable` says.
    """

    pod: Pod
    nodes: list[Node] | None
    node_names: msgspec.Raw
    raw_nodes: msgspec.Raw

    @functools.cached_property
    def names(self) -> list[NodeName]:
        """The nodes asked about, in order; a node without a name has the empty one. Decoded when first read.

        Raises:
            InvalidRequest: `NodeNames` holds something but strings.
        """
        if self.nodes is None:
            return _decode(_NAMES, self.node_names, "ExtenderArgs.NodeNames")
        return [NodeName((node.metadata and node.metadata.name) or "") for node in self.nodes]

    @functools.cached_property
    def raw_names(self) -> Sequence[bytes]:
        """The names as `quote` writes them, cut out of the request where it says them so, as kube-scheduler does.

        No JSON is parsed, so of a request that is written otherwise the pieces are no names: see `canonical_names`. But
        where every piece is some known node's quoted name, the list is the list of these.
        """
        if self.nodes is not None:
            return self.canonical_names
        inside = bytes(self.node_names)[1:-1]
        return inside.split(b",") if inside else []

    @functools.cached_property
    def canonical_names(self) -> Sequence[bytes]:
        """The names as `quote` writes them, however the request wrote them.

        Raises:
            InvalidRequest: `NodeNames` holds something but strings.
        """
        return [quote(name) for name in self.names]

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
        return ExtenderFilterResult(nodes=self.raw_nodes)

    def without(self, raw_names: Sequence[bytes], refused: bytes, reason: str) -> ExtenderFilterResult:
        """The answer that keeps the nodes whose byte in `refused` is 0, in order, and refuses the others for `reason`.

        `raw_names` has the asked nodes' quoted names, `refused` a byte for each. Refused is for good (*unresolvable*):
        evicting pods would not help.
        """
        kept = refused.translate(_NOT)
        failed = _failed(compress(raw_names, refused), reason)
        if self.nodes is None:
            names = _joined(compress(raw_names, kept), b"[", b",", b"]")
            return ExtenderFilterResult(node_names=names, failed_and_unresolvable_nodes=failed)
        items = compress(_RAW_NODE_LIST.decode(self.raw_nodes).items, kept)
        nodes = msgspec.Raw(_ENCODER.encode(_RawNodeList(list(items))))
        return ExtenderFilterResult(nodes=nodes, failed_and_unresolvable_nodes=failed)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """A preempt request: the victims on each candidate node, already as the answer wants them."""

    pod: Pod
    victims: Mapping[NodeName, msgspec.Raw | MetaVictims]

    def echo(self) -> ExtenderPreemptionResult:
        """The answer that lets preemption go on as planned."""
        return ExtenderPreemptionResult(self.victims)


class _Args(GoWire, frozen=True):
    pod: Pod | None = None
    nodes: msgspec.Raw = _NULL
    node_names: msgspec.Raw = _NULL


class _Head(GoWire, frozen=True):
    pod: Pod


class _RawNodeList(msgspec.Struct, frozen=True):
    items: list[msgspec.Raw]


class _VictimPod(msgspec.Struct, frozen=True):
    metadata: ObjectMeta | None = None


class _Victims(GoWire, frozen=True):
    pods: list[_VictimPod] | None = None
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations", default=0)


class _PreemptionArgs(GoWire, frozen=True):
    pod: Pod | None = None
    node_name_to_victims: dict[NodeName, _Victims | None] | None = None
    node_name_to_meta_victims: dict[NodeName, msgspec.Raw] | None = None


# Whole nodes are read twice where some are refused: once for the fields that decide, once for the raw bytes that are
# given back. That is faster than cutting them up first and decoding the pieces.
_ARGS = msgspec.json.Decoder(_Args)
_HEAD = msgspec.json.Decoder(_Head)
_NAMES = msgspec.json.Decoder(list[NodeName])
_NAME = msgspec.json.Decoder(NodeName)
_NODE_LIST = msgspec.json.Decoder(NodeList)
_RAW_NODE_LIST = msgspec.json.Decoder(_RawNodeList)
_PREEMPTION_ARGS = msgspec.json.Decoder(_PreemptionArgs)
_ENCODER = msgspec.json.Encoder()

# How Go's encoding/json lays a request out: pod, nodes, node names, and no spaces.
_AFTER_POD = b',"Nodes":'
_BEFORE_NAMES = b'null,"NodeNames":'
_BEFORE_LIST = _BEFORE_NAMES + b"["
_AFTER_NODES = b',"NodeNames":null}'


def decode_args(body: bytes) -> ExtenderArgs:
    """The filter or prioritize request in `body`. Missing and null fields are empty, unknown ones ignored.

    Raises:
        InvalidRequest: it is no such object, has no pod, or names nodes in neither form, which kube-scheduler never
            does: an answer that is as null as the request would refuse every node without a reason.
    """
    args = _cut_up(body)
    if args is not None:
        return args
    read = _decode(_ARGS, body, "ExtenderArgs")
    if read.pod is None:
        raise InvalidRequest("ExtenderArgs.Pod is missing")
    if read.nodes != _NULL:
        return _with_nodes(read.pod, read.nodes)
    first = bytes(memoryview(read.node_names)[:1])
    if first == b"n":
        raise InvalidRequest("ExtenderArgs has neither NodeNames nor Nodes")
    if first != b"[":
        raise InvalidRequest("ExtenderArgs.NodeNames is no array")
    return ExtenderArgs(read.pod, None, read.node_names, _NULL)


def _cut_up(body: bytes) -> ExtenderArgs | None:
    """The request, if it is laid out as Go writes it: then only the pod is parsed here, and the nodes, most of it, are
    cut out.

    It is the pod's braces that tell where we are: what stands before the nodes and is closed by one brace must be JSON,
    so their key is the request's own and no deeper one. A list of names has one closing bracket, its own.
    """
    end = body.find(_AFTER_POD)
    start = end + len(_AFTER_POD)
    names = start + len(_BEFORE_NAMES)
    is_named = body.startswith(_BEFORE_LIST, start) and body.find(b"]", names) == len(body) - 2 and body.endswith(b"}")
    if not is_named and not (body.startswith(b"{", start) and body.endswith(_AFTER_NODES)):
        return None
    try:
        pod = _HEAD.decode(body[:end] + b"}").pod
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None  # whoever parses all of it will say what is wrong
    if is_named:
        return ExtenderArgs(pod, None, msgspec.Raw(memoryview(body)[names:-1]), _NULL)
    return _with_nodes(pod, msgspec.Raw(memoryview(body)[start : -len(_AFTER_NODES)]))


def _with_nodes(pod: Pod, nodes: msgspec.Raw) -> ExtenderArgs:
    return ExtenderArgs(pod, _decode(_NODE_LIST, nodes, "ExtenderArgs.Nodes").items or [], _NULL, nodes)


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
    """The body of a filter answer, as `msgspec` would write it, but for its buffer that grows by being copied."""
    pieces = (
        b'{"Nodes":',
        result.nodes or b"null",
        b',"NodeNames":',
        result.node_names or b"null",
        b',"FailedNodes":',
        result.failed_nodes,
        b',"FailedAndUnresolvableNodes":',
        result.failed_and_unresolvable_nodes,
        b',"Error":',
        _ENCODER.encode(result.error) if result.error else b'""',
        b"}",
    )
    return b"".join(pieces)


def encode_priorities(hosts: Mapping[int, Sequence[bytes]]) -> bytes:
    """The body of a prioritize answer, from quoted names by score: a bare array; a node that is not in it scores 0.

    Scores are integers, 0-10: a fraction makes kube-scheduler drop the whole answer.
    """
    entries = (
        b'{"Host":%b,"Score":%d}' % ((b',"Score":%d},{"Host":' % score).join(raw_names), score)
        for score, raw_names in hosts.items()
        if raw_names
    )
    return b"[%b]" % b",".join(entries)


def encode_preemption_result(result: ExtenderPreemptionResult) -> bytes:
    """The body of a preempt answer."""
    return _ENCODER.encode(result)


def quote(name: NodeName) -> bytes:
    """The name as JSON text, in the one way in which names are compared here."""
    return _ENCODER.encode(name)


def unquote(raw_names: bytes) -> NodeName:
    """The name that `quote` made this of."""
    return _NAME.decode(raw_names)


def _failed(raw_names: Iterable[bytes], reason: str) -> msgspec.Raw:
    """An object that gives each name the same reason."""
    value = b":" + _ENCODER.encode(reason)
    return _joined(raw_names, b"{", value + b",", value + b"}")


def _joined(texts: Iterable[bytes], opening: bytes, between: bytes, closing: bytes) -> msgspec.Raw:
    """The texts between the others, copied once: they may be hundreds of kilobytes."""
    pieces = list(texts)
    if not pieces:
        return msgspec.Raw(opening + closing[-1:])
    pieces[0] = opening + pieces[0]
    pieces[-1] += closing
    return msgspec.Raw(between.join(pieces))


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
