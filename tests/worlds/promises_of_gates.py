"""Promises about pods that are held: for how long, why, and what becomes of them."""

import math

from extender.placement.gate import AfterGate, UnknownImages
from extender.service.operator_policies import admission_settings_of
from tests.unit.placement.kube_scheduler import allows
from tests.worlds.choices import EXEMPT_CLASS, POLICY_NAME
from tests.worlds.judging import Invariant
from tests.worlds.lives import Life
from tests.worlds.plan import Manifest, Mode
from tests.worlds.truth import (
    ADDED,
    CRITICAL,
    LABEL,
    PREFIX,
    REASON,
    annotation,
    is_gated,
    other_gates,
    ours,
    references,
)

_PATIENCE_SECONDS = 25.0  # 10 s are left to who would decide, and a removal that fails is repeated within 5 s
# What is wrong with every replica.
_COMMON = ("api ", "right:get", "right:patch pods", "right:list pods", "right:watch", "patches", "registry", "watch",
           "rollout")  # fmt: skip
_BUT_IMAGES = ("api", "network", "patches", "replica", "right", "rollout", "watch")
_DECIDING = ("fetcher", "right:patch pods")
# What is left to who decides about a pod past its limit; until another leads, from when a replica is replaced.
_LEFT_SECONDS, _TAKEOVER_SECONDS = 10.0, 14.0
_NOBODY_SECONDS = 26.0  # in which replicas notice that nobody writes the Lease
_SOON_SECONDS = 75.0  # in which a missing image is looked up again, and another replica leads
_DEAF_SECONDS = 130.0  # after which a watch that brings nothing has been replaced, and what it missed been listed
_SEARCH_SECONDS = 300.0  # between two searches for pods that have the gate and lack its label
_FAILURES = ("bare", "failed", "invalid", "forbidden", "unavailable")
_ARMED_SECONDS = 40.0  # in which a replica that starts leads, and a probe shows that the policy works
_RELEASED_SECONDS = 15.0  # within which pods follow a change of their namespace, or of their images


class HeldNoLonger(Invariant):
    """I2."""

    name = "I2 limit"
    promise = "nobody is held past the limit while one replica lives, whatever fails"
    floor = 140

    def start(self) -> None:
        self._judged: set[str] = set()
        self.world.every(5.0, self._look)

    def _look(self) -> None:
        now, world = self.world.now, self.world
        limit = world.config.admission.gate.limit_seconds
        if world.config.admission.unknown is not UnknownImages.GATE:
            limit = min(limit, 5.0)
        # Without the right to remove gates, or the API server, nobody can.
        able_since = max(
            world.wrongs.since("api ", "patches", "right:patch pods", "right:list pods", felt=False),
            world.serving_since(),
        )
        deaf = not world.wrongs.was_right_since(now - limit - _DEAF_SECONDS, "watch:pods", "right", "api")
        patience = _PATIENCE_SECONDS + (_DEAF_SECONDS if deaf else 0.0)
        for life in world.lives:
            if life.uid in self._judged or not life.is_held or life.alone_since == math.inf:
                continue
            due = max(
                life.created_at + limit, life.alone_since + min(10.0, limit), world.settings_since + 60.0, able_since
            )
            # Who has lost the label is found by a search alone.
            lost = 0.0 if LABEL in (life.pod["metadata"].get("labels") or {}) else _SEARCH_SECONDS
            if now > due + patience + lost and not other_gates(life.pod):
                self._judged.add(life.uid)
                self.check(False, "held past the limit", pod=life.key, since=life.created_at, limit=limit)

    async def finish(self) -> None:
        self._look()
        for life in self.world.lives:
            if life.was_gated and life.uid not in self._judged:
                self.check(True, "")


