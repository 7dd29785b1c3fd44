"""The scheduler extender protocol: kube-scheduler's requests and our responses, with Go's field names.

Source: k8s.io/kube-scheduler/extender/v1/types.go, unchanged since v0.30. A request lists its nodes in one of two
forms, `NodeNames` (`nodeCacheCapable: true`) or whole `Nodes`, and the response uses the same form. Returned nodes are
cut from the request's bytes, so they keep fields unknown here. Decisions are made in `placement`.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from typing import TypeVar

import msgspec

from extender.errors import UNDECODABLE, InvalidRequest
from extender.kubernetes.core_v1 import Node, NodeList, NodeName, Pod
from extender.kubernetes.meta_v1 import ObjectMeta

_NULL = msgspec.Raw(b"null")
_NONE_FAILED = msgspec.Raw(b"{}")
_T = TypeVar("_T")


class GoWire(msgspec.Struct, frozen=True, rename="pascal", gc=False):
    """The base of structs whose Go types have no JSON tags: their keys are PascalCase."""


class ExtenderFilterResult(GoWire, frozen=True):
    """The nodes that remain, and two objects that map each other node's name to the reason for its refusal.

    kube-scheduler reads a null list as *no node*, so one of the two lists is filled unless there is an `error`. With an
    `error` it ignores all other fields.
    """

    nodes: msgspec.Raw | None = None
    node_names: msgspec.Raw | None = None
    failed_nodes: msgspec.Raw = _NONE_FAILED
    failed_and_unresolvable_nodes: msgspec.Raw = _NONE_FAILED
    error: str = ""


class HostPriority(GoWire, frozen=True):
    """The score of one node."""

    host: NodeName
    score: int


class MetaPod(GoWire, frozen=True):
    """A victim by its uid."""

    uid: str = msgspec.field(name="UID")


class MetaVictims(GoWire, frozen=True):
    """The pods to evict from one node; an empty list is valid since 1.38."""

    pods: list[MetaPod]
    num_pdb_violations: int = msgspec.field(name="NumPDBViolations")


class ExtenderPreemptionResult(GoWire, frozen=True):
    """The nodes on which preemption may go on. Victims are given by uid, whatever the request's form was."""

    node_name_to_meta_victims: Mapping[NodeName, msgspec.Raw | MetaVictims]


class ExtenderArgs(msgspec.Struct, frozen=True, dict=True):
    """A filter or prioritize request.

    In the `NodeNames` form `nodes` is None and `node_names` is an undecoded JSON array. In the other form `raw_nodes`
    is the NodeList from which `nodes` were decoded. If a request has both (kubernetes/kubernetes#126425) its nodes
    count, because kube-scheduler accepts nodes in the response whatever its `nodeCacheCapable` is.
    """

    pod: Pod
    nodes: list[Node] | None
    node_names: msgspec.Raw
    raw_nodes: msgspec.Raw

    @functools.cached_property
    def names(self) -> list[NodeName]:
        """The names of the requested nodes, in order; empty for a node without a name. Decoded when first read.

        Raises:
            InvalidRequest: `NodeNames` has an item that is not a string.
        """
        if self.nodes is None:
            return _decode(_NAMES, self.node_names, "ExtenderArgs.NodeNames")
        return [node.name for node in self.nodes]

    @functools.cached_property
    def is_plain(self) -> bool:
        """Whether names can be written to JSON as they are: nothing in their JSON was escaped."""
        return self.nodes is None and b"\\" not in bytes(self.node_names)

    def echo(self) -> ExtenderFilterResult:
        """The response that keeps every node, made of the request's own bytes."""
        if self.nodes is None:
            return ExtenderFilterResult(node_names=self.node_names)
        return ExtenderFilterResult(nodes=self.raw_nodes)

    def keep(
        self, names: Sequence[NodeName], refused: Sequence[tuple[str, Sequence[NodeName]]]
    ) -> ExtenderFilterResult:
        """The response that keeps the nodes of these names, in their order, and refuses others for a reason each.

        A node in neither is left out. Nodes are refused as *unresolvable*: evicting pods from them would not help.
        """
        failed = msgspec.Raw(self._encode_refused(refused))
        if self.nodes is None:
            return ExtenderFilterResult(
                node_names=msgspec.Raw(_ENCODER.encode(names)), failed_and_unresolvable_nodes=failed
            )
        kept = frozenset(names)
        items = b",".join(compress(_RAW_NODE_LIST.decode(self.raw_nodes).items, [name in kept for name in self.names]))
        return ExtenderFilterResult(nodes=msgspec.Raw(b'{"items":[%b]}' % items), failed_and_unresolvable_nodes=failed)

    def _encode_refused(self, refused: Sequence[tuple[str, Sequence[NodeName]]]) -> bytes:
        if not self.is_plain:
            return _ENCODER.encode({name: reason for reason, names in refused for name in names})
        parts = [
            _joined(names, '"', f'":{_ENCODER.encode(reason).decode()}', *ends)
            for (reason, names), ends in zip(refused, _ends("{", len(refused), "}"), strict=True)
        ]
        return "".join(parts).encode() or b"{}"

    def encode_scores(self, hosts: Mapping[int, Sequence[NodeName]]) -> bytes:
        """The body of a prioritize response, as `encode_priorities` gives it; each score has hosts of these names."""
        if not self.is_plain:
            return encode_priorities(hosts)
        parts = [
            _joined(names, '{"Host":"', f'","Score":{score}}}', *ends)
            for (score, names), ends in zip(hosts.items(), _ends("[", len(hosts), "]"), strict=True)
        ]
        return "".join(parts).encode() or b"[]"


