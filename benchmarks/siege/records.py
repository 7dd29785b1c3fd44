"""What the processes of a siege write down, one JSON line each. All times are of the machine's monotonic clock."""

from collections.abc import Iterator
from pathlib import Path

import msgspec


class PodRecord(msgspec.Struct, frozen=True, kw_only=True, tag="pod"):
    """An honest pod: when it was created, and what became of its review and its filter calls.

    `review_seconds` is None if the review had no answer. `filter_seconds` has each call, from when the pod was due in
    kube-scheduler's queue. `settled_seconds` is the time from the first call to the right answer, None if none came.
    """

    at: float
    review_seconds: float | None
    review: str
    filter_seconds: tuple[float, ...]
    filters: tuple[str, ...]
    settled_seconds: float | None

    @property
    def wrong(self) -> int:
        """The number of answers that were not right."""
        return [self.review, *self.filters].count("wrong")

    @property
    def faults(self) -> tuple[str, ...]:
        """Why answers were lost, one entry each."""
        return tuple(each for each in (self.review, *self.filters) if each.startswith("lost"))


GENERATOR, REGISTRIES = "generator", "registries"


class DelayRecord(msgspec.Struct, frozen=True, tag="delay"):
    """How late the timers of one process were, in seconds, over the second before `at`."""

    at: float
    who: str
    late_seconds: tuple[float, ...]


class HoldRecord(msgspec.Struct, frozen=True, kw_only=True, tag="hold"):
    """One hold of the service's event loop that ended at `at`.

    `held_seconds` leaves out `waited_seconds`, in which another process had the core. `cpu_seconds` is the thread's
    processor time, `collected_seconds` that of garbage collection, `cause` where the main thread was.
    """

    at: float
    held_seconds: float
    waited_seconds: float
    cpu_seconds: float
    collected_seconds: float
    cause: str


class AttackRecord(msgspec.Struct, frozen=True, tag="attack"):
    """What an attack has done: its requests by what became of them."""

    attack: str
    counts: dict[str, int]


Record = PodRecord | DelayRecord | HoldRecord | AttackRecord
_DECODER: msgspec.json.Decoder[Record] = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder()


def encode_record(record: Record) -> bytes:
    """Returns the record as a line."""
    return _ENCODER.encode(record) + b"\n"


def read_records(path: Path) -> Iterator[Record]:
    """Yields the records of a file, without a last line that is not whole; none if there is no file."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield _DECODER.decode(line)
