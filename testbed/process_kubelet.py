"""A stand-in for the kubelets and kube-proxy of fake nodes, which runs the service's container as a process.

`ProcessPod` runs one pod, whoever has made it; `ProcessKubelet` runs those that the API server has on its nodes.

It gives the service's pods what they need and no more: files of ConfigMaps and Secrets, empty folders, the token of
their account, a probe of readiness, an end, and the kube-scheduler beside the service. Pods of the chart's hooks run
once. Every other pod on a node waits until it is deleted. No image is pulled and nothing is isolated: the program is
that of this checkout, and kube-scheduler that of the control plane.
"""

import asyncio
import base64
import itertools
import os
import re
import shutil
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
import msgspec

from testbed.api_client import ApiClient, ApiError
from testbed.binaries import find_binaries
from testbed.cluster_provider import complete_scheduler_configuration
from testbed.eventually import eventually
from testbed.extender_process import write_token_kubeconfig
from testbed.objects import KubernetesObject
from testbed.processes import Process, ProcessFailed, free_port

LISTENERS = {"webhook": "admission.listen", "scheduler": "scheduler.listen", "operations": "operations.listen"}
"""The settings that say where the container listens, by the names of its ports."""

PAUSE_SECONDS = 0.2
BACKOFF_SECONDS = 2.0
PROBE_TIMEOUT = aiohttp.ClientTimeout(total=5)
_COMMANDS = ("serve", "doctor", "ungate")
_OUR_IMAGE = re.compile(r"(.*/)?multiarch-extender([:@].*)?")
_STRATEGIC_MERGE = "application/strategic-merge-patch+json"


class ProcessKubelet:
    """The stand-in; `open_process_kubelet` runs it. The files of each pod are in a folder of its name."""

    def __init__(self, api: ApiClient, admin: Path, folder: Path) -> None:
        self._api, self._admin, self._folder = api, admin, folder
        self._pods: dict[str, ProcessPod] = {}  # by uid, as the two below
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._ending: set[str] = set()
        self._turns = itertools.count()

    async def locate(self, host: str, port: int) -> int | None:
        """Returns the port on loopback of a ready pod behind that address and port of a Service; None without one.

        The pods of a Service take turns.
        """
        for service in await self._api.list("Service"):
            if service["spec"].get("clusterIP") != host:
                continue
            targets = [each.get("targetPort", port) for each in service["spec"]["ports"] if each["port"] == port]
            ready = [pod for pod in self._pods.values() if pod.is_ready and pod.is_selected_by(service)]
            found = [listening for pod in ready for target in targets if (listening := pod.port_of(target))]
            return found[next(self._turns) % len(found)] if found else None
        return None

    async def run(self) -> None:
        """Runs the pods until it is cancelled, and ends their processes then."""
        async with asyncio.TaskGroup() as tasks:
            while True:  # the server may end a watch
                async with aclosing(self._api.watch("Pod")) as changes:
                    async for change, pod in changes:
                        self._take(tasks, change, pod)

    def _take(self, tasks: asyncio.TaskGroup, change: str, pod: KubernetesObject) -> None:
        uid, spec = pod["metadata"]["uid"], pod["spec"]
        if change == "DELETED":
            self._ending.discard(uid)
            if task := self._tasks.pop(uid, None):
                task.cancel()
        elif "deletionTimestamp" in pod["metadata"]:
            if uid not in self._ending:
                self._ending.add(uid)
                tasks.create_task(self._end(pod))
        elif spec.get("nodeName") and uid not in self._tasks and service_of(pod) and not has_ended(pod):
            self._tasks[uid] = tasks.create_task(self._run_pod(pod))

    async def _run_pod(self, pod: KubernetesObject) -> None:
        running = ProcessPod(self._api, pod, self._folder / pod["metadata"]["name"])
        self._pods[pod["metadata"]["uid"]] = running
        try:
            await running.run(self._admin)
        finally:
            del self._pods[pod["metadata"]["uid"]]

    async def _end(self, pod: KubernetesObject) -> None:
        """Ends the pod's process if it has one, and then the pod."""
        metadata = pod["metadata"]
        if task := self._tasks.get(metadata["uid"]):
            task.cancel()
            await asyncio.wait([task])
        with suppress(ApiError):  # gone meanwhile
            await self._api.delete("Pod", metadata["name"], metadata["namespace"])


