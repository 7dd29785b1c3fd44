"""Promises about whom kube-scheduler evicts for a pod of a higher priority."""

from tests.worlds.promises_of_places import RightNodes
from tests.worlds.trace import Entry


class NobodyEvictedInVain(RightNodes):
    """D9."""

    name = "D9 evictions"
    promise = "nobody is evicted for a pod on a node where an image of it that is known cannot run"
    floor = 6

    def start(self) -> None:
        self.world.trace.listen("Preempted", self._preempted)

    def _preempted(self, entry: Entry) -> None:
        world = self.world
        life, node = world.lives.named(*entry.fields["by"]), world.api.get("Node", "", entry.fields["node"])
        if life and node and self._is_looked_after(life):
            self.check(
                world.runs_all(life.pod, node),
                "evicted in vain",
                pod=entry.fields["pod"],
                by=life.key,
                node=entry.fields["node"],
            )
