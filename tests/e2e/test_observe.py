"""What `audit --observed` says of pods under observe is what enforcing then does with the same pods."""

import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

from testbed.extender_process import ExtenderProcess
from testbed.objects import KubernetesObject, kept_to, pod
from testbed.processes import free_port
from testbed.shipped_files import Mode, identity_manifests
from tests.e2e.test_explain import account_token, allow, run_command
from tests.e2e.world import World, refusal_of

pytestmark = pytest.mark.e2e

MODE = "multiarch-extender.io/mode"
ADDED = "multiarch-extender.io/added"
REASON = "multiarch-extender.io/reason"
NOWHERE = "multiarch-extender.io/no-common-platform"
ARCH = "kubernetes.io/arch"
VERSIONS = {"ReplicaSet": "apps/v1", "StatefulSet": "apps/v1", "DaemonSet": "apps/v1", "Job": "batch/v1"}


class Kind(NamedTuple):
    """Pods of one owner: how many, and how the report names them; empty if it must not."""

    workload: str
    owner: str
    number: int
    images: Sequence[str]
    spec: Mapping[str, Any] = {}

    @property
    def prefix(self) -> str:
        """The beginning of the pods' names."""
        return (self.owner or self.workload).lower().replace("/", "-")


def kinds_of(world: World) -> list[Kind]:
    """60 pods of several kinds of owner, with images of every kind."""
    images = world.images
    other = images.fresh("s390x")
    return [
        Kind("StatefulSet/amd", "StatefulSet/amd", 10, [images.amd]),
        Kind("Deployment/arm", "ReplicaSet/arm-7d9c5b8f6c", 10, [images.arm]),
        Kind("Job/multi", "Job/multi", 10, [images.multi]),
        Kind("Job/nightly-*", "Job/nightly-29012345", 6, [images.multi, images.amd]),
        Kind("ReplicaSet/both", "ReplicaSet/both", 6, [images.arm, images.amd]),
        Kind("StatefulSet/pinned", "StatefulSet/pinned", 4, [images.arm], {"nodeSelector": {ARCH: "amd64"}}),
        Kind("StatefulSet/other", "StatefulSet/other", 4, [other]),
        Kind("StatefulSet/late", "StatefulSet/late", 4, [images.unpushed()]),
        Kind("", "DaemonSet/agent", 3, [images.arm]),
        *(Kind(f"Pod/bare-{number}", "", 1, [images.amd]) for number in range(3)),
    ]


def manifests(kinds: Sequence[Kind], where: str) -> Iterator[KubernetesObject]:
    """The pods of these kinds."""
    for kind in kinds:
        for number in range(kind.number):
            name = f"{kind.prefix}-{number}" if kind.owner else kind.workload.partition("/")[2]
            found = pod(name, *kind.images, namespace=where, spec=kind.spec)
            if kind.owner:
                owner, _, owner_name = kind.owner.partition("/")
                found["metadata"]["ownerReferences"] = [
                    {
                        "apiVersion": VERSIONS[owner],
                        "kind": owner,
                        "name": owner_name,
                        "uid": str(uuid.uuid4()),
                        "controller": True,
                    }
                ]
            yield found


class Observing(NamedTuple):
    """The service, and what the command needs to ask it."""

    service: ExtenderProcess
    url: str
    reader: Path
    stranger: Path
    where: str
    enforced: str

    async def report(self, world: World) -> dict[str, Any]:
        """The report about the observed namespace, as its reader gets it."""
        arguments = ("--observed", self.url, "-n", self.where, "--token-file", str(self.reader), "-o", "json")
        found = await run_command(world, "audit", *arguments)
        assert found.code == 0, found.errors
        return msgspec.json.decode(found.output, type=dict[str, Any])


