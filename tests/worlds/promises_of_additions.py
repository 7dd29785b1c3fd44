"""Promises about what pods are given besides the nodes that they are kept to, and about what is left as it was."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tests.unit.placement.kube_scheduler import tolerates
from tests.worlds.circumstances import USUAL_PLATFORMS, Circumstances
from tests.worlds.judging import Invariant
from tests.worlds.lives import Life
from tests.worlds.plan import Manifest
from tests.worlds.truth import (
    ADDED,
    IMPOSSIBLE,
    PREFIX,
    annotation,
    is_gated,
    owner_kind,
    platform_of,
    preferred_terms,
    references,
    required_terms,
)

_ARCHITECTURE, _LABELS = "kubernetes.io/arch", ("kubernetes.io/arch", "kubernetes.io/os")
_DEFAULTED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_DEFAULT_SCHEDULER = "default-scheduler"


def preference_of(world: Circumstances, life: Life) -> Mapping[str, int]:
    """The score of each architecture for the pod, once it is known to be multi-arch; of a share as if it were in it."""
    word = world.chosen(life, f"{PREFIX}prefer", ("amd64", "arm64", "none"))
    if word:
        return {} if word == "none" else {word: 10}
    return world.config.placement.preference


def scores_of(world: Circumstances, life: Life) -> Mapping[str, int]:
    """The score of each architecture for the pod; none if its images have fewer than two in common."""
    architectures = {each.partition("/")[2] for each in world.common_platforms(life.pod)}
    if len(architectures) < 2:
        return {}
    return {name: score for name, score in preference_of(world, life).items() if score}


class _OfAdditions(Invariant):
    """Looks at what is written into a pod when it is made, or let go."""

    def start(self) -> None:
        self.world.lives.on_created.append(self._look)
        self.world.lives.on_ungated.append(lambda life, _: self._look(life))

    def _look(self, life: Life) -> None:
        raise NotImplementedError

    def _is_decided(self, life: Life) -> bool:
        """Whether what the pod gets follows from its images, its author's words and the settings."""
        world, pod = self.world, life.pod
        if is_gated(pod) or owner_kind(pod) == "DaemonSet" or not world.is_reviewed(life):
            return False
        if world.mode_of(life) != "enforce" or not world.is_plain(pod) or world.changed_by_others(life):
            return False
        is_calm = world.is_calm(life, 20.0) and world.is_settled(life.namespace)
        return is_calm and world.is_known(pod) and not any(map(world.contents.has_changed, references(pod)))


class AuthorsWords(_OfAdditions):
    """D10."""

    name = "D10 authors"
    promise = "what a pod's author asks of nodes stays as it is; what is added is about platforms, and is recorded"
    floor = 5000

    def _look(self, life: Life) -> None:
        pod, sent = life.pod["spec"], life.sent["spec"]
        if self.world.changed_by_others(life) or life.is_sent_with_ours:
            return
        added = self._added(life, pod, sent)
        if added is None:
            return
        terms, preferred, tolerations = added
        for each in (*(one for term in terms for one in term), *_requirements(preferred)):
            self.check(each["key"] in _LABELS and each["operator"] == "In", "adds what is not about platforms",
                       pod=life.key, added=each)  # fmt: skip
        if is_gated(life.pod):
            self.check(not (any(terms) or preferred or tolerations), "a held pod has its place already", pod=life.key)
        elif (any(terms) or preferred or tolerations) and owner_kind(life.pod) != "DaemonSet":
            record = _record(annotation(life.pod, ADDED))
            said = [record.get("tolerations", []), record.get("preferred", [])]
            self.check(said == [tolerations, preferred], "the record is not what was added", pod=life.key,
                       record=record, tolerations=tolerations, preferred=preferred)  # fmt: skip
            recorded = [each["matchExpressions"] for each in record.get("required", ())]
            self.check(recorded == [each for each in terms if each], "the record is not what was required",
                       pod=life.key, record=record, required=terms)  # fmt: skip

    def _added(self, life: Life, pod: Manifest, sent: Manifest) -> tuple[list[Any], list[Any], list[Any]] | None:
        """What was added to required terms, to preferred ones and to tolerations; None if anything was changed."""
        same = [each for each in ("podAffinity", "podAntiAffinity") if _affinity(pod, each) != _affinity(sent, each)]
        is_same = (pod.get("nodeSelector") or {}) == (sent.get("nodeSelector") or {})
        if not self.check(not same and is_same, "what its author wrote was changed", pod=life.key, parts=same):
            return None
        lists = []
        for one, two in (
            (preferred_terms(pod), preferred_terms(sent)),
            (_tolerations(pod), _tolerations(sent)),
        ):
            if not self.check(one[: len(two)] == two, "what its author wrote was changed", pod=life.key, now=one):
                return None
            lists.append(one[len(two) :])
        theirs, terms = required_terms(sent), required_terms(pod) or []
        its_terms = [{} for _ in terms] if theirs is None else theirs
        is_same = len(its_terms) == len(terms) and all(map(_continues, terms, its_terms))
        if not self.check(is_same, "the terms of its author were changed", pod=life.key, now=terms, sent=theirs):
            return None
        added = [
            one.get("matchExpressions", [])[len(two.get("matchExpressions") or ()) :]
            for one, two in zip(terms, its_terms, strict=True)
        ]
        return added, lists[0], lists[1]


