"""What is wrong in a world, from when until when, and how long afterwards it may still be felt.

Invariants ask since when nothing is wrong for their inputs. What follows a fault is bounded by what is documented: a
failed look-up is repeated within the time that it took to fail, five minutes at most; a watch is lost after 90 silent
seconds; a right is asked for again every minute.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any

from tests.worlds.plan import (
    AnyEvent,
    ApiFault,
    FetcherStopped,
    NetworkFault,
    PatchRefused,
    RegistryFault,
    ReplicaKilled,
    ReplicaTerminated,
    RightDenied,
    SettingsChanged,
    WatchFault,
)

_LOOKUPS, _RIGHTS, _API, _START, _MOMENT = 330.0, 90.0, 90.0, 45.0, 15.0
_WATCHES = 190.0  # 90 s until a silent watch is lost, and a minute until the next one brings its first bookmark


class _Wrong:
    def __init__(self, subject: str, begins: float, ends: float, felt: float) -> None:
        self.subject = subject
        self.begins = begins
        self.ends = ends
        self.felt_until = ends + felt


def _after_lookups(seconds: float) -> float:
    return min(_LOOKUPS, 2 * seconds + 20.0)


_FOUND: Mapping[type, Callable[[Any], tuple[str, float, float]]] = {
    RegistryFault: lambda event: (f"registry:{event.host}", event.seconds, _felt_registry(event)),
    FetcherStopped: lambda event: (f"fetcher:{event.replica}", event.seconds, _after_lookups(event.seconds)),
    RightDenied: lambda event: (f"right:{event.verb} {event.resource}", event.seconds, _RIGHTS + _after_lookups(0.0)),
    WatchFault: lambda event: (f"watch:{event.resource} {event.what}", *_of_watch(event)),
    ApiFault: lambda event: ("api ", event.seconds, _API),
    PatchRefused: lambda event: ("patches whole" if event.whole else "patches", event.seconds, _MOMENT),
    NetworkFault: lambda event: (_connection(event), event.seconds, _felt_connection(event)),
    ReplicaKilled: lambda event: (f"replica:{event.replica}", 20.0, _START),
    ReplicaTerminated: lambda event: (f"replica:{event.replica}", 20.0, _START),
    SettingsChanged: lambda _: ("rollout", 60.0, _START),
}
"""What is wrong through an event, for how long, and for how long it is felt."""


def _of_watch(event: WatchFault) -> tuple[float, float]:
    """Another watch follows at once where a watch ends."""
    return (event.seconds, _WATCHES) if event.what == "silent" else (0.0, _MOMENT)


def _felt_registry(event: RegistryFault) -> float:
    """Who is denied asks again after five minutes."""
    if event.what == "denied":
        return _LOOKUPS
    return _after_lookups(event.seconds + 10.0 * (event.what == "silent"))


def _connection(event: NetworkFault) -> str:
    if event.party in ("api", "callers"):
        return f"{event.party}:{event.replica}"
    return f"registry:{event.party}"


def _felt_connection(event: NetworkFault) -> float:
    if event.party not in ("api", "callers"):
        return _after_lookups(event.seconds + 10.0)
    return _START if (event.party, event.what) == ("callers", "refused") else _WATCHES  # its watches go on


class Wrongs:
    """The faults that have begun, by subject: `registry:HOST`, `api`, `watch:RESOURCE`, `replica:N` and so on."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._all: list[_Wrong] = []

    def note(self, event: AnyEvent) -> None:
        """Notes the fault, if the event is one."""
        if find := _FOUND.get(type(event)):
            self.add(*find(event))

    def add(self, subject: str, seconds: float, felt: float) -> None:
        """Notes what follows from something else that is wrong."""
        now = self._clock()
        self._all.append(_Wrong(subject, now, now + seconds, felt))

    def since(self, *subjects: str, felt: bool = True) -> float:
        """Since when nothing is wrong with any subject that begins so; infinite while something is.

        Without `felt` only while the fault itself lasts.
        """
        found = 0.0
        for wrong in self._all:
            if wrong.subject.startswith(subjects):
                until = wrong.felt_until if felt else wrong.ends
                found = max(found, math.inf if until > self._clock() else until)
        return found

    def is_quiet(self, *subjects: str, seconds: float = 0.0) -> bool:
        """Whether nothing has been wrong with these for so long, nor is felt; of everything without subjects."""
        return self._clock() - self.since(*(subjects or ("",))) >= seconds

    def was_right_since(self, at: float, *subjects: str) -> bool:
        """Whether nothing was wrong with these, or felt, at any moment from then to now."""
        return not any(wrong.felt_until > at for wrong in self._all if wrong.subject.startswith(subjects or ("",)))

    def begun(self, *subjects: str, felt: bool = False) -> float:
        """When what is wrong with these now, or still `felt`, has begun; infinite if nothing is."""
        now = self._clock()
        return min(
            (
                each.begins
                for each in self._all
                if each.subject.startswith(subjects) and (each.felt_until if felt else each.ends) > now
            ),
            default=math.inf,
        )

    def felt_until(self) -> float:
        """When the last of all faults is felt no more."""
        return max((wrong.felt_until for wrong in self._all), default=0.0)