async def start(world: World, folder: Path) -> Observing:
    """Starts the webhook alone, required affinity on, with a listener for the report and two callers."""
    own = next(each["metadata"] for each in identity_manifests(Mode.WEBHOOK) if each["kind"] == "ServiceAccount")
    subject = {"kind": "ServiceAccount", "name": own["name"], "namespace": own["namespace"]}
    await world.account(Mode.WEBHOOK)
    rules: list[KubernetesObject] = [
        {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
        {"apiGroups": ["authorization.k8s.io"], "resources": ["subjectaccessreviews"], "verbs": ["create"]},
    ]
    await allow(world, "multiarch-observed", rules, subject, "")
    listen = f"127.0.0.1:{free_port()}"
    service = await world.start_service(
        f"facts.listen={listen}", "admission.node_affinity=required", "admission.tolerations=[]", mode=Mode.WEBHOOK
    )
    await world.register_webhook(service)
    where = await world.namespace(annotations={MODE: "observe"})
    paths = []
    for name in ("reader", "stranger"):
        account, token = await account_token(world, name, where)
        if name == "reader":
            reading: list[KubernetesObject] = [{"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]}]
            await allow(world, f"{name}-{where}", reading, account, where)
        paths.append(folder / name)
        paths[-1].write_text(token)
    reader, stranger = paths
    return Observing(service, f"http://{listen}", reader, stranger, where, await world.namespace())


async def settled(world: World, where: str, count: int) -> list[KubernetesObject]:
    """The pods of the namespace, once each has a node or the scheduler has refused it."""
    found = await world.api.list("Pod", where)
    assert len(found) == count
    for each in found:
        if not _is_settled(each):
            await world.api.wait_for(
                "Pod", _is_settled, where, fieldSelector=f"metadata.name={each['metadata']['name']}"
            )
    return await world.api.list("Pod", where)


def _is_settled(found: KubernetesObject) -> bool:
    return bool(found["spec"].get("nodeName")) or bool(refusal_of(found))


def architectures_written(found: KubernetesObject) -> set[str] | None:
    """The architectures to which what was written keeps the pod; None if nothing does."""
    return set(kept_to(found["spec"], ARCH)) or None


def annotations_of(found: KubernetesObject) -> dict[str, str]:
    """The pod's annotations."""
    return found["metadata"].get("annotations") or {}


async def empty(world: World, where: str) -> None:
    """Deletes the namespace's pods."""
    for found in await world.api.list("Pod", where):
        await world.api.delete("Pod", found["metadata"]["name"], where)


async def test_the_report_tells_what_enforcing_then_does(world: World, tmp_path: Path) -> None:
    """60 pods are created under observe, then the same ones enforced: refused, moved, unknown, patched are equal."""
    await world.create_nodes("amd64", 2)
    await world.create_nodes("arm64", 2)
    observing = await start(world, tmp_path)
    kinds = kinds_of(world)
    total = sum(kind.number for kind in kinds)
    assert total == 60
    with world.default_scheduler(None):
        await world.api.create_all(manifests(kinds, observing.where))
        before = await world.wait_all_bound(observing.where, total)
        report = await observing.report(world)
        for found in await world.api.list("Pod", observing.where):
            assert ADDED not in annotations_of(found)
        await empty(world, observing.where)
        await world.api.create_all(manifests(kinds, observing.enforced))
        after = {each["metadata"]["name"]: each for each in await settled(world, observing.enforced, total)}
    assert set(after) == set(before)

    architectures = await world.nodes_by_architecture()
    rows = {f"{row['kind']}/{row['name']}": row for row in report["workloads"]}
    assert set(rows) == {kind.workload for kind in kinds if kind.workload}  # no pod of a DaemonSet was sent
    for kind in kinds:
        if not kind.workload:
            continue
        row, pods = rows[kind.workload], [after[each["metadata"]["name"]] for each in manifests([kind], "")]
        assert row["pods"] == kind.number
        refused = [each for each in pods if not each["spec"].get("nodeName")]
        assert (kind.workload, row["refused"]) == (kind.workload, len(refused))
        moved = Counter[str]()
        for each in pods:
            kept, was = architectures_written(each), architectures[before[each["metadata"]["name"]]]
            if each not in refused and kept is not None and was not in kept:
                assert architectures[each["spec"]["nodeName"]] in kept
                moved[f"linux/{was}"] += 1
        assert (kind.workload, row["moved"]) == (kind.workload, moved)
        unknown = [each for each in pods if "let through" in annotations_of(each).get(REASON, "")]
        assert row["unresolved"] == len(unknown)
        patched = [each for each in pods if ADDED in annotations_of(each) and each not in unknown]
        assert row["patched"] == sum(NOWHERE not in str(each["spec"].get("affinity")) for each in patched)
    assert report["refused"] == 6 + 4 + 4
    assert report["unresolved"] == 4
    assert sum(report["moved"].values()) > 0
    moved_rows = sum((Counter(row["moved"]) for row in rows.values()), Counter[str]())
    assert report["moved"] == moved_rows
    assert await observing.service.metric("multiarch_observed_admissions_total", outcome="impossible") == 10
    world.figure(f"observe: {report['refused']} refused and {report['moved']} moved, as enforcing then did")


async def test_nodes_needed_are_enough_and_not_one_too_many(world: World, tmp_path: Path) -> None:
    """With so many more nodes the pods that move all get one; with one less they do not."""
    await world.create_nodes("amd64", 2, cpu="16")
    await world.create_nodes("arm64", 1, cpu="4")
    observing = await start(world, tmp_path)
    kind = Kind("StatefulSet/arm", "StatefulSet/arm", 12, [world.images.arm])

    def pods(where: str) -> list[KubernetesObject]:
        found = list(manifests([kind], where))
        for each in found:
            each["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "1"
        return found

    with world.default_scheduler(None):
        await world.api.create_all(pods(observing.where))
        before = await world.wait_all_bound(observing.where, 12)
        report = await observing.report(world)
        await empty(world, observing.where)
        [needed] = report["nodes_needed"]
        moving = sum(node.startswith("amd64") for node in before.values())
        assert (needed["platforms"], needed["pods"], needed["cpu_cores"]) == (["linux/arm64"], moving, moving)
        assert needed["nodes"] == 2
        await world.create_nodes("arm64", needed["nodes"] - 1, cpu="4", prefix="more-arm64")
        await world.api.create_all(pods(observing.enforced))
        found = await settled(world, observing.enforced, 12)
        assert sum(bool(each["spec"].get("nodeName")) for each in found) == 8
        await world.create_nodes("arm64", 1, cpu="4", prefix="last-arm64")
        await world.wait_all_bound(observing.enforced, 12)


async def test_the_report_is_told_to_who_may_read_pods(world: World, tmp_path: Path) -> None:
    """Others learn nothing, and a reader of one namespace nothing of others; a restart shows in `since`."""
    await world.create_nodes("amd64", 1)
    observing = await start(world, tmp_path)
    await world.api.create_all(manifests([Kind("", "StatefulSet/arm", 2, [world.images.arm])], observing.where))
    arguments = ("audit", "--observed", observing.url)
    reader, stranger = ("--token-file", str(observing.reader)), ("--token-file", str(observing.stranger))
    shown = await run_command(world, *arguments, "-n", observing.where, *reader)
    assert shown.code == 0, shown.errors
    assert "2 pods of 1 workloads" in shown.output
    assert "StatefulSet/arm" in shown.output
    refused = {
        "stranger": await run_command(world, *arguments, "-n", observing.where, *stranger),
        "reader of another namespace": await run_command(world, *arguments, "-n", "kube-system", *reader),
        "reader of one, asking for all": await run_command(world, *arguments, *reader),
    }
    for found in refused.values():
        assert (found.code, found.output) == (2, "")
        assert "HTTP 403" in found.errors
        assert "arm" not in found.errors.replace("multiarch", "")
    before = (await observing.report(world))["since"]
    observing.service.terminate()
    await observing.service.start()
    after = await observing.report(world)
    assert after["since"] > before
    assert (after["pods"], len(after["problems"])) == (0, 1)
