"""Which of several kube-schedulers of one name works: the holder of their Lease.

It is written from kubernetes 1.36, cmd/kube-scheduler and client-go's leaderelection: who is ended in order releases
the Lease (ReleaseOnCancel), and another takes it at its next try, within two seconds. Limit: the Lease is no object of
the API server, so nobody loses it by an outage.
"""

import asyncio
from collections.abc import Sequence

from tests.worlds.scheduler import KubeScheduler
from tests.worlds.trace import Trace

_RETRY_SECONDS = 2.0  # retryPeriod
_POD_SECONDS = 5.0  # until the only one is back: its pod is replaced


class SchedulerElection:
    """Schedulers that stand by for one another. The first one begins."""

    def __init__(self, schedulers: Sequence[KubeScheduler], trace: Trace) -> None:
        self._schedulers = schedulers
        self._trace = trace
        self._leader = 0
        self._resigned = asyncio.Event()

    def resign(self, number: int) -> None:
        """The pod of this scheduler is deleted; another one comes in its place."""
        if number == self._leader:
            self._resigned.set()

    async def run(self) -> None:
        """Has one of them work at a time, until cancelled."""
        while True:
            scheduler = self._schedulers[self._leader]
            self._trace(scheduler.name, "leads", number=self._leader)
            async with asyncio.TaskGroup() as tasks:
                working = tasks.create_task(scheduler.run())
                await self._resigned.wait()
                working.cancel()
            await asyncio.sleep(_RETRY_SECONDS if len(self._schedulers) > 1 else _POD_SECONDS)
            self._resigned.clear()
            self._leader = (self._leader + 1) % len(self._schedulers)
