"""The benchmarks still run and say what they promise, and the Go extenders they measure against answer as ours does.

They are here because the Go extenders must be built, as the control plane must.
"""

import contextlib
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import msgspec
import pytest

from benchmarks import growth, latency, payloads, webhook
from benchmarks.contenders import NULL, OURS, TYPED, Contenders, Disagreement, chosen, contenders
from benchmarks.cores import cores, pinned
from benchmarks.loopback import UnexpectedStatus, ask_once
from benchmarks.measured_servers import serve, serve_go
from benchmarks.reference.programs import Programs, find_programs
from benchmarks.report import Table
from benchmarks.wrk import SERIAL, LoadFailed, find_wrk, load
from testbed.child import ServerFailed

NODES = 40
FEWER = 40  # a twentieth of a second for each server and question


@pytest.fixture(scope="session")
def programs() -> Programs:
    """The Go extenders, built if need be."""
    return find_programs()


@pytest.fixture(scope="session")
def wrk() -> Path:
    """The program that makes the load."""
    return find_wrk()


@pytest.fixture(scope="module")
def running(programs: Programs) -> Iterator[Contenders]:
    """All contenders, which know NODES nodes."""
    del programs
    with contenders(nodes=NODES) as found:
        yield found


def rows(*tables: Table) -> list[float]:
    """All figures of the tables, every cell of which must be one."""
    return msgspec.convert([cell for table in tables for row in table.rows for cell in row[1:]], list[float])


@contextlib.contextmanager
def recording_server(bodies: list[bytes], good_answers: float = math.inf) -> Iterator[str]:
    """The URL of a server that notes bodies, answers so many of them with a 200 and all others with a 500."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200 if len(bodies) <= good_answers else 500)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_request(self, *_: object) -> None:
            """Nothing: that is what it is for."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/recording"
        finally:
            server.shutdown()
            thread.join()


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


