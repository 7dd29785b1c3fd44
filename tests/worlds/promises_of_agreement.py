"""Promises that each part gives the answer that the others give: templates of guarded DaemonSets."""

from tests.unit.placement.kube_scheduler import allows
from tests.worlds.judging import Invariant
from tests.worlds.plan import Applied, Manifest
from tests.worlds.truth import MODE, annotation, references, required_terms

_TAG_SECONDS = 910.0  # after which a tag that has moved is asked for again
_LOOKUP_SECONDS = 0.4  # that a look-up takes at most while nothing is wrong
_MODES = ("enforce", "observe", "ignore")


class GuardedTemplates(Invariant):
    """I6 for templates, and I13."""

    name = "I6 templates"
    promise = "the template of a guarded DaemonSet allows the nodes that run its images by now, and no other"
    floor = 12

    def start(self) -> None:
        self._last: dict[str, Manifest] = {}
        if self.world.guards:
            self.world.on_applied.append(self._applied)

    def _applied(self, event: Applied, _before: Manifest | None, after: Manifest | None, error: str) -> None:
        if event.kind != "DaemonSet" or error or after is None:
            return
        name = after["metadata"]["name"]
        is_edited, self._last[name] = self._last.get(name) != event.manifest, event.manifest
        if not self._is_calm():
            return
        world, template = self.world, event.manifest["spec"]["template"]
        namespace = event.manifest["metadata"]["namespace"]
        pod = {"metadata": {**template["metadata"], "namespace": namespace}, "spec": template["spec"]}
        if not world.is_plain(pod) or not self._is_enforced(pod) or not self._is_known(pod, is_edited=is_edited):
            return
        if not world.have_common(pod):  # its author has to change it
            return
        stored = after["spec"]["template"]["spec"]
        for node in filter(world.is_usual, world.nodes()):
            allowed = allows(stored, node)
            right = allows(template["spec"], node) and world.runs_all(pod, node)
            self.check(allowed == right, "a guarded template is wrong for a node",
                       object=name, node=node["metadata"]["name"], allowed=allowed,
                       affinity=required_terms(stored))  # fmt: skip

    def _is_calm(self) -> bool:
        world = self.world
        is_old = all(world.now - at > 40.0 for at in world.replaced_at.values())
        is_right = world.wrongs.was_right_since(world.now - 20.0)
        return is_old and is_right and bool(world.running()) and world.now - world.settings_since > 60.0

    def _is_enforced(self, pod: Manifest) -> bool:
        world, namespace = self.world, pod["metadata"]["namespace"]
        if not world.is_settled(namespace):
            return False
        said = (annotation(pod, MODE), world.annotations_at(namespace, world.now).get(MODE, ""))
        return next((each for each in said if each in _MODES), world.config.placement.mode) == "enforce"

    def _is_known(self, pod: Manifest, *, is_edited: bool) -> bool:
        """Whether its images are there and were from the start, or have moved long ago and are asked for again.

        What is applied again as it was is not judged again.
        """
        world, used = self.world, references(pod)
        if world.config.admission.wait_seconds < _LOOKUP_SECONDS:
            return False
        if not any(map(world.contents.has_changed, used)):
            return all(world.known_since(pod, each) <= world.started_at for each in used)
        return is_edited and all(world.now - world.known_since(pod, each) > _TAG_SECONDS for each in used)
