"""Promises about what registries and the API server are asked: how often, and with whose logins."""

import math
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tests.worlds import api_requests
from tests.worlds.choices import OPERATOR_LOGIN, PRIVATE_HOST
from tests.worlds.circumstances import Circumstances
from tests.worlds.judging import Invariant
from tests.worlds.plan import Applied, RegistryFault
from tests.worlds.registries import Asked
from tests.worlds.replicas import Replica
from tests.worlds.truth import references

_MISSING_SECONDS, _SOON_TIMES, _MISSING_LATER_SECONDS = 5.0, 12, 60.0
_DENIED_SECONDS, _FRESH_SECONDS = 300.0, 55.0
_FAILED_SECONDS = 8.0  # 10 s, and a fifth less by chance
_ON_ITS_WAY_SECONDS, _SLOW_SECONDS = 0.5, 30.0  # who has begun to ask does not know yet what others are answered
_READ_SECONDS = 35.0  # for which a secret's logins are kept, and a request with them is on its way
_LOOKUP_SECONDS = 130.0  # that a look-up takes at most which began with them
_WINDOW_SECONDS = 60.0
# Requests of a replica in a minute, whatever fails: by verb and resource.
_MOST = {
    ("POST", "selfsubjectaccessreviews"): 80,
    ("create", "events"): 80,
    ("create", "leases"): 24,
    ("create", "pods"): 12,
    ("get", "leases"): 24,
    ("get", "mutatingadmissionpolicybindings"): 20,
    ("list", "namespaces"): 9,
    ("list", "nodes"): 9,
    ("list", "pods"): 20,
    ("patch", "leases"): 24,
    ("patch", "mutatingadmissionpolicybindings"): 12,
    ("watch", "namespaces"): 9,
    ("watch", "nodes"): 9,
    ("watch", "pods"): 30,
}
# The same of one object. A held pod that is past its limit is tried by who decides and by who enforces the limit.
_MOST_OF_ONE = {("get", "pods"): 50, ("get", "secrets"): 14, ("patch", "pods"): 64}


A = TypeVar("A", Asked, api_requests.Asked)


def _by_replicas(world: Circumstances, requests: Iterable[A]) -> Iterator[tuple[Replica, A]]:
    """The requests of replicas, each with who sent it. One that starts knows nothing of the one before."""
    for asked in requests:
        replica = world.replica_at(asked.caller, asked.at)
        if replica:
            yield replica, asked


