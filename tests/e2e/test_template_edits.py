"""Thousands of edits of everything but templates: the service changes no template by itself.

Each object stands twice: made before the service was there, and with it. All events of a watch are compared, so that a
change which is taken back is seen too. `TEMPLATE_EDITS=20000` makes as many edits.
"""

import asyncio
import copy
import os
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from testbed.api_client import ApiError
from testbed.control_plane import LocalCluster
from testbed.eventually import eventually
from testbed.extender_process import ExtenderProcess
from testbed.kueue import QUEUED
from testbed.objects import KubernetesObject, fake_node
from testbed.shipped_files import Mode
from tests.e2e.pod_makers import BUILT_IN, CUSTOM, at, built_in, custom, plural_of, served, template
from tests.e2e.world import World

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

EDITS = int(os.environ.get("TEMPLATE_EDITS", "5000"))
SECONDS = 600.0
SETTINGS = (
    "admission.guard_daemon_sets=true",
    "admission.tolerations=[{key: arch, operator: Exists, platforms: [linux/amd64]}]",
)
KINDS = ("DaemonSet", "Deployment", "StatefulSet", "Job", "CronJob")
SCALED = ("Deployment", "StatefulSet")
ADDED = "multiarch-extender.io/added"
MERGE = "application/merge-patch+json"
LAST = "last-edit"


class Edited:
    """An object, where its templates are, and each distinct set of templates that a watch has shown."""

    def __init__(self, document: KubernetesObject, plural: str, paths: tuple[str, ...]) -> None:
        self.document, self.paths = document, paths
        self.seen: list[Any] = []
        self.is_over = False
        metadata, version = document["metadata"], document["apiVersion"]
        root = f"/apis/{version}" if "/" in version else f"/api/{version}"
        self.path = f"{root}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"

    @property
    def kind(self) -> str:
        return str(self.document["kind"])

    @property
    def name(self) -> str:
        return str(self.document["metadata"]["name"])

    def see(self, stored: KubernetesObject) -> None:
        self.is_over = LAST in (stored["metadata"].get("labels") or {})
        now = [at(stored, path) for path in self.paths]
        if not self.seen or self.seen[-1] != now:
            self.seen.append(copy.deepcopy(now))


@pytest.fixture
async def custom_kinds(world: World) -> AsyncIterator[None]:
    async with served(world.api, *(kind.definition() for kind in CUSTOM[:2])):
        yield


def objects(world: World, where: str, prefix: str) -> list[Edited]:
    """One of each kind and image, all with the label of a queue."""
    made = []
    for number, image in enumerate((world.images.amd, world.images.multi)):
        for kind in KINDS:
            written = template(image)
            written["metadata"]["labels"] = {"app": f"{prefix}-{kind.lower()}-{number}"}
            document = built_in(kind, f"{prefix}-{kind.lower()}-{number}", where, written, QUEUED)
            if kind in SCALED:
                document["spec"]["replicas"] = 1
            made.append(Edited(document, f"{kind.lower()}s", (BUILT_IN[kind],)))
        for other in CUSTOM[:2]:
            name = f"{prefix}-{other.kind.lower()}-{number}"
            made.append(Edited(custom(other, name, where, template(image), QUEUED), plural_of(other.kind), other.paths))
    return made


