"""Promises that each part gives the answer that the others give: templates of guarded DaemonSets, and commands."""

import asyncio
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec

from extender.placement.patch import Operation, apply
from extender.placement.scheduling import REFUSED
from extender.reports.explanation import Explanation
from testbed.memory_http import Client
from tests.unit.placement.kube_scheduler import allows, is_tolerated
from tests.worlds.commands import Commands
from tests.worlds.judging import Invariant
from tests.worlds.lives import Life, copied
from tests.worlds.plan import Applied, Image, Manifest
from tests.worlds.promises_of_additions import scores_of
from tests.worlds.replicas import SCHEDULER_PORT
from tests.worlds.reviews import Answer, Reviewer
from tests.worlds.truth import MODE, annotation, name_of, owner_kind, platform_of, references, required_terms, runs_on

_TAG_SECONDS = 910.0  # after which a tag that has moved is asked for again
_LOOKUP_SECONDS = 0.4  # that a look-up takes at most while nothing is wrong
_SETTLED_SECONDS = 5.0
_MOST_PODS = 4
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


class _OfCommands(Invariant):
    """Asks at the end, about pods of these modes whose images have been known for long."""

    modes: ClassVar[tuple[str, ...]] = ("enforce",)

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
        if owner_kind(pod) == "DaemonSet" or world.mode_of(life) not in self.modes:
            return False
        if not world.is_settled(life.namespace):
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
        if self.world.config.admission.wait_seconds < _LOOKUP_SECONDS:
            await asyncio.sleep(_LOOKUP_SECONDS)
        return await reviewer.review(manifest, f"asked-{life.uid}")


class Verbs(NamedTuple):
    """What the verbs say of all nodes: which pass, are refused, have a score, or are candidates for preemption."""

    passed: list[str]
    refused: set[str]
    error: str
    scores: Mapping[str, int]
    candidates: list[str]


class _OfVerbs(_OfCommands):
    """Asks a replica as kube-scheduler does."""

    async def _ask_verbs(self, pod: Manifest) -> Verbs:
        nodes = self.world.nodes()
        whole = msgspec.json.encode({"Pod": pod, "Nodes": {"items": nodes}})
        names = msgspec.json.encode({"Pod": pod, "NodeNames": [*map(name_of, nodes)]})
        victims = {
            name_of(each): {"Pods": [{"UID": f"on-{name_of(each)}"}], "NumPDBViolations": 1} for each in nodes
        }  # fmt: skip
        await self._ask("filter", whole)
        await asyncio.sleep(_LOOKUP_SECONDS)  # what memory has lost is looked up again
        filtered, by_name = await self._ask("filter", whole), await self._ask("filter", names)
        scores = {each["Host"]: each["Score"] for each in await self._ask("prioritize", names)}
        body = msgspec.json.encode({"Pod": pod, "NodeNameToMetaVictims": victims})
        spared = (await self._ask("preempt", body))["NodeNameToMetaVictims"]
        passed = [*map(name_of, (filtered["Nodes"] or {"items": ()})["items"] or ())]
        self.check(passed == (by_name["NodeNames"] or []), "by names filter says something else", passed=passed,
                   by_name=by_name)  # fmt: skip
        self.check(not filtered["FailedNodes"], "a node is said to be worth an eviction", failed=filtered)
        self.check(all(victims[name] == each for name, each in spared.items()), "other victims", spared=spared)
        refused = filtered["FailedAndUnresolvableNodes"] or {}
        return Verbs(passed, {*refused}, filtered["Error"], scores, [*spared])

    def _judge(self, life: Life, found: Verbs, right: Sequence[Verbs]) -> None:
        """Checks that the answers are one of those that are right; what an error says is not compared."""
        is_right = any(
            found._replace(error="") == each._replace(error="") and bool(found.error) == bool(each.error)
            for each in right
        )
        self.check(is_right, "a verb is wrong", pod=life.key, found=found, right=right, images=references(life.sent))

    def _others(self, nodes: Sequence[Manifest]) -> set[str]:
        """The names of all nodes besides these."""
        return {*map(name_of, self.world.nodes())} - {*map(name_of, nodes)}

    async def _ask(self, verb: str, body: bytes) -> Any:  # JSON
        client = Client(self.world.network, "invariants")
        url = f"http://{self.world.running()[0].address}:{SCHEDULER_PORT}/scheduler/{verb}"
        try:
            answer = await client.request("POST", url, body, timeout_seconds=10.0)
        finally:
            client.close()
        return msgspec.json.decode(answer.body)


class ExplainAgrees(_OfVerbs):
    """I6 for explain."""

    name = "I6 explain"
    promise = "explain says of each node what is true, what filter and prioritize answer, and what the webhook writes"
    floor = 1500

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
        world = self.world
        nodes = {node["metadata"]["name"]: node for node in world.nodes()}
        patch = explanation.webhook.patch if world.is_sent_to_webhook(life) else []
        written: Any = apply(life.sent, patch)
        given = written["spec"]
        for group in explanation.nodes:
            for name in group.names:
                is_right = world.runs_all(life.sent, nodes[name])
                self.check(is_right == (group.images == "yes"), "explain is wrong about a node", pod=life.key,
                           node=name, explained=group.images)  # fmt: skip
                is_allowed = allows(life.sent["spec"], nodes[name]) and is_tolerated(given, nodes[name])
                if not life.is_sent_with_ours:
                    self.check(is_allowed == (not group.obstacles), "explain is wrong about what its author asks",
                               pod=life.key, node=name, obstacles=group.obstacles)  # fmt: skip
                may_be_there = is_right and is_tolerated(given, nodes[name]) and allows(given, nodes[name])
                self.check(may_be_there == (group.answer == "yes"), "explain answers wrongly",
                           pod=life.key, node=name, answer=group.answer)  # fmt: skip

    async def _judge_verbs(self, life: Life, pod: Manifest, explanation: Explanation) -> None:
        verbs = await self._ask_verbs(pod)
        for group in explanation.nodes:
            for name in group.names:
                is_same = (group.verdict in REFUSED) == (name in verbs.refused)
                self.check(is_same, "explain and filter differ", pod=life.key, node=name, explained=group.verdict)
                if name not in verbs.refused and not self.world.prefers_by_filter():  # else nothing is left to score
                    self.check(group.score == verbs.scores.get(name, 0), "explain and prioritize differ", pod=life.key,
                               node=name, explained=group.score, scores=verbs.scores)  # fmt: skip


