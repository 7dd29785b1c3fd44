"""Our service and the extenders that it is measured against, started with the same data and checked for equal answers.

It configures each with nodes and images and compares their answers; other files measure them.
"""

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from benchmarks import payloads
from benchmarks.cores import cores
from benchmarks.loopback import ask_once
from benchmarks.measured_servers import serve, serve_go
from benchmarks.reference.programs import find_programs
from benchmarks.wrk import Target

OURS, TYPED, NULL, FLOOR = "ours", "typed Go", "null Go", "aiohttp floor"


class Disagreement(RuntimeError):
    """Two extenders pass different nodes or score them differently, so their speed cannot be compared."""


class Contenders(msgspec.Struct, frozen=True):
    """The base URL of each contender, and its process.

    `multi` are a pod's images that run on every node, `single` those that run on half.
    """

    urls: Mapping[str, str]
    pids: Mapping[str, int]
    multi: tuple[str, ...]
    single: tuple[str, ...]
    go_version: str

    def targets(self, path: str, body: bytes, *names: str) -> dict[str, Target]:
        """Returns the same request for each of `names`, or for all contenders without names."""
        return {name: Target(self.urls[name] + path, [body], self.pids[name]) for name in names or self.urls}

    def check(self, path: str, body: bytes) -> dict[str, int]:
        """Compares the answers of ours and the typed extender; returns the size of each contender's answer in bytes.

        Raises:
            Disagreement: ours and the typed extender differ.
            UnexpectedStatus: an answer is not a 200.
        """
        answers = {name: ask_once(url + path, body) for name, url in self.urls.items()}
        ours, theirs = chosen(answers[OURS]), chosen(answers[TYPED])
        if ours != theirs:
            differing = sorted(set(ours.items()) ^ set(theirs.items()))[:3]
            raise Disagreement(f"{path}: ours and the Go extender differ on {differing}")
        return {name: len(answer) for name, answer in answers.items()}


@contextlib.contextmanager
def contenders(*, nodes: int, null: bool = True) -> Iterator[Contenders]:
    """Runs all contenders on the first core with so many nodes each; `null` and floor only if `null`.

    Raises:
        BinariesMissing: there is no Go to build the baseline with.
    """
    core, programs = cores().server, find_programs()
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(serve("service", core=core, nodes=nodes))
        multi, sidecar, single = (f"{ours['registry']}/bench/{name}:1" for name in ("multi", "sidecar", "single"))
        typed = stack.enter_context(
            serve_go(
                programs.typed,
                core=core,
                nodes={payloads.node_name(index): payloads.architecture(index) for index in range(nodes)},
                images={multi: payloads.ARCHITECTURES, sidecar: payloads.ARCHITECTURES, single: ["amd64"]},
            )
        )
        urls = {OURS: ours["scheduler"], TYPED: typed["address"]}
        pids = {OURS: ours.pid, TYPED: typed.pid}
        if null:
            others = {NULL: serve_go(programs.null, core=core), FLOOR: serve("floor", core=core)}
            servers = {name: stack.enter_context(server) for name, server in others.items()}
            urls |= {NULL: servers[NULL]["address"], FLOOR: servers[FLOOR]["url"]}
            pids |= {name: server.pid for name, server in servers.items()}
        yield Contenders(urls, pids, (multi, sidecar), (single,), programs.go_version)


def chosen(answer: bytes) -> Mapping[str, int]:
    """Returns what an answer decides: the nodes that pass a filter, each with 0, or the scores other than 0.

    Raises:
        Disagreement: the answer is an error.
    """
    found: Any = msgspec.json.decode(answer)
    if isinstance(found, list):
        return {score["Host"]: score["Score"] for score in found if score["Score"]}
    if found.get("Error"):
        raise Disagreement(found["Error"])
    names = found.get("NodeNames")
    if names is None:
        names = [node["metadata"]["name"] for node in found["Nodes"]["items"]]
    return dict.fromkeys(names, 0)