class ProcessPod:
    """A pod of the service, with a process for each of its containers. They start and end together.

    `settings` (`path=value`) win over those of the service's container.
    """

    def __init__(self, api: ApiClient, pod: KubernetesObject, folder: Path, *settings: str) -> None:
        self.is_ready = False
        self.account = folder / "account.kubeconfig"
        self._api, self._pod, self._folder, self._settings = api, pod, folder, settings
        self._processes: list[Process] = []
        self._container = service_of(pod) or {}
        self._schedulers = [each for each in pod["spec"]["containers"] if each is not self._container]
        self._ports: dict[str | int, int] = {}
        self._restarts = 0
        self._since = _now()

    def is_selected_by(self, service: KubernetesObject) -> bool:
        """Whether the Service leads to this pod."""
        metadata, selector = self._pod["metadata"], service["spec"].get("selector")
        is_near = service["metadata"]["namespace"] == metadata["namespace"]
        return is_near and bool(selector) and selector.items() <= metadata.get("labels", {}).items()

    def port_of(self, target: str | int) -> int | None:
        """Returns the port on loopback for a port of the container, by its name or number."""
        return self._ports.get(target)

    def start(self, admin: Path) -> None:
        """Runs it in a task of its own, until it is stopped or killed."""
        self._task = asyncio.create_task(self.run(admin))

    async def wait_until_ready(self) -> None:
        """Raises ProcessFailed if a process has ended before it was ready."""
        await eventually(lambda: self.is_ready or self._restarts or self._task.done())
        if self._task.done():
            await self._task
        if not self.is_ready:
            raise ProcessFailed("\n".join(each.tail() for each in self._processes))

    async def stop(self) -> None:
        """Returns when the processes have ended in good order."""
        self._task.cancel()
        await asyncio.wait([self._task])

    async def kill(self) -> None:
        """Kills the processes as a machine does that is gone; nothing starts them again."""
        for each in self._processes:
            os.kill(each.pid, signal.SIGKILL)
        await self.stop()

    async def run(self, admin: Path) -> None:
        """Runs the process until cancelled and reports it: again whenever it ends, unless it is to run once."""
        commands = await self._prepare(admin)
        while True:
            processes = self._processes = [
                Process(f"{self._folder.name}-{name}", command, self._folder / f"{name}-{self._restarts}.log")
                for name, command in commands.items()
            ]
            try:
                await self._watch_over(processes)
            finally:
                self.is_ready = False
                grace_seconds = self._pod["spec"].get("terminationGracePeriodSeconds", 30)
                await asyncio.gather(*(asyncio.to_thread(each.stop, grace_seconds) for each in processes))
            if self._pod["spec"].get("restartPolicy") == "Never":
                await self._report(processes[0].exit_code)
                return
            self._restarts += 1
            await asyncio.sleep(BACKOFF_SECONDS)

    async def _watch_over(self, processes: Sequence[Process]) -> None:
        """Returns when a process has ended; reports meanwhile whether the pod is ready."""
        self._since = _now()
        await self._report()
        async with aiohttp.ClientSession(timeout=PROBE_TIMEOUT) as session:
            while all(each.is_running for each in processes):
                is_ready = all(
                    [await self._is_ready_now(session, each) for each in (self._container, *self._schedulers)]
                )
                if is_ready != self.is_ready:
                    self.is_ready = is_ready
                    await self._report()
                await asyncio.sleep(PAUSE_SECONDS)

    async def _is_ready_now(self, session: aiohttp.ClientSession, container: KubernetesObject) -> bool:
        if "readinessProbe" not in container:
            return True
        probe = container["readinessProbe"]["httpGet"]
        address = f"{probe.get('scheme', 'HTTP').lower()}://127.0.0.1:{self._ports[probe['port']]}{probe['path']}"
        try:
            async with session.get(address, ssl=False) as answer:
                return answer.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def _report(self, exit_code: int | None = None) -> None:
        """Writes the pod's status; with an exit code that of one that has ended for good."""
        metadata, spec = self._pod["metadata"], self._pod["spec"]
        state: dict[str, object] = {"running": {"startedAt": self._since}}
        phase = "Running"
        if exit_code is not None:
            phase, reason = ("Failed", "Error") if exit_code else ("Succeeded", "Completed")
            ended = {"exitCode": exit_code, "reason": reason, "startedAt": self._since, "finishedAt": _now()}
            state = {"running": None, "terminated": ended}
        same = {"imageID": "", "ready": self.is_ready, "started": True, "restartCount": self._restarts, "state": state}
        statuses = {
            f"{kind}Statuses": [{"name": each["name"], "image": each["image"], **same} for each in spec[f"{kind}s"]]
            for kind in ("container", "initContainer")
            if f"{kind}s" in spec
        }
        conditions = {"Initialized": True, "ContainersReady": self.is_ready, "Ready": self.is_ready}
        status = {
            "phase": phase,
            "startTime": self._since,
            "conditions": [{"type": name, "status": str(value)} for name, value in conditions.items()],
            **statuses,
        }
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
        with suppress(ApiError):  # gone meanwhile
            await self._api.request("PATCH", path, {"status": status}, content_type=_STRATEGIC_MERGE)

    async def _prepare(self, admin: Path) -> dict[str, list[str]]:
        """Writes the pod's files; returns the commands that run its containers, the service first, by their names."""
        self._folder.mkdir(parents=True, exist_ok=True)
        mounts = {each["mountPath"]: self._folder / each["name"] for each in self._container.get("volumeMounts", ())}
        for volume in self._pod["spec"].get("volumes", ()):
            await self._fill(volume, mounts)
        account, where = self._pod["spec"]["serviceAccountName"], self._pod["metadata"]["namespace"]
        kubeconfig = await write_token_kubeconfig(self._api, admin, self.account, account, where)
        settings: dict[str, str] = {}
        for port in self._container.get("ports", ()):
            listening = free_port()
            self._ports |= {port["name"]: listening, port["containerPort"]: listening}
            settings[LISTENERS[port["name"]]] = f"127.0.0.1:{listening}"
        stated = (each for each in self._container.get("env", ()) if "value" in each)
        variables = {each["name"]: localize(each["value"], mounts) for each in stated}
        variables["KUBECONFIG"] = str(kubeconfig)  # which each of the commands takes
        if temporary := mounts.get("/tmp"):
            variables["TMPDIR"] = str(temporary)
        commands = {each["name"]: self._prepare_scheduler(each, kubeconfig, settings) for each in self._schedulers}
        service = [
            shutil.which("env") or "/usr/bin/env",
            *(f"{name}={value}" for name, value in variables.items()),
            *(sys.executable, "-m", "extender"),
            *(localize(each, mounts) for each in self._container["args"]),
            *(f"--set={path}={value}" for path, value in settings.items()),
            *(f"--set={each}" for each in self._settings),
        ]
        return {self._container["name"]: service, **commands}

    def _prepare_scheduler(self, container: KubernetesObject, kubeconfig: Path, settings: dict[str, str]) -> list[str]:
        """Has kube-scheduler's file name this pod's service and account; returns the command that runs it."""
        verbs, listening = free_port(), free_port()
        settings["scheduler.listen"] = f"127.0.0.1:{verbs}"
        [port] = container["ports"]
        self._ports |= {port["name"]: listening, port["containerPort"]: listening}
        [mount] = container["volumeMounts"]
        file = self._folder / mount["name"] / "scheduler.yaml"
        configuration = complete_scheduler_configuration(file.read_text(), str(kubeconfig))
        for extender in configuration["extenders"]:
            extender["urlPrefix"] = f"http://127.0.0.1:{verbs}/scheduler"
        file.write_bytes(msgspec.yaml.encode(configuration))
        _, *flags = (localize(each, {mount["mountPath"]: file.parent}) for each in container["command"])
        return [str(find_binaries().kube_scheduler), *flags, f"--secure-port={listening}"]

    async def _fill(self, volume: KubernetesObject, mounts: Mapping[str, Path]) -> None:
        """Makes the volume's folder and the files in it; waits for its ConfigMap or Secret as a kubelet does."""
        folder = self._folder / volume["name"]
        folder.mkdir(exist_ok=True)
        files: dict[str, bytes] = {}
        if source := volume.get("configMap"):
            data = (await self._wait_for("ConfigMap", source["name"])).get("data", {})
            files = {key: localize(text, mounts).encode() for key, text in data.items()}
        elif source := volume.get("secret"):
            data = (await self._wait_for("Secret", source["secretName"])).get("data", {})
            files = {key: base64.b64decode(value) for key, value in data.items()}
        names = {each["key"]: each["path"] for each in (source or {}).get("items", ())}
        for key, content in files.items():
            file = folder / names.get(key, key)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)

    async def _wait_for(self, kind: str, name: str) -> KubernetesObject:
        while True:
            try:
                return await self._api.get(kind, name, self._pod["metadata"]["namespace"])
            except ApiError as exc:
                if exc.status != 404:
                    raise
            await asyncio.sleep(PAUSE_SECONDS)


