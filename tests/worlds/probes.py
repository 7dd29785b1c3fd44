"""The kubelet's probes of our replicas: readiness decides who is asked, liveness who is started again.

They are written from kubernetes 1.36, pkg/kubelet/prober (worker.go, prober_manager.go), with the periods and
thresholds of deploy/manifests: /livez every 2 s, up to 60 times, until it has started; then /livez every 10 s and
/readyz every 5 s, of which three failures in a row count. A probe has a second and a connection of its own. An end is
noticed within a second. A Service's endpoints follow half a second later. Limit: the probes of a replica wait for each
other.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from testbed.memory_http import Client
from testbed.memory_network import Network
from tests.worlds.replicas import OPERATIONS_PORT, Replica
from tests.worlds.trace import Trace

KUBELET = "10.0.0.2"
"""The address of who probes."""
_STARTUP, _LIVENESS, _READINESS = ("startup", "/livez"), ("liveness", "/livez"), ("readiness", "/readyz")
_PERIODS = {_STARTUP: 2.0, _LIVENESS: 10.0, _READINESS: 5.0}
_FAILURES = {_STARTUP: 60, _LIVENESS: 3, _READINESS: 3}
_TIMEOUT_SECONDS = 1.0
_NOTICING_SECONDS = 1.0
_ENDPOINTS_SECONDS = 0.5
_HEADERS = {"User-Agent": "kube-probe/1.36", "Connection": "close"}


class Probes:
    """Probes the replicas that `replicas` gives. `restart` is called with the number of one that is not live."""

    def __init__(
        self,
        network: Network,
        trace: Trace,
        replicas: Callable[[], Sequence[Replica]],
        restart: Callable[[int], Awaitable[None]],
    ) -> None:
        self._client = Client(network, KUBELET)
        self._loop = network.loop
        self._trace = trace
        self._replicas = replicas
        self._restart = restart
        self._ready: dict[int, bool] = {}
        self._endpoints: dict[int, str] = {}

    def ready_hosts(self) -> list[str]:
        """The addresses of the replicas that get requests."""
        return [self._endpoints[number] for number in sorted(self._endpoints)]

    async def run(self, number: int) -> None:
        """Probes the replica at this place, and whichever follows it, until cancelled."""
        while True:
            replica = self._replicas()[number]
            failed = await self._watch(number, replica)
            self._set_ready(number, replica, False)
            if failed:
                self._trace("kubelet", f"{failed} probe failed", replica=number)
                await self._restart(number)
            while self._replicas()[number] is replica and not replica.is_running:
                await asyncio.sleep(_NOTICING_SECONDS)

    async def _watch(self, number: int, replica: Replica) -> str:
        """Probes the replica for as long as it runs; returns the probe that has it started again, if one has."""
        due, failures = {_STARTUP: self._loop.time()}, dict.fromkeys(_PERIODS, 0)
        while replica.is_running and self._replicas()[number] is replica:
            probe = min(due, key=lambda each: due[each])
            wait = due[probe] - self._loop.time()
            if wait > 0:
                await asyncio.sleep(min(wait, _NOTICING_SECONDS))
                continue
            due[probe] += _PERIODS[probe]
            is_good = await self._ask(replica, probe[1])
            failures[probe] = 0 if is_good else failures[probe] + 1
            counts = is_good or failures[probe] >= _FAILURES[probe]
            if counts and probe is _READINESS:
                self._set_ready(number, replica, is_good)
            elif counts and not is_good:
                return probe[0]
            elif is_good and probe is _STARTUP:
                due = {_READINESS: self._loop.time(), _LIVENESS: self._loop.time() + _PERIODS[_LIVENESS]}
        return ""

    async def _ask(self, replica: Replica, path: str) -> bool:
        url = f"http://{replica.address}:{OPERATIONS_PORT}{path}"
        try:
            answer = await self._client.request("GET", url, b"", _HEADERS, timeout_seconds=_TIMEOUT_SECONDS)
        except (ConnectionError, TimeoutError):
            return False
        return 200 <= answer.status < 400

    def _set_ready(self, number: int, replica: Replica, is_ready: bool) -> None:
        """Says so, and has the endpoints follow."""
        if self._ready.get(number, False) == is_ready:
            return
        self._ready[number] = is_ready
        self._trace("kubelet", "ready" if is_ready else "not ready", replica=number)
        self._loop.call_later(_ENDPOINTS_SECONDS, self._publish, number, replica.address, is_ready)

    def _publish(self, number: int, address: str, is_ready: bool) -> None:
        if is_ready:
            self._endpoints[number] = address
        else:
            self._endpoints.pop(number, None)
