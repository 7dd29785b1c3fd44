"""How many pods a second does the webhook admit on one core?

Compared over TLS, which is all that the API server speaks, with `Go webhook`: written as those on controller-runtime
are, it decodes typed objects and makes the same change (reference/webhook). Compared also with two minimal aiohttp
servers: `application` is the Application with router and handler of its tutorial, `aiohttp floor` its low-level server;
both read the body and answer two bytes. Every pod is new. Pods are measured as in a cluster, many of few templates, and
with all that decides new.
"""

import base64
import contextlib
import enum
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks import payloads
from benchmarks.cores import cores
from benchmarks.loopback import ask_once
from benchmarks.measured_servers import MeasuredServer, serve, serve_go
from benchmarks.reference.programs import find_programs
from benchmarks.report import Claim, Line, Plot, Report, Table, this_machine
from benchmarks.wrk import SERIAL, Load, LoadFailed, Target, take_turns

QUESTION = "How many pods a second does the webhook admit on one core?"
SECONDS, ROUNDS = 2.0, 3
CONNECTIONS = 16
TEMPLATES = 64
PATH = "/admission/pods"
OURS, TLS, GO = "ours", "ours, TLS", "Go webhook, TLS"
APPLICATION, APPLICATION_TLS, FLOOR = "application", "application, TLS", "aiohttp floor"
CONTENDERS = (OURS, TLS, GO, APPLICATION, APPLICATION_TLS, FLOOR)
TOLERATIONS = [
    {"key": key, "operator": "Equal", "value": value, "effect": "NoSchedule"}
    for key, value in (("kubernetes.io/arch", "arm64"), ("arch", "arm64"))
]


class Likeness(enum.StrEnum):
    """What the pods of a load have in common."""

    TEMPLATES = f"{TEMPLATES} templates"
    NOTHING = "all that decides differs"


LEAST = {Likeness.TEMPLATES: 2.0, Likeness.NOTHING: 1.5}
"""The bounds of the claims: requests per second of ours / the webhook in Go, both over TLS."""


class Kind(msgspec.Struct, frozen=True):
    """A kind of pods. If `patched`, every image is multi-arch."""

    patched: bool
    likeness: Likeness = Likeness.TEMPLATES

    @property
    def name(self) -> str:
        """The kind's name in the table."""
        return f"{'patched' if self.patched else 'unpatched'}, {self.likeness}"

    def bodies(self, registry: str) -> list[bytes]:
        """Returns reviews of pods with two containers, whose images are in the registry."""
        images = (f"{registry}/bench/{'multi' if self.patched else 'single'}:1", f"{registry}/bench/sidecar:1")
        if self.likeness is not Likeness.TEMPLATES:
            return [payloads.review(images, serial=SERIAL, template=SERIAL, pool=SERIAL)]
        templates = [f"{number:08}" for number in range(TEMPLATES)]
        return [payloads.review(images, serial=SERIAL, template=template) for template in templates]


KINDS = tuple(Kind(patched, likeness) for likeness in Likeness for patched in (True, False))


class Running(msgspec.Struct, frozen=True):
    """The URLs of the servers to measure, by contender; the two services have a registry each."""

    servers: Mapping[str, MeasuredServer]

    def targets(self, kind: Kind) -> dict[str, Target]:
        """Returns requests with pods of that kind for each contender."""
        plain, secure = (kind.bodies(self.servers[name]["registry"]) for name in (OURS, TLS))
        urls = {OURS: self.servers[OURS]["admission"], TLS: self.servers[TLS]["admission"]}
        urls |= {GO: self.servers[GO]["address"]}
        urls |= {name: self.servers[name]["url"] for name in (APPLICATION, APPLICATION_TLS, FLOOR)}
        return {
            name: Target(url + PATH, secure if name in (TLS, GO) else plain, self.servers[name].pid)
            for name, url in urls.items()
        }


def run(*, fewer: int = 1) -> Report:
    """Returns the report: throughput and costs over 16 connections, latency over one.

    Raises:
        BinariesMissing: there is no Go to build the webhook to compare with.
    """
    with _running() as running:
        targets = {kind: running.targets(kind) for kind in KINDS}
        for kind, found in targets.items():
            _check(kind, found)
        many = {kind: _measure(found, CONNECTIONS, fewer) for kind, found in targets.items()}
        alike = {kind: found for kind, found in targets.items() if kind.likeness is Likeness.TEMPLATES}
        one = {kind: _measure(found, 1, fewer) for kind, found in alike.items()}
    return Report(
        name="webhook",
        question=QUESTION,
        tables=[
            _throughput(many),
            _spent(many),
            _latency(f"milliseconds over {CONNECTIONS} connections", many),
            _latency("milliseconds over one connection", one),
        ],
        claims=[*_ratios(many), *_latencies(one)],
        plots=[_bars(many)],
        notes=_notes(len(targets[KINDS[0]][OURS].bodies[0]), fewer),
        machine=this_machine(),
    )


def _notes(body_bytes: int, fewer: int) -> list[str]:
    turns = f"{max(ROUNDS // fewer, 1)} turns of {SECONDS / fewer:g} s each, one server after another"
    return [
        f"reviews of {body_bytes:,} bytes, two containers each, name and uid of every pod its own",
        f"{turns}; every answer a 200",
    ]


