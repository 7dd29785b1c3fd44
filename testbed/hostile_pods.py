"""Pods that are as dear as their author can make them: one part of each is as large as an API server lets it be."""

import itertools
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

Json = Any
LABEL = "kubernetes.io/arch"
PREFIX = "multiarch-extender.io/"
RECORD = f"{PREFIX}added"
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


def hostile_pod(part: str, size_bytes: int, image: str) -> dict[str, Json]:
    """A pod of which this part, one of `PARTS`, has about `size_bytes`. It runs `image`, which should be known."""
    pod = _pod(image)
    _PARTS[part](pod, size_bytes)
    return pod


def gated(pod: Mapping[str, Json]) -> dict[str, Json]:
    """The pod as a policy in the API server has gated it."""
    gates = [*pod["spec"].get("schedulingGates", ()), {"name": f"{PREFIX}platforms"}]
    labels = {**pod["metadata"].get("labels", {}), f"{PREFIX}gated": "true"}
    return {**pod, "metadata": {**pod["metadata"], "labels": labels}, "spec": {**pod["spec"], "schedulingGates": gates}}


def of_daemon_set(pod: Mapping[str, Json]) -> dict[str, Json]:
    """The pod as if a DaemonSet owned it."""
    owners = [*pod["metadata"].get("ownerReferences", ()), {"kind": "DaemonSet", "name": "d", "controller": True}]
    return {**pod, "metadata": {**pod["metadata"], "ownerReferences": owners}}


def _pod(image: str) -> dict[str, Json]:
    containers = [{"name": "app", "image": image}]
    return {"metadata": {"name": "p", "namespace": "shop"}, "spec": {"containers": containers}}


def _fill(size_bytes: int, item: Callable[[int], Json]) -> list[Json]:
    """Items, which differ by their number, until they have this size."""
    found, left = list[Json](), size_bytes
    for number in itertools.count():
        each = item(number)
        left -= len(msgspec.json.encode(each)) + 1
        if left < 0:
            return found
        found.append(each)
    return found


def _at(*path: str) -> Callable[[dict[str, Json], Json], None]:
    def put(pod: dict[str, Json], value: Json) -> None:
        found = pod
        for step in path[:-1]:
            found = found.setdefault(step, {})
        found[path[-1]] = value

    return put


def _list(item: Callable[[int], Json], *path: str) -> Callable[[dict[str, Json], int], None]:
    put = _at(*path)
    return lambda pod, size_bytes: put(pod, _fill(size_bytes, item))


def _map(entry: Callable[[int], tuple[str, Json]], *path: str) -> Callable[[dict[str, Json], int], None]:
    put = _at(*path)
    return lambda pod, size_bytes: put(pod, dict(each for each in _fill(size_bytes, entry)))