def service_of(pod: KubernetesObject) -> KubernetesObject | None:
    """Returns the container of our image, in whichever registry, that runs one of the chart's commands.

    It is the pod's only one, or beside kube-scheduler; None for every other pod.
    """
    match [*pod["spec"].get("initContainers", ()), *pod["spec"]["containers"]]:
        case [container] | [container, {"command": ["kube-scheduler", *_]}]:
            command = container.get("args", [""])[0]
            return container if command in _COMMANDS and _OUR_IMAGE.fullmatch(container["image"]) else None
    return None


def has_ended(pod: KubernetesObject) -> bool:
    """Whether the pod has ended for good."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


def localize(text: str, mounts: Mapping[str, Path]) -> str:
    """Returns the text with our folders in place of the paths where they are mounted in the container."""
    if not mounts:
        return text
    paths = "|".join(re.escape(path) for path in sorted(mounts, key=len, reverse=True))
    return re.sub(rf"(?<![\w/.-])(?:{paths})(?![\w.-])", lambda found: str(mounts[found[0]]), text)


@asynccontextmanager
async def open_process_kubelet(api: ApiClient, admin: Path, folder: Path) -> AsyncIterator[ProcessKubelet]:
    """Runs the stand-in inside the block, in the cluster of the administrator's kubeconfig `admin`."""
    kubelet = ProcessKubelet(api, admin, folder)
    async with asyncio.TaskGroup() as tasks:  # which ends the block if the stand-in fails
        running = tasks.create_task(kubelet.run())
        try:
            yield kubelet
        finally:
            running.cancel()


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