@asynccontextmanager
async def watched(world: World, where: str, edited: Mapping[tuple[str, str], Edited]) -> AsyncIterator[None]:
    """Shows each event of the objects to them, and raises at the end what has ended a watch."""
    versions = {each.kind: each.document["apiVersion"] for each in edited.values()}

    async def follow(kind: str, version: str) -> None:
        while True:  # a busy server may end the watch
            async with aclosing(world.api.watch(kind, where, version)) as events:
                async for _, found in events:
                    if each := edited.get((kind, found["metadata"]["name"])):
                        each.see(found)

    tasks = [asyncio.create_task(follow(*item)) for item in versions.items()]
    try:
        yield
        for each in edited.values():
            await world.api.request("PATCH", each.path, {"metadata": {"labels": {LAST: "seen"}}}, content_type=MERGE)
        await eventually(lambda: all(each.is_over for each in edited.values()) or any(task.done() for task in tasks))
        assert not any(task.done() for task in tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Editor:
    """Makes edits of every kind, each drawn by a random generator with a seed, and counts them."""

    def __init__(self, world: World, edited: list[Edited], service: ExtenderProcess) -> None:
        self.made: Counter[str] = Counter()
        self._world, self._api, self._edited = world, world.api, edited
        self._service = service
        self._random = random.Random(36)
        self._number = 0
        self._nodes = 0
        self._weights: dict[Callable[[Edited], Awaitable[bool]], int] = {
            self._label: 100, self._annotation: 100, self._finalizers: 60, self._strategy: 100, self._status: 60,
            self._scale: 60, self._replicas: 60, self._put_unchanged: 60,
            self._nodes_change: 20, self._image_moves: 10,
        }  # fmt: skip

    async def edit(self) -> None:
        while True:
            self._number += 1
            [edit] = self._random.choices(list(self._weights), list(self._weights.values()))
            if await edit(self._random.choice(self._edited)):
                self.made[edit.__name__.lstrip("_").replace("_", " ")] += 1
                return

    async def restart(self) -> None:
        """The service ends and starts with nothing in memory, while what images run on may have changed."""
        self._service.terminate()
        await self._service.start()
        self.made["restart of the service"] += 1

    async def _merge(self, each: Edited, change: KubernetesObject, sub: str = "") -> bool:
        await self._api.request("PATCH", each.path + sub, change, content_type=MERGE)
        return True

    async def _label(self, each: Edited) -> bool:
        return await self._merge(each, {"metadata": {"labels": {f"note-{self._number % 5}": str(self._number)}}})

    async def _annotation(self, each: Edited) -> bool:
        value = self._random.choice([str(self._number), None])
        return await self._merge(each, {"metadata": {"annotations": {f"note-{self._number % 5}": value}}})

    async def _finalizers(self, each: Edited) -> bool:
        finalizers = self._random.choice([["example.com/a"], []])
        return await self._merge(each, {"metadata": {"finalizers": finalizers}})

    async def _strategy(self, each: Edited) -> bool:
        number = self._number
        changes: dict[str, KubernetesObject] = {
            "DaemonSet": {"minReadySeconds": number % 9, "revisionHistoryLimit": number % 20 + 1,
                          "updateStrategy": {"rollingUpdate": {"maxUnavailable": number % 5 + 1}}},
            "Deployment": {"minReadySeconds": number % 9, "paused": bool(number % 2),
                           "strategy": {"rollingUpdate": {"maxSurge": f"{number % 50 + 1}%"}}},
            "StatefulSet": {"minReadySeconds": number % 9,
                            "updateStrategy": {"rollingUpdate": {"partition": number % 3}}},
            "Job": {"activeDeadlineSeconds": 1000 + number, "ttlSecondsAfterFinished": number},
            "CronJob": {"schedule": f"{number % 60} 3 * * *", "suspend": bool(number % 2),
                        "concurrencyPolicy": ("Allow", "Forbid", "Replace")[number % 3]},
        }  # fmt: skip
        return await self._merge(each, {"spec": changes.get(each.kind, {"note": number})})

    async def _status(self, each: Edited) -> bool:
        if each.kind not in ("DaemonSet", "Deployment", "StatefulSet"):
            return False
        return await self._merge(each, {"status": {"observedGeneration": self._number}}, "/status")

    async def _scale(self, each: Edited) -> bool:
        if each.kind not in SCALED:
            return False
        return await self._merge(each, {"spec": {"replicas": self._number % 4}}, "/scale")

    async def _replicas(self, each: Edited) -> bool:
        field = {**dict.fromkeys(SCALED, "replicas"), "Job": "backoffLimit", "CronJob": "successfulJobsHistoryLimit"}
        if each.kind not in field:
            return False
        return await self._merge(each, {"spec": {field[each.kind]: self._number % 4}})

    async def _put_unchanged(self, each: Edited) -> bool:
        stored = await self._api.request("GET", each.path)
        try:
            await self._api.request("PUT", each.path, stored)
        except ApiError as exc:
            if exc.status != 409:  # its controller was faster
                raise
        return True

    async def _nodes_change(self, _: Edited) -> bool:
        self._nodes += 1
        if self._nodes % 2:
            architecture = self._random.choice(["amd64", "arm64", "s390x"])
            await self._api.create(fake_node(f"passing-{self._nodes}", architecture))
        else:
            await self._api.delete("Node", f"passing-{self._nodes - 1}", "")
        return True

    async def _image_moves(self, _: Edited) -> bool:
        image = self._random.choice([self._world.images.amd, self._world.images.multi])
        platforms = self._random.choice([("amd64",), ("arm64",), ("amd64", "arm64"), ("s390x",)])
        self._world.images.push(image, *platforms)
        return True


async def test_thousands_of_other_edits_change_no_template(
    world: World,
    custom_kinds: None,
    control_plane: LocalCluster,
    controller_manager: Path,
) -> None:
    """Not of a guarded or queued object, nor of one that was there before, whatever happens around them."""
    await world.create_both(1)
    where = await world.namespace()
    edited = objects(world, where, "before")
    for each in edited:
        await world.api.apply(each.document)
    service = await world.start_service(*SETTINGS, mode=Mode.WEBHOOK)
    await world.register_webhook(service)
    after = objects(world, where, "after")
    for each in after:
        stored = await world.api.apply(each.document)
        if each.kind != "DaemonSet":  # one of a multi-arch image gets nothing
            assert all(ADDED in at(stored, path)["metadata"]["annotations"] for path in each.paths)
    edited += after
    editor = Editor(world, edited, service)
    by_name = {(each.kind, each.name): each for each in edited}
    controllers = ("daemonset-controller", "deployment-controller", "statefulset-controller")
    with control_plane.running_controllers(controller_manager, *controllers):
        async with watched(world, where, by_name):
            async with asyncio.timeout(SECONDS):
                for number in range(EDITS):
                    await editor.edit()
                    if number % 500 == 250:
                        await editor.restart()
        changed = {name: len(each.seen) - 1 for name, each in by_name.items() if len(each.seen) != 1}
    world.figure(f"{editor.made.total()} edits of {len(edited)} objects: {len(changed)} of these got other templates")
    world.figure(", ".join(f"{name} {count}" for name, count in editor.made.most_common()))
    assert changed == {}