class VerbsAreRight(_OfVerbs):
    """D16."""

    name = "D16 verbs"
    promise = "filter, prioritize and preempt go by what a pod's images run on, and by what is preferred"
    floor = 190

    async def finish(self) -> None:
        world = self.world
        for life, pod in self._pods():
            if not world.uses_verbs(life):
                continue
            right = [node for node in world.nodes() if world.runs_all(life.sent, node)]
            scores = {name_of(node): scores_of(world, life).get(platform_of(node)[1], 0) for node in right}
            scores = {name: score for name, score in scores.items() if score}
            passed = [*map(name_of, right)]
            if world.prefers_by_filter() and scores:
                passed = [name for name in passed if scores.get(name) == max(scores.values())]
                scores = {}
            expected = Verbs(passed, self._others(right), "", scores, [*map(name_of, right)])
            self._judge(life, await self._ask_verbs(pod), [expected])


class UnknownIsNeverYes(_OfVerbs):
    """D17."""

    name = "D17 unknown"
    promise = "an image that is not known passes, is retried or assumed, as is chosen, and gives no score"
    floor = 15

    async def finish(self) -> None:
        world = self.world
        for life, pod in self._pods():
            if not world.uses_verbs(life):
                continue
            known = [each for each in references(pod) if world.known_since(pod, each) < math.inf]
            spec = {"containers": [{"image": each} for each in known]}
            nodes = [node for node in world.nodes() if world.runs_all({"spec": spec}, node)]
            scheduler = world.config.scheduler
            choices = {scheduler.pending, world.unknown_choice(life) or scheduler.unknown}
            self._judge(life, await self._ask_verbs(pod), [self._expected(each, nodes) for each in sorted(choices)])

    def _expected(self, choice: str, nodes: Sequence[Manifest]) -> Verbs:
        world = self.world
        if choice == "retry" and nodes:
            return Verbs([], set(), "retry", {}, [])
        if choice == "assume":
            assumed = Image(host="", repository="", form="index", platforms=tuple(world.config.scheduler.assume))
            nodes = [each for each in nodes if runs_on(assumed, each, world.config.placement.compatibility)]
        passed = [*map(name_of, nodes)]
        return Verbs(passed, self._others(nodes), "", {}, [] if choice == "retry" else passed)

    def _is_asked_about(self, life: Life) -> bool:
        world, pod = self.world, life.sent
        used = references(pod)
        if world.mode_of(life) != "enforce" or not world.is_settled(life.namespace) or not world.is_plain(pod):
            return False
        if any(map(world.contents.has_changed, used)) or any(
            "image" in each for each in pod["spec"].get("volumes", ())
        ):
            return False
        missing = [each for each in used if world.known_since(pod, each) == math.inf]
        is_simple = all(world.contents.image(each) is None and world.stated(each) is None for each in missing)
        return life.is_there and bool(missing) and is_simple


class ObservedAreEchoed(_OfVerbs):
    """D18."""

    name = "D18 echo"
    promise = "pods that are observed or ignored get every node from filter and preempt, and no score"
    floor = 50

    async def finish(self) -> None:
        names = [*map(name_of, self.world.nodes())]
        for life, pod in self._pods():
            if self.world.uses_verbs(life):
                self._judge(life, await self._ask_verbs(pod), [Verbs(names, set(), "", {}, names)])

    def _is_asked_about(self, life: Life) -> bool:
        world = self.world
        is_observed = world.mode_of(life) != "enforce" and world.is_settled(life.namespace)
        return is_observed and life.is_there and owner_kind(life.pod) != "DaemonSet"


class FixAgrees(_OfCommands):
    """I6 for fix."""

    name = "I6 fix"
    modes = _MODES
    promise = "fix writes into a pod's manifest what the webhook gives the pod"
    floor = 300

    async def finish(self) -> None:
        world = self.world
        if world.config.admission.node_affinity == "none":  # fix writes it all the same
            return
        commands = Commands(world)
        for life, manifest in self._pods():
            answer = await self._review(life, manifest)
            if answer is None or not answer.allowed:
                continue
            fixed = await commands.fix(manifest, world.api.get("Namespace", "", life.namespace) or {})
            if fixed is None:
                continue
            patched: Any = apply(manifest, msgspec.convert(answer.patch or [], list[Operation]))
            for part in ("affinity", "tolerations", "nodeSelector", "schedulerName"):
                one, two = fixed["spec"].get(part), patched["spec"].get(part)
                self.check(one == two, "fix and the webhook differ", pod=life.key, part=part, fixed=one, webhook=two)
