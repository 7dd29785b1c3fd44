"""How many connections, and how many bytes of bodies, the callers of each listener may have.

The amounts are for a process that may have 512 MiB and needs 155 MiB itself. A TLS connection takes 31 KB, up to 45 KB
until its handshake ends, and up to 145 KB once much has come at once.
"""

from extender.budgets import declare_budget
from extender.config.checks import is_loopback
from extender.config.tree import Config, TlsConfig
from extender.server.callers import BodyLimits, Limits, Proof

MIB = 1024 * 1024

# 5,000 nodes (the largest cluster Kubernetes supports) of up to 25 KiB each: a node is 8-15 KB of JSON, most of it
# status.images (50 images of 5 names at most), and labels and annotations vary.
SCHEDULER_BODY_BYTES = 5_000 * 25 * 1024
# etcd refuses objects over 1.5 MiB by default. A review holds two of them (object and oldObject) and an envelope.
ADMISSION_BODY_BYTES = 8 * MIB
# A body that has begun arrives within this, whatever its size: both callers are on a cluster's own network. The API
# server waits for an answer for 30 s at most.
BODY_SECONDS = 30.0
# What a TLS connection takes once much has come at once, less what it takes in any case.
BUFFERS_BYTES = 32 * 1024

SCHEDULER_CONNECTIONS = declare_budget(
    "service.limits.scheduler_connections",
    unit="connections to the scheduler's listener, if not on loopback",
    total=256,
    most_each=128,
    why="a kube-scheduler calls one verb after the other; 31 to 145 KB each",
)
LOOPBACK_CONNECTIONS = declare_budget(
    "service.limits.loopback_connections",
    unit="connections to the scheduler's listener on loopback",
    total=1_280,
    most_each=1_280,
    why="all callers have one address; one for each request under way, 12 KB each without TLS",
)
ADMISSION_CONNECTIONS = declare_budget(
    "service.limits.admission_connections",
    unit="connections to the webhook's listener",
    total=1_920,
    most_each=1_024,
    why="one for each review under way, some 600 from each of three API servers; 31 to 145 KB each, 280 MB at most",
)
SCHEDULER_BODIES = declare_budget(
    "service.limits.scheduler_bodies",
    unit="bytes of bodies to the scheduler's listener",
    total=SCHEDULER_BODY_BYTES + 32 * MIB,
    most_each=SCHEDULER_BODY_BYTES + 16 * MIB,
    why="the largest request with whole nodes, 128,000,000 bytes, beside those with names",
)
ADMISSION_BODIES = declare_budget(
    "service.limits.admission_bodies",
    unit="bytes of bodies to the webhook's listener",
    total=48 * MIB,
    most_each=24 * MIB,
    why="300 incomplete reviews of 40 KB from each of two API servers, with 32 KiB of buffers each",
)


def scheduler_limits(config: Config) -> Limits:
    """The limits of the listener of the scheduler verbs."""
    bodies = BodyLimits(budget=SCHEDULER_BODIES, request_bytes=SCHEDULER_BODY_BYTES, seconds=BODY_SECONDS)
    proof = Proof.CERTIFICATE if is_mutual(config.scheduler.tls) else Proof.NONE
    if is_loopback(config.scheduler.listen):
        return Limits(connections=LOOPBACK_CONNECTIONS, proof=Proof.ADDRESS, bodies=bodies)
    return Limits(connections=SCHEDULER_CONNECTIONS, proof=proof, bodies=bodies)


def admission_limits(config: Config) -> Limits:
    """The limits of the webhook's listener."""
    proof = Proof.CERTIFICATE if is_mutual(config.admission.tls) else Proof.NONE
    return Limits(
        connections=ADMISSION_CONNECTIONS,
        proof=proof,
        bodies=BodyLimits(
            budget=ADMISSION_BODIES,
            request_bytes=ADMISSION_BODY_BYTES,
            seconds=BODY_SECONDS,
            buffers_bytes=BUFFERS_BYTES if config.admission.tls else 0,
        ),
    )


def is_mutual(tls: TlsConfig | None) -> bool:
    """Whether only callers with a certificate of a known authority can connect."""
    return bool(tls and tls.client_ca)
