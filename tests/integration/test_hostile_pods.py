"""Whatever the author of a pod puts into 3 MB of it, reviews stay cheap and answers small.

A user who may create pods may send them as dry runs without end, and the service has one loop. Time is what the
process used, which other processes on the machine do not change by much; what is asserted leaves room for the rest.
"""

import asyncio
import base64
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from extender.admission.daemon_pods import DaemonPods
from extender.admission.pod_admission import PodAdmission
from extender.admission.workload_admission import WorkloadAdmission
from extender.credentials.keyring import ANONYMOUS, Credential
from extender.errors import ManifestNotFound
from extender.images.content import Answer, Content
from extender.images.manifest import Image
from extender.images.platform import parse_platform
from extender.images.reference import ImageReference, digest_of
from extender.kubernetes.core_v1 import NodeName
from extender.placement.bounds import PATCH_BYTES
from extender.placement.node_kinds import NodeKinds
from extender.placement.nodes import ClusterNodes, NodePlatforms
from extender.placement.planning import AdmissionSettings
from extender.placement.templates import Templates
from extender.resolver.image_cache import Target as ImageTarget
from extender.resolver.pod_resolver import PodQuestion, PodResolver
from extender.resolver.resolver import Resolver
from extender.scheduler.verbs import SchedulerVerbs
from extender.server.routes import Reply
from testbed.clock import Clock
from testbed.hostile_pods import PARTS, encode_review, gated, hostile_pod, of_daemon_set
from tests.unit.placement.mutating import POLICY, settings
from tests.unit.resolver.fake_registry import LocalLooks, index_of, keyring_of

WIDE = "wide:1"
"""An image of 64 platforms over 8 systems, as many as are read."""
_KNOWN = {WIDE: index_of(*(f"system{number % 8}/architecture{number}" for number in range(62)), "linux/amd64")}
_NODES = {NodeName("node-amd64"): parse_platform("linux/amd64"), NodeName("node-arm64"): parse_platform("linux/arm64")}
_ANSWER_BYTES = 256 * 1024
_SECONDS_A_MEGABYTE = 0.05
_MOST_CALLS = 500_000  # 10,000 maps of an object are searched for templates; no pod takes a tenth of it


class _EmptyRegistry(LocalLooks):
    """Has no image, and answers at once."""

    async def head_manifest(self, reference: ImageReference, credential: Credential) -> str | None:
        raise ManifestNotFound("no such image")

    async def describe(self, reference: ImageReference, credential: Credential) -> Image:
        raise ManifestNotFound("no such image")


class _View:
    """The nodes of a small cluster."""

    def __init__(self) -> None:
        self.synced = True
        self.kinds = NodeKinds()
        self.platforms = NodePlatforms(_NODES)


class Outlets:
    """The service's outlets, with one image in memory."""

    def __init__(self, admission: AdmissionSettings) -> None:
        clock = Clock()
        resolver = Resolver(
            _EmptyRegistry(), size=1000, tag_seconds=1e9, stale_seconds=2e9, clock=clock, random=lambda: 0.5
        )
        for name, content in _KNOWN.items():
            target = resolver.cache.references.target_of(name)
            assert isinstance(target, ImageTarget)
            assert isinstance(content, Content)
            resolver.cache.learn(target, ANONYMOUS.id, digest_of(name.encode()), content, clock())
        pod_resolver = PodResolver(resolver, keyring_of(), POLICY, lambda _: None, lambda: None)
        view: Any = _View()
        nodes = ClusterNodes(frozenset(_NODES.values()))
        guards = DaemonPods(POLICY, view, cluster_nodes=lambda: nodes, events=None, guards=True)
        self.pods = PodAdmission(
            pod_resolver,
            admission,
            cluster_nodes=lambda: nodes,
            wait_seconds=0.0,
            can_gate=lambda: True,
            daemon_pods=guards,
        )
        self.workloads = WorkloadAdmission(
            self.pods,
            Templates(POLICY, admission, guards=True),
            cluster_nodes=lambda: nodes,
            kinds=lambda: view.kinds.numbers,
        )
        self.verbs = SchedulerVerbs(pod_resolver, nodes=view, wait_seconds=0.0, pending_limit_seconds=30.0, clock=clock)


OUTLET_SETTINGS = msgspec.structs.replace(settings("both", "multiarch", unknown="gate"), platforms_annotation=True)
_VARIANTS: dict[str, Callable[[dict[str, Any]], Mapping[str, Any]]] = {
    "as it is": lambda pod: pod,
    "held": gated,
    "of a DaemonSet": of_daemon_set,
}


