"""The faults of a plan, which overlap what its theme has happen."""

import random
from collections.abc import Callable, Iterator, Mapping, Sequence

from tests.worlds.choices import PRIVATE_HOST, PUBLIC_HOST
from tests.worlds.drawing import Draw
from tests.worlds.plan import (
    LEADER,
    AnyEvent,
    ApiFault,
    FetcherStopped,
    NetworkFault,
    PatchRefused,
    RegistryFault,
    ReplicaKilled,
    ReplicaTerminated,
    RightDenied,
    WatchFault,
)


def draw_faults(draw: Draw, kinds: Sequence[str], replicas: int, limit_seconds: float) -> Iterator[AnyEvent]:
    """One or two faults of these kinds, if there are any; each ends before the plan's last event has to.

    In some worlds who leads ends at last, so that another has the held pods which are left.
    """
    chance = draw.part("faults")
    for _ in range(chance.choice((1, 1, 1, 2, 2)) if kinds else 0):
        kind = chance.choice(kinds)
        at = round(chance.uniform(1.0, 60.0), 1)
        if kind in ("right", "watch") and chance.random() < 0.5:
            at = 1.0  # so that it lasts for longer than anybody goes without noticing
        seconds = round(min(chance.choice((2.0, 6.0, 15.0, 40.0, 1.4 * limit_seconds, 100.0, 117.0)), 118.0 - at), 1)
        host = chance.choice((PUBLIC_HOST, PRIVATE_HOST)) if draw.theme == "private" else PUBLIC_HOST
        yield _FAULTS[kind](chance, at, seconds, chance.randrange(replicas), host)
    if chance.random() < 0.25:
        yield ReplicaTerminated(at=116.0, replica=LEADER)


def _fail_registry(chance: random.Random, at: float, seconds: float, _replica: int, host: str) -> AnyEvent:
    what = chance.choice(("throttled", "unavailable", "denied", "slow", "silent", "refused"))
    return RegistryFault(at=at, seconds=seconds, host=host, what=what, amount=chance.choice((1.0, 5.0, 20.0)))


def _fail_api(chance: random.Random, at: float, seconds: float, _replica: int, _host: str) -> AnyEvent:
    what, amount = chance.choice((("slow", 0.3), ("slow", 3.0), ("errors", 0.3), ("errors", 1.0)))
    return ApiFault(at=at, seconds=seconds, what=what, amount=amount)


def _disturb(chance: random.Random, at: float, seconds: float, replica: int, host: str) -> AnyEvent:
    party = chance.choice(("api", "callers", host))
    what = chance.choice(("cut", "refused", "silent"))
    return NetworkFault(at=at, seconds=seconds, replica=replica, party=party, what=what)


def _fail_watches(chance: random.Random, at: float, seconds: float, _replica: int, _host: str) -> AnyEvent:
    what = chance.choice(("silent", "silent", "cut", "compacted"))
    return WatchFault(at=at, seconds=seconds, resource=chance.choice(("nodes", "namespaces", "pods")), what=what)


def _deny(chance: random.Random, at: float, seconds: float, _replica: int, _host: str) -> AnyEvent:
    rights = (("patch", "pods"), ("patch", "pods"), ("list", "pods"), ("watch", "nodes"), ("patch", "leases"))
    verb, resource = chance.choice(rights)
    return RightDenied(at=at, seconds=seconds, verb=verb, resource=resource)


def _end_replica(chance: random.Random, at: float, _seconds: float, replica: int, _host: str) -> AnyEvent:
    is_killed = chance.random() < 0.35
    return ReplicaKilled(at=at, replica=replica) if is_killed else ReplicaTerminated(at=at, replica=replica)


_FAULTS: Mapping[str, Callable[[random.Random, float, float, int, str], AnyEvent]] = {
    "registry": _fail_registry,
    "fetcher": lambda _, at, seconds, replica, __: FetcherStopped(at=at, seconds=seconds, replica=replica),
    "api": _fail_api,
    "network": _disturb,
    "watch": _fail_watches,
    "right": _deny,
    "secrets": lambda _, at, seconds, *__: RightDenied(at=at, seconds=seconds, verb="get", resource="secrets"),
    "refused": lambda _, at, seconds, *__: PatchRefused(at=at, seconds=seconds),
    "replica": _end_replica,
}
