"""Runs the service under test as a process: `python -m extender serve` with a shipped configuration, on loopback.

It also creates the service's account in a cluster. It does not import the service's code, since the running service is
what is tested.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec
import trustme
from prometheus_client.parser import text_string_to_metric_families

from testbed.api_client import ApiClient
from testbed.certificates import write_pair
from testbed.processes import Process, ProcessFailed, free_port
from testbed.shipped_environment import as_shipped
from testbed.shipped_files import Mode, identity_manifests, service_configuration, webhook_manifests

READY_SECONDS = 60.0  # for a busy machine; usually it takes two seconds
GRACE_SECONDS = 30.0  # as the manifests' terminationGracePeriodSeconds
TOKEN_SECONDS = 24 * 3600


class ServingCertificate(msgspec.Struct, frozen=True):
    """The webhook's certificate and key, and the certificate of the authority that issued it (PEM)."""

    certificate: Path
    key: Path
    authority: bytes


class ExtenderProcess:
    """One service on ports of its own, which stay the same when it is started again.

    `serving` is the webhook's certificate, `self-managed` where the service looks after it, or None without a webhook.
    `make_extender_process` makes it.
    """

    def __init__(
        self,
        name: str,
        folder: Path,
        arguments: Sequence[str],
        host: str,
        serving: ServingCertificate | Literal["self-managed"] | None,
        *,
        is_asked_by_schedulers: bool = True,
    ) -> None:
        self.name = name
        self.authority = serving.authority if isinstance(serving, ServingCertificate) else b""
        scheduler, admission, operations = (f"{host}:{port}" for port in _free_ports(3))
        self.scheduler_url = f"http://{scheduler}" if is_asked_by_schedulers else ""
        self.admission_url = f"https://{admission}" if serving else ""
        self.operations_url = f"http://{operations}"
        listen = {"scheduler.listen": "", "operations.listen": operations, "admission.listen": ""}
        if is_asked_by_schedulers:
            listen["scheduler.listen"] = scheduler
        if serving:
            listen["admission.listen"] = admission
        if isinstance(serving, ServingCertificate):
            listen["admission.tls"] = f"{{certificate: {serving.certificate}, key: {serving.key}}}"
        elif serving:
            listen["admission.tls"] = f"{{self_managed: [multiarch-webhook, {host}], certificate: '', key: ''}}"
        sets = [f"--set={path}={value}" for path, value in listen.items()]
        self._command = as_shipped([sys.executable, "-m", "extender", "serve", *arguments, *sets])
        self._folder, self._processes = folder, list[Process]()

    async def start(self) -> None:
        """Starts the process; returns when the service is ready, with every view synced. Raises ProcessFailed."""
        self.launch()
        await self.wait_until_ready()

    def launch(self) -> None:
        """Starts the process and does not wait until it is ready."""
        log = self._folder / f"{self.name}-{len(self._processes)}.log"
        self._processes.append(Process(self.name, self._command, log))

    async def wait_until_ready(self, timeout_seconds: float = READY_SECONDS) -> None:
        """Returns when /readyz answers 200. Raises ProcessFailed if the process ends first or the time runs out."""
        try:
            async with asyncio.timeout(timeout_seconds):
                while not await self.is_ready():
                    if not self._process.is_running:
                        raise ProcessFailed(f"{self.name} has ended\n{self._process.tail()}")
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise ProcessFailed(f"{self.name} was not ready in {timeout_seconds:g} s\n{self._process.tail()}") from None

    async def is_ready(self) -> bool:
        """Whether /readyz answers 200 now."""
        try:
            async with _session() as session, session.get(f"{self.operations_url}/readyz") as response:
                return response.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False

    async def readiness(self) -> str:
        """Returns the text of /readyz, with one check a line."""
        async with _session() as session, session.get(f"{self.operations_url}/readyz?verbose") as response:
            return await response.text()

    async def metrics(self) -> str:
        """Returns the text of /metrics."""
        async with _session() as session, session.get(f"{self.operations_url}/metrics") as response:
            return await response.text()

    async def metric(self, name: str, **labels: str) -> float:
        """Returns the sum of the samples with this name and at least these labels."""
        families = text_string_to_metric_families(await self.metrics())
        samples = (sample for family in families for sample in family.samples if sample.name == name)
        return sum(sample.value for sample in samples if labels.items() <= sample.labels.items())

    async def calls(self, endpoint: str) -> int:
        """Returns the number of requests at filter, prioritize, preempt or admission, whatever their results."""
        return int(await self.metric("multiarch_requests_total", endpoint=endpoint))

    async def filter_calls(self) -> int:
        """Returns the number of filter requests."""
        return await self.calls("filter")

    async def ask(self, verb: str, arguments: object) -> dict[str, Any]:
        """Calls a scheduler verb once, as kube-scheduler does, and returns the decoded response."""
        body = msgspec.json.encode(arguments)
        async with _session() as session, session.post(f"{self.scheduler_url}/scheduler/{verb}", data=body) as response:
            response.raise_for_status()
            return msgspec.json.decode(await response.read(), type=dict[str, Any])

    def kill(self) -> None:
        """Kills the process (SIGKILL), which finishes no request and logs nothing; returns when it has ended."""
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.stop(GRACE_SECONDS)

    def freeze(self) -> None:
        """Stops the process (SIGSTOP): its ports stay open and nothing is answered, as if it hung.

        `thaw` continues it.
        """
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Continues the process (SIGCONT)."""
        os.kill(self._process.pid, signal.SIGCONT)

    def terminate(self) -> None:
        """Ends the process (SIGTERM), as a kubelet does; returns when it has ended, or immediately if it never ran."""
        for process in self._processes[-1:]:
            if process.is_running:
                self.thaw()
            process.stop(GRACE_SECONDS)

    @property
    def _process(self) -> Process:
        return self._processes[-1]

    @property
    def is_running(self) -> bool:
        """False once the process has ended."""
        return self._process.is_running

    @property
    def pid(self) -> int:
        """The id of the current process."""
        return self._process.pid

    def log(self) -> str:
        """Returns all that the current process has written so far."""
        return self._process.log.read_text(errors="replace")

    def tail(self) -> str:
        """Returns the end of the log of each of its processes, under headings."""
        return "\n".join(process.tail() for process in self._processes)


def make_extender_process(
    name: str,
    folder: Path,
    kubeconfig: Path,
    *settings: str,
    mode: Mode = Mode.SECOND,
    admission: bool | Literal["self-managed"] = True,
    scheduler: bool = True,
    host: str = "127.0.0.1",
) -> ExtenderProcess:
    """Makes a service, not yet started, with the mode's shipped settings and these (`path=value`) over them.

    Without `admission` there is no webhook listener; if it is `self-managed`, the service makes its own certificate.
    Without `scheduler` there is none for kube-scheduler. Its files go into `folder`.
    """
    configuration = folder / f"{name}.yaml"
    configuration.write_bytes(msgspec.yaml.encode(service_configuration(mode)))
    sets = [f"--set={setting}" for setting in (f"cluster={kubeconfig}", *settings)]
    serving = _issue(folder, name, host) if admission is True else admission or None
    arguments = [f"--config={configuration}", *sets]
    return ExtenderProcess(name, folder, arguments, host, serving, is_asked_by_schedulers=scheduler)


async def write_account(api: ApiClient, admin: Path, path: Path, mode: Mode) -> Path:
    """Writes a kubeconfig for the mode's own ServiceAccount, with exactly the rights in the mode's manifest.

    The webhook's account may also hold pods and read pull secrets, as the chart has it where that is asked for.
    """
    identity = identity_manifests(mode)
    for manifest in [*identity, *(webhook_manifests() if mode is Mode.WEBHOOK else ())]:
        await api.apply(manifest)
    [account] = [found["metadata"] for found in identity if found["kind"] == "ServiceAccount"]
    return await write_token_kubeconfig(api, admin, path, account["name"], account["namespace"])


async def write_token_kubeconfig(api: ApiClient, admin: Path, path: Path, account: str, namespace: str) -> Path:
    """Writes the administrator's kubeconfig with a token of that ServiceAccount in place of the administrator's key.

    The context's namespace is the account's, as in a pod.
    """
    token_path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest"}
    answer = await api.request("POST", token_path, {**request, "spec": {"expirationSeconds": TOKEN_SECONDS}})
    kubeconfig: dict[str, Any] = msgspec.yaml.decode(admin.read_bytes())
    kubeconfig["users"] = [{"name": user["name"], "user": _token(answer)} for user in kubeconfig["users"]]
    for context in kubeconfig["contexts"]:
        context["context"]["namespace"] = namespace  # as a pod finds its own
    path.touch(mode=0o600)
    path.write_bytes(msgspec.yaml.encode(kubeconfig))
    return path


def _free_ports(count: int) -> set[int]:
    """Returns so many different free ports.

    A set, since the same port can be found twice while nothing is bound to it.
    """
    ports: set[int] = set()
    while len(ports) < count:
        ports.add(free_port())
    return ports


def _token(answer: Mapping[str, Any]) -> dict[str, str]:
    return {"token": answer["status"]["token"]}


def _issue(folder: Path, name: str, host: str) -> ServingCertificate:
    authority = trustme.CA(organization_name="multiarch-extender tests")
    return ServingCertificate(*write_pair(authority.issue_cert(host), folder / name), authority.cert_pem.bytes())


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=5))
