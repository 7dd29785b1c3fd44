"""A real node: kubelet and containerd in mount and PID namespaces of their own, joined to a control plane.

The node changes nothing on the machine. What kubelet would change for all is shown to it as a file, its other files are
in memory, its pods are in a cgroup that is removed. It ends by one signal.
"""

import asyncio
import base64
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import msgspec

from testbed.api_client import ApiClient, ApiError
from testbed.network_namespace import network_of
from testbed.nodes.architecture import exchange_constant, redirect_constant
from testbed.nodes.cgroups import Cgroup
from testbed.nodes.configuration import (
    CNI_NETWORK,
    CNI_PLUGIN,
    POD_NETWORK_PLUGIN,
    TUNABLES,
    containerd_configuration,
    kubelet_configuration,
)
from testbed.nodes.elf import RISCV, elf_header
from testbed.nodes.programs import NodePrograms
from testbed.objects import MADE_HERE, KubernetesObject
from testbed.processes import PAUSE_SECONDS, Process, ProcessFailed, free_port
from testbed.tcp_proxy import LOOPBACK, connect_to, open_relay

READY_SECONDS = 60.0  # for a busy machine; usually it takes a second
END_SECONDS = 10.0
START = Path(__file__).with_name("node.sh")
RUNTIME = Path(__file__).with_name("arm64_runc.py")


Architecture = Literal["amd64", "arm64"]

Doors = Mapping[tuple[str, int], int]
"""Ports of the machine's loopback, by the address and port at which a node with a network of its own reaches them."""


