"""The extender protocol's bytes, as Go's encoding/json writes and reads them."""

import json
from typing import Any

import pytest

from extender.errors import InvalidRequest
from extender.kubernetes.core_v1 import NodeName, NodeStatus, NodeSystemInfo
from extender.kubernetes.extender_v1 import (
    ExtenderFilterResult,
    decode_args,
    decode_preemption_args,
    encode_filter_result,
    encode_preemption_result,
    encode_priorities,
)

POD = (
    b'{"metadata":{"name":"web-1","namespace":"shop","uid":"6f9e","creationTimestamp":null,'
    b'"annotations":{"multiarch-extender.io/mode":"observe"}},'
    b'"spec":{"volumes":[{"name":"token","projected":{"sources":[]}},{"name":"data","image":{"reference":"r.example/d:1"}}],'
    b'"initContainers":[{"name":"proxy","image":"r.example/proxy:1","restartPolicy":"Always","resources":{}}],'
    b'"containers":[{"name":"web","image":"r.example/web:1","resources":{},"imagePullPolicy":"Always"}],'
    b'"schedulerName":"default-scheduler","tolerations":[{"operator":"Exists"}]},'
    b'"status":{"phase":"Pending","nominatedNodeName":"n1"}}'
)
NODE = (
    b'{"metadata":{"name":"%s","labels":{"kubernetes.io/arch":"arm64"},"x-unknown":[1.50,1e3,"\\u003c"]},'
    b'"spec":{"taints":null},"status":{"nodeInfo":{"architecture":"arm64","operatingSystem":"linux","swap":{}}}}'
)
BY_NAME = b'{"Pod":' + POD + b',"Nodes":null,"NodeNames":["n1","n2","n3"]}'
LIST = b'{"metadata":{"resourceVersion":"7"},"items":[' + b",".join(NODE % n for n in (b"n1", b"n2", b"n3")) + b"]}"
BY_NODE = b'{"Pod":' + POD + b',"Nodes":' + LIST + b',"NodeNames":null}'
DEEPER = b'{"Pod":{"metadata":{"name":"p"},"x":{"y":[],"Nodes":null,"NodeNames":["deep"]}},"NodeNames":["n1"]}'
LATER = b'{"Pod":{"metadata":{"name":"p"}},"Nodes":null,"NodeNames":["n1"],"Later":["x"]}'
TEXT = b'{"Pod":{"metadata":{"name":"p","x":",\\"Nodes\\":null,\\"NodeNames\\":["}},"Nodes":null,"NodeNames":["n1"]}'
META = (
    b'{"n1":{"Pods":[{"UID":"u1"},{"UID":"u2"}],"NumPDBViolations":1,"Later":[]},"n2":{"Pods":[],"NumPDBViolations":0}}'
)


def answer_of(result: ExtenderFilterResult) -> dict[str, Any]:
    decoded = json.loads(encode_filter_result(result))
    assert isinstance(decoded, dict)
    return decoded


def refuse(body: bytes, refused: bytes) -> ExtenderFilterResult:
    args = decode_args(body)
    parts = {flag: [name for name, own in zip(args.names, refused, strict=True) if own == flag] for flag in (0, 1)}
    return args.keep(parts[0], [("why", parts[1])] if parts[1] else [])


def test_a_request_is_read_with_everything_that_pod_and_nodes_hold() -> None:
    """In both forms; what is not known is ignored."""
    named, whole = decode_args(BY_NAME), decode_args(BY_NODE)
    assert named.names == whole.names == ["n1", "n2", "n3"]
    assert named.nodes is None
    metadata, spec = named.pod.metadata, named.pod.spec
    assert metadata is not None
    assert (metadata.uid, metadata.namespace) == ("6f9e", "shop")
    assert [container.image for container in (spec and spec.containers) or ()] == ["r.example/web:1"]
    status = whole.nodes[0].status if whole.nodes else None
    assert status == NodeStatus(NodeSystemInfo("arm64", "linux"))


def test_what_is_unchanged_is_given_back_byte_for_byte() -> None:
    """An answer that keeps every node holds the request's own list, however it was written."""
    for names in (b'["n1","n2"]', b'[ "n1" ,\n\t"n2"]', b"[]", b'["n\\u0031","n1"]'):
        result = decode_args(b'{"Pod":{},"NodeNames":' + names + b"}").echo()
        assert b'"NodeNames":' + names + b"," in encode_filter_result(result)
    assert b'"Nodes":' + LIST + b"," in encode_filter_result(decode_args(BY_NODE).echo())


def test_kept_nodes_are_given_back_byte_for_byte() -> None:
    """Where some are refused, the others keep their bytes: unknown fields and odd numbers survive."""
    result = refuse(BY_NODE, b"\0\1\0")
    items = b'{"items":[' + NODE % b"n1" + b"," + NODE % b"n3" + b"]}"
    assert result.nodes is not None
    assert bytes(result.nodes) == items
    assert result.node_names is None
    assert bytes(result.failed_and_unresolvable_nodes) == b'{"n2":"why"}'