class Released(Invariant):
    """A pod whose images are known waits for nobody but those who are able.

    A leader whose connections fell silent is not known to be deaf, to itself either, until its watches count as lost.
    One without a fetcher goes on to lead: able is who would remove a gate by what is known.
    """

    name = "D8 released"
    promise = "a held pod whose images are known is released soon, while one replica has nothing wrong of its own"
    floor = 130

    def start(self) -> None:
        self._judged: set[str] = set()
        self.world.every(5.0, self._look)
        self.world.lives.on_ungated.append(self._ungated)

    def _ungated(self, _life: Life, _before: Manifest) -> None:
        self.check(True, "")

    def _look(self) -> None:
        world = self.world
        is_deaf = not world.wrongs.was_right_since(world.now - _SOON_SECONDS, "api:")
        patience = _SOON_SECONDS + (_DEAF_SECONDS if is_deaf else 0.0)
        for life in world.lives:
            if not life.is_held or life.uid in self._judged or other_gates(life.pod) or world.changed_by_others(life):
                continue
            if world.now - life.alone_since < patience or not world.is_known(life.pod, patience):
                continue
            if not world.wrongs.was_right_since(world.now - _SOON_SECONDS, *_COMMON, "fetcher"):
                continue
            if any(world.is_right(each, _SOON_SECONDS) for each in range(len(world.replicas))):
                self._judged.add(life.uid)
                self.check(False, "held though its images are known", pod=life.key, since=life.created_at)


class AsKnownAtOnce(Invariant):
    """I11."""

    name = "I11 held first"
    promise = "a pod that was held and whose images became known ends as one whose images were known at once"
    floor = 80

    def start(self) -> None:
        if self.world.plan.mode is not Mode.POLICY:
            self.world.lives.on_ungated.append(self._ungated)

    def _ungated(self, life: Life, _before: Manifest) -> None:
        world = self.world
        limit = world.config.admission.gate.limit_seconds
        if world.now - life.created_at >= limit or world.changed_by_others(life):
            return
        if not (world.is_calm(life, 20.0) and world.can_be_known(life.pod)):
            return
        if "prefer-share" in str(life.sent) or world.is_drawn(life.namespace):
            return  # what is drawn for a pod depends on the request that made it
        world.spawn(self._compare(life))

    async def _compare(self, life: Life) -> None:
        again = await self.world.create_dry(life)
        if again is None or is_gated(again):
            return
        for part in ("affinity", "tolerations", "nodeSelector", "schedulerName"):
            self.check(
                life.pod["spec"].get(part) == again["spec"].get(part),
                "held first, it ends otherwise",
                pod=life.key, part=part, held=life.pod["spec"].get(part), at_once=again["spec"].get(part),
            )  # fmt: skip
        for key in (ADDED, REASON, f"{PREFIX}platforms"):
            held, at_once = annotation(life.pod, key), annotation(again, key)
            self.check(held == at_once, "held first, it is annotated otherwise", pod=life.key, key=key, held=held,
                       at_once=at_once)  # fmt: skip


