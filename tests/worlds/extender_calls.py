"""A scheduler extender as kube-scheduler calls it over HTTP.

It is written from kubernetes 1.36, pkg/scheduler/extender.go, and kube-scheduler's extender/v1/types.go. Requests have
Go's keys: PascalCase, none left out, and of nodes and names the unused one null. Pods and nodes are without kind and
managedFields. Limits: plain HTTP, no binder, no managedResources; a body is decoded as a whole, while Go stops after
the first value.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from testbed.memory_http import Client
from tests.worlds.plan import ExtenderConfig

Json = dict[str, Any]
T = TypeVar("T")
Victims = dict[str, list[Json]]
"""The pods to evict, by node."""

_ESCAPES = ((b"<", b"\\u003c"), (b">", b"\\u003e"), (b"&", b"\\u0026"))  # as encoding/json writes them


class ExtenderError(Exception):
    """The call failed; the text is what Go's error says."""


class Filtered(NamedTuple):
    """The nodes that passed, and why others did not: what eviction might change, and what it cannot."""

    passed: list[str]
    failed: Mapping[str, str]
    unresolvable: Mapping[str, str]


class _NodeMetadata(msgspec.Struct, frozen=True):
    name: str = ""


class _Node(msgspec.Struct):
    metadata: _NodeMetadata = _NodeMetadata()


class _NodeList(msgspec.Struct):
    items: list[_Node] | None = None


class _FilterResult(msgspec.Struct, rename="pascal"):
    nodes: _NodeList | None = None
    node_names: list[str] | None = None
    failed_nodes: dict[str, str] | None = None
    failed_and_unresolvable_nodes: dict[str, str] | None = None
    error: str | None = None


class _HostPriority(msgspec.Struct, rename="pascal"):
    host: str = ""
    score: int = 0


class _MetaPod(msgspec.Struct):
    uid: str = msgspec.field(name="UID", default="")


class _MetaVictims(msgspec.Struct, rename="pascal"):
    pods: list[_MetaPod] | None = None


class _PreemptionResult(msgspec.Struct, rename="pascal"):
    node_name_to_meta_victims: dict[str, _MetaVictims | None] | None = None


_FILTER = msgspec.json.Decoder(_FilterResult | None)
_PRIORITIZE = msgspec.json.Decoder(list[_HostPriority] | None)
_PREEMPT = msgspec.json.Decoder(_PreemptionResult | None)


class Extender:
    """The extender at a URL as one kube-scheduler sees it."""

    def __init__(self, client: Client, url: str, config: ExtenderConfig) -> None:
        """`url` is the urlPrefix."""
        self._client = client
        self._url = url.rstrip("/")
        self._config = config

    @property
    def is_ignorable(self) -> bool:
        """Whether scheduling goes on as if there were no extender when a call fails."""
        return self._config.ignorable

    def has(self, verb: str) -> bool:
        """Whether the configuration names the verb."""
        return verb in self._config.verbs

    async def filter(self, pod: Json, nodes: Sequence[Json]) -> Filtered:
        """Returns which of the nodes pass. Raises ExtenderError."""
        result = await self._send("filter", self._arguments(pod, nodes), _FILTER) or _FilterResult()
        if result.error:
            raise ExtenderError(result.error)
        if self._config.node_cache_capable and result.node_names is not None:
            passed = result.node_names
            asked = {node["metadata"]["name"] for node in nodes}
            if unknown := [name for name in passed if name not in asked]:
                raise ExtenderError(
                    f'extender "{self._url}" claims a filtered node "{unknown[0]}" which is not found in the input'
                    " node list"
                )
        else:
            passed = [node.metadata.name for node in (result.nodes.items if result.nodes else None) or ()]
        failed, unresolvable = result.failed_nodes or {}, result.failed_and_unresolvable_nodes or {}
        return Filtered(passed, dict(sorted(failed.items())), dict(sorted(unresolvable.items())))

    async def prioritize(self, pod: Json, nodes: Sequence[Json]) -> dict[str, int]:
        """Returns what it adds to the nodes' scores, weighted, of those that it names. Raises ExtenderError."""
        scores: dict[str, int] = {}
        for item in await self._send("prioritize", self._arguments(pod, nodes), _PRIORITIZE) or ():
            scores[item.host] = scores.get(item.host, 0) + item.score * self._config.weight * 10
        return scores

    async def preempt(self, pod: Json, victims: Victims, pods_on: Mapping[str, Mapping[str, Json]]) -> Victims:
        """Returns the nodes that are left, with the pods to evict there. `pods_on` are each node's pods by uid.

        Raises:
            ExtenderError: the call failed, or the answer names an unknown node or pod.
        """
        if self._config.node_cache_capable:
            meta = {
                node: {"Pods": [{"UID": each["metadata"]["uid"]} for each in pods], "NumPDBViolations": 0}
                for node, pods in victims.items()
            }
            body = {"Pod": _sent(pod), "NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
        else:
            full = {
                node: {"Pods": [_sent(each) for each in pods], "NumPDBViolations": 0} for node, pods in victims.items()
            }
            body = {"Pod": _sent(pod), "NodeNameToVictims": full, "NodeNameToMetaVictims": None}
        result = await self._send("preempt", body, _PREEMPT) or _PreemptionResult()
        kept: Victims = {}
        for node, meta_victims in (result.node_name_to_meta_victims or {}).items():
            if node not in pods_on:
                raise ExtenderError(f'nodeinfo not found for node name "{node}"')
            uids = [each.uid for each in (meta_victims.pods if meta_victims else None) or ()]
            if lost := [uid for uid in uids if uid not in pods_on[node]]:
                raise ExtenderError(
                    f"extender: {self._url} claims to preempt pod (UID: {lost[0]}) on node: {node}, but the pod is not"
                    " found on that node"
                )
            kept[node] = [pods_on[node][uid] for uid in uids]
        return kept

    def _arguments(self, pod: Json, nodes: Sequence[Json]) -> Json:
        """ExtenderArgs in the form that the configuration asks for."""
        if self._config.node_cache_capable:
            names = [node["metadata"]["name"] for node in nodes]
            return {"Pod": _sent(pod), "Nodes": None, "NodeNames": names}
        return {"Pod": _sent(pod), "Nodes": {"metadata": {}, "items": list(map(_sent, nodes))}, "NodeNames": None}

    async def _send(self, verb: str, arguments: Json, decoder: "msgspec.json.Decoder[T]") -> T:
        url = f"{self._url}/{verb}"
        body = msgspec.json.encode(arguments)
        for character, escape in _ESCAPES:
            body = body.replace(character, escape)
        headers = {"Content-Type": "application/json", "User-Agent": "kube-scheduler", "Accept-Encoding": "gzip"}
        try:
            response = await self._client.request(
                "POST", url, body, headers, timeout_seconds=self._config.timeout_seconds
            )
        except TimeoutError as exc:
            ended = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
            raise ExtenderError(f'Post "{url}": {ended}') from exc
        except ConnectionError as exc:
            raise ExtenderError(f'Post "{url}": {exc}') from exc
        if response.status != 200:
            raise ExtenderError(f"failed {verb} with extender at URL {url}, code {response.status}")
        try:
            return decoder.decode(response.body)
        except msgspec.DecodeError as exc:
            raise ExtenderError(str(exc)) from exc


def _sent(obj: Json) -> Json:
    """The object as the scheduler's cache has it: no kind, no managedFields."""
    metadata = {key: value for key, value in obj["metadata"].items() if key != "managedFields"}
    return {"metadata": metadata, "spec": obj.get("spec") or {}, "status": obj.get("status") or {}}