def test_refused_names_leave_the_list_and_get_the_reason() -> None:
    assert answer_of(refuse(BY_NAME, b"\0\1\0")) == {
        "Nodes": None,
        "NodeNames": ["n1", "n3"],
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {"n2": "why"},
        "Error": "",
    }


@pytest.mark.parametrize(("body", "field", "nothing"), [(BY_NAME, "NodeNames", []), (BY_NODE, "Nodes", {"items": []})])
def test_no_node_left_is_an_empty_list_not_null(body: bytes, field: str, nothing: object) -> None:
    """A null list would take the reasons' place in what kube-scheduler shows; an empty one does not."""
    answer = answer_of(refuse(body, b"\1\1\1"))
    assert answer[field] == nothing
    assert answer["FailedAndUnresolvableNodes"] == {"n1": "why", "n2": "why", "n3": "why"}


def test_nodes_count_where_both_forms_are_filled() -> None:
    """kube-scheduler accepts nodes in either of its modes, and names in one only."""
    body = b'{"Pod":' + POD + b',"Nodes":' + LIST + b',"NodeNames":["n1","n2","n3"]}'
    args = decode_args(body)
    assert args.nodes is not None
    assert answer_of(args.echo())["NodeNames"] is None
    assert len(answer_of(refuse(body, b"\1\0\0"))["Nodes"]["items"]) == 2


def test_missing_and_null_fields_are_empty() -> None:
    for body, names in (
        (b'{"Pod":{},"NodeNames":[]}', []),
        (b'{"Pod":{"metadata":null,"spec":null},"NodeNames":["n"]}', ["n"]),
        (b'{"Pod":{"spec":{"containers":null,"volumes":null}},"NodeNames":["n"]}', ["n"]),
        (b'{"Pod":{"spec":{"containers":[{"image":null}]}},"NodeNames":["n"],"Later":1}', ["n"]),
        (b'{"Pod":{},"Nodes":{}}', []),
        (b'{"Pod":{},"Nodes":{"metadata":{},"items":null}}', []),
        (b'{"Pod":{},"Nodes":{"items":[{},{"metadata":null},{"metadata":{"name":"n"}}]}}', ["", "", "n"]),
    ):
        args = decode_args(body)
        assert args.names == names


@pytest.mark.parametrize(
    ("body", "where"),
    [
        (b"", "ExtenderArgs"),
        (b'{"Pod":{}', "ExtenderArgs"),
        (b"[]", "ExtenderArgs"),
        (b'{"NodeNames":["n"]}', "ExtenderArgs.Pod is missing"),
        (b'{"Pod":null,"NodeNames":["n"]}', "ExtenderArgs.Pod is missing"),
        (b'{"pod":{},"nodeNames":["n"]}', "ExtenderArgs.Pod is missing"),
        (b'{"Pod":{}}', "neither NodeNames nor Nodes"),
        (b'{"Pod":{},"Nodes":null,"NodeNames":null}', "neither NodeNames nor Nodes"),
        (b'{"Pod":{},"NodeNames":"n"}', "NodeNames is no array"),
        (b'{"Pod":{},"NodeNames":{}}', "NodeNames is no array"),
        (b'{"Pod":{},"Nodes":[]}', "ExtenderArgs.Nodes: Expected `object`"),
        (b'{"Pod":{},"Nodes":{"items":[null]}}', "ExtenderArgs.Nodes: Expected `object`"),
        (b'{"Pod":{"spec":{"containers":{}}},"NodeNames":[]}', "ExtenderArgs.Pod: Expected `array | null`"),
        (b'{"Pod":{"metadata":{"name":"\xff"}},"NodeNames":[]}', "ExtenderArgs"),
        (b'{"Pod":{"x":' + b"[" * 100_000, "ExtenderArgs"),
    ],
    ids=[
        "empty", "cut-off", "array", "no-pod", "null-pod", "other-case", "no-form", "null-forms", "names-text",
        "names-object", "nodes-array", "null-node", "containers-object", "no-utf8", "deep",
    ],
)  # fmt: skip
def test_what_is_no_request_is_refused_with_the_place(body: bytes, where: str) -> None:
    """The caller's mistake is named, and never answered as if it had asked about no nodes."""
    with pytest.raises(InvalidRequest) as caught:
        decode_args(body)
    assert where in str(caught.value)


def test_names_that_are_no_strings_are_refused_when_read() -> None:
    """The list is not looked into before it must be, and then its mistakes are the caller's."""
    for names in (b"[1]", b'["n1",null]', b'["\xff"]'):
        args = decode_args(b'{"Pod":{},"NodeNames":' + names + b"}")
        with pytest.raises(InvalidRequest, match=r"ExtenderArgs\.NodeNames"):
            assert args.names


def test_error_is_said_with_every_key_go_would_write() -> None:
    assert encode_filter_result(ExtenderFilterResult(error="image x is not known yet")) == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},'
        b'"Error":"image x is not known yet"}'
    )