@pytest.mark.parametrize("build", [payloads.by_names, payloads.by_nodes], ids=["names", "nodes"])
@pytest.mark.parametrize("kind", ["multi", "single"])
@pytest.mark.parametrize("verb", ["filter", "prioritize"])
def test_the_typed_go_extender_decides_as_we_do(running: Contenders, build: Any, kind: str, verb: str) -> None:
    """The same nodes pass, the same ones are refused, the same scores are given: it does the same work."""
    body = build(running.multi if kind == "multi" else running.single, NODES)
    ours, theirs = (ask_once(f"{running.urls[name]}/scheduler/{verb}", body) for name in (OURS, TYPED))
    assert chosen(ours) == chosen(theirs)
    if verb == "filter":
        refused = [set(msgspec.json.decode(answer)["FailedAndUnresolvableNodes"] or {}) for answer in (ours, theirs)]
        assert refused[0] == refused[1]
        assert len(refused[0]) == (0 if kind == "multi" else NODES // 2)
        assert len(chosen(theirs)) + len(refused[1]) == NODES
    else:
        assert len(chosen(theirs)) == (NODES // 2 if kind == "multi" else 0)


@pytest.mark.parametrize("by_uid", [True, False])
@pytest.mark.parametrize(("kind", "kept"), [("multi", 4), ("single", 2)])
def test_the_typed_go_extender_preempts_as_we_do(running: Contenders, kind: str, kept: int, by_uid: bool) -> None:
    """Victims on nodes that the pod cannot run on are spared, whichever way they are named."""
    body = preemption(payloads.pod(running.multi if kind == "multi" else running.single), by_uid=by_uid)
    ours, theirs = (
        msgspec.json.decode(ask_once(f"{running.urls[name]}/scheduler/preempt", body)) for name in (OURS, TYPED)
    )
    assert ours == theirs
    assert len(theirs["NodeNameToMetaVictims"]) == kept


@pytest.mark.parametrize("build", [payloads.by_names, payloads.by_nodes], ids=["names", "nodes"])
@pytest.mark.parametrize("kind", ["multi", "single"])
def test_the_null_extender_refuses_nothing(running: Contenders, build: Any, kind: str) -> None:
    """Its answers are the request's own list, in the request's form, and no scores."""
    body = build(running.multi if kind == "multi" else running.single, NODES)
    args = msgspec.json.decode(body)
    answer = msgspec.json.decode(ask_once(f"{running.urls[NULL]}/scheduler/filter", body))
    assert answer == {key: args[key] for key in ("Nodes", "NodeNames") if args[key]}
    assert ask_once(f"{running.urls[NULL]}/scheduler/prioritize", body) == b"[]"


def test_the_null_extender_is_not_misled_by_a_pod(running: Contenders) -> None:
    """Labels may be called as the protocol's keys are, and annotations may hold a whole request."""
    pod = payloads.pod(running.multi)
    pod["metadata"]["labels"] = {"A": "b", "Nodes": "n", "NodeNames": "n"}
    pod["metadata"]["annotations"] = {"a": '{"Pod":{},"Nodes":null,"NodeNames":["n"]}'}
    body = msgspec.json.encode({"Pod": pod, "Nodes": None, "NodeNames": ["one", "two"]})
    assert msgspec.json.decode(ask_once(f"{running.urls[NULL]}/scheduler/filter", body)) == {
        "NodeNames": ["one", "two"]
    }


def test_the_null_extender_keeps_every_victim(running: Contenders) -> None:
    """Those that are named by uid, as kube-scheduler does with nodeCacheCapable."""
    body = preemption(payloads.pod(running.single), by_uid=True)
    answer = msgspec.json.decode(ask_once(f"{running.urls[NULL]}/scheduler/preempt", body))
    assert answer == {"NodeNameToMetaVictims": msgspec.json.decode(body)["NodeNameToMetaVictims"]}


def test_contenders_that_disagree_are_not_compared(running: Contenders) -> None:
    """A node that only one of them knows is arm64 is refused by that one alone."""
    body = payloads.by_names(running.single, 2).replace(payloads.node_name(1).encode(), b"somewhere-else")
    assert running.check("/scheduler/filter", body)
    with serve("service", core=cores().server, nodes=1) as fewer:
        other = msgspec.structs.replace(
            running,
            urls={**running.urls, OURS: fewer["scheduler"]},
            single=(f"{fewer['registry']}/bench/single:1",),
        )
        with pytest.raises(Disagreement, match="ours and the Go extender differ"):
            other.check("/scheduler/filter", payloads.by_names(running.single, 2))


def test_a_load_counts_what_was_answered(wrk: Path) -> None:
    """Every answer has a latency; of several bodies all are sent; over TLS as well."""
    del wrk
    with serve("service", core=cores().server, nodes=2, tls=True) as service:
        images = (f"{service['registry']}/bench/multi:1",)
        bodies = [payloads.review(images, serial=SERIAL, template=f"{number:08}") for number in range(4)]
        found = load(f"{service['admission']}/admission/pods", bodies, connections=2, seconds=0.2, core=cores().load)
    assert found.requests > 0
    assert sum(found.latencies.values()) == found.requests
    assert 0 < found.p50 <= found.p99 <= found.p999
    assert found.seconds >= 0.2


def test_a_load_with_a_refused_body_fails(wrk: Path, running: Contenders) -> None:
    """What is not a 200 is not measured, be it all answers or one of two."""
    del wrk
    url = f"{running.urls[OURS]}/scheduler/filter"
    for bodies in (b"{", [payloads.by_names(running.multi, 2), b"{"]):
        with pytest.raises(UnexpectedStatus, match=r"not a 200: b'HTTP/1\.1 400 "):
            load(url, bodies, connections=1, seconds=0.1, core=cores().load)


def test_every_request_of_a_load_is_one_of_its_own(wrk: Path) -> None:
    """All bodies are sent, and the number in them is never the same, also not in another run."""
    del wrk
    seen: list[bytes] = []
    with recording_server(seen) as url:
        for _ in range(2):
            load(
                url,
                [f'["{kind}", "{SERIAL}"]'.encode() for kind in "abc"],
                connections=2,
                seconds=0.1,
                core=cores().load,
            )
    sent = [msgspec.json.decode(body, type=tuple[str, str]) for body in seen]
    assert {kind for kind, _ in sent} == set("abc")
    assert len({number for _, number in sent}) == len(sent)
    assert {len(number) for _, number in sent} == {8}


def test_a_server_that_goes_bad_spoils_the_load(wrk: Path) -> None:
    """wrk's own count of errors is read: here they begin after the warm-up, whose answers are looked at one by one."""
    del wrk
    with recording_server([], good_answers=1) as url, pytest.raises(LoadFailed, match=r"[1-9]\d* of status"):
        load(url, b"{}", connections=1, seconds=0.0, core=cores().load)


def test_a_server_that_does_not_come_up_is_told(programs: Programs) -> None:
    """Instead of waiting for its address for ever."""
    with pytest.raises(ServerFailed, match="before it listened"), serve_go(programs.typed, core=cores().server):
        pass


def test_servers_run_on_their_core_and_end_with_the_context(programs: Programs) -> None:
    """And we are back on all of ours."""
    before = os.sched_getaffinity(0)
    core = cores().server
    with serve_go(programs.null, core=core) as go, serve("floor", core=core) as floor:
        assert os.sched_getaffinity(go.pid) == os.sched_getaffinity(floor.pid) == {core}
        assert ask_once(f"{floor['url']}/anything", b"x" * 5_000_000) == b"{}"
    assert os.sched_getaffinity(0) == before
    assert not Path(f"/proc/{go.pid}").exists()
    assert not Path(f"/proc/{floor.pid}").exists()
    with pytest.raises(ZeroDivisionError), pinned(core):
        1 / 0  # noqa: B018
    assert os.sched_getaffinity(0) == before


def test_the_service_has_the_images_that_it_is_told_of(programs: Programs) -> None:
    """They are known at its start, without a registry: a pod of the last one is patched."""
    del programs
    with serve("service", core=cores().server, nodes=2, images=1_200) as service:
        body = payloads.review((payloads.resident_image(1_199),))
        answer = msgspec.json.decode(ask_once(f"{service['admission']}/admission/pods", body))
    assert answer["response"]["allowed"]
    assert answer["response"]["patch"]


def test_latency_still_runs(programs: Programs, wrk: Path) -> None:
    """Every verb and size has its row with positive figures, and the claims stand against their marks."""
    report = latency.run(fewer=FEWER, few=10, many=20, whole=4)
    assert report.machine is not None
    assert report.machine.others == {"go": programs.go_version}
    assert [row[0] for row in report.tables[0].rows] == [
        "filter, 10 names, none refused",
        "filter, 10 names, half refused",
        "filter, 20 names, none refused",
        "filter, 20 names, half refused",
        "filter, 4 whole nodes, none refused",
        "filter, 4 whole nodes, half refused",
        "prioritize, 10 names",
        "prioritize, 20 names",
    ]
    marks = [claim.mark for claim in report.claims]
    assert marks == ["≥ 1.5", "", "≥ 4", "≥ 3", "≥ 6", "", "≤ 1.5", "≤ 1.5", "≤ 0.06"]
    assert min(rows(*report.tables)) > 0
    assert len({plot.name for plot in report.plots}) == len(report.plots)


def test_webhook_still_runs(wrk: Path) -> None:
    """Patched and unpatched pods, alike and all different, over TLS and without, beside the two baselines."""
    report = webhook.run(fewer=FEWER)
    throughput, many, one = report.tables
    assert [row[0] for row in throughput.rows] == [kind.name for kind in webhook.KINDS]
    assert len(many.rows) == 4 * len(webhook.KINDS)
    assert len(one.rows) == 4 * 2
    assert min(rows(*report.tables)) > 0
    assert min(claim.value for claim in report.claims) > 0
    marks = [*["≥ 0.6"] * 2, *["≥ 0.7"] * 4, *("≤ 0.2", "≤ 0.6") * 2]
    assert [claim.mark for claim in report.claims if claim.mark] == marks


def test_growth_still_runs(programs: Programs, wrk: Path) -> None:
    """A row for each size, a line for each series, and the claim about the cost of a name."""
    report = growth.run(fewer=FEWER, nodes=(4, 8), images=(10, 20))
    names, lines, images, _ = report.tables
    assert [row[0] for row in names.rows] == ["4", "8"]
    assert [row[0] for row in images.rows] == ["10", "20"]
    assert [row[0] for row in lines.rows] == list(names.columns[1:])
    assert min(rows(names, images)) > 0
    assert [claim.mark for claim in report.claims if claim.mark] == ["≤ 0.06"]
    assert [[len(line.points) for line in plot.lines] for plot in report.plots] == [[2] * 6, [2] * 2]


def test_without_go_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    """Exit status 1, no traceback."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", "latency", f"--out={tmp_path / 'out'}"],
        env={"HOME": str(tmp_path), "PATH": str(tmp_path)},
        cwd=Path(latency.__file__).parents[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr.splitlines() == [
        "latency …",
        "latency: typed and null must be built once, which needs Go 1.26 or later on the PATH",
    ]
