"""The controller that takes the taint of new nodes off, so that pods come to a node a while after it was made.

Sources: plugin/pkg/admission/nodetaint, and pkg/controller/nodelifecycle, doNoScheduleTaintingPass. Limits: a node is
ready a few seconds after its creation, and stays so; no pod is evicted.
"""

import random

from tests.worlds.api_server import MERGE_PATCH, ApiServer
from tests.worlds.api_storage import Key
from tests.worlds.controllers import Controller
from tests.worlds.defaulting import NOT_READY

_FIRST_SECONDS, _LAST_SECONDS = 2.0, 8.0  # until the kubelet has said that the node is ready


class NodeLifecycle(Controller):
    """Takes the taint off that each node has at its creation."""

    kind = "Node"
    account = "node-controller"

    def __init__(self, api: ApiServer, chance: random.Random) -> None:
        super().__init__(api)
        self._chance = chance
        self._ready_at: dict[str, float] = {}  # by uid

    async def sync(self, key: Key) -> None:
        """Takes the taint off once the node is ready."""
        node = self.find(key)
        taints = (node["spec"].get("taints") or []) if node else []
        if node is None or NOT_READY not in taints:
            return
        uid, now = node["metadata"]["uid"], self.api.time()
        if uid not in self._ready_at:
            self._ready_at[uid] = now + self._chance.uniform(_FIRST_SECONDS, _LAST_SECONDS)
        if now < self._ready_at[uid]:
            self.enqueue_after(key, self._ready_at[uid] - now)
            return
        left = [taint for taint in taints if taint != NOT_READY]
        version = node["metadata"]["resourceVersion"]
        patch = {"metadata": {"resourceVersion": version}, "spec": {"taints": left or None}}
        await self.api.patch("Node", *key, patch, MERGE_PATCH, user=self.user)
