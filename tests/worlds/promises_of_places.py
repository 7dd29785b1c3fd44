"""Promises about where pods run: never where their images cannot, and somewhere if there is a node."""

from typing import Any

from tests.unit.placement.kube_scheduler import allows
from tests.worlds.findings import Filtered
from tests.worlds.judging import Invariant
from tests.worlds.lives import Life
from tests.worlds.node_rules import untolerated
from tests.worlds.plan import Manifest
from tests.worlds.truth import (
    IMPOSSIBLE,
    LABEL,
    NOT_IN_VIEW,
    REASON,
    annotation,
    is_gated,
    other_gates,
    owner_kind,
    references,
    required_terms,
)

# kube-scheduler tries a pod that an extender has refused again at the next event, and after five minutes without one.
_FLUSH_SECONDS = 340.0
_SEARCH_SECONDS = 300.0  # between two searches for pods that have the gate and lack its label


class RightNodes(Invariant):
    """I1, and I15 for guarded DaemonSets."""

    name = "I1 right nodes"
    promise = "no pod runs where an image that is known cannot, unless settings chose so"
    floor = 90

    def start(self) -> None:
        self.world.on_ran.append(self._ran)

    def _ran(self, life: Life, is_wrong: bool, why: str) -> None:
        pod = life.pod
        if owner_kind(pod) == "DaemonSet" or not self._is_looked_after(life):
            return
        self.check(not is_wrong, "runs where an image cannot", pod=life.key, node=pod["spec"]["nodeName"], why=why)

    def _is_looked_after(self, life: Life) -> bool:
        world, pod = self.world, life.pod
        if world.mode_of(life) != "enforce" or not world.is_plain(pod) or world.changed_by_others(life):
            return False
        if world.has_word(pod) or world.is_by_compatibility(life):  # what the operator says may be wrong
            return False
        if world.is_near(life):
            return False
        if any(map(world.contents.has_changed, references(pod))) or not world.is_calm(life, 20.0):
            return False
        if world.is_reviewed(life) and world.config.admission.node_affinity.required:
            return life.was_known
        # An error passes every node where kube-scheduler may ignore it.
        extender = world.plan.kubernetes.extender
        is_kept = world.keeps_all_images() or bool(extender and not extender.ignorable and world.is_retried(life))
        return world.uses_verbs(life) and life.was_used and is_kept


class GuardedDaemons(Invariant):
    """I15."""

    name = "I15 guarded DaemonSets"
    promise = "pods of guarded DaemonSets never run on a node where their images cannot"
    floor = 7

    def start(self) -> None:
        self.world.on_ran.append(self._ran)

    def _ran(self, life: Life, is_wrong: bool, why: str) -> None:
        world, pod = self.world, life.pod
        if owner_kind(pod) != "DaemonSet" or not world.guards or world.mode_of(life) != "enforce":
            return
        if not world.is_plain(pod) or not life.was_known or not world.is_calm(life, 20.0):
            return
        if world.has_word(pod) or world.is_by_compatibility(life) or world.is_near(life):
            return
        if not any(map(world.contents.has_changed, references(pod))):
            self.check(not is_wrong, "a guarded pod runs where an image cannot", pod=life.key,
                       node=pod["spec"]["nodeName"], why=why)  # fmt: skip


