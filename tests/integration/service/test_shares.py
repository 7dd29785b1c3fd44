"""A share of the pods of one template has the preference, though decisions are kept by template."""

import time
from typing import Any

import msgspec

from extender.credentials.keyring import ANONYMOUS, Keyring
from extender.images.content import Content
from extender.images.manifest import Kind
from extender.images.platform import Platform
from extender.images.reference import digest_of
from extender.kubernetes.core_v1 import NodeName
from extender.placement.nodes import NodeLookup, NodePlatforms
from extender.placement.policy import PREFER_SHARE, Policy, PreferenceBy
from extender.resolver.pod_resolver import PodResolver
from extender.resolver.resolver import Resolver
from extender.scheduler.verbs import SchedulerVerbs

IMAGE = "registry.example.com/team/app:1"
AMD64, ARM64 = Platform("linux", "amd64"), Platform("linux", "arm64")
PODS = 500


class Nobody:
    """A registry client that is never made."""


class View:
    """Two nodes."""

    platforms = NodePlatforms({NodeName("amd"): AMD64, NodeName("arm"): ARM64})
    synced = True
    is_current = True

    async def find(self, names: Any, wait_seconds: float) -> NodeLookup:
        """Finds none."""
        return NodeLookup(absent=tuple(names))


def verbs(annotations: dict[str, dict[str, str]]) -> SchedulerVerbs:
    """The verbs with a strict preference for arm64, and a multi-arch image in memory."""
    client: Any = Nobody()
    view: Any = View()
    resolver = Resolver(client, size=10, tag_seconds=900, stale_seconds=86400, clock=time.monotonic)
    target: Any = resolver.cache.references.target_of(IMAGE)
    content = Content(Kind.INDEX, frozenset({AMD64, ARM64}), states_platforms=True)
    resolver.cache.learn(target, ANONYMOUS.id, digest_of(b"x"), content, time.monotonic())
    policy = Policy(preference={"arm64": 10}, preference_by=PreferenceBy.FILTER)
    pods = PodResolver(resolver, Keyring(), policy, annotations.get, lambda: None)
    return SchedulerVerbs(pods, nodes=view, wait_seconds=0, pending_limit_seconds=30, clock=time.monotonic)


def request(name: str, namespace: str) -> bytes:
    """A filter request about a replica."""
    owner = {"kind": "StatefulSet", "name": "db", "controller": True}
    metadata = {"name": name, "namespace": namespace, "ownerReferences": [owner]}
    pod = {"metadata": metadata, "spec": {"containers": [{"image": IMAGE}]}}
    return msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": ["amd", "arm"]})


async def test_pods_of_one_template_are_decided_about_one_by_one() -> None:
    """A fifth of them is kept on arm64, twice the same ones; a namespace without a share has them all there."""
    made = verbs({"some": {PREFER_SHARE: "20%"}})

    async def preferring(namespace: str) -> list[int]:
        answers = [await made.filter(request(f"db-{index}", namespace)) for index in range(PODS)]
        return [index for index, answer in enumerate(answers) if b'["arm"]' in answer.body]

    some = await preferring("some")
    assert abs(len(some) - PODS / 5) <= 3 * PODS / 100
    assert await preferring("some") == some
    assert await preferring("all") == list(range(PODS))