class AsKnownAtTheLimit(Invariant):
    """I11 past the limit."""

    name = "I11 at the limit"
    promise = "a held pod that is past its limit gets what its images need too, where a replica could look them up"
    floor = 6

    def start(self) -> None:
        if self.world.config.admission.unknown is UnknownImages.GATE:
            self.world.lives.on_ungated.append(self._ungated)

    def _ungated(self, life: Life, _before: Manifest) -> None:
        world, pod = self.world, life.pod
        age = world.now - life.created_at
        if age < world.config.admission.gate.limit_seconds or other_gates(life.sent) or not self._is_knowable(life):
            return
        if not world.wrongs.was_right_since(life.created_at - 20.0, *_COMMON, *_DECIDING):
            return
        if not self._is_led_in_time(life, age) or not world.have_common(life.sent):
            return
        for node in filter(world.is_usual, world.nodes()):
            allowed = allows(pod["spec"], node)
            right = allows(life.sent["spec"], node) and world.runs_all(pod, node)
            self.check(allowed == right, "past its limit it lacks what its images need", pod=life.key,
                       node=node["metadata"]["name"], reason=annotation(pod, REASON))  # fmt: skip

    def _is_knowable(self, life: Life) -> bool:
        """Whether its images were there before it was made, and count for it."""
        world, pod = self.world, life.pod
        if not world.config.admission.node_affinity.required or world.mode_of(life) != "enforce":
            return False
        if world.changed_by_others(life) or not world.is_plain(pod):
            return False
        used = references(pod)
        is_there = all(world.known_since(pod, each) < life.created_at - 5.0 for each in used)
        return is_there and not any(map(world.contents.has_changed, used))

    def _is_led_in_time(self, life: Life, age: float) -> bool:
        """Whether a replica has seen it all the time, and leads before the gate is removed whatever is known."""
        world = self.world
        overdue_at = life.created_at + world.config.admission.gate.limit_seconds + _LEFT_SECONDS
        is_led = all(at + _TAKEOVER_SECONDS < overdue_at for at in world.replaced_at.values())
        unwritten_since = world.wrongs.begun("right:patch leases", felt=True)
        if unwritten_since < overdue_at < unwritten_since + _NOBODY_SECONDS:  # then each decides
            return False
        return is_led and any(world.is_right(number, age + 20.0) for number in range(len(world.replicas)))


class HeldForGoodReason(Invariant):
    """No pod is held whose images are known already, or that may not be held."""

    name = "D1 held for a reason"
    promise = "critical pods and DaemonSets' are never held, and nobody for an image that waiting cannot make known"
    floor = 110

    def start(self) -> None:
        self.world.lives.on_created.append(self._created)

    def _created(self, life: Life) -> None:
        pod = life.pod
        critical = pod["spec"].get("priorityClassName") in CRITICAL
        exempt = pod["spec"].get("priorityClassName") == EXEMPT_CLASS and EXEMPT_CLASS in str(
            self.world.config.admission.gate.exempt_priority_classes
        )
        daemon = any(each["kind"] == "DaemonSet" for each in pod["metadata"].get("ownerReferences") or ())
        if critical or exempt or daemon:
            self.check(not is_gated(pod), "held, though it may not be", pod=life.key)


class OthersGatesStay(Invariant):
    """The limit counts only while our gate is the last one."""

    name = "D2 others' gates"
    promise = "our gate stays on a pod that others hold too, as long as an image is not known"
    floor = 4

    def start(self) -> None:
        self._judged: set[str] = set()
        self.world.lives.on_ungated.append(self._ungated)
        self.world.every(5.0, self._look)

    def _look(self) -> None:
        """A pod that has been held for so long that the limit would have come, had it counted."""
        for life in self.world.lives:
            due_at = life.created_at + self.world.config.admission.gate.limit_seconds + _PATIENCE_SECONDS
            is_late = life.is_held and self.world.now > due_at and life.uid not in self._judged
            if is_late and self._is_asked(life, life.pod) and self._may_wait(life):
                self._judged.add(life.uid)
                self.check(True, "")

    def _ungated(self, life: Life, before: Manifest) -> None:
        if self._is_asked(life, before):
            self.check(not self._may_wait(life), "ungated while others hold it and an image is not known", pod=life.key)

    def _is_asked(self, life: Life, pod: Manifest) -> bool:
        world = self.world
        if not other_gates(pod) or world.changed_by_others(life) or not world.is_settled(life.namespace):
            return False
        if world.config.admission.unknown is not UnknownImages.GATE or world.mode_of(life) != "enforce":
            return False
        return world.unknown_choice(life) not in ("pass", "assume") and world.wrongs.is_quiet("right", "patches")

    def _may_wait(self, life: Life) -> bool:
        """Whether an image that is not known may come, and would decide."""
        world, images = self.world, references(life.pod)
        is_known = all(world.stated(each) or world.contents.image(each) for each in images)
        # No image that is not known yet makes an impossible pod possible.
        is_assumed = admission_settings_of(world.config).gate.after is AfterGate.ASSUME
        if is_known or is_assumed or world.is_settled_by_known(life.sent):
            return False
        return all(world.could_come(each, life.pod) for each in images)


