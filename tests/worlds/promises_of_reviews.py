"""Promises about what is written when objects are made, applied and reviewed again."""

import asyncio
from collections.abc import Mapping
from typing import Any

import msgspec

from tests.worlds.judging import Invariant
from tests.worlds.lives import Life
from tests.worlds.plan import Applied, Manifest, Mode
from tests.worlds.reviews import Reviewer
from tests.worlds.truth import GATE, IMPOSSIBLE, MODE, annotation, is_gated, ours, owner_kind, references

_DEFAULTED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_BUT_IMAGES = ("api", "callers", "replica", "right", "rollout", "watch")
_LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_PLACES = ("affinity", "nodeSelector", "schedulerName")


def _tolerations(spec: Mapping[str, Any]) -> list[Any]:
    return [each for each in spec.get("tolerations") or () if each.get("key") not in _DEFAULTED]


class Untouched(Invariant):
    """I3."""

    name = "I3 observe"
    promise = "under observe and ignore a pod and a template are stored as they would be without the service, as soon"
    floor = 450

    def start(self) -> None:
        self.world.lives.on_created.append(self._created)
        self.world.on_applied.append(self._applied)

    def _applied(self, event: Applied, before: Manifest | None, after: Manifest | None, _error: str) -> None:
        template = event.manifest["spec"].get("template")
        mode = annotation(template, MODE) if template else ""
        if before is None and after is not None and mode in ("observe", "ignore"):
            stored = after["spec"]["template"]
            is_same = stored["spec"].get("affinity") == template["spec"].get("affinity") and not ours(stored)
            self.check(is_same, f"a template changed under {mode}", object=event.manifest["metadata"]["name"],
                       annotations=stored["metadata"].get("annotations"))  # fmt: skip

    def _created(self, life: Life) -> None:
        world = self.world
        mode = world.mode_of(life)
        if mode == "enforce" or not world.is_settled(life.namespace, 2.0):
            return
        if not world.wrongs.was_right_since(world.now - 20.0, "watch:namespaces", "api", "rollout", "right", "replica"):
            return
        pod, sent = life.pod, life.sent
        if f"{GATE}" in str(sent) or owner_kind(pod) == "DaemonSet":
            return
        self.check(not ours(pod), f"signs on a pod under {mode}", pod=life.key, signs=ours(pod))
        self.check(not is_gated(pod), f"held under {mode}", pod=life.key)
        for part in _PLACES:
            asked = sent["spec"].get(part) or ("default-scheduler" if part == "schedulerName" else None)
            self.check((pod["spec"].get(part) or None) == asked, f"changed under {mode}", pod=life.key, part=part,
                       now=pod["spec"].get(part))  # fmt: skip
        self.check(_tolerations(pod["spec"]) == _tolerations(sent["spec"]), f"tolerations under {mode}", pod=life.key)
        if world.wrongs.is_quiet("callers", "api", "network", seconds=5.0):
            took = life.created_at - life.sent_at
            self.check(took < 0.3, f"creation waited under {mode}", pod=life.key, seconds=round(took, 3))


class NamespacesWordAtCreation(Invariant):
    """I17 at creation."""

    name = "I17 annotations"
    promise = "annotations of a namespace count for pods within a second of being seen"
    floor = 10

    def start(self) -> None:
        self.world.lives.on_created.append(self._created)

    def _created(self, life: Life) -> None:
        world = self.world
        age = world.annotated_age(life.namespace)
        if not 1.5 < age < 60.0 or not world.is_calm(life, 20.0, *_BUT_IMAGES) or not world.plan.mode.has_webhook:
            return
        if owner_kind(life.pod) == "DaemonSet" or world.plan.mode is Mode.SECOND:
            return
        if world.mode_of(life) != "enforce":
            self.check(not ours(life.pod), "treated as before the change", pod=life.key, signs=ours(life.pod))
        elif world.unknown_choice(life) == "pass":
            self.check(not is_gated(life.pod), "held though its namespace lets it pass", pod=life.key)


class TwiceIsOnce(Invariant):
    """I5."""

    name = "I5 twice"
    promise = "a manifest applied again by either kind of apply: no error, no change, no new generation"
    floor = 40

    def start(self) -> None:
        self._last: dict[tuple[str, str], Manifest] = {}
        self.world.on_applied.append(self._applied)

    def _applied(self, event: Applied, before: Manifest | None, after: Manifest | None, error: str) -> None:
        world = self.world
        name = (event.kind, event.manifest["metadata"]["name"])
        is_same, self._last[name] = self._last.get(name) == event.manifest, event.manifest
        if before is None or event.by == "create" or not is_same or not world.plan.mode.has_webhook:
            return
        if any(map(world.contents.has_changed, references(event.manifest["spec"].get("template", event.manifest)))):
            return
        sent, stored = (each["spec"].get("replicas") for each in (event.manifest, before))
        if sent is not None and sent != stored:  # somebody has scaled it
            return
        if not world.wrongs.is_quiet(seconds=10.0):
            return
        key = f"{event.kind} {event.manifest['metadata']['name']} by {event.by}"
        if not self.check(not error, "applied again it is refused", object=key, error=error) or after is None:
            return
        if event.kind == "Pod" and (is_gated(before) or not world.is_known(before, 3.0)):
            return
        for part in ("spec", "annotations", "labels", "generation"):
            one, two = (_part(each, part) for each in (before, after))
            self.check(one == two, "applied again it changes", object=key, part=part, before=one, after=two)


