"""Promises that each part gives the answer that the others give: templates of guarded DaemonSets, and commands."""

import asyncio
from collections.abc import Iterator
from typing import Any

import msgspec

from extender.placement.patch import Operation, apply
from extender.placement.scheduling import REFUSED
from extender.reports.explanation import Explanation
from testbed.memory_http import Client
from tests.unit.placement.kube_scheduler import allows
from tests.worlds.commands import Commands
from tests.worlds.judging import Invariant
from tests.worlds.lives import Life, copied
from tests.worlds.plan import Applied, Manifest
from tests.worlds.replicas import SCHEDULER_PORT
from tests.worlds.reviews import Answer, Reviewer
from tests.worlds.truth import MODE, annotation, owner_kind, references, required_terms

_TAG_SECONDS = 910.0  # after which a tag that has moved is asked for again
_LOOKUP_SECONDS = 0.4  # that a look-up takes at most while nothing is wrong
_SETTLED_SECONDS = 5.0
_MOST_PODS = 4
_MODES = ("enforce", "observe", "ignore")


class GuardedTemplates(Invariant):
    """I6 for templates, and I13."""

    name = "I6 templates"
    promise = "the template of a guarded DaemonSet allows the nodes that run its images by now, and no other"
    floor = 4

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


class _OfCommands(Invariant):
    """Asks at the end, about pods whose images have been known for long."""

    def _pods(self) -> Iterator[tuple[Life, Manifest]]:
        """A few of them, each with its manifest as its author would have it in a file."""
        world = self.world
        is_quiet = world.wrongs.is_quiet(seconds=30.0) and world.running() and world.keeps_all_images()
        if is_quiet and not world.plan.kubernetes.injects:
            for life in [each for each in world.lives if self._is_asked_about(each)][:_MOST_PODS]:
                manifest = copied(life.sent) | {"apiVersion": "v1", "kind": "Pod"}
                manifest["metadata"]["name"] = life.pod["metadata"]["name"]
                yield life, {key: value for key, value in manifest.items() if key != "status"}

    def _is_asked_about(self, life: Life) -> bool:
        world, pod = self.world, life.pod
        if owner_kind(pod) == "DaemonSet" or world.mode_of(life) != "enforce" or not world.is_settled(life.namespace):
            return False
        if world.is_drawn(life.namespace) or "prefer-share" in str(life.sent):  # it is drawn for each review
            return False
        is_known = life.is_there and world.is_plain(pod) and world.is_known(pod, _SETTLED_SECONDS)
        return is_known and not any(map(world.contents.has_changed, references(pod)))

    async def _review(self, life: Life, manifest: Manifest) -> Answer | None:
        """What the webhook says of it, where there is one."""
        if not self.world.plan.mode.has_webhook or not self.world.is_reviewed(life):
            return None
        reviewer = Reviewer(self.world.network, self.world.running()[0])
        await reviewer.review(manifest, f"warm-{life.uid}")
        return await reviewer.review(manifest, f"asked-{life.uid}")


class ExplainAgrees(_OfCommands):
    """I6 for explain."""

    name = "I6 explain"
    promise = "explain says of each node what is true, what filter and prioritize answer, and what the webhook writes"
    floor = 400

    async def finish(self) -> None:
        asked = list(self._pods())
        if not asked:
            return
        explained = await Commands(self.world).explain([manifest for _, manifest in asked])
        for (life, manifest), explanation in zip(asked, explained, strict=True):
            self._judge_nodes(life, explanation)
            if answer := await self._review(life, manifest):
                written = msgspec.to_builtins(explanation.webhook.patch)
                self.check(written == (answer.patch or []), "explain and the webhook differ", pod=life.key,
                           explained=written, webhook=answer.patch)  # fmt: skip
            if self.world.uses_verbs(life):
                await self._judge_verbs(life, manifest, explanation)

    def _judge_nodes(self, life: Life, explanation: Explanation) -> None:
        nodes = {node["metadata"]["name"]: node for node in self.world.nodes()}
        for group in explanation.nodes:
            for name in group.names:
                is_right = self.world.runs_all(life.sent, nodes[name])
                self.check(is_right == (group.images == "yes"), "explain is wrong about a node", pod=life.key,
                           node=name, explained=group.images)  # fmt: skip

    async def _judge_verbs(self, life: Life, pod: Manifest, explanation: Explanation) -> None:
        body = msgspec.json.encode({"Pod": pod, "Nodes": {"items": self.world.nodes()}})
        await self._ask("filter", body)
        await asyncio.sleep(_LOOKUP_SECONDS)  # what memory has lost is looked up again
        filtered, scores = await self._ask("filter", body), await self._ask("prioritize", body)
        refused = {*(filtered.get("FailedNodes") or ()), *(filtered.get("FailedAndUnresolvableNodes") or ())}
        score_of = {each["Host"]: each["Score"] for each in scores}
        for group in explanation.nodes:
            for name in group.names:
                is_same = (group.verdict in REFUSED) == (name in refused)
                self.check(is_same, "explain and filter differ", pod=life.key, node=name, explained=group.verdict)
                if name not in refused and not self.world.prefers_by_filter():  # then nothing is left to prioritize
                    self.check(group.score == score_of.get(name, 0), "explain and prioritize differ", pod=life.key,
                               node=name, explained=group.score, scores=scores)  # fmt: skip

    async def _ask(self, verb: str, body: bytes) -> Any:  # JSON
        client = Client(self.world.network, "invariants")
        url = f"http://{self.world.running()[0].address}:{SCHEDULER_PORT}/scheduler/{verb}"
        try:
            answer = await client.request("POST", url, body, timeout_seconds=10.0)
        finally:
            client.close()
        return msgspec.json.decode(answer.body)


class FixAgrees(_OfCommands):
    """I6 for fix."""

    name = "I6 fix"
    promise = "fix writes into a pod's manifest what the webhook gives the pod"
    floor = 150

    async def finish(self) -> None:
        world = self.world
        if world.config.admission.node_affinity == "none":  # fix writes it all the same
            return
        for life, manifest in self._pods():
            answer = await self._review(life, manifest)
            if answer is None or not answer.allowed:
                continue
            fixed = await Commands(world).fix(manifest, world.api.get("Namespace", "", life.namespace) or {})
            if fixed is None:
                continue
            patched: Any = apply(manifest, msgspec.convert(answer.patch or [], list[Operation]))
            for part in ("affinity", "tolerations", "nodeSelector", "schedulerName"):
                one, two = fixed["spec"].get(part), patched["spec"].get(part)
                self.check(one == two, "fix and the webhook differ", pod=life.key, part=part, fixed=one, webhook=two)
