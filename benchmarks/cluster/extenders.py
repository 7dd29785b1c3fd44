"""The extenders of the throughput benchmark: one of the Go references or our service, as a process.

Each checks that it was called: a reference that was not, or a service that did not answer every call, is an error,
since such a run would look fast.
"""

from collections.abc import Sequence
from typing import Protocol

from benchmarks.contenders import Server
from benchmarks.process_costs import bytes_read
from testbed.extender_process import ExtenderProcess

_LEAST_CALL_BYTES = 500  # every call is longer, since it carries a pod


class NotAsked(RuntimeError):
    """The extender was called less often than it must be, or did not answer a call: the run is void."""


class Extender(Protocol):
    """A running extender."""

    @property
    def url(self) -> str:
        """The base URL."""

    async def begin(self) -> None:
        """Starts counting calls."""

    async def check(self, pods: int, verbs: Sequence[str]) -> None:
        """Raises NotAsked if a verb was called less often than once per pod."""


class ReferenceExtender:
    """One of the Go programs. It does not count calls, so the bytes that it has read are compared with the least."""

    def __init__(self, server: Server) -> None:
        self.url, self._pid = server.urls["address"], server.pid
        self._read = 0

    async def begin(self) -> None:
        """Starts counting the bytes read."""
        self._read = bytes_read(self._pid)

    async def check(self, pods: int, verbs: Sequence[str]) -> None:
        """Raises NotAsked if too few bytes were read."""
        read = bytes_read(self._pid) - self._read
        if read < pods * len(verbs) * _LEAST_CALL_BYTES:
            raise NotAsked(f"{self.url} has read {read:,} bytes for {pods:,} pods and {' and '.join(verbs)}")


class ServiceExtender:
    """Our service, which counts its calls and their outcomes. `verbs` are those called, the webhook's included."""

    def __init__(self, service: ExtenderProcess, verbs: Sequence[str]) -> None:
        self._service, self._verbs = service, verbs
        self._before: dict[str, int] = {}

    @property
    def url(self) -> str:
        """The URL for kube-scheduler; empty if kube-scheduler does not call it."""
        return self._service.scheduler_url

    async def begin(self) -> None:
        """Starts counting calls."""
        self._before = {verb: await self._service.calls(verb) for verb in self._verbs}

    async def check(self, pods: int, verbs: Sequence[str]) -> None:
        """Raises NotAsked, also if a call has not been answered."""
        calls = {verb: await self._service.calls(verb) - self._before[verb] for verb in verbs}
        if short := [verb for verb, count in calls.items() if count < pods]:
            raise NotAsked(f"the service was asked too rarely for {' and '.join(short)}: {calls} for {pods:,} pods")
        for verb in verbs:
            answered = await self._service.metric("multiarch_requests_total", endpoint=verb, outcome="answered")
            if (total := await self._service.calls(verb)) != answered:
                raise NotAsked(f"the service did not answer {total - answered:g} of {total} calls of {verb}")
