"""Promises about the replicas themselves: health, logs, ends, and what they keep and ask."""

import asyncio
import math
from collections import Counter
from datetime import datetime

from extender.placement.gate import UnknownImages
from tests.worlds.circumstances import health
from tests.worlds.findings import Filtered
from tests.worlds.judging import Invariant
from tests.worlds.lives import Life
from tests.worlds.plan import Mode
from tests.worlds.scheduling_queue import priority_of
from tests.worlds.trace import Entry
from tests.worlds.truth import LABEL, NOT_IN_VIEW, is_gated, owner_kind, references

# A view that was whole once answers for the nodes that it has.
_BUT_WATCHES = ("api", "callers", "fetcher", "patches", "registry", "replica", "right", "rollout")
# Between two looks at what is kept. Images that pods wait for are looked at every 5 s, which finds that nobody waits.
_OTHER_SECONDS = 6.5
# In which a view is listed again; a watch from the last version goes on, and is that until the Lease is renewed.
_RELISTED_SECONDS, _RENEWED_SECONDS = 8.0, 4.0
_SIGHT = ("api", "replica", "right:list", "right:watch", "rollout", "watch")
_NOTICED_SECONDS = 100.0
_MISSED_SECONDS = 125.0  # a watch is lost after 90 s, and a pod that is older than 30 s was missed by it
_OVERDUE_SECONDS = 25.0  # 10 s are left to who would decide, and a removal that fails for 5 s makes nobody able
_AWAY_SECONDS = 31.0  # for longer than images may be pending
_LOOKUP_SECONDS = 0.4  # that a look-up takes at most while nothing is wrong
_AT_ONCE_SECONDS = 0.1  # in which replicas answer that are compared
_RENEWED_SECONDS = 7.0  # after which a leader steps down that has not renewed its Lease
_SEEN_SECONDS = 1.0  # within which a watch shows a change
_SETTLED_SECONDS = 40.0  # in which a replica that starts sees the cluster, proves its rights, and somebody leads


class HealthIsTrue(Invariant):
    """I9."""

    name = "I9 health"
    promise = "livez and readyz are fine while nothing is wrong, and a replica then is able to remove gates"
    floor = 5000

    def start(self) -> None:
        self.world.every(10.0, lambda: self.world.spawn(self._look()))

    async def _look(self) -> None:
        world = self.world
        for replica in world.running():
            if world.now - replica.started_at < _SETTLED_SECONDS:
                continue
            status, text = await health(replica.livez())
            if replica in world.ending:
                continue
            if world.wrongs.is_quiet("callers", "replica"):
                self.check(status == 200, "not live", replica=replica.name, text=text)
            if not world.wrongs.is_quiet(seconds=10.0):
                continue
            status, text = await health(replica.readyz())
            if world.wrongs.is_quiet(seconds=10.0):
                self.check(status == 200, "not ready while nothing is wrong", replica=replica.name, text=text)
                if world.config.admission.unknown is UnknownImages.GATE:
                    self.check(replica.able, "not able while nothing is wrong", replica=replica.name)


class ViewsFollow(Invariant):
    """I9 for views."""

    name = "I9 views"
    promise = "a view whose version the API server has dropped is whole again within seconds"
    floor = 2

    def start(self) -> None:
        self.world.trace.listen("WatchFault", self._failed)

    def _failed(self, entry: Entry) -> None:
        if entry.fields["what"] == "compacted":
            resource = entry.fields["resource"]
            self.world.later(_RELISTED_SECONDS, lambda: self._look(resource))

    def _look(self, resource: str) -> None:
        world, name = self.world, {"pods": "held-pods"}.get(resource, resource)
        began_at = world.now - _RELISTED_SECONDS - 1.0
        if not world.wrongs.was_right_since(began_at, "api", "right", "rollout", "replica", f"watch:{resource} silent"):
            return
        for replica in world.running():
            age = replica.metrics()[f"multiarch_watch_age_seconds{{{name}}}"]
            self.check(
                age < _RELISTED_SECONDS + _RENEWED_SECONDS,
                "is not listed again",
                replica=replica.name,
                view=name,
                age=age,
            )


