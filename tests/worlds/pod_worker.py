"""What a kubelet does for one pod: its init containers in turn, its containers beside each other, and restarts.

It is written from kubernetes 1.36, pkg/kubelet/kuberuntime (kuberuntime_manager.go, kuberuntime_container.go) and runs
of it. A container that mounts an image volume waits for that image too. Limits: containers that run may end only as
`kubelets` says, and a changed image restarts its container at once.
"""

import asyncio
import random
from collections.abc import Callable, Sequence
from typing import Any

from tests.worlds.api_storage import key_of
from tests.worlds.containerd import Machine, Outcome, Pulled, can_run
from tests.worlds.node_images import Missing, NodeImages, backoff_seconds, default_policy
from tests.worlds.pod_statuses import ContainerState, is_sidecar

Json = dict[str, Any]
Record = Callable[[str, str, str, Outcome], None]
"""Told of what became of a container: its name, image, digest and outcome."""

_EXEC_FORMAT_CODE = 255  # runc 1.4
_RESTART_SECONDS = 1.0
_SYNC_SECONDS = 10.0
_INIT_SECONDS = 0.5
_JOB_SECONDS = (3.0, 8.0)


class PodWorker:
    """One pod on its node, while `run` runs. `states` are those of its containers by name."""

    def __init__(
        self,
        pod: Json,
        machine: Machine,
        images: NodeImages,
        logins: Callable[[Json, str], Sequence[str]],
        chance: random.Random,
        *,
        write: Callable[[], None],
        record: Record,
        now: Callable[[], str],
    ) -> None:
        """`write` is called when states have changed; `logins` are the pod's for an image."""
        self.pod = pod
        self.states = {
            each["name"]: ContainerState(each["name"], each["image"])
            for each in (*(pod["spec"].get("initContainers") or ()), *pod["spec"]["containers"])
        }
        self._machine = machine
        self._images = images
        self._logins = logins
        self._chance = chance
        self._write = write
        self._record = record
        self._now = now
        self._image_changed = {name: asyncio.Event() for name in self.states}

    def update(self, pod: Json) -> None:
        """The pod was changed. A container whose image is another one is started again with it."""
        self.pod = pod
        for container in pod["spec"]["containers"]:
            state = self.states[container["name"]]
            if state.image != container["image"]:
                state.image = container["image"]
                self._image_changed[container["name"]].set()

    async def run(self) -> None:
        """Runs the containers until they have ended for good."""
        spec = self.pod["spec"]
        async with asyncio.TaskGroup() as tasks:
            for container in spec.get("initContainers") or ():
                if is_sidecar(container):
                    started = asyncio.Event()
                    tasks.create_task(self._keep(container, "Always", None, started))
                    await started.wait()
                elif not await self._keep(container, _init_policy(spec), _INIT_SECONDS):
                    return
            policy = spec.get("restartPolicy") or "Always"
            seconds = None if policy == "Always" else self._chance.uniform(*_JOB_SECONDS)
            for container in spec["containers"]:
                tasks.create_task(self._keep(container, policy, seconds))

    async def _keep(
        self, container: Json, policy: str, seconds: float | None, started: asyncio.Event | None = None
    ) -> bool:
        """Runs a container until it ended for good; returns whether well. Without `seconds` it runs for ever."""
        name, failures = container["name"], 0
        state = self.states[name]
        while True:
            pulled = await self._pull(container)
            self._image_changed[name].clear()
            if pulled.program is None:
                self._record(name, state.image, pulled.digest, Outcome.NO_PROGRAM)
                self._set(state, {"waiting": {"reason": "CreateContainerError", "message": "no command specified"}})
                await asyncio.sleep(_SYNC_SECONDS)
                continue
            if can_run(self._machine, pulled.program):
                self._record(name, state.image, pulled.digest, Outcome.RUNNING)
                self._set(state, {"running": {"startedAt": self._now()}})
                if started:
                    started.set()
                if seconds is not None:
                    await asyncio.sleep(seconds)
                    self._set(state, {"terminated": self._end(0, "Completed")})
                    return True
                await self._image_changed[name].wait()
                state.last, failures = self._end(137, "Error"), 0
            else:
                self._record(name, state.image, pulled.digest, Outcome.EXEC_FORMAT)
                state.last = self._end(_EXEC_FORMAT_CODE, "Error")
                self._set(state, {"terminated": state.last})
                if policy == "Never":
                    return False
                failures += 1
            await self._back_off(container, state, failures)
            state.restarts += 1

    async def _back_off(self, container: Json, state: ContainerState, failures: int) -> None:
        """Waits until the container may start again: the first time at once."""
        await asyncio.sleep(_RESTART_SECONDS)
        if failures < 2:
            return
        seconds = backoff_seconds(failures - 1)
        namespace, name = key_of(self.pod)
        text = (
            f"back-off {_duration(seconds)} restarting failed container={container['name']}"
            f" pod={name}_{namespace}({self.pod['metadata']['uid']})"
        )
        self._set(state, {"waiting": {"reason": "CrashLoopBackOff", "message": text}})
        await asyncio.sleep(seconds)

    async def _pull(self, container: Json) -> Pulled:
        """The container's image, once it and those of its image volumes are on the node."""
        failures = 0
        state = self.states[container["name"]]
        while True:
            try:
                for volume in self._image_volumes(container):
                    await self._mount(volume)
                return await self._ensure(state, container.get("imagePullPolicy") or default_policy(state.image))
            except Missing as exc:
                self._set(state, {"waiting": {"reason": exc.reason, "message": str(exc)}})
                if exc.reason != "ErrImagePull":
                    await asyncio.sleep(_SYNC_SECONDS)
                    continue
                failures += 1
                await asyncio.sleep(_RESTART_SECONDS)
                text = f'Back-off pulling image "{state.image}": {exc.reason}: {exc}'
                self._set(state, {"waiting": {"reason": "ImagePullBackOff", "message": text}})
                await asyncio.sleep(backoff_seconds(failures) - _RESTART_SECONDS)

    async def _ensure(self, state: ContainerState, policy: str) -> Pulled:
        image = state.image
        try:
            reference, pulled = await self._images.ensure(
                image, policy, lambda: self._logins(self.pod, image), self._machine
            )
        except Missing as exc:
            self._record(state.name, image, "", exc.outcome)
            raise
        state.digest = f"{reference.host}/{reference.repository}@{pulled.digest}"
        return pulled

    async def _mount(self, volume: Json) -> None:
        image, name = volume["image"]["reference"], f"volume {volume['name']}"
        policy = volume["image"].get("pullPolicy") or default_policy(image)
        try:
            _, pulled = await self._images.ensure(image, policy, lambda: self._logins(self.pod, image), self._machine)
        except Missing as exc:
            self._record(name, image, "", exc.outcome)
            raise
        self._record(name, image, pulled.digest, Outcome.MOUNTED)

    def _image_volumes(self, container: Json) -> list[Json]:
        mounted = [each["name"] for each in container.get("volumeMounts") or ()]
        volumes = self.pod["spec"].get("volumes") or ()
        return [each for each in volumes if each["name"] in mounted and (each.get("image") or {}).get("reference")]

    def _set(self, state: ContainerState, value: Json) -> None:
        if state.state != value:
            state.state = value
            self._write()

    def _end(self, code: int, reason: str) -> Json:
        return {"exitCode": code, "reason": reason, "finishedAt": self._now()}


def _init_policy(spec: Json) -> str:
    """Init containers of a pod that restarts for ever are restarted on failure alone."""
    return "Never" if spec.get("restartPolicy") == "Never" else "OnFailure"


def _duration(seconds: float) -> str:
    """As Go writes it."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