class Bound(Invariant):
    """I4."""

    name = "I4 bound"
    promise = "once nothing is wrong, every pod whose images are known and for which there is a node is bound"
    floor = 500

    async def finish(self) -> None:
        world = self.world
        for life in world.lives:
            pod = life.pod
            # A look-up is waited for in a pod's first call. What a later one begins is known in the next at the latest.
            is_first = world.config.scheduler.wait_seconds and life.was_known and world.is_calm(life, 5.0)
            calls = 1 if is_first else 2
            patience = calls * _FLUSH_SECONDS if world.uses_verbs(life) else 60.0
            if is_gated(pod) and LABEL not in (pod["metadata"].get("labels") or {}):
                patience += _SEARCH_SECONDS
            if not life.is_there or world.now - life.created_at < patience or other_gates(pod):
                continue
            if pod["spec"].get("nodeName"):
                self.check(True, "")
                continue
            if not world.is_known(pod, 20.0) or not world.is_plain(pod) or world.changed_by_others(life):
                continue
            if life.is_for_other_images:  # kube-apiserver lets node affinity follow while a pod is held alone
                continue
            if world.assumes(life) and not (life.was_known and world.is_calm(life, 5.0)):
                continue  # and the affinity that it got is for ever
            if any(map(world.contents.has_changed, references(pod))) or "taken to run only" in annotation(pod, REASON):
                continue
            nodes = [node for node in world.nodes() if self._suits(life, node)]
            if owner_kind(pod) == "DaemonSet":
                nodes = [node for node in nodes if allows(life.sent["spec"], node)]
            self.check(
                not nodes,
                "not bound, though there is a node",
                pod=life.key,
                gated=is_gated(pod),
                node=nodes and nodes[0]["metadata"]["name"],
                affinity=required_terms(pod["spec"]),
                reason=annotation(pod, REASON),
            )

    def _suits(self, life: Life, node: Manifest) -> bool:
        world, pod = self.world, life.pod
        labels = node["metadata"].get("labels") or {}
        return (
            "kubernetes.io/arch" in labels
            and world.runs_all(pod, node)
            and allows(life.sent["spec"], node)
            and not untolerated(pod["spec"], node)
            and world.has_room(pod, node)
            and not node["spec"].get("unschedulable")
        )


class OneTruth(Invariant):
    """I6 for what is written: required node affinity allows just the nodes that run all images."""

    name = "I6 affinity"
    promise = "the node affinity of a pod allows the nodes that run its images and that its author allows, and no other"
    floor = 220

    def start(self) -> None:
        self.world.lives.on_created.append(self._created)
        self.world.lives.on_ungated.append(lambda life, _: self._created(life))

    def _created(self, life: Life) -> None:
        world, pod = self.world, life.pod
        if is_gated(pod) or owner_kind(pod) == "DaemonSet" or not world.is_reviewed(life):
            return
        if not world.config.admission.node_affinity.required or world.mode_of(life) != "enforce":
            return
        if not world.is_plain(pod) or not world.is_calm(life, 20.0) or world.changed_by_others(life):
            return
        if not world.is_known(pod):
            return
        if any(map(world.contents.has_changed, references(pod))):
            return
        for node in world.nodes():
            if not world.is_usual(node):
                continue
            allowed = allows(pod["spec"], node)
            right = allows(life.sent["spec"], node) and world.runs_all(pod, node)
            self.check(allowed == right, "its affinity is wrong for a node", pod=life.key,
                       node=node["metadata"]["name"], allowed=allowed, images=references(pod),
                       affinity=required_terms(pod["spec"]), reason=annotation(pod, REASON))  # fmt: skip


class MovedTags(Invariant):
    """I13."""

    name = "I13 moved tags"
    promise = "a tag that has moved is acted upon once its old answer is no longer fresh"
    floor = 12

    def start(self) -> None:
        self.world.lives.on_created.append(self._created)

    def _created(self, life: Life) -> None:
        world, pod = self.world, life.pod
        if is_gated(pod) or not world.is_reviewed(life) or not world.config.admission.node_affinity.required:
            return
        if world.mode_of(life) != "enforce" or not world.is_plain(pod) or not world.is_calm(life, 20.0):
            return
        if owner_kind(pod) == "DaemonSet":  # its template was judged
            return
        if world.config.admission.wait_seconds < 0.4:
            return  # the old answer serves while the new one is asked for
        used = references(pod)
        if world.has_word(pod) or not any(map(world.contents.has_changed, used)) or not world.is_known(pod, 905.0):
            return
        for node in world.nodes():
            if world.is_usual(node):
                allowed = allows(pod["spec"], node)
                right = allows(life.sent["spec"], node) and world.runs_all(pod, node)
                self.check(allowed == right, "goes by what its tag was long ago", pod=life.key, images=used,
                           node=node["metadata"]["name"], affinity=required_terms(pod["spec"]))  # fmt: skip