class NamespacesWord(Invariant):
    """I17 for held pods."""

    name = "I17 annotations of held pods"
    promise = "held pods follow a change of their namespace's annotations within seconds"
    floor = 8

    def start(self) -> None:
        self.world.on_annotated.append(self._annotated)

    def _annotated(self, namespace: str, annotations: dict[str, str | None]) -> None:
        releasing = annotations.get(f"{PREFIX}mode") in ("observe", "ignore") or (
            annotations.get(f"{PREFIX}unknown") == "pass"
        )
        if releasing:
            held = [life for life in self.world.lives if life.namespace == namespace and life.is_held]
            self.world.later(_RELEASED_SECONDS, lambda: self._look(namespace, held, annotations))

    def _look(self, namespace: str, held: list[Life], annotations: dict[str, str | None]) -> None:
        world = self.world
        is_right = world.wrongs.was_right_since(world.now - _RELEASED_SECONDS, *_BUT_IMAGES)
        if not is_right or not world.is_settled(namespace, 14.0):
            return
        for life in held:
            own = life.pod["metadata"].get("annotations") or {}
            if any(key in own for key in annotations) or world.changed_by_others(life):
                continue
            self.check(not life.is_held, "still held after its namespace said otherwise", pod=life.key, by=annotations)


class WholePatches(Invariant):
    """What the API server refuses of our patch is our mistake while nothing is wrong."""

    name = "D3 whole patches"
    promise = "while nothing is wrong no gate is removed alone, and no removal fails"
    floor = 50

    def start(self) -> None:
        self.world.lives.on_ungated.append(self._ungated)

    def _ungated(self, life: Life, _before: Manifest) -> None:
        if not self.world.wrongs.was_right_since(0.0) or self.world.changed_by_others(life):
            return
        names = [f"multiarch_gates_removals_total{{{outcome}}}" for outcome in _FAILURES]
        failed = [name for replica in self.world.running() for name in names if replica.metrics().get(name)]
        self.check(not failed, "a removal failed", pod=life.key, counted=failed)


class PolicyInForce(Invariant):
    """The binding of the API server's policy is for probes alone until a leader has opened it."""

    name = "D20 policy in force"
    promise = "the API server's policy holds pods soon after somebody is able to remove their gates"
    floor = 120

    def start(self) -> None:
        if self.world.plan.mode.has_policy and self.world.config.admission.gate.policy:
            self.world.every(10.0, self._look)

    def _look(self) -> None:
        world = self.world
        led_seconds = max((world.now - each.started_at for each in world.running() if each.able), default=0.0)
        if led_seconds > _ARMED_SECONDS and world.wrongs.is_quiet(seconds=_ARMED_SECONDS):
            [binding] = (
                each
                for each in world.api.list("MutatingAdmissionPolicyBinding")
                if each["metadata"]["name"] == POLICY_NAME
            )
            self.check(
                binding["spec"].get("matchResources") is None, "nothing is held by the policy", binding=binding["spec"]
            )


class NothingLeft(Invariant):
    """A pod that is not held has no sign of it."""

    name = "D4 signs of holding"
    promise = "the label says what the gate says, and a pod that runs has no reason to wait"
    floor = 270

    async def finish(self) -> None:
        for life in self.world.lives:
            if not life.is_there or self.world.changed_by_others(life):
                continue
            found = ours(life.pod)
            if f"{PREFIX}gated" in found or life.was_gated:
                self.check(
                    (f"{PREFIX}gated" in found) == life.is_held, "gate and label differ", pod=life.key, ours=found
                )
            if life.ungated_at is not None:
                self.check("is held until" not in found.get(REASON, ""), "says that it is held", pod=life.key)