@contextlib.contextmanager
def _running() -> Iterator[Running]:
    core, program = cores().server, find_programs().webhook
    with (
        serve("service", core=core) as ours,
        serve("service", core=core, tls=True) as secure,
        serve_go(program, core=core, images=_images(secure["registry"]), tolerations=TOLERATIONS, tls=True) as go,
        serve("application", core=core) as application,
        serve("application", core=core, tls=True) as application_tls,
        serve("floor", core=core) as floor,
    ):
        yield Running(
            {OURS: ours, TLS: secure, GO: go, APPLICATION: application, APPLICATION_TLS: application_tls, FLOOR: floor}
        )


def _images(registry: str) -> Mapping[str, Sequence[str]]:
    """Returns the architectures of the images of that registry, which `python_servers` fills."""
    names = {"multi": payloads.ARCHITECTURES, "sidecar": payloads.ARCHITECTURES, "single": ("amd64",)}
    return {f"{registry}/bench/{name}:1": architectures for name, architectures in names.items()}


def _check(kind: Kind, targets: Mapping[str, Target]) -> None:
    """Checks that all webhooks allow the pod, with added tolerations if and only if its images are multi-arch."""
    for name in (OURS, TLS, GO):
        answer: Any = msgspec.json.decode(ask_once(targets[name].url, targets[name].bodies[-1]))
        patch = base64.b64decode(answer["response"].get("patch", ""))
        if not answer["response"]["allowed"] or (b"toleration" in patch) is not kind.patched:
            raise LoadFailed(f"{name}, {kind.name}: not what should be measured: {answer}")


def _measure(targets: Mapping[str, Target], connections: int, fewer: int) -> dict[str, Load]:
    return take_turns(
        targets,
        connections=connections,
        seconds=SECONDS / fewer,
        rounds=max(ROUNDS // fewer, 1),
        core=cores().load,
    )


def _spent(measured: Mapping[Kind, Mapping[str, Load]]) -> Table:
    return Table(
        f"one review over {CONNECTIONS} connections",
        ["pods", "microseconds of CPU", "page faults"],
        [
            [f"{kind.name}: {name}", round(loads[name].cpu_microseconds), round(loads[name].page_faults, 2)]
            for kind, loads in measured.items()
            for name in CONTENDERS
        ],
    )


def _throughput(measured: Mapping[Kind, Mapping[str, Load]]) -> Table:
    return Table(
        f"requests per second over {CONNECTIONS} connections",
        ["pods", *CONTENDERS, "ours / Go", "ours / application", "over TLS", "ours / floor"],
        [
            [
                kind.name,
                *(round(loads[name].requests_per_second) for name in CONTENDERS),
                _times(loads, TLS, GO),
                _times(loads, OURS, APPLICATION),
                _times(loads, TLS, APPLICATION_TLS),
                _times(loads, OURS, FLOOR),
            ]
            for kind, loads in measured.items()
        ],
    )


def _latency(title: str, measured: Mapping[Kind, Mapping[str, Load]]) -> Table:
    return Table(
        title,
        ["pods", "p50", "p99", "p99.9", "answers"],
        [
            [f"{kind.name}: {name}", loads[name].p50, loads[name].p99, loads[name].p999, loads[name].requests]
            for kind, loads in measured.items()
            for name in CONTENDERS
        ],
    )


def _ratios(measured: Mapping[Kind, Mapping[str, Load]]) -> Iterator[Claim]:
    for kind, loads in measured.items():
        what = f"{kind.name}: requests per second of ours"
        yield Claim(what=f"{what} / Go webhook, over TLS", value=_times(loads, TLS, GO), at_least=LEAST[kind.likeness])
        yield Claim(what=f"{what} / application, over TLS", value=_times(loads, TLS, APPLICATION_TLS))
        yield Claim(what=f"{what} / application", value=_times(loads, OURS, APPLICATION))
        yield Claim(what=f"{what} / aiohttp floor", value=_times(loads, OURS, FLOOR))


def _latencies(measured: Mapping[Kind, Mapping[str, Load]]) -> Iterator[Claim]:
    for kind, loads in measured.items():
        what = f"{kind.name}: one connection"
        yield Claim(what=f"{what}, p50", value=loads[OURS].p50, unit="ms", at_most=0.2)
        yield Claim(what=f"{what}, p99", value=loads[OURS].p99, unit="ms", at_most=0.6)


def _times(loads: Mapping[str, Load], one: str, other: str) -> float:
    return loads[one].requests_per_second / loads[other].requests_per_second


def _bars(measured: Mapping[Kind, Mapping[str, Load]]) -> Plot:
    loads = measured[KINDS[0]]
    return Plot(
        name="webhook-throughput",
        title=f"webhook on one core, {CONNECTIONS} connections ({KINDS[0].name})",
        x_label="",
        y_label="requests per second",
        lines=_points(loads),
        bars=True,
    )


def _points(loads: Mapping[str, Load]) -> Sequence[Line]:
    return [Line(name, [(0, round(loads[name].requests_per_second))]) for name in CONTENDERS]