class OwnLogins(Invariant):
    """I8."""

    name = "I8 logins"
    promise = "no login of a namespace opens anything for another"
    floor = 6

    def start(self) -> None:
        self.world.lives.on_created.append(self._look)
        self.world.lives.on_ungated.append(lambda life, _: self._look(life))
        self.world.on_filtered.append(self._filtered)

    def _look(self, life: Life) -> None:
        pod = life.pod
        if not self.world.is_reviewed(life) or not self._is_foreign(life):
            return
        for part in ("affinity", "nodeSelector"):
            self.check(pod["spec"].get(part) == life.sent["spec"].get(part), "an image counts that it may not pull",
                       pod=life.key, part=pod["spec"].get(part))  # fmt: skip

    def _filtered(self, life: Life, filtered: Filtered) -> None:
        if self._is_foreign(life) and not filtered.error:
            refused = {node: why for node, why in filtered.refused.items() if why != NOT_IN_VIEW}
            self.check(not refused, "a node is refused for an image that it may not pull", pod=life.key,
                       refused=refused)  # fmt: skip

    def _is_foreign(self, life: Life) -> bool:
        """Whether its only image is known by a login of another namespace, and its own have never opened it."""
        world, pod = self.world, life.pod
        used = references(pod)
        if len(used) != 1 or world.changed_by_others(life) or world.has_word(pod) or world.assumes(life):
            return False
        image = world.contents.image(used[0])
        if image is None or not image.login or world.contents.was_open_for(pod, image):
            return False
        is_own = world.contents.login_since(pod, image) is not None
        return not is_own and any(reference == used[0] for _, reference in world.contents.learned)


class ImpossiblePods(Invariant):
    """Pods that can run nowhere wait with their reason, under `pend`."""

    name = "D5 impossible"
    promise = "a pod whose images have no platform in common that its author allows gets no node, and says why"
    floor = 15

    def start(self) -> None:
        self.world.lives.on_created.append(self._look)
        self.world.lives.on_ungated.append(lambda life, _: self._look(life))

    def _look(self, life: Life) -> None:
        self._look_at_kept(life)
        self._look_at_impossible(life)

    def _look_at_kept(self, life: Life) -> None:
        """Whoever is kept from all nodes is so by its images, and not by what is assumed of them."""
        world, pod = self.world, life.pod
        terms = required_terms(pod["spec"]) or [{}]
        if IMPOSSIBLE in str(life.sent) or not all(IMPOSSIBLE in str(term) for term in terms):
            return
        if world.plan.kubernetes.injects or not world.is_plain(pod) or world.changed_by_others(life):
            return
        if not any(map(world.contents.has_changed, references(pod))):
            self.check(not world.have_common(life.sent), "a possible pod is kept from all nodes", pod=life.key,
                       reason=annotation(pod, REASON))  # fmt: skip

    def _look_at_impossible(self, life: Life) -> None:
        world, pod = self.world, life.pod
        admission = world.config.admission
        # A held pod that would be refused waits, whatever affinity is written otherwise.
        waits = admission.node_affinity.required or (life.was_gated and admission.impossible == "deny")
        if is_gated(pod) or not waits or not world.is_reviewed(life):
            return
        if world.mode_of(life) != "enforce" or owner_kind(pod) == "DaemonSet" or world.changed_by_others(life):
            return
        if not world.is_plain(pod) or not self._is_known(life) or any(map(world.contents.has_changed, references(pod))):
            return
        if self._was_decided(life) and not world.have_common(life.sent):
            terms: list[dict[str, Any]] = required_terms(pod["spec"]) or []
            is_kept = bool(terms) and not any(allows(pod["spec"], node) for node in world.nodes())
            self.check(is_kept and bool(annotation(pod, REASON)), "an impossible pod is let go", pod=life.key,
                       terms=terms, reason=annotation(pod, REASON))  # fmt: skip

    def _was_decided(self, life: Life) -> bool:
        """Whether nothing was wrong; of a held pod only what lets it go before its limit without what it needs."""
        if not life.was_gated:
            return self.world.is_calm(life, 20.0)
        is_right = self.world.wrongs.was_right_since(life.sent_at - 20.0, "patches", "registry", "right", "rollout")
        return is_right and self.world.is_settled(life.namespace)

    def _is_known(self, life: Life) -> bool:
        world = self.world
        if not life.was_gated:
            return life.was_known
        if world.unknown_choice(life) and not world.is_known(life.pod):  # it need not wait
            return False
        is_in_time = world.now - life.created_at < world.config.admission.gate.limit_seconds
        return is_in_time and world.can_be_known(life.pod)