class RealNode:
    """`async with RealNode(name, …) as node:` runs a node that is Ready inside the block and gone after it.

    `pause_image` is an image that kubelet can pull and whose program waits; every pod has a container of it.

    The machine is amd64. With `architecture="arm64"` kubelet and containerd say that they run on arm64 and pull its
    images (`architecture.py`). Programs for arm64 are run by qemu, others are refused by the kernel (`arm64_runc.py`).

    Pods have no network. With `doors` they do: the node is in a network namespace of its own, where pods reach the node
    and each other, and all of them what the doors lead to, and nothing else. The node's kubeconfig and registry need
    one; pods find the API server if 10.0.0.1:443 leads to it. `open_pod_port` leads to a pod.

    containerd pulls as `hosts`, a folder of registries' `hosts.toml`, has it.
    """

    def __init__(
        self,
        name: str,
        programs: NodePrograms,
        api: ApiClient,
        kubeconfig: Path,
        pause_image: str,
        *,
        architecture: Architecture = "amd64",
        doors: Doors | None = None,
        hosts: Path | None = None,
    ) -> None:
        self.name, self.architecture, self._doors, self._hosts = name, architecture, doors, hosts
        self._programs, self._api, self._kubeconfig, self._pause_image = programs, api, kubeconfig, pause_image
        self.cgroup = Cgroup(name)
        self._running = AsyncExitStack()

    async def start(self) -> None:
        """Starts the node; returns when it is Ready. Raises ProcessFailed."""
        self._port = free_port()
        await self._api.create(_node(self.name, self._port))
        async with AsyncExitStack() as running:
            self._folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="multiarch-node-")))
            running.enter_context(self.cgroup)
            command = self._prepare()
            self._process = Process(self.name, command, self._folder / "kubelet.log")
            running.callback(self._end)
            await self._open_doors(running)
            await self._wait_until_ready()
            self._running = running.pop_all()

    async def stop(self) -> None:
        """Kills everything that runs on the node, and deletes the node; returns when nothing of it is left."""
        await self._running.aclose()
        with suppress(ApiError):
            await self._api.delete("Node", self.name)

    async def open_pod_port(self, address: str, port: int) -> int:
        """Returns a port on loopback that leads to that port of a pod of this node, until the node stops."""

        def connect() -> socket.socket:
            with network_of(self._children()[0]):
                return socket.create_connection((address, port))

        async def open_connection(*_client: object) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await asyncio.open_connection(sock=await asyncio.to_thread(connect))

        listening = socket.create_server((LOOPBACK, 0))
        return (await self._running.enter_async_context(open_relay(listening, open_connection))).port

    async def import_images(self, archive: Path) -> None:
        """Puts the images of the archive into containerd's store, as `kind load` does. Raises ProcessFailed."""
        command = ["nsenter", f"--target={self._children()[0]}", "--mount", str(self._programs.ctr)]
        command += ["--namespace=k8s.io", "images", "import", str(archive)]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise ProcessFailed(f"ctr images import has failed: {done.stdout}{done.stderr}")

    def logs(self) -> str:
        """Returns the ends of kubelet's and containerd's logs, for a failure report."""
        containerd = self._folder / "containerd.log"
        last = containerd.read_text(errors="replace")[-3000:] if containerd.exists() else ""
        return f"{self._process.tail()}\n--- end of {containerd} ---\n{last}"

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.logs())
        await self.stop()

    def _prepare(self) -> list[str]:
        """Writes the node's files; returns the command that runs it."""
        kubelet, containerd, runtime = self._programs.kubelet, self._programs.containerd, self._programs.runc
        if self.architecture == "arm64":
            exchange_constant(kubelet, kubelet := self._folder / "kubelet-arm64")
            redirect_constant(containerd, containerd := self._folder / "containerd-arm64")
            runtime = self._write_runtime()
        for path, value in TUNABLES.items():
            self._write(f"sys/{path}", f"{value}\n".encode())
        plugin = CNI_PLUGIN if self._doors is None else POD_NETWORK_PLUGIN
        self._write("cni/bin/none", plugin.encode(), mode=0o755)
        self._write("cni/bin/loopback", CNI_PLUGIN.encode(), mode=0o755)
        self._write("cni/conf/10-none.conflist", msgspec.json.encode(CNI_NETWORK))
        authority = self._write("ca.crt", _client_authority(self._kubeconfig))
        configuration = kubelet_configuration(self._port, self.cgroup.name, authority)
        kubelet_file = self._write("kubelet.yaml", msgspec.yaml.encode(configuration))
        containerd_text = containerd_configuration(
            self._programs.version, self._pause_image, runtime, self._folder / "cni", self._hosts
        )
        self._write("containerd.toml", containerd_text)
        shims = self._programs.containerd.parent
        network = ("--net", "POD_NETWORK=1") if self._doors is not None else ()
        return [
            _tool("unshare"),
            *("--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"),
            *network[:1],
            _tool("env"),
            *network[1:],
            f"PATH={shims}:{self._programs.runc.parent}:{os.environ['PATH']}",
            f"LD_LIBRARY_PATH={self._programs.libraries}",
            *(_tool("sh"), str(START), str(self._folder), str(containerd)),
            str(kubelet),
            f"--config={kubelet_file}",
            f"--kubeconfig={self._kubeconfig}",
            f"--hostname-override={self.name}",
            "--cloud-provider=external",  # keeps the address that the node has, which is loopback
        ]

    def _write_runtime(self) -> Path:
        """Writes the program that containerd's shim runs instead of runc; returns its path."""
        foreign = self._write("foreign", elf_header(RISCV), mode=0o755)
        runc = self._programs.runc
        adapting = [sys.executable, "-I", "-S", RUNTIME, runc, self._programs.qemu, foreign]
        script = f"""#!/bin/sh
case " $* " in
*" create "*) exec {" ".join(map(str, adapting))} "$@" ;;
*) exec {runc} "$@" ;;
esac
"""
        return self._write("runc", script.encode(), mode=0o755)

    def _write(self, name: str, content: bytes, mode: int = 0o644) -> Path:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(mode)
        return path

    async def _open_doors(self, running: AsyncExitStack) -> None:
        """Opens the doors once the node has its addresses. Raises ProcessFailed."""
        for (address, port), target in (self._doors or {}).items():
            listening = await self._listen(address, port)
            await running.enter_async_context(open_relay(listening, connect_to(target)))

    async def _listen(self, address: str, port: int) -> socket.socket:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while True:
                    with suppress(OSError):  # the address is not there yet
                        for first in self._children():
                            with network_of(first):
                                return socket.create_server((address, port))
                    if not self._process.is_running:
                        raise ProcessFailed(f"{self.name} has ended\n{self.logs()}")
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise ProcessFailed(f"{self.name} has no address {address} after {READY_SECONDS:g} s") from None

    async def _wait_until_ready(self) -> None:
        """Returns when the API server says that the node is Ready. Raises ProcessFailed."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not _is_ready(await self._api.get("Node", self.name)):
                    if not self._process.is_running:
                        raise ProcessFailed(f"{self.name} has ended\n{self.logs()}")
                    await asyncio.sleep(PAUSE_SECONDS)
        except TimeoutError:
            raise ProcessFailed(f"{self.name} was not ready in {READY_SECONDS:g} s\n{self.logs()}") from None

    def _end(self) -> None:
        """Kills the first process of the PID namespace, with which all others end; returns when they have ended."""
        for first in self._children():
            os.kill(first, signal.SIGKILL)
        self._process.stop(END_SECONDS)

    def _children(self) -> list[int]:
        """Returns the process that is the first one of the PID namespace; empty if it has ended."""
        if not self._process.is_running:
            return []
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(child) for child in children.read_text().split()]


def _node(name: str, port: int) -> KubernetesObject:
    """Returns the node before kubelet has filled it in. Its address is where the API server reaches kubelet."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(MADE_HERE)},
        "status": {
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": port}},
        },
    }


def _is_ready(node: KubernetesObject) -> bool:
    conditions: list[dict[str, Any]] = node["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def _client_authority(kubeconfig: Path) -> bytes:
    [cluster] = msgspec.yaml.decode(kubeconfig.read_bytes())["clusters"]
    return base64.b64decode(cluster["cluster"]["certificate-authority-data"])


def _tool(name: str) -> str:
    """Returns the path of a tool that `require_machine` has found."""
    return shutil.which(name) or name