def _part(obj: Manifest, part: str) -> Any:  # JSON
    if part == "annotations":  # kubectl notes what it applied, and begins to where the object was created otherwise
        return {key: value for key, value in (obj["metadata"].get(part) or {}).items() if key != _LAST_APPLIED}
    if part != "spec":
        return obj["metadata"].get(part)
    return {key: value for key, value in obj["spec"].items() if key != "nodeName"}


class NeverRefused(Invariant):
    """I14, and that nobody is refused but impossible pods under deny."""

    name = "I14 never refused"
    promise = "the webhook refuses no DaemonSet's pod, and no pod but impossible ones under deny"
    floor = 900

    def start(self) -> None:
        self.world.on_sent.append(self._sent)

    def _sent(self, kind: str, sent: Manifest, user: str, error: str) -> None:
        if kind != "Pod":
            return
        refused = "denied the request" in error and "multiarch" in error
        if owner_kind(sent) == "DaemonSet":
            self.check(not refused, "a DaemonSet's pod is refused", user=user, error=error)
            return
        may = self.world.config.admission.impossible == "deny"
        self.check(not refused or may, "a pod is refused", error=error)
        is_whole = not self.world.plan.kubernetes.injects  # a sidecar counts too
        if refused and is_whole and self.world.wrongs.was_right_since(0.0) and self.world.is_plain(sent):
            self.check(not self.world.have_common(sent), "a possible pod is refused", error=error,
                       images=references(sent))  # fmt: skip


class SecondPass(Invariant):
    """I20, and I18 for reviews."""

    name = "I20 second pass"
    promise = "a review of a pod as it was stored changes nothing, and all replicas give the same answer"
    floor = 220

    def start(self) -> None:
        self.world.lives.on_created.append(self._created)

    def _created(self, life: Life) -> None:
        world = self.world
        if not world.is_reviewed(life) or world.plan.mode.has_policy or is_gated(life.pod):
            return
        if any(map(world.contents.has_changed, references(life.pod))):
            return
        waits = world.config.admission.wait_seconds >= 0.4 and world.mode_of(life) == "enforce"
        if world.plan.replicas > 1 and not waits:
            return  # another replica may look the images up only now
        if world.is_calm(life, 20.0) and life.was_known and len(world.running()) == world.plan.replicas:
            world.spawn(self._review_again(life))

    async def _review_again(self, life: Life) -> None:
        world = self.world
        pod = {key: life.pod[key] for key in ("apiVersion", "kind", "metadata", "spec")}
        answers = [await Reviewer(world.network, each).review(pod, life.uid) for each in world.running()]
        if not world.is_calm(life, 40.0):
            return
        for answer in answers:
            if answer is None:
                continue
            self.check(not answer.patch, "a second pass changes the pod", pod=life.key, patch=answer.patch)
        found = {msgspec.json.encode(answer) for answer in answers if answer is not None}
        if len(answers) > 1:
            self.check(len(found) <= 1, "replicas differ about a pod", pod=life.key, answers=sorted(found))


class ReplicasAgree(Invariant):
    """I18 for new pods."""

    name = "I18 replicas agree"
    promise = "replicas that have seen the same give the same answer to the same review"
    floor = 35

    def start(self) -> None:
        self.world.lives.on_created.append(self._created)

    def _created(self, life: Life) -> None:
        world = self.world
        if world.plan.mode.has_webhook and len(world.running()) > 1 and world.is_calm(life, 40.0):
            world.later(5.0, lambda: world.spawn(self._compare(life)))

    async def _compare(self, life: Life) -> None:
        world = self.world
        # Nobody waits for what is only observed, so a small cache decides.
        if world.mode_of(life) != "enforce" and not world.keeps_all_images():
            return
        # A replica believes what a tag was for a while.
        if not world.is_known(life.pod, 3.0) or any(map(world.contents.has_changed, references(life.pod))):
            return
        for each in world.running():  # so that each has looked the images up
            await Reviewer(world.network, each).review(life.sent, f"warm-{life.uid}")
        await asyncio.sleep(1.0)
        answers = [
            await Reviewer(world.network, each).review(life.sent, f"again-{life.uid}") for each in world.running()
        ]
        if world.is_calm(life, 40.0) and None not in answers:
            found = {msgspec.json.encode(answer) for answer in answers}
            self.check(len(found) == 1, "replicas differ about a new pod", pod=life.key, answers=sorted(found))


class NoEmptyTerms(Invariant):
    """What is written is valid and no more than needed."""

    name = "D6 well-formed"
    promise = "no empty In, no requirement twice, tolerations once, texts below 512 characters"
    floor = 2000

    def start(self) -> None:
        self.world.lives.on_created.append(lambda life: self._look(life.pod))
        self.world.lives.on_ungated.append(lambda life, _: self._look(life.pod))

    def _look(self, pod: Manifest) -> None:
        if not ours(pod):
            return
        name = pod["metadata"]["name"]
        required = ((pod["spec"].get("affinity") or {}).get("nodeAffinity") or {}).get(
            "requiredDuringSchedulingIgnoredDuringExecution", {}
        )
        for term in required.get("nodeSelectorTerms") or ():
            found = [msgspec.json.encode(each, order="sorted") for each in term.get("matchExpressions") or ()]
            self.check(b'"values":[]' not in b"".join(found), "an empty In", pod=name, term=term)
            if IMPOSSIBLE in str(term):
                self.check(str(term).count(IMPOSSIBLE) == 1, "impossible twice", pod=name, term=term)
        tolerations = [msgspec.json.encode(each, order="sorted") for each in pod["spec"].get("tolerations") or ()]
        self.check(len(tolerations) == len(set(tolerations)), "a toleration twice", pod=name, tolerations=tolerations)
        for key, text in ours(pod).items():
            self.check(key.endswith("/added") or len(text) <= 1024, "a long text", pod=name, key=key)