class PausesBetweenLookups(Invariant):
    """docs/registries: for how long an answer is fresh, and when a look-up that has failed is repeated."""

    name = "D7 pauses"
    promise = "a replica asks for a name again only once its last answer counts no more, and after a 429 for none"
    floor = 1500

    async def finish(self) -> None:
        before: dict[object, Asked] = {}
        missing: Counter[object] = Counter()
        confirmed: Counter[str] = Counter()
        resting: dict[object, tuple[float, float]] = {}
        renewed = set[object]()
        is_slow = any(isinstance(each, RegistryFault) and each.what == "slow" for each in self.world.plan.events)
        on_its_way_seconds = _SLOW_SECONDS if is_slow else _ON_ITS_WAY_SECONDS
        for replica, asked in _by_replicas(self.world, self.world.registries.asked):
            account = (replica, asked.host, asked.login)
            since, until = resting.get(account, (0.0, 0.0))
            if asked.login is not None and asked.at > since + on_its_way_seconds:
                self.check(asked.at >= until, "asks before its Retry-After", replica=replica.name,
                           of=f"{asked.host}/{asked.repository}:{asked.name}", at=asked.at, until=until)  # fmt: skip
            if asked.status == 429 and asked.answered_at + asked.retry_after_seconds > until:
                resting[account] = asked.answered_at, asked.answered_at + asked.retry_after_seconds
            key = (account, asked.repository, asked.name, asked.method)
            last = before.get(key)
            before[key] = asked
            if last is None or last.answered_at > asked.at or asked.name.startswith("sha256:"):
                if last and not last.status:  # a failure of another kind
                    missing[key] = 0
                continue
            if asked.login is None and asked.host == PRIVATE_HOST:  # it is for any of the logins
                continue
            after = asked.at - last.answered_at
            # After a pause of another length there may have been another failure, which begins the row anew.
            is_usual = any(0.0 <= after - each < 5.0 for each in (_MISSING_SECONDS, _MISSING_LATER_SECONDS))
            is_in_a_row = last.status == 404 and is_usual
            missing[key] = missing[key] + 1 if is_in_a_row else 0
            least = self._pause_seconds(last, missing[key])
            is_second = last.status == 401 and after < _ON_ITS_WAY_SECONDS and key not in renewed
            renewed.discard(key)
            if is_second:  # with a new token, as the one that was kept may have ended
                renewed.add(key)
            elif last.status == 200 and least and after < least:
                confirmed[f"{asked.host}/{asked.repository}:{asked.name}"] += 1
            elif least:
                self.check(after >= least, "is asked for too soon", replica=replica.name, status=last.status,
                           of=f"{asked.host}/{asked.repository}:{asked.name}", at=asked.at, after=after)  # fmt: skip
        self._judge_confirmations(confirmed)

    def _pause_seconds(self, last: Asked, missing: int) -> float:
        if not self.world.wrongs.was_right_since(0.0, "fetcher"):  # whoever asked may have got no answer of it
            return 0.0
        if last.name == "token" and last.status == 200:
            return 0.0
        match last.status:
            case 200:
                return _FRESH_SECONDS if self.world.keeps_all_images() else 0.0
            case 404:
                return _MISSING_SECONDS if missing <= _SOON_TIMES else _MISSING_LATER_SECONDS
            case 401 | 403:
                # A failure is one of all logins that were tried, and pods of others may try the operator's or none.
                is_own = last.login not in (None, "", OPERATOR_LOGIN)
                return _DENIED_SECONDS if is_own and self.world.wrongs.was_right_since(0.0) else 0.0
            case 429:
                return last.retry_after_seconds
            case 500 | 503:
                return _FAILED_SECONDS
        return 0.0

    def _judge_confirmations(self, confirmed: Counter[str]) -> None:
        """A tag is asked for again, fresh or not, before a pod that waited for another image goes by it, or a template.

        A webhook that is called first may be called once more for the same template.
        """
        held = Counter(each for life in self.world.lives if life.was_gated for each in set(references(life.first)))
        for event in self.world.plan.events:
            if isinstance(event, Applied) and event.kind != "Pod":
                named = [each for each in confirmed if f"'{each}'" in str(event.manifest)]
                held.update(2 * event.times * named)
        for reference, number in sorted(confirmed.items()):
            most = held[reference] * len(self.world.all_replicas())
            self.check(number <= most, "is asked for while its answer is fresh", of=reference, number=number, most=most)


class ShownLogins(Invariant):
    """I8 at the registries."""

    name = "I8 shown logins"
    promise = "a login is shown only for images of pods that name its secret, and no longer than the secret has it"
    floor = 25

    async def finish(self) -> None:
        world = self.world
        calm = world.wrongs.was_right_since(0.0, "registry", "fetcher")
        seconds = _READ_SECONDS + (0.0 if calm else _LOOKUP_SECONDS)
        for replica, asked in _by_replicas(world, world.registries.asked):
            if asked.login and not (asked.login == OPERATOR_LOGIN and world.config.registry.docker_config):
                self.check(self._is_given(asked, seconds), "a login is shown that no pod gives", replica=replica.name,
                           at=asked.at, of=f"{asked.host}/{asked.repository}", user=asked.login)  # fmt: skip

    def _is_given(self, asked: Asked, seconds: float) -> bool:
        """Whether a pod that was there by then uses the repository, and a secret that it names had the login lately."""
        contents = self.world.contents
        start = f"{asked.host}/{asked.repository}:"
        return any(
            contents.had_login(life.namespace, each["name"], asked.host, str(asked.login), asked.at - seconds, asked.at)
            for life in self.world.lives
            if life.sent_at <= asked.at and any(name.startswith(start) for name in references(life.pod))
            for each in life.pod["spec"].get("imagePullSecrets") or ()
        )


class GentleToTheApiServer(Invariant):
    """The API server is asked no more often than a controller's back-off allows."""

    name = "D7 API server"
    promise = "a replica asks the API server a few times in a minute at most, by kind and object, whatever fails"
    floor = 14000

    async def finish(self) -> None:
        lately: defaultdict[object, deque[float]] = defaultdict(deque)
        for replica, asked in _by_replicas(self.world, self.world.requests.asked):
            kind = (asked.verb, asked.resource)
            most, one = _MOST.get(kind, math.inf), (asked.namespace, asked.name)
            if kind in _MOST_OF_ONE and asked.name:
                most = _MOST_OF_ONE[kind]
            else:
                one = ("", "")
            times = lately[replica, kind, one]
            times.append(asked.at)
            while times[0] <= asked.at - _WINDOW_SECONDS:
                times.popleft()
            self.check(len(times) <= most, "is asked too often", replica=replica.name, kind=kind, of=one, at=asked.at,
                       requests=len(times))  # fmt: skip