class HeldOnlyByTheAble(Invariant):
    """I9 for holding: what a replica says of itself is what it would do."""

    name = "I9 able"
    promise = "the webhook holds no pod while nobody could remove its gate, or while gates are overdue"
    floor = 10

    def start(self) -> None:
        if self.world.plan.mode in (Mode.WEBHOOK, Mode.DEFAULT_AND_WEBHOOK, Mode.SECOND):
            self.world.lives.on_created.append(self._created)

    def _created(self, life: Life) -> None:
        if self._would_be_held(life) and (self._is_nobody_able() or self._is_any_overdue()):
            self.check(not is_gated(life.pod), "held while no replica removes gates", pod=life.key)

    def _would_be_held(self, life: Life) -> bool:
        world = self.world
        if not world.is_reviewed(life) or world.mode_of(life) != "enforce" or owner_kind(life.pod) == "DaemonSet":
            return False
        if world.config.admission.unknown is not UnknownImages.GATE or world.unknown_choice(life):
            return False
        return not life.was_known

    def _is_nobody_able(self) -> bool:
        """A right is asked for again each minute. A list shows whom a silent watch has missed, once that is lost.

        A replica that starts lists them at once.
        """
        world = self.world
        if world.now - world.wrongs.begun("right:patch pods", "right:list pods") > _NOTICED_SECONDS:
            return True
        deaf_since = max((world.wrongs.begun("watch:pods silent"), *world.replaced_at.values()))
        missed = world.now - _MISSED_SECONDS
        return any(each.was_gated and deaf_since < each.created_at < missed for each in world.lives)

    def _is_any_overdue(self) -> bool:
        """Whether the gate of a pod that every replica sees should be gone, and cannot be removed."""
        return any(each.is_held and self._is_overdue(each) for each in self.world.lives)

    def _is_overdue(self, life: Life) -> bool:
        world = self.world
        due_at = max(life.created_at, life.alone_since) + world.config.admission.gate.limit_seconds
        if world.now < due_at + _OVERDUE_SECONDS or world.wrongs.begun("patches whole", "right:patch pods") > due_at:
            return False
        return world.wrongs.was_right_since(life.created_at - 20.0, *_SIGHT)


class OneLeads(Invariant):
    """The election: who leads says so, and the Lease names it."""

    name = "I9 leader"
    promise = "one replica leads at most; while nothing is wrong one does, the Lease names it, and it renews the Lease"
    floor = 5000

    def start(self) -> None:
        self.world.every(5.0, lambda: self.world.spawn(self._look()))

    async def _look(self) -> None:
        world, asked_at = self.world, self.world.now
        replicas = world.running()
        answers = await asyncio.gather(*(health(each.readyz()) for each in replicas))
        leaders = [each for each, (_, text) in zip(replicas, answers, strict=True) if "gates ok: leading" in text]
        if world.now - asked_at > _AT_ONCE_SECONDS or not any(status for status, _ in answers):
            return
        self.check(len(leaders) <= 1, "several lead", leaders=[each.name for each in leaders])
        is_old = all(world.now - each.started_at > _SETTLED_SECONDS for each in replicas)
        admission = world.config.admission
        if admission.unknown is not UnknownImages.GATE or not admission.gate.lease:
            return
        if is_old and replicas and world.wrongs.is_quiet(seconds=10.0):
            lease = world.lease() or {}
            renewed_at = datetime.fromisoformat(lease.get("renewTime", "1970-01-01T00:00:00Z")).timestamp()
            age = world.network.wall_clock() - renewed_at
            is_named = bool(leaders) and lease.get("holderIdentity", "").startswith(f"{leaders[0].name}_")
            self.check(is_named and age < _RENEWED_SECONDS, "the Lease does not say who leads", age=age,
                       leaders=[each.name for each in leaders], lease=lease)  # fmt: skip