def bodies(part: str, size_bytes: int) -> dict[str, bytes]:
    """The reviews of a pod with this large part, and of a queued Job that makes such pods."""
    pod = hostile_pod(part, size_bytes, WIDE)
    found = {}
    for variant, wrap in _VARIANTS.items():
        found[f"pod {variant}"] = encode_review(wrap(pod))
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "j", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
            "spec": {"template": wrap(pod)},
        }
        found[f"template {variant}"] = encode_review(job, kind="Job")
    return found


def check(body: bytes) -> None:
    """Fails unless the response allows, and is no larger than an API server and etcd bear easily."""
    assert len(body) <= _ANSWER_BYTES
    response = msgspec.json.decode(body)["response"]
    assert response["allowed"]
    assert len(base64.b64decode(response.get("patch", ""))) <= PATCH_BYTES


async def _calls(review: Awaitable[Reply]) -> tuple[Reply, int]:
    """The reply, and how many functions were called for it: a number that is the same on each machine."""
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        return await review, calls
    finally:
        sys.setprofile(None)
        await _end_lookups()


async def _end_lookups() -> None:
    await asyncio.gather(*asyncio.all_tasks() - {asyncio.current_task()}, return_exceptions=True)


@pytest.mark.parametrize("part", PARTS)
async def test_answers_are_small_and_work_grows_with_the_pod(part: str) -> None:
    """A loop within a loop over what an author writes would call functions by the million."""
    outlets = Outlets(OUTLET_SETTINGS)
    for name, body in bodies(part, 30_000).items():
        admission = outlets.pods if name.startswith("pod") else outlets.workloads
        reply, calls = await _calls(admission.review(body))
        check(reply.body)
        assert calls < _MOST_CALLS, name


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
async def test_a_review_takes_milliseconds_for_each_megabyte(part: str) -> None:
    """Of the processor, the fastest of three. It is 50 ms where the machine is not busy."""
    outlets = Outlets(OUTLET_SETTINGS)
    for size_bytes in (60_000, 3_000_000):
        for name, body in bodies(part, size_bytes).items():
            admission = outlets.pods if name.startswith("pod") else outlets.workloads
            seconds = []
            for _ in range(3):
                started = time.process_time()
                reply = await admission.review(body)
                seconds.append(time.process_time() - started)
                check(reply.body)
                await _end_lookups()
            assert min(seconds) < 2 * _SECONDS_A_MEGABYTE * max(1, len(body) / 1_000_000), name


async def test_a_huge_pod_is_admitted_unread() -> None:
    """Reading it would hold up all other reviews and probes."""
    outlets = Outlets(OUTLET_SETTINGS)
    reply, calls = await _calls(outlets.pods.review(encode_review(hostile_pod("empty volumes", 530_000, WIDE))))
    response = msgspec.json.decode(reply.body)["response"]
    assert "more than 512 KiB" in response["warnings"][0]
    assert "patch" not in response
    assert calls < 100


@pytest.mark.parametrize("part", ["a name", "a long image", "a record of terms"])
async def test_a_log_line_about_a_pod_is_short(part: str) -> None:
    """Whoever creates pods would fill the disk that logs are on."""
    outlets = Outlets(settings("both", "multiarch"))
    pod = hostile_pod(part, 300_000, "unknown:1")
    with capture_logs() as lines:
        await _calls(outlets.pods.review(encode_review(pod)))
        await asyncio.sleep(0)  # it is written after the answer
    assert lines
    assert max(len(str(line)) for line in lines) < 2_000


@pytest.mark.parametrize("part", ["unknown images", "invalid images", "ephemeral images", "image volumes"])
async def test_a_pod_of_too_many_images_is_one_unknown_image_to_the_scheduler(part: str) -> None:
    """They are neither looked up nor listed: each call about the pod costs as little as one about any other."""
    outlets = Outlets(OUTLET_SETTINGS)
    pod = hostile_pod(part, 300_000, WIDE)
    request = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": list(_NODES)})
    for verb in (outlets.verbs.filter, outlets.verbs.prioritize):
        reply, calls = await _calls(verb(request))
        assert calls < 1_000
    reply = await outlets.verbs.filter(request)
    assert msgspec.json.decode(reply.body)["NodeNames"] == list(_NODES)


def _jobs(number: int, spec: Mapping[str, Any]) -> bytes:
    """The review of an object with so many templates, for each of which a queue plans."""
    jobs = [{"template": {"spec": {"containers": [{"image": WIDE}], **spec}}} for _ in range(number)]
    metadata = {"name": "j", "labels": {"kueue.x-k8s.io/queue-name": "q"}}
    return encode_review(
        {"apiVersion": "a/v1", "kind": "Jobs", "metadata": metadata, "spec": {"jobs": jobs}}, kind="Jobs"
    )


def required_terms(number: int) -> dict[str, Any]:
    """Required node affinity of so many terms, each of which gets requirements."""
    terms = [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}] * number
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


