"""Puts the API server's policy into force that holds new pods: last of all, once it is shown that it works.

An installation makes the binding of the policy for probes alone. When a probe comes back held, as the controller finds
held pods, the leader opens the binding for all pods. An installation that never gets so far never holds a pod. Nothing
here takes the policy out of force: whoever deletes it does, and needs nothing of ours to run.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import structlog

from extender.cluster.client import MERGE_PATCH, ClusterClient
from extender.cluster.probe import is_held, send_probe
from extender.errors import ClusterError
from extender.kubernetes.documents import value_at

log = structlog.get_logger()

_BINDINGS = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicybindings"
# Between two checks of the binding: whoever applies it again narrows it to probes again.
_CHECK_SECONDS = 10.0
# An API server takes notice of a binding about a second after it is made. Doubles up to `_CHECK_SECONDS`.
_RETRY_SECONDS = 1.0
_PROBES_ALONE = ("spec", "matchResources", "objectSelector", "matchLabels")
_OBJECT = msgspec.json.Decoder(dict[str, Any])


class PolicyBinding:
    """Opens the binding of that name while `run` runs, and `can_ungate` says that gates are removed.

    Needs the verbs get and patch on the binding, and create on pods in `namespace`, where probes are created dry. The
    policy has to select that namespace.
    """

    def __init__(
        self,
        client: ClusterClient,
        name: str,
        namespace: str,
        *,
        can_ungate: Callable[[], bool],
    ) -> None:
        self._client = client
        self._name = name
        self._namespace = namespace
        self._can_ungate = can_ungate
        self._problem = ""

    async def run(self) -> None:
        """Opens the binding whenever it is for probes alone, until cancelled. Continues after ClusterErrors."""
        seconds = _RETRY_SECONDS
        while True:
            try:
                problem = await self._open_once_held()
            except ClusterError as exc:
                problem = str(exc)
            if problem != self._problem:
                seconds = _RETRY_SECONDS
                if problem:
                    log.warning("policy.unarmed", policy=self._name, why=problem)
            self._problem = problem
            await asyncio.sleep(seconds if problem else _CHECK_SECONDS)
            seconds = min(2 * seconds, _CHECK_SECONDS)

    async def _open_once_held(self) -> str:
        """Opens the binding if a probe is held; returns why the policy is not in force yet, empty if it is."""
        binding = await self._client.find(f"{_BINDINGS}/{self._name}", _OBJECT)
        if binding is None:
            return "there is no such binding"
        if value_at(binding, *_PROBES_ALONE) is None:
            return ""
        if not self._can_ungate():
            return "nobody is known to remove gates"
        if not is_held(await send_probe(self._client, self._namespace)):
            return (
                f"a pod in namespace {self._namespace} is not held yet; see whether the policy selects that namespace"
            )
        await self._client.send("PATCH", f"{_BINDINGS}/{self._name}", b'{"spec":{"matchResources":null}}', MERGE_PATCH)
        log.info("policy.armed", policy=self._name)
        return ""