def _ends(first: str, number: int, last: str) -> Iterator[tuple[str, str]]:
    """What is before and after each of so many parts of one JSON text, which begins and ends so."""
    for index in range(number):
        yield "," if index else first, "" if index < number - 1 else last


def _joined(names: Sequence[NodeName], before: str, after: str, first: str, last: str) -> str:
    """All names with these around each, and two more around the whole: joined once, as it may have 500 KB."""
    texts: list[str] = [*names]
    texts[0] = f"{first}{before}{texts[0]}"
    texts[-1] = f"{texts[-1]}{after}{last}"
    return f"{after},{before}".join(texts)


class ExtenderPreemptionArgs(msgspec.Struct, frozen=True):
    """A preempt request: the victims on each candidate node, already in the response's form."""

    pod: Pod
    victims: Mapping[NodeName, msgspec.Raw | MetaVictims]

    def echo(self) -> ExtenderPreemptionResult:
        """The response that lets preemption go on for every candidate."""
        return ExtenderPreemptionResult(self.victims)


class _Args(GoWire, frozen=True):
    pod: msgspec.Raw = _NULL
    nodes: msgspec.Raw = _NULL
    node_names: msgspec.Raw = _NULL


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


# Whole nodes are decoded twice if some are refused: once for the fields that decide, once for the raw bytes to return.
# That is faster than splitting them into raw nodes first and decoding each.
_ARGS = msgspec.json.Decoder(_Args)
_POD = msgspec.json.Decoder(Pod)
_NAMES = msgspec.json.Decoder(list[NodeName])
_NODE_LIST = msgspec.json.Decoder(NodeList)
_RAW_NODE_LIST = msgspec.json.Decoder(_RawNodeList)
_PREEMPTION_ARGS = msgspec.json.Decoder(_PreemptionArgs)
_ENCODER = msgspec.json.Encoder()


def decode_args(body: bytes) -> ExtenderArgs:
    """The filter or prioritize request in `body`. Missing and null fields are empty; unknown fields are ignored.

    Raises:
        InvalidRequest: `body` is not such an object, has no pod, or has neither list of nodes. kube-scheduler always
            sends one of them. Echoing two null lists would refuse every node without a reason.
    """
    read = _decode(_ARGS, body, "ExtenderArgs")
    if read.pod == _NULL:
        raise InvalidRequest("ExtenderArgs.Pod is missing")
    pod = _decode(_POD, read.pod, "ExtenderArgs.Pod")
    if read.nodes != _NULL:
        nodes = _decode(_NODE_LIST, read.nodes, "ExtenderArgs.Nodes").items or []
        return ExtenderArgs(pod, nodes, _NULL, read.nodes)
    first = bytes(memoryview(read.node_names)[:1])
    if first == b"n":
        raise InvalidRequest("ExtenderArgs has neither NodeNames nor Nodes")
    if first != b"[":
        raise InvalidRequest("ExtenderArgs.NodeNames is no array")
    return ExtenderArgs(pod, None, read.node_names, _NULL)


def decode_preemption_args(body: bytes) -> ExtenderPreemptionArgs:
    """The preempt request in `body`, in either form; no candidates if both are empty.

    Raises:
        InvalidRequest: `body` is not such an object or has no pod.
    """
    args = _decode(_PREEMPTION_ARGS, body, "ExtenderPreemptionArgs")
    if args.pod is None:
        raise InvalidRequest("ExtenderPreemptionArgs.Pod is missing")
    if args.node_name_to_meta_victims:
        return ExtenderPreemptionArgs(args.pod, args.node_name_to_meta_victims)
    victims = args.node_name_to_victims or {}
    return ExtenderPreemptionArgs(args.pod, {name: _by_uid(found) for name, found in victims.items()})


def encode_filter_result(result: ExtenderFilterResult) -> bytes:
    """The body of a filter response, as `msgspec` would encode it but without the copies of its growing buffer."""
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


def encode_priorities(hosts: Mapping[int, Sequence[NodeName]]) -> bytes:
    """The body of a prioritize response, from names by score: a bare array. A node not in it scores 0.

    Scores are integers from 0 to 10. A fraction would make kube-scheduler drop the whole response.
    """
    return _ENCODER.encode([HostPriority(name, score) for score, names in hosts.items() for name in names])


def encode_preemption_result(result: ExtenderPreemptionResult) -> bytes:
    """The body of a preempt response."""
    return _ENCODER.encode(result)


def _by_uid(victims: _Victims | None) -> MetaVictims:
    if victims is None:
        return MetaVictims([], 0)
    pods = [MetaPod((pod.metadata and pod.metadata.uid) or "") for pod in victims.pods or ()]
    return MetaVictims(pods, victims.num_pdb_violations)


def _decode(decoder: msgspec.json.Decoder[_T], body: bytes | msgspec.Raw, what: str) -> _T:
    try:
        return decoder.decode(body)
    except UNDECODABLE as exc:
        raise InvalidRequest(f"{what}: {exc}") from exc