def _text(*path: str, letter: str = "x") -> Callable[[dict[str, Json], int], None]:
    put = _at(*path)
    return lambda pod, size_bytes: put(pod, letter * (size_bytes // len(letter.encode())))


def _in(number: int, *values: str, operator: str = "NotIn") -> Json:
    return {"key": LABEL, "operator": operator, "values": list(values) or [f"a{number}"]}


def _term(number: int) -> Json:
    return {"matchExpressions": [_in(number)]}


def _values(pod: dict[str, Json], size_bytes: int) -> None:
    half = _fill(size_bytes // 2, lambda number: f"a{number}")
    terms = [{"matchExpressions": [_in(0, *half, operator="In"), _in(0, *half, operator="NotIn")]}]
    _at("spec", "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")(pod, terms)


def _selector_and_terms(pod: dict[str, Json], size_bytes: int) -> None:
    _map(lambda number: (f"k{number}", ""), "spec", "nodeSelector")(pod, size_bytes // 2)
    _list(_term, *_TERMS)(pod, size_bytes // 2)


def _large_term(pod: dict[str, Json], size_bytes: int) -> None:
    values = _fill(size_bytes, lambda number: f"zone-{number}")
    terms = [{"matchExpressions": [{"key": "zone", "operator": "In", "values": values}]}]
    _at(*_TERMS)(pod, terms)


def _program(pod: dict[str, Json], size_bytes: int) -> None:
    mounts = [{"name": "v", "mountPath": "/a"}]
    pod["spec"]["containers"][0] |= {"command": ["/a/b"], "volumeMounts": mounts}
    _list(_empty, "spec", "volumes")(pod, size_bytes)


def _programs(pod: dict[str, Json], size_bytes: int) -> None:
    """As many containers as are read, whose programs are in one of many volumes."""
    mounts = [{"name": "v0", "mountPath": f"/m{number}/../a"} for number in range(max(1, size_bytes // 512 // 40))]
    pod["spec"]["containers"] = [
        {"image": f"a{each}", "command": ["/a/b"], "volumeMounts": mounts} for each in range(255)
    ]
    _list(lambda number: {"name": f"v{number}", "configMap": {}}, "spec", "volumes")(pod, size_bytes // 2)


def _most_terms(pod: dict[str, Json], size_bytes: int) -> None:
    """As many terms and requirements as are read, and values to fill them."""
    texts = max(1, size_bytes // 256 // 12)
    requirements = [_in(0, *(f"a{each}-{number}" for each in range(texts))) for number in range(256)]
    terms = [{"matchExpressions": requirements[number::64]} for number in range(64)]
    _at(*_TERMS)(pod, terms)


def _record(record: Callable[[int], Json], **spec: Json) -> Callable[[dict[str, Json], int], None]:
    """A forged record of half the size, and what it names in the pod."""

    def make(pod: dict[str, Json], size_bytes: int) -> None:
        text = msgspec.json.encode(record(size_bytes // 3)).decode()
        _at("metadata", "annotations", RECORD)(pod, text)
        pod["spec"] |= {key: value(size_bytes // 2) for key, value in spec.items()}

    return make


def _recorded_term(number: int) -> Json:
    return {"index": number, "matchExpressions": [_in(0, "amd64", operator="In")], "whole": True}


def _alike(_: int) -> Json:
    return {"matchExpressions": [_in(0, "amd64", operator="In")]}


def _affinity(size_bytes: int) -> Json:
    return {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": _fill(size_bytes, _alike)}}}


def _nested(pod: dict[str, Json], size_bytes: int) -> None:
    value: Json = _fill(size_bytes, lambda _: {})
    for _ in range(200):
        value = [value]
    _at("spec", "affinity", "future")(pod, value)


def _empty(_: int) -> Json:
    return {}


_TERMS = ("spec", "affinity", "nodeAffinity", _REQUIRED, "nodeSelectorTerms")
_PARTS: dict[str, Callable[[dict[str, Json], int], None]] = {
    "empty containers": _list(_empty, "spec", "containers"),
    "containers of one image": _list(lambda _: {"image": "a"}, "spec", "containers"),
    "unknown images": _list(lambda number: {"image": f"a{number}:1"}, "spec", "containers"),
    "invalid images": _list(lambda number: {"image": f"{number}:"}, "spec", "initContainers"),
    "ephemeral images": _list(lambda number: {"image": f"a{number}:1"}, "spec", "ephemeralContainers"),
    "a long image": lambda pod, size_bytes: _at("spec", "containers")(pod, [{"image": "y" * size_bytes}]),
    "empty volumes": _list(_empty, "spec", "volumes"),
    "volumes and programs": _programs,
    "empty volumes and a program": _program,
    "image volumes": _list(lambda number: {"image": {"reference": f"a{number}"}}, "spec", "volumes"),
    "empty tolerations": _list(_empty, "spec", "tolerations"),
    "tolerations": _list(lambda number: {"key": f"k{number}", "operator": "Exists"}, "spec", "tolerations"),
    "empty terms": _list(_empty, *_TERMS),
    "terms": _list(_term, *_TERMS),
    "terms that are none": _list(_in, *_TERMS),
    "as many terms as are read": _most_terms,
    "as many terms as are read, in few bytes": lambda pod, _: _at(*_TERMS)(pod, [_term(each) for each in range(64)]),
    "one term": lambda pod, size_bytes: _at(*_TERMS)(pod, [{"matchExpressions": _fill(size_bytes, _in)}]),
    "one term of fields": lambda pod, size_bytes: _at(*_TERMS)(
        pod, [{"matchFields": _fill(size_bytes, lambda _: {"key": "metadata.name"})}]
    ),
    "values": _values,
    "a large term": _large_term,
    "a selector and terms": _selector_and_terms,
    "preferred terms": _list(
        lambda number: {"weight": 1, "preference": _term(number)}, "spec", "affinity", "nodeAffinity", _PREFERRED
    ),
    "pod affinity": _list(lambda _: {"topologyKey": "z"}, "spec", "affinity", "podAffinity", _REQUIRED),
    "nested affinity": _nested,
    "selector": _map(lambda number: (f"k{number}", ""), "spec", "nodeSelector"),
    "empty gates": _list(_empty, "spec", "schedulingGates"),
    "gates": _list(lambda number: {"name": f"g{number}"}, "spec", "schedulingGates"),
    "our gates": _list(
        lambda number: {"name": f"{PREFIX}platforms" if number % 2 else f"g{number}"}, "spec", "schedulingGates"
    ),
    "annotations": _map(lambda number: (f"k{number}", ""), "metadata", "annotations"),
    "labels": _map(lambda number: (f"k{number}", ""), "metadata", "labels"),
    "owners": _list(_empty, "metadata", "ownerReferences"),
    "pull secrets": _list(lambda number: {"name": f"s{number}"}, "spec", "imagePullSecrets"),
    "a record of terms": _record(lambda size: {"required": _fill(size, _recorded_term)}, affinity=_affinity),
    "a record of tolerations": _record(
        lambda size: {"tolerations": _fill(size, lambda number: {"key": f"k{number}", "operator": "Exists"})},
        tolerations=lambda size: _fill(size, lambda number: {"key": f"k{number}", "operator": "Exists"}),
    ),
    "a record of containers": _record(
        lambda size: {"was": {f"/spec/tolerations/{number}": "missing" for number in range(size // 36)}}
    ),
    "a name": _text("metadata", "name"),
    "a scheduler's name": _text("spec", "schedulerName"),
    "a node's name": _text("spec", "nodeName"),
    "a RuntimeClass": _text("spec", "runtimeClassName"),
    "an operating system": _text("spec", "os", "name"),
    "a priority class": _text("spec", "priorityClassName"),
    **{
        f"annotation {name}": _text("metadata", "annotations", f"{PREFIX}{name}", letter=letter)
        for name, letter in {
            "mode": "\N{GRINNING FACE}", "prefer": "a", "prefer-share": "9", "unknown": "p",
            "reason": "x", "platforms": "linux/amd64,", "added": "[",
        }.items()
    },
}  # fmt: skip


PARTS = tuple(_PARTS)
"""The parts of a pod that can be large."""


def encode_review(created: Mapping[str, Json], kind: str = "Pod") -> bytes:
    """The review of an object's creation, as an API server sends it."""
    request = {
        "uid": "1",
        "kind": {"version": "v1", "kind": kind},
        "namespace": "shop",
        "operation": "CREATE",
        "object": created,
    }
    return msgspec.json.encode({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