class Gauges(Invariant):
    """What monitoring goes by."""

    name = "I9 gauges"
    promise = "metrics say how many pods are held, since when, and how many nodes there are"
    floor = 6000

    def start(self) -> None:
        self.world.every(7.0, self._look)

    def _look(self) -> None:
        world = self.world
        if not world.wrongs.is_quiet(seconds=10.0):
            return
        now, nodes = world.now, len(world.nodes())
        held = [life for life in world.lives if life.is_held]
        if any(LABEL not in (life.pod["metadata"].get("labels") or {}) for life in held):  # who leads may have found it
            return
        if any(now - at < _SEEN_SECONDS for at in (*world.changed_pods_at(), *world.joined_at.values())):
            return
        oldest = now - min((life.created_at for life in held), default=now)
        for replica in world.running():
            if now - replica.started_at < _SETTLED_SECONDS:
                continue
            found = replica.metrics()
            seen = sum(value for name, value in found.items() if name.startswith("multiarch_cluster_nodes{"))
            self.check(seen == nodes, "counts other nodes", replica=replica.name, seen=seen, there=nodes)
            number = found.get("multiarch_gates_pods{seen}", 0.0)
            self.check(number == len(held), "counts other held pods", replica=replica.name, seen=number,
                       there=[life.key for life in held])  # fmt: skip
            age = found.get("multiarch_gates_oldest_seconds{held}", 0.0)
            self.check(abs(age - oldest) < 2.0, "states another age of the oldest gate", replica=replica.name, age=age,
                       oldest=oldest)  # fmt: skip


class NoTraceback(Invariant):
    """I10."""

    name = "I10 no traceback"
    promise = "no mistake of ours is met, whatever else fails"
    floor = 120

    def end(self) -> None:
        for replica in self.world.all_replicas():
            wrong = [each for each in replica.logs if "exception" in each or each.get("level") == "critical"]
            self.check(not wrong, "a mistake of ours", replica=replica.name, log=wrong[:1])


class EndsInTime(Invariant):
    """I19."""

    name = "I19 SIGTERM"
    promise = "a replica ends in order within its grace after SIGTERM, while nothing else is wrong"
    floor = 18

    def start(self) -> None:
        self.world.on_terminated.append(self._terminated)

    def _terminated(self, seconds: float, grace: float) -> None:
        # Its process is cut short at the end of its grace; where nobody keeps it waiting it ends in order before.
        if self.world.wrongs.is_quiet("api", "registry", "fetcher", "watch", "right", "callers"):
            self.check(seconds < grace, "is cut short though nothing is wrong", seconds=seconds, grace=grace)


class EndsInOrder(Invariant):
    """I19 at the end."""

    name = "I19 at the end"
    promise = "a replica ends in order within its grace, whatever it has met before"
    floor = 80

    def end(self) -> None:
        grace = self.world.config.shutdown.grace_seconds
        for replica, seconds in self.world.ended_after.items():
            self.check(seconds < grace, "is cut short", replica=replica.name, seconds=seconds, grace=grace)


class BackToTheFloor(Invariant):
    """I7."""

    name = "I7 floors"
    promise = "what is kept for pods, requests and look-ups is given back when they are over"
    floor = 1500

    async def finish(self) -> None:
        world = self.world
        if not world.wrongs.is_quiet(seconds=30.0):
            return
        before, sizes = world.floors(), {replica: replica.sizes() for replica in world.running()}
        await asyncio.sleep(_OTHER_SECONDS)  # what is under way now is not by then
        most = {name: max(before[name], number) for name, number in world.floors().items()}
        for replica in (each for each in world.running() if each in sizes):
            later = replica.sizes()
            for name in (each for each in most if each in later):
                kept = min(later[name], sizes[replica].get(name, 0))
                self.check(kept <= most[name], "is not given back", replica=replica.name, kept=name, number=kept,
                           most=most[name])  # fmt: skip


class NoErrors(Invariant):
    """I12."""

    name = "I12 no Error"
    promise = "a scheduler gets no Error for pods whose images are known, while nothing is wrong"
    floor = 40

    def start(self) -> None:
        self.world.on_filtered.append(self._filtered)

    def _filtered(self, life: Life, filtered: Filtered) -> None:
        world = self.world
        if world.is_calm(life, 40.0, *_BUT_WATCHES) and world.is_at_hand(life) and world.keeps_all_images():
            self.check(not filtered.error, "an Error while nothing is wrong", pod=life.key, error=filtered.error)


