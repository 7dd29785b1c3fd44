"""What the callers of a listener may take together: connections, bytes of requests without an answer, and time.

Nothing here tells one caller from another: a certificate authority of clients or a network policy does. When a listener
is full, what is least likely to be of use gives way.
"""

from collections.abc import Callable
from typing import Protocol

import msgspec

from extender.metrics import counter

MIB = 1024 * 1024

# A new connection has this long for its TLS handshake and the head of its first request, and one in use for the rest of
# a head that has begun.
HEAD_SECONDS = 10.0
# A body that has begun arrives within this, whatever its size. The API server waits for an answer for 30 s at most.
BODY_SECONDS = 30.0
# A connection gives way to a new one after it: a handshake and a request take milliseconds.
IDLE_SECONDS = 2.0
# How soon a full listener looks again when it has found none. A look at 640 takes 0.1 ms.
_LOOK_SECONDS = 0.1

REFUSALS = counter(
    "multiarch_listener_refusals_total",
    "What listeners refused or ended, by what it had too much of; descriptors: pauses without any to accept with.",
    "reason",
    ("connections", "bytes", "time", "descriptors"),
)


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Of one listener: its connections, the bytes of a body, and those of all requests without an answer."""

    connections: int = 128  # probes and Prometheus have one or two each
    body_bytes: int = MIB // 4
    pending_bytes: int = MIB


# kube-scheduler calls one verb after the other. A body has up to 5,000 nodes, as the largest cluster that Kubernetes
# supports, of up to 25 KiB each: a node is 8-15 KB of JSON, most of it status.images (50 images of 5 names at most),
# and labels and annotations vary. One such body fits beside many that have names alone.
SCHEDULER = Limits(connections=256, body_bytes=5_000 * 25 * 1024, pending_bytes=5_000 * 25 * 1024 + 32 * MIB)
# Three API servers with 200 reviews under way each, their limit of mutating requests by default. A TLS connection takes
# 31 KB, and 145 KB once much has come at once: 93 MB at most. etcd refuses objects over 1.5 MiB by default, and a
# review holds two of them (object and oldObject) and an envelope.
ADMISSION = Limits(connections=640, body_bytes=8 * MIB, pending_bytes=32 * MIB)


class Limited(Protocol):
    """What this file asks of a connection."""

    pending_bytes: int

    @property
    def idle_since(self) -> tuple[bool, float] | None:
        """Whether it has ever had a request, and since when it has none; None while it waits for an answer."""

    def expire(self) -> bool:
        """Ends it, as the request that is arriving is late; False if it waits for the answer to an earlier one."""

    def refuse(self) -> None:
        """Ends it, as there is no room for the bytes of its request."""

    def abort(self) -> None:
        """Ends it without waiting for the other side."""


class Connections:
    """The open connections of one listener, those in their TLS handshake among them. `clock` is the event loop's."""

    def __init__(self, limits: Limits, clock: Callable[[], float]) -> None:
        self.limits = limits
        self.clock = clock
        self.pending_bytes = 0
        self._open: dict[Limited, None] = {}
        self._deadlines: dict[Limited, float] = {}  # of requests that arrive, the first that began first
        self._none_idle_before = 0.0

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._open)

    def has_room(self) -> bool:
        """Whether there may be one more; ends idle ones for it."""
        if len(self._open) < self.limits.connections or self._end_idle():
            return True
        REFUSALS["connections"].inc()
        return False

    def add(self, connection: Limited) -> None:
        """Counts a new one, and starts the deadline of its first request."""
        self._open[connection] = None
        self.await_head(connection)

    def remove(self, connection: Limited) -> None:
        """Counts it as closed; calls after the first have no effect."""
        self._open.pop(connection, None)
        self._deadlines.pop(connection, None)
        self.release(connection)

    def await_head(self, connection: Limited) -> None:
        """Starts the deadline of a head."""
        self._deadlines[connection] = self.clock() + HEAD_SECONDS

    def await_body(self, connection: Limited) -> None:
        """Starts the deadline of a body."""
        self._deadlines[connection] = self.clock() + BODY_SECONDS

    def is_awaiting(self, connection: Limited) -> bool:
        """Whether a request is arriving, or the first one is awaited."""
        return connection in self._deadlines

    def end_wait(self, connection: Limited) -> None:
        """Notes that no request is arriving."""
        self._deadlines.pop(connection, None)

    def hold(self, connection: Limited, size: int) -> bool:
        """Counts bytes of a request as kept until `release`; returns False if they are refused.

        When there are too many, the request is refused that began to arrive first and has not arrived yet.
        """
        connection.pending_bytes += size
        self.pending_bytes += size
        while self.pending_bytes > self.limits.pending_bytes:
            refused = next((each for each in self._deadlines if each.pending_bytes), connection)
            REFUSALS["bytes"].inc()
            self.release(refused)
            refused.refuse()
            if refused is connection:
                return False
        return True

    def release(self, connection: Limited) -> None:
        """Counts the bytes of a request as kept no longer."""
        self.pending_bytes -= connection.pending_bytes
        connection.pending_bytes = 0

    def end_late(self) -> None:
        """Ends the connections whose request is late; the listener calls this every second."""
        now = self.clock()
        for connection in [each for each, deadline in self._deadlines.items() if deadline <= now]:
            if connection.expire():
                self.release(connection)
                REFUSALS["time"].inc()
            else:
                self.await_head(connection)

    def _end_idle(self) -> bool:
        """Ends the one that has idled longest, if that is long; one that has asked only if all others have."""
        now = self.clock()
        if now < self._none_idle_before:
            return False
        idle = ((since, each) for each in self._open if (since := each.idle_since))
        found = min(idle, key=lambda each: each[0], default=None)
        if found is None or found[0][1] > now - IDLE_SECONDS:
            self._none_idle_before = now + _LOOK_SECONDS
            return False
        connection = found[1]
        REFUSALS["connections"].inc()
        self.remove(connection)
        connection.abort()
        return True