def _continues(term: Manifest, sent: Manifest) -> bool:
    mine, theirs = term.get("matchExpressions") or [], sent.get("matchExpressions") or []
    return bool(mine[: len(theirs)] == theirs and (term.get("matchFields") or []) == (sent.get("matchFields") or []))


def _required(spec: Manifest) -> list[Any]:
    return [one for each in required_terms(spec) or () for one in each.get("matchExpressions") or ()]


def _affinity(spec: Manifest, part: str) -> Any:  # JSON
    return (spec.get("affinity") or {}).get(part)


def _tolerations(spec: Manifest) -> list[Any]:
    return [each for each in spec.get("tolerations") or () if each.get("key") not in _DEFAULTED]


def _requirements(preferred: Sequence[Manifest]) -> list[Any]:
    return [one for each in preferred for one in each["preference"]["matchExpressions"]]


def _record(text: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(text or "{}")
    return found


class NothingNeedless(_OfAdditions):
    """What is required keeps the pod off some node."""

    name = "D11 no needless terms"
    promise = "a pod gets required affinity only if its author allows a node that there may be and it may not have"
    floor = 90

    def _look(self, life: Life) -> None:
        world, pod = self.world, life.pod
        if not self._is_decided(life) or IMPOSSIBLE in str(required_terms(pod["spec"])) or not world.nodes():
            return
        # What its template had got of ours may stay, or be taken away where its author has become stricter.
        had = _required(life.sent["spec"])
        if all(each in had for each in _required(pod["spec"])):
            return
        platforms = {"/".join(platform_of(each)) for each in world.nodes()}.union(USUAL_PLATFORMS)
        allowed = [each for each in platforms if world.may_be_on(life.sent["spec"], each)]
        kept_off = [each for each in allowed if not world.may_be_on(pod["spec"], each)]
        self.check(
            bool(kept_off), "affinity that keeps it off no node", pod=life.key, terms=required_terms(pod["spec"])
        )


class Tolerations(_OfAdditions):
    """D12."""

    name = "D12 tolerations"
    promise = "a pod gets just the tolerations whose platforms all its images run on and its author allows"
    floor = 250

    def _look(self, life: Life) -> None:
        world, pod = self.world, life.pod
        added = _tolerations(pod["spec"])[len(_tolerations(life.sent["spec"])) :]
        if world.is_reviewed(life) and not is_gated(pod) and not world.can_be_known(pod) and self._is_whole(life):
            self.check(not added, "tolerations though an image is not known", pod=life.key, added=added)
        if not self._is_decided(life):
            return
        present, right = list(life.sent["spec"].get("tolerations") or ()), []
        for rule in world.config.admission.tolerations:
            toleration = {
                name: value
                for name in ("key", "operator", "value", "effect")
                if (value := getattr(rule, name))
            }  # fmt: skip
            is_allowed = any(world.may_be_on(life.sent["spec"], each) for each in rule.platforms)
            if not is_allowed or not world.runs_on_all(pod, rule.platforms):
                continue
            if not any(_covers(each, toleration) for each in present):
                present.append(toleration)
                right.append(toleration)
        self.check(added == right, "its tolerations are wrong", pod=life.key, added=added, right=right,
                   images=references(pod))  # fmt: skip

    def _is_whole(self, life: Life) -> bool:
        """Whether the pod and its images are what they were, and no login was taken away that had opened one."""
        world = self.world
        for each in references(life.pod):
            image = world.contents.image(each)
            if image and image.login and world.contents.was_open_for(life.pod, image):
                return False
        return not world.changed_by_others(life) and not any(
            map(world.contents.has_changed, references(life.pod))
        ) and not world.has_word(life.pod)  # fmt: skip


def _covers(present: Manifest, toleration: Manifest) -> bool:
    """Whether the one tolerates for ever every taint that the other does."""
    values = (toleration.get("value", ""),) if toleration.get("operator") != "Exists" else ("", "a", "b")
    effects = (toleration["effect"],) if toleration.get("effect") else _EFFECTS
    taints = [{"key": toleration["key"], "value": value, "effect": each} for value in values for each in effects]
    return present.get("tolerationSeconds") is None and all(tolerates(present, each) for each in taints)


class Preferences(_OfAdditions):
    """D13."""

    name = "D13 preference"
    promise = "a multi-arch pod gets the preference of its author, its namespace or the operator, and no other pod any"
    floor = 170

    def _look(self, life: Life) -> None:
        world, pod, sent = self.world, life.pod, life.sent
        if not self._is_decided(life):
            return
        added = preferred_terms(pod["spec"])[len(preferred_terms(sent["spec"])) :]
        right = self._right(life)
        share = world.chosen(life, f"{PREFIX}prefer-share", ("40%", "100%"))
        is_right = added == right or (share == "40%" and not added)
        self.check(is_right, "its preference is wrong", pod=life.key, added=added, right=right, share=share,
                   images=references(pod))  # fmt: skip

    def _right(self, life: Life) -> list[Any]:
        world, sent = self.world, life.sent["spec"]
        mode = world.config.admission.node_affinity
        is_named = world.chosen(life, f"{PREFIX}prefer", ("amd64", "arm64", "none")) in ("amd64", "arm64")
        if not (mode.preferred or (mode.required and is_named)):
            return []
        if any(each["key"] == _ARCHITECTURE for each in _requirements(preferred_terms(sent))):
            return []
        allowed = {
            each.partition("/")[2] for each in world.common_platforms(life.pod) if world.may_be_on(sent, each)
        }  # fmt: skip
        if len(allowed) < 2:
            return []
        return [
            {
                "weight": 10 * points,
                "preference": {"matchExpressions": [{"key": _ARCHITECTURE, "operator": "In", "values": [name]}]},
            }
            for name, points in sorted(preference_of(world, life).items())
            if points and name in allowed
        ]


class Annotations(_OfAdditions):
    """D14."""

    name = "D14 platforms"
    promise = "where the setting says so, a known pod says what its images have in common, and no other pod does"
    floor = 450

    def _look(self, life: Life) -> None:
        world, pod = self.world, life.pod
        text = (pod["metadata"].get("annotations") or {}).get(f"{PREFIX}platforms")
        if not world.config.admission.platforms_annotation and world.is_calm(life, 20.0):
            self.check(text is None, "platforms nobody asked for", pod=life.key, text=text)
        elif self._is_decided(life):
            right = ",".join(sorted(world.common_platforms(pod)))
            named = [each for each in (text or "").split(",") if "/arm/" not in each]
            self.check(text is not None and named == [each for each in right.split(",") if each != "linux/arm"],
                       "its platforms are wrong", pod=life.key, text=text, right=right)  # fmt: skip


class SchedulersName(_OfAdditions):
    """D15."""

    name = "D15 schedulerName"
    promise = "in labelled namespaces pods of the default scheduler get the second one, and no others"
    floor = 800

    def _look(self, life: Life) -> None:
        world, pod = self.world, life.pod
        if owner_kind(pod) == "DaemonSet" or world.changed_by_others(life):
            return
        asked = life.sent["spec"].get("schedulerName") or _DEFAULT_SCHEDULER
        named = world.config.admission.scheduler_name
        if not named or asked != _DEFAULT_SCHEDULER:
            self.check(pod["spec"]["schedulerName"] == asked, "gets another scheduler", pod=life.key)
        elif self._is_given(life):
            self.check(pod["spec"]["schedulerName"] == named, "keeps the default scheduler", pod=life.key)

    def _is_given(self, life: Life) -> bool:
        world = self.world
        is_given = world.is_reviewed(life) and world.is_plain(life.pod) and world.mode_of(life) == "enforce"
        return is_given and world.is_calm(life, 20.0) and world.is_settled(life.namespace)