def test_priorities_are_a_bare_array_of_integers() -> None:
    """A fraction, or an object around the array, would make kube-scheduler drop the whole answer."""
    hosts = {10: [NodeName("n1"), NodeName("n3")], 4: [], 3: [NodeName("n2")]}
    assert encode_priorities(hosts) == b'[{"Host":"n1","Score":10},{"Host":"n3","Score":10},{"Host":"n2","Score":3}]'
    assert encode_priorities({}) == encode_priorities({10: []}) == b"[]"


ODD = ["n1", 'a"b', "c\\d", "e\nf", "g\u00e9", ""]
"""Names that no node has, and that a request may hold all the same."""


@pytest.mark.parametrize("names", [ODD, ["n1", "n2", "n3", "g\u00e9", "", "x"]], ids=["odd", "plain"])
def test_names_are_written_as_they_were_read(names: list[str]) -> None:
    """Whether their JSON was escaped or not: refused for several reasons, kept, and with scores."""
    args = decode_args(json.dumps({"Pod": {}, "NodeNames": names}, ensure_ascii=names is ODD).encode())
    reason = 'image "x" is \\ built'
    refused = [(reason, args.names[:2]), ("late", args.names[2:4])]
    answer = answer_of(args.keep(args.names[4:], refused))
    assert answer["NodeNames"] == names[4:]
    assert answer["FailedAndUnresolvableNodes"] == {
        **dict.fromkeys(names[:2], reason), **dict.fromkeys(names[2:4], "late")
    }  # fmt: skip
    hosts = {10: args.names[:3], 4: args.names[3:4]}
    assert json.loads(args.encode_scores(hosts)) == json.loads(encode_priorities(hosts))
    assert args.encode_scores({}) == b"[]"


@pytest.mark.parametrize("nodes", [b'"Nodes":null,', b'"Nodes": null,', b""], ids=["go", "spaced", "left-out"])
def test_names_are_read_however_they_are_written(nodes: bytes) -> None:
    """As JSON has them."""
    many = json.dumps([f"node-{index}.zone-1.example.com" for index in range(700)]).encode()
    for names in (b'["n1","n2"]', b"[]", b'[ "n1", "n2" ]', b'["n\\u0031"]', b'["n,1"]', b'["n]1"]', many):
        args = decode_args(b'{"Pod":{"metadata":{"name":"p"}},' + nodes + b'"NodeNames":' + names + b"}")
        assert args.pod.metadata is not None
        assert args.pod.metadata.name == "p"
        assert args.names == json.loads(names)


def test_names_are_found_where_the_request_has_them() -> None:
    """Not where the pod, or a text, has keys of the same names."""
    for body in (DEEPER, LATER, TEXT):
        args = decode_args(body)
        assert args.names == ["n1"]
        assert bytes(args.node_names) == b'["n1"]'


FULL = (
    b'{"n1":{"Pods":[{"metadata":{"name":"a","uid":"u1"},"spec":{"affinity":{}},"status":{}},{"metadata":{"uid":"u2"}}],'
    b'"NumPDBViolations":1},"n2":{"Pods":null,"NumPDBViolations":0},"n3":null}'
)


def test_meta_victims_are_given_back_byte_for_byte() -> None:
    """With `nodeCacheCapable: true` the victims come as identifiers and go back as they came, empty lists included."""
    body = b'{"Pod":' + POD + b',"NodeNameToVictims":null,"NodeNameToMetaVictims":' + META + b"}"
    answer = encode_preemption_result(decode_preemption_args(body).echo())
    assert answer == b'{"NodeNameToMetaVictims":' + META + b"}"


def test_full_victims_are_given_back_as_identifiers() -> None:
    """With `nodeCacheCapable: false` the victims come as pods, and the answer still names them by uid."""
    body = b'{"Pod":' + POD + b',"NodeNameToVictims":' + FULL + b',"NodeNameToMetaVictims":null}'
    none = {"Pods": [], "NumPDBViolations": 0}
    assert json.loads(encode_preemption_result(decode_preemption_args(body).echo())) == {
        "NodeNameToMetaVictims": {
            "n1": {"Pods": [{"UID": "u1"}, {"UID": "u2"}], "NumPDBViolations": 1}, "n2": none, "n3": none
        }
    }  # fmt: skip


def test_no_candidates_is_an_empty_map() -> None:
    for fields in (b"", b',"NodeNameToVictims":null,"NodeNameToMetaVictims":null', b',"NodeNameToVictims":{}'):
        answer = encode_preemption_result(decode_preemption_args(b'{"Pod":{}' + fields + b"}").echo())
        assert answer == b'{"NodeNameToMetaVictims":{}}'


def test_what_is_no_preemption_request_is_refused_with_the_place() -> None:
    for body, where in (
        (b"nonsense", "ExtenderPreemptionArgs"),
        (b'{"NodeNameToMetaVictims":{}}', r"ExtenderPreemptionArgs\.Pod is missing"),
        (b'{"Pod":{},"NodeNameToMetaVictims":[]}', r"\$\.NodeNameToMetaVictims"),
        (b'{"Pod":{},"NodeNameToVictims":{"n1":{"Pods":[{"metadata":7}]}}}', "metadata"),
    ):
        with pytest.raises(InvalidRequest, match=where):
            decode_preemption_args(body)
