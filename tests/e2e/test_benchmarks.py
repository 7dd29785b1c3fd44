"""The benchmarks still run and say what they promise, and the Go extenders they measure against answer as ours does.

They are here because the Go extenders must be built, as the control plane must.
"""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import latency, payloads, webhook
from benchmarks.contenders import (
    NULL,
    OURS,
    TYPED,
    Contenders,
    Disagreement,
    chosen,
    contenders,
)
from benchmarks.loopback import ask_once
from benchmarks.reference.programs import Programs, find_programs
from benchmarks.report import Table
from benchmarks.wrk import find_wrk

NODES = 40
WINDOW = payloads.Window(NODES)
FEWER = 40  # a twentieth of a second for each server and question


@pytest.fixture(scope="session")
def programs() -> Programs:
    return find_programs()


@pytest.fixture(scope="session")
def wrk() -> Path:
    return find_wrk()


@pytest.fixture(scope="module")
def running(programs: Programs) -> Iterator[Contenders]:
    del programs
    with contenders(nodes=NODES) as found:
        yield found


def rows(*tables: Table) -> list[float]:
    """All figures of the tables, every cell of which must be one."""
    return msgspec.convert([cell for table in tables for row in table.rows for cell in row[1:]], list[float])


def preemption(pod: dict[str, Any], *, by_uid: bool) -> bytes:
    """ExtenderPreemptionArgs with one victim on each of four nodes, named by uid or whole."""
    names = [payloads.node_name(index) for index in range(4)]
    meta = {name: {"Pods": [{"UID": f"uid of {name}"}], "NumPDBViolations": 1} for name in names}
    whole = {
        name: {"Pods": [{"metadata": {"name": "victim", "uid": f"uid of {name}"}}], "NumPDBViolations": 1}
        for name in names
    }
    victims = {"NodeNameToVictims": None, "NodeNameToMetaVictims": meta}
    return msgspec.json.encode(
        {"Pod": pod, **(victims if by_uid else {**victims, "NodeNameToVictims": whole, "NodeNameToMetaVictims": None})}
    )


BUILDS = (payloads.by_names, payloads.by_nodes)


def test_the_typed_go_extender_decides_as_we_do(running: Contenders) -> None:
    """The same nodes pass, the same ones are refused, the same scores are given: it does the same work."""
    for build, images, verb in itertools.product(BUILDS, (running.multi, running.single), ("filter", "prioritize")):
        body, is_multi = build(payloads.pod(images), WINDOW), images == running.multi
        ours, theirs = (ask_once(f"{running.urls[name]}/scheduler/{verb}", body) for name in (OURS, TYPED))
        assert chosen(ours) == chosen(theirs)
        if verb == "filter":
            refused = [set(msgspec.json.decode(each)["FailedAndUnresolvableNodes"] or {}) for each in (ours, theirs)]
            assert refused[0] == refused[1]
            assert len(refused[0]) == (0 if is_multi else NODES // 2)
            assert len(chosen(theirs)) + len(refused[1]) == NODES
        else:
            assert len(chosen(theirs)) == (NODES // 2 if is_multi else 0)


def test_the_typed_go_extender_preempts_as_we_do(running: Contenders) -> None:
    """Victims on nodes that the pod cannot run on are spared, whichever way they are named."""
    for by_uid, (images, kept) in itertools.product((True, False), ((running.multi, 4), (running.single, 2))):
        body = preemption(payloads.pod(images), by_uid=by_uid)
        ours, theirs = (
            msgspec.json.decode(ask_once(f"{running.urls[name]}/scheduler/preempt", body)) for name in (OURS, TYPED)
        )
        assert ours == theirs
        assert len(theirs["NodeNameToMetaVictims"]) == kept


def test_the_null_extender_refuses_nothing(running: Contenders) -> None:
    """Its answers are the request's own list, in the request's form, and no scores."""
    for build, images in itertools.product(BUILDS, (running.multi, running.single)):
        body = build(payloads.pod(images), WINDOW)
        args = msgspec.json.decode(body)
        answer = msgspec.json.decode(ask_once(f"{running.urls[NULL]}/scheduler/filter", body))
        assert answer == {key: args[key] for key in ("Nodes", "NodeNames") if args[key]}
        assert ask_once(f"{running.urls[NULL]}/scheduler/prioritize", body) == b"[]"


def test_contenders_that_disagree_are_not_compared(running: Contenders) -> None:
    """A node that is in no view is refused by ours alone."""
    body = payloads.by_names(payloads.pod(running.single), payloads.Window(2)).replace(
        payloads.node_name(1).encode(), b"somewhere-else"
    )
    with pytest.raises(Disagreement, match="ours and the Go extender differ"):
        running.check("/scheduler/filter", body)


@pytest.mark.slow
def test_latency_still_runs(programs: Programs, wrk: Path) -> None:
    """Every verb and size has its row with positive figures, and the claims stand against their marks."""
    report = latency.run(fewer=FEWER, few=10, many=20, whole=4)
    assert report.machine is not None
    assert report.machine.others == {"go": programs.go_version}
    assert len(report.tables[0].rows) == 12
    assert len([claim for claim in report.claims if claim.mark]) == 8
    [cost] = [table for table in report.tables if table.title.endswith("of one answer")]
    assert min(rows(cost)) >= 0  # so short a load may take less than the ten milliseconds that are counted
    assert min(rows(*(table for table in report.tables[1:] if table is not cost))) > 0
    assert min(figure for row in report.tables[0].rows for figure in msgspec.convert(row[1:5], list[float])) > 0


@pytest.mark.slow
def test_webhook_still_runs(programs: Programs, wrk: Path) -> None:
    """Multi-arch and amd64-only pods, alike and all different, over TLS and without, beside the webhook in Go."""
    report = webhook.run(fewer=FEWER)
    beside, many, one = report.tables
    assert len(beside.rows) == len(webhook.KINDS) + len(webhook.ALONE)
    assert len(many.rows) == len(webhook.CONTENDERS) * len(webhook.KINDS)
    assert len(one.rows) == len(webhook.CONTENDERS) * len(webhook.ALONE)
    assert min(rows(one)) > 0
    assert min(rows(many)) >= 0  # so short a load may take less than the ten milliseconds that are counted
    assert min(claim.value for claim in report.claims) > 0