class FilterIsRight(Invariant):
    """I6 for the scheduler's side, I3 for observed pods, and one constant text."""

    name = "I6 filter"
    promise = "filter refuses the nodes that cannot run a known pod and no other, by one text; observed ones it echoes"
    floor = 500

    def start(self) -> None:
        self._asked_at: dict[str, float] = {}
        self._returned: set[str] = set()
        self.world.on_filtered.append(self._filtered)

    def _filtered(self, life: Life, filtered: Filtered) -> None:
        world, is_back = self.world, self._is_back(life)
        self._judge_observed(life, filtered)
        if not filtered.error:
            self._judge_texts(life, filtered.refused)
            is_kept = world.keeps_all_images() or world.is_retried(life)
            if not is_kept or not self._is_decided(life):
                return
            if world.is_at_hand(life):
                self._judge_nodes(life, filtered)
            elif is_back and world.is_known(life.pod, 20.0):
                self._judge_return(life, filtered)

    def _is_back(self, life: Life) -> bool:
        """Whether a pod without priority comes back for the first time, after longer than images may be pending."""
        last, self._asked_at[life.uid] = self._asked_at.get(life.uid, math.inf), self.world.now
        is_back = self.world.now - last > _AWAY_SECONDS + self.world.config.scheduler.wait_seconds
        is_first = is_back and life.uid not in self._returned
        if is_back:
            self._returned.add(life.uid)
        return is_first and not priority_of(life.pod)

    def _judge_observed(self, life: Life, filtered: Filtered) -> None:
        world, refused = self.world, filtered.refused
        if world.always_observed(life):
            is_error = bool(filtered.error) and not filtered.is_lost
            self.check(not is_error, "an Error for an observed pod", pod=life.key, error=filtered.error)
            self.check(not refused, "an observed pod is refused", pod=life.key, refused=refused)
        is_observed = world.mode_of(life) != "enforce" and world.is_settled(life.namespace, 2.0)
        if is_observed and world.wrongs.is_quiet("watch", "api", "rollout", "replica"):
            self.check(not refused, "an observed pod is refused", pod=life.key, refused=refused)

    def _judge_texts(self, life: Life, refused: dict[str, str]) -> None:
        for text in refused.values():
            self.check(len(text) < 512, "a long refusal", pod=life.key)
        texts = set(refused.values()) - {NOT_IN_VIEW}
        self.check(len(texts) <= 1, "several texts for one pod", pod=life.key, texts=refused)

    def _is_decided(self, life: Life) -> bool:
        """Whether the answer follows from the images alone."""
        world = self.world
        if world.mode_of(life) != "enforce" or not world.is_calm(life, 20.0) or not world.is_plain(life.pod):
            return False
        return not (any(map(world.contents.has_changed, references(life.pod))) or world.prefers_by_filter())

    def _judge_return(self, life: Life, filtered: Filtered) -> None:
        """Who comes back is judged by a look-up that is waited for, or as pending once more."""
        scheduler = self.world.config.scheduler
        if scheduler.wait_seconds >= _LOOKUP_SECONDS:
            self._judge_nodes(life, filtered)
        elif scheduler.pending == "assume":
            self._judge_nodes(life, filtered, may_assume=True)

    def _judge_nodes(self, life: Life, filtered: Filtered, *, may_assume: bool = False) -> None:
        world = self.world
        nodes = {node["metadata"]["name"]: node for node in world.nodes()}
        known = [name for name in (*filtered.passed, *filtered.refused) if name in nodes]
        for name in known:
            if world.joined_before(name, 5.0):
                text = filtered.refused.get(name, "")
                is_right = world.runs_all(life.pod, nodes[name]) != bool(text)
                is_assumed = may_assume and world.is_assumed(nodes[name]) != bool(text)
                self.check(is_right or is_assumed, "filter is wrong about a node", pod=life.key, node=name, text=text)


class GentleToRegistries(Invariant):
    """Registries are asked as seldom as the pages say."""

    name = "D7 requests"
    promise = "a name is asked for a few times in a minute at most, however many pods want it"
    floor = 390

    async def finish(self) -> None:
        world = self.world
        totals: Counter[tuple[str, str]] = Counter()
        for asked in world.registries.asked:
            totals[asked.host, "token" if asked.name == "token" else asked.repository] += 1
        most = 20 + world.plan.replicas * (10 + world.now * 0.4)
        for key, number in sorted(totals.items()):
            self.check(number <= most, "is asked for too often", of="/".join(key), requests=number, most=most)
