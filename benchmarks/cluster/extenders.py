"""Whom kube-scheduler asks in the throughput benchmark: one of the Go references or our service, as a process.

Knows how each is started and how it is known to have been asked. A reference that was not, or a service that did not
answer every call, is an error: such a run would look splendid.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.cluster.variants import ExtenderChoice
from benchmarks.process_costs import bytes_read
from testbed.extender_process import ExtenderProcess
from testbed.processes import Process

_READY_SECONDS = 30.0
_GRACE_SECONDS = 10.0
_LEAST_CALL_BYTES = 500  # no call is shorter: it carries a pod


class NotAsked(RuntimeError):
    """The extender was not asked as often as it had to be, or failed to answer: the run is void."""


class Extender(Protocol):
    """A running extender."""

    @property
    def url(self) -> str:
        """Its base address."""

    @property
    def pid(self) -> int:
        """Its process."""

    async def begin(self) -> None:
        """Calls count from here."""

    async def check(self, pods: int, verbs: Sequence[str]) -> Mapping[str, float]:
        """Calls per pod of each verb, if it counts them. Raises NotAsked, unless each was called for every pod."""


class ReferenceExtender:
    """One of the Go programs; it does not count, so what it has read is held against the least there can be."""

    def __init__(
        self, which: ExtenderChoice, program: Path, folder: Path, host: str, table: Mapping[str, object]
    ) -> None:
        """Returns when it listens; `table` is what `typed` decides by. Raises ProcessFailed."""
        name = which.replace(" ", "-")
        command = [str(program), "-listen", f"{host}:0"]
        match which:
            case ExtenderChoice.TYPED:
                path = folder / "table.json"
                path.write_bytes(msgspec.json.encode(table))
                command += ["-table", str(path)]
            case ExtenderChoice.SCORING:
                command.append("-score")
        self._process = Process(name, command, folder / f"{name}.log")
        self._process.wait_until(lambda: b"\n" in self._process.log.read_bytes(), _READY_SECONDS)
        first_line = self._process.log.read_bytes().splitlines()[0]
        self.url = msgspec.json.decode(first_line, type=dict[str, str])["address"]
        self._read = 0

    @property
    def pid(self) -> int:
        """Its process."""
        return self._process.pid

    async def begin(self) -> None:
        """What it reads counts from here."""
        self._read = bytes_read(self.pid)

    async def check(self, pods: int, verbs: Sequence[str]) -> Mapping[str, float]:
        """Nothing is counted. Raises NotAsked."""
        read = bytes_read(self.pid) - self._read
        if read < pods * len(verbs) * _LEAST_CALL_BYTES:
            raise NotAsked(f"{self._process.name} has read {read:,} bytes for {pods:,} pods and {' and '.join(verbs)}")
        return {}

    def stop(self) -> None:
        """Ends it."""
        self._process.stop(_GRACE_SECONDS)


class ServiceExtender:
    """Our service, which counts its calls and their outcomes. `verbs` are those it may be asked, the webhook's too."""

    def __init__(self, service: ExtenderProcess, verbs: Sequence[str]) -> None:
        self._service, self._verbs = service, verbs
        self._before: dict[str, int] = {}

    @property
    def url(self) -> str:
        """Where kube-scheduler asks; empty when it does not."""
        return self._service.scheduler_url

    @property
    def pid(self) -> int:
        """Its process."""
        return self._service.pid

    async def begin(self) -> None:
        """Calls count from here."""
        self._before = {verb: await self._service.calls(verb) for verb in self._verbs}

    async def check(self, pods: int, verbs: Sequence[str]) -> Mapping[str, float]:
        """Calls per pod. Raises NotAsked, for a call without an answer too."""
        calls = {verb: await self._service.calls(verb) - self._before[verb] for verb in verbs}
        if short := [verb for verb, count in calls.items() if count < pods]:
            raise NotAsked(f"the service was asked too rarely for {' and '.join(short)}: {calls} for {pods:,} pods")
        for verb in verbs:
            answered = await self._service.metric("multiarch_requests_total", endpoint=verb, outcome="answered")
            if (total := await self._service.calls(verb)) != answered:
                raise NotAsked(f"the service did not answer {total - answered:g} of {total} calls of {verb}")
        return {verb: count / pods for verb, count in calls.items()}