@pytest.mark.parametrize(
    ("body", "warnings"),
    [
        pytest.param(_jobs(2, {"tolerations": [{"key": "a"}]}), 0, id="usual"),
        pytest.param(_jobs(64, {"tolerations": [{"key": f"k{each}"} for each in range(2_000)]}), 1, id="bytes"),
        pytest.param(_jobs(64, {"affinity": required_terms(14)}), 1, id="patch"),
        pytest.param(_jobs(20, {"hostname": "x" * 40_000}), 1, id="templates"),
        pytest.param(_jobs(1, {"hostname": "x" * 600_000}), 1, id="template"),
    ],
)
async def test_all_templates_of_one_object_have_bounds_together(body: bytes, warnings: int) -> None:
    """Those beyond are left as they are, and whoever applies the object is told."""
    reply, calls = await _calls(Outlets(OUTLET_SETTINGS).workloads.review(body))
    check(reply.body)
    assert calls < _MOST_CALLS
    found = msgspec.json.decode(reply.body)["response"].get("warnings", [])
    assert len([each for each in found if "nothing is decided about it" in each]) == warnings


def _with(kind: str, size_bytes: int) -> dict[str, Any]:
    """A Job of which so many bytes are values of one kind that nobody needs."""
    value: Any = {"objects": {}, "lists": [], "texts": "x", "digits": 0}[kind]
    size = len(msgspec.json.encode(value)) + 1
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "j"}}
    return {
        **job,
        "spec": {"template": {"spec": {"containers": [{"image": WIDE}]}}},
        "z": [value] * (size_bytes // size),
    }


def _review_of(created: object, before: object = None) -> bytes:
    review = msgspec.json.decode(encode_review({}, kind="Job"))
    review["request"] |= {"operation": "UPDATE" if before else "CREATE", "object": created, "oldObject": before}
    return msgspec.json.encode(review)


@pytest.mark.parametrize("kind", ["objects", "lists", "texts", "digits"])
@pytest.mark.parametrize(("created", "before"), [(7_500_000, 0), (1_000, 7_500_000), (600_000, 600_000)])
async def test_an_object_that_is_too_large_with_what_it_was_is_not_even_decoded(
    kind: str, created: int, before: int
) -> None:
    """Decoded it would take seventy times its bytes, and hold up all others."""
    body = _review_of(_with(kind, created), _with(kind, before) if before else None)
    outlets = Outlets(OUTLET_SETTINGS)
    tracemalloc.start()
    try:
        reply, calls = await _calls(outlets.workloads.review(body))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    [warning] = msgspec.json.decode(reply.body)["response"]["warnings"]
    assert "more than 1024 KiB" in warning
    assert calls < 100
    assert peak < 1.2 * len(body)


@pytest.mark.parametrize("created", [_with("objects", 900_000), _with("lists", 500_000)], ids=["objects", "lists"])
async def test_few_bytes_of_many_values_are_not_decoded_either(created: object) -> None:
    reply, calls = await _calls(Outlets(OUTLET_SETTINGS).workloads.review(_review_of(created)))
    assert "more than 100000 values" in msgspec.json.decode(reply.body)["response"]["warnings"][0]
    assert calls < 100


async def test_nothing_of_an_object_is_kept_while_its_images_are_looked_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hundreds of reviews wait at a time; only their bodies are counted."""
    outlets, asked, go_on = Outlets(OUTLET_SETTINGS), asyncio.Event(), asyncio.Event()

    async def resolve(question: PodQuestion, _most_seconds: float) -> list[Answer]:
        asked.set()
        await go_on.wait()
        return [_KNOWN[WIDE] for _ in question.images]

    monkeypatch.setattr(outlets.pods, "resolve", resolve)
    created = _with("objects", 120_000)
    created["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "q"}
    body = _review_of(created)
    tracemalloc.start()
    try:
        waiting = asyncio.create_task(outlets.workloads.review(body))
        await asyncio.wait_for(asked.wait(), 10)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        go_on.set()
    assert "patch" in msgspec.json.decode((await waiting).body)["response"]
    assert held < 300_000  # of which Python keeps the most, to use again
    assert peak > 2_000_000


async def test_an_object_of_deep_lists_is_searched_to_a_depth() -> None:
    """A path to each of a million values in a list at a depth of 500 would take gigabytes."""
    value: Any = [{}] * 300_000
    for _ in range(400):
        value = [value]
    body = encode_review({"apiVersion": "a/v1", "kind": "A", "metadata": {}, "spec": value}, kind="A")
    reply, calls = await _calls(Outlets(OUTLET_SETTINGS).workloads.review(body))
    check(reply.body)
    assert calls < _MOST_CALLS
