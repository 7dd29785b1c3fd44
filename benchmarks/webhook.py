"""What does a review cost beside Go: how many pods a second does the webhook admit on one core?

Compared over TLS, which is all that the API server speaks, with `Go webhook`: written as those on controller-runtime
are, it decodes typed objects and makes the same change (reference/webhook). Every pod is new. They are of 64 templates,
as in a cluster, of one, of 1,000, and such that all that decides is new.
"""

import base64
import contextlib
import enum
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from benchmarks import payloads
from benchmarks.contenders import (
    MOST_TEMPLATES,
    MULTI,
    SIDECAR,
    SINGLE,
    image,
    images_of,
    near_registry,
    of_template,
    serve,
    serve_go,
)
from benchmarks.cores import cores
from benchmarks.loopback import ask_once
from benchmarks.reference.programs import find_programs
from benchmarks.report import Cell, Claim, Report, Table, this_machine
from benchmarks.wrk import SERIAL, Load, LoadFailed, Target, take_turns

QUESTION = "What does a review cost beside Go?"
SECONDS, ROUNDS = 2.0, 3
CONNECTIONS = 16
TEMPLATES = 64
PATH = "/admission/pods"
OURS, TLS, GO = "ours", "ours, TLS", "Go webhook, TLS"
CONTENDERS = (OURS, TLS, GO)
TOLERATIONS = [
    {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
    for key, value in (("kubernetes.io/arch", "arm64"), ("arch", "arm64"))
]
Loads = Mapping["Kind", Mapping[str, Load]]


class Likeness(enum.StrEnum):
    """What the pods of a load have in common."""

    TEMPLATES = f"{TEMPLATES} templates"
    TEMPLATE = "1 template"
    MANY = f"{MOST_TEMPLATES:,} templates"
    NOTHING = "all that decides differs"


NUMBERS = {Likeness.TEMPLATES: TEMPLATES, Likeness.TEMPLATE: 1, Likeness.MANY: MOST_TEMPLATES}
LEAST = {Likeness.NOTHING: 1.5}
"""The bounds of the claims: requests per second of ours / the webhook in Go, both over TLS; 2 for others."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of pods. If `multi`, every image is multi-arch, else one is for amd64 alone."""

    multi: bool
    likeness: Likeness = Likeness.TEMPLATES

    @property
    def name(self) -> str:
        """The kind's name in the table."""
        return f"{'multi-arch' if self.multi else 'amd64-only'}, {self.likeness}"

    def bodies(self, multi: str, sidecar: str, single: str) -> list[bytes]:
        """Returns reviews of pods with two containers of these images."""
        images = (multi if self.multi else single, sidecar)
        if self.likeness is Likeness.NOTHING:
            return [payloads.review(images, serial=SERIAL, template=SERIAL, pool=SERIAL)]
        return [
            payloads.review(of_template(images, number), serial=SERIAL, template=f"{number:08}")
            for number in range(NUMBERS[self.likeness])
        ]


ALONE = (Kind(multi=True), Kind(multi=False))
"""Those that are measured over one connection too."""
KINDS = (
    *ALONE,
    *(Kind(multi=True, likeness=each) for each in (Likeness.TEMPLATE, Likeness.MANY, Likeness.NOTHING)),
)


def run(*, fewer: int = 1) -> Report:
    """Returns the report: throughput and costs over 16 connections, latency over one.

    Raises:
        BinariesMissing: there is no Go to build the webhook to compare with.
    """
    with _running() as targets:
        for kind, found in targets.items():
            _check(kind, found)
        many = {kind: _measure(found, CONNECTIONS, fewer) for kind, found in targets.items()}
        one = {kind: _measure(targets[kind], 1, fewer) for kind in ALONE}
    body_bytes = len(targets[KINDS[0]][OURS].bodies[0])
    turns = f"{max(ROUNDS // fewer, 1)} turns of {SECONDS / fewer:g} s each, one server after another"
    return Report(
        name="webhook",
        question=QUESTION,
        tables=[
            _beside({CONNECTIONS: many, 1: one}),
            Table(
                f"requests over {CONNECTIONS} connections",
                ["pods", "a second", "microseconds of CPU", "p50 ms", "p99 ms"],
                [
                    [name, load.requests_per_second, load.cpu_microseconds, *_latency(load)]
                    for name, load in _each(many)
                ],
            ),
            Table(
                "requests over one connection",
                ["pods", "p50 ms", "p99 ms", "answers"],
                [[name, *_latency(load), load.requests] for name, load in _each(one)],
            ),
        ],
        claims=[*_ratios(many), *_latencies(one)],
        notes=[
            f"reviews of {body_bytes:,} bytes, two containers each, name and uid of every pod its own",
            f"{turns}; every answer a 200",
        ],
        machine=this_machine(),
    )


@contextlib.contextmanager
def _running() -> Iterator[Mapping[Kind, Mapping[str, Target]]]:
    """Runs the webhooks; yields requests with pods of each kind for each contender."""
    program = find_programs().webhook
    with near_registry() as registry, contextlib.ExitStack() as stack:
        images = images_of(registry)
        first = [image(registry, repository) for repository in (MULTI, SIDECAR, SINGLE)]
        plain, secure = (stack.enter_context(serve(registry, tls=tls)) for tls in (False, True))
        go = stack.enter_context(
            serve_go(program, core=cores().server, images=images, tolerations=TOLERATIONS, tls=True)
        )
        urls = {
            OURS: (plain.urls["admission"], plain.pid),
            TLS: (secure.urls["admission"], secure.pid),
            GO: (go.urls["address"], go.pid),
        }
        yield {
            kind: {name: Target(url + PATH, kind.bodies(*first), pid) for name, (url, pid) in urls.items()}
            for kind in KINDS
        }


def _check(kind: Kind, targets: Mapping[str, Target]) -> None:
    """Checks that all webhooks allow the pod, with added tolerations if and only if its images are multi-arch."""
    for name, target in targets.items():
        answer: Any = msgspec.json.decode(ask_once(target.url, target.bodies[-1]))
        patch = base64.b64decode(answer["response"].get("patch", ""))
        if not answer["response"]["allowed"] or (b"toleration" in patch) is not kind.multi:
            raise LoadFailed(f"{name}, {kind.name}: not what should be measured: {answer}")


def _measure(targets: Mapping[str, Target], connections: int, fewer: int) -> dict[str, Load]:
    return take_turns(
        targets,
        connections=connections,
        seconds=SECONDS / fewer,
        rounds=max(ROUNDS // fewer, 1),
        core=cores().load,
    )


def _each(measured: Loads) -> Iterator[tuple[str, Load]]:
    for kind, loads in measured.items():
        yield from ((f"{kind.name}: {name}", loads[name]) for name in CONTENDERS)


def _beside(measured: Mapping[int, Loads]) -> Table:
    """Returns the table of docs/speed.md."""
    columns = ["reviews over TLS", "ours/s", "Go's/s", "ours / Go", "our CPU µs", "Go's", "our p50 ms", "Go's"]
    rows: list[list[Cell]] = []
    for connections, loads in measured.items():
        for kind, found in loads.items():
            ours, go = found[TLS], found[GO]
            both = [ours.requests_per_second, go.requests_per_second]
            costs = [ours.cpu_microseconds, go.cpu_microseconds, ours.p50, go.p50]
            rows.append([f"{connections} at once, {kind.name}", *both, both[0] / both[1], *costs])
    return Table("What does a review cost beside Go?", columns, rows)


def _latency(load: Load) -> list[Cell]:
    return [load.p50, load.p99]


def _ratios(measured: Loads) -> Iterator[Claim]:
    for kind, loads in measured.items():
        ratio = loads[TLS].requests_per_second / loads[GO].requests_per_second
        what = f"{kind.name}: requests per second of ours / Go webhook, over TLS"
        yield Claim(what=what, value=ratio, at_least=LEAST.get(kind.likeness, 2.0))


def _latencies(measured: Loads) -> Iterator[Claim]:
    for kind, loads in measured.items():
        what = f"{kind.name}: one connection"
        yield Claim(what=f"{what}, p50", value=loads[OURS].p50, unit="ms", at_most=0.2)
        yield Claim(what=f"{what}, p99", value=loads[OURS].p99, unit="ms", at_most=0.6)
