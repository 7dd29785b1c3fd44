"""Promises about events: what `kubectl describe` shows of held pods."""

from collections import defaultdict

from tests.worlds.judging import Invariant
from tests.worlds.lives import Life
from tests.worlds.plan import Manifest
from tests.worlds.truth import references

_HELD, _REMOVED = "held: image ", "gate removed "
_TOLD_SECONDS = 8.0  # within which a look-up ends while nothing is wrong, and an event is sent
_SENT_SECONDS = 3.0


class EventsAreTrue(Invariant):
    """I9 for events."""

    name = "I9 events"
    promise = "an event tells that a pod is held, and names an image; another one says what was known at its release"
    floor = 180

    def start(self) -> None:
        self._told: dict[str, list[str]] = defaultdict(list)
        world = self.world
        world.api.subscribe("Event", self._take)
        world.lives.on_created.append(lambda life: world.later(_TOLD_SECONDS, lambda: self._look_held(life)))
        world.lives.on_ungated.append(lambda life, _: world.later(_SENT_SECONDS, lambda: self._look_released(life)))

    def _take(self, _kind: str, old: Manifest | None, new: Manifest | None) -> None:
        if new is None or old is not None or (new.get("source") or {}).get("component") != "multiarch-extender":
            return
        life = self.world.lives.of(str(new["involvedObject"].get("uid")))
        if life:
            self._told[life.uid].append(new["message"])
            self._judge(life, new["message"])

    def _judge(self, life: Life, text: str) -> None:
        world, pod = self.world, life.pod
        if text.startswith(_HELD):
            own = (*references(life.first), *references(pod))  # an image may have been changed meanwhile
            self.check(any(each in text for each in own), "it is held for an image of others", pod=life.key, event=text)
        is_same = world.is_plain(pod) and not any(map(world.contents.has_changed, references(pod)))
        if text.startswith(f"{_REMOVED}(known") and is_same:
            is_known = world.can_be_known(pod) or "wasm" in text  # which runs on no node of a world
            self.check(is_known, "an image is said to be known", pod=life.key, event=text)
        if text.startswith(f"{_REMOVED}(failed"):
            age = world.now - life.created_at + 1.0  # a creationTimestamp has whole seconds
            self.check(age >= world.config.admission.gate.limit_seconds, "its limit is said to be over", pod=life.key,
                       event=text, age=age)  # fmt: skip

    def _look_held(self, life: Life) -> None:
        world = self.world
        if life.is_held and world.mode_of(life) == "enforce" and world.is_plain(life.pod) and self._is_calm(life):
            is_told = any(text.startswith(_HELD) for text in self._told[life.uid])
            self.check(is_told, "no event tells that it is held", pod=life.key, told=self._told[life.uid])

    def _look_released(self, life: Life) -> None:
        told = self._told[life.uid]
        if told and self._is_calm(life):
            self.check(told[-1].startswith(_REMOVED), "no event tells of its release", pod=life.key, told=told)

    def _is_calm(self, life: Life) -> bool:
        return self.world.is_calm(life, 20.0) and not self.world.changed_by_others(life)
